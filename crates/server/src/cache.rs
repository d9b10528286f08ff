//! `GET /api/cache/export` and `POST /api/cache/import`: download and upload of prompt-cache files.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cairn_app::Download;
use cairn_app::wire::{CacheFileLayout, CacheSource, Reply};
use futures_util::{StreamExt, stream};
use percent_encoding::percent_decode_str;
use tokio_util::io::ReaderStream;

use crate::call::{done, failed, refuse};
use crate::shared::Shared;
use crate::upload;

const READ_BYTES: usize = 256 << 10;

/// Sends the saved context of a conversation, or a named prompt cache, as a file.
pub(crate) async fn export(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Err(refusal) = shared.guard.check_token(request.headers()) {
        return refuse(refusal.status(), refusal.sentence());
    }
    let Some((source, layout)) = parse_query(request.uri().query().unwrap_or_default()) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "The query must name what to export: type=conversation or type=named, and its id; layout=0.32 or layout=0.30 may follow.",
        );
    };
    match shared.app.download(source, layout).await {
        Ok(download) => send(download, "prompt-cache.safetensors"),
        Err(failure) => failed(failure),
    }
}

/// Receives a prompt-cache file and answers with a preview of it.
pub(crate) async fn import(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (upload, name) = match upload::receive(&shared, request).await {
        Ok(received) => received,
        Err(refusal) => return refusal,
    };
    match shared.app.finish_upload(upload, &name).await {
        Ok(preview) => done(Reply::ImportPreview { preview }),
        Err(failure) => failed(failure),
    }
}

/// Sends a file. The interface chooses a file name itself; `name` is for other clients.
pub(crate) fn send(download: Download, name: &str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, download.num_bytes.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    // `own_file` removes the temporary file when the stream has been sent and dropped.
    let Download { file, own_file, .. } = download;
    let pieces = stream::unfold(
        (ReaderStream::with_capacity(file, READ_BYTES), own_file),
        |(mut pieces, own_file)| async move {
            let piece = pieces.next().await?;
            Some((piece, (pieces, own_file)))
        },
    );
    (headers, Body::from_stream(pieces)).into_response()
}

/// The value of a name in a query.
pub(crate) fn query_value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(percent_decode_str(value).decode_utf8().ok()?.into_owned())
}

/// Parses a query such as `type=named&id=…`, with `layout=0.30` for mlx-lm 0.30 and 0.31.
fn parse_query(query: &str) -> Option<(CacheSource, CacheFileLayout)> {
    let value = |name: &str| query_value(query, name);
    let id = value("id").filter(|id| !id.is_empty())?;
    let source = match value("type")?.as_str() {
        "conversation" => CacheSource::Conversation { id },
        "named" => CacheSource::Named { id },
        _ => return None,
    };
    let layout = match value("layout").as_deref() {
        None | Some("0.32") => CacheFileLayout::V0_32,
        Some("0.30") => CacheFileLayout::V0_30,
        Some(_) => return None,
    };
    Some((source, layout))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn a_query_names_what_to_export() {
        use CacheFileLayout::{V0_30, V0_32};
        fn check(query: &str, expected: Option<(CacheSource, CacheFileLayout)>) {
            assert_eq!(parse_query(query), expected, "for {query:?}");
        }
        let named = |id: &str| CacheSource::Named { id: id.to_owned() };
        check("type=named&id=a", Some((named("a"), V0_32)));
        check("id=a%2Fb&type=named", Some((named("a/b"), V0_32)));
        let conversation = CacheSource::Conversation { id: "c".to_owned() };
        check("type=conversation&id=c&x", Some((conversation, V0_32)));
        check("type=named&id=a&layout=0.32", Some((named("a"), V0_32)));
        check("layout=0.30&type=named&id=a", Some((named("a"), V0_30)));
        check("type=named&id=a&layout=0.31", None);
        check("type=named&id=a&layout=", None);
        check("", None);
        check("type=named", None);
        check("type=named&id=", None);
        check("type=all&id=a", None);
        check("type=named&id=%ff", None);
    }
}
