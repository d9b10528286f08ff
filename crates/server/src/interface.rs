//! The built interface, `ui/dist`, embedded in the program. Debug builds read the folder instead.

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;
use std::sync::Arc;

use crate::shared::Shared;

#[derive(RustEmbed)]
#[folder = "../../ui/dist"]
#[allow_missing = true]
struct Dist;

/// Everything is loaded from this server, and only its own script files are executed. The Trusted
/// Types policies are Svelte's, and the one that parses web pages into documents that do nothing.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; \
    img-src 'self' data: blob:; connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-src 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; \
    trusted-types svelte-trusted-html cairn-documents";

/// Headers of every response, of commands too.
pub(crate) const SECURITY_HEADERS: [(HeaderName, HeaderValue); 6] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// Serves a file of the interface.
pub(crate) async fn file(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    if !shared.serves_interface {
        // Programs ask for the root to see whether a server is there.
        let status = if uri.path() == "/" { StatusCode::OK } else { StatusCode::NOT_FOUND };
        return text(
            status,
            "The interface is not served: start with `cairn serve --ui`. The API is under /v1.",
        );
    }
    let path = match uri.path().trim_start_matches('/') {
        "" => "index.html",
        path => path,
    };
    let Some(file) = Dist::get(path) else {
        let is_built = Dist::get("index.html").is_some();
        return not_found(if is_built {
            "There is no such page."
        } else {
            "The interface is not built yet: run `make app`."
        });
    };
    // Vite puts a content hash into the names of files in assets/; other files keep their names
    // when they change.
    let caching = if path.starts_with("assets/") {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let headers = [
        (header::CONTENT_TYPE, file.metadata.mimetype().to_owned()),
        (header::CACHE_CONTROL, caching.to_owned()),
    ];
    (headers, file.data).into_response()
}

fn not_found(sentence: &'static str) -> Response {
    text(StatusCode::NOT_FOUND, sentence)
}

fn text(status: StatusCode, sentence: &'static str) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, sentence).into_response()
}
