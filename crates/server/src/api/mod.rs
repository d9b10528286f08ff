//! The API that other programs speak: OpenAI's and Anthropic's routes under `/v1`.
//!
//! ```text
//! request ─▶ record.rs: the app's list of requests
//!         ─▶ admission.rs: key, room for another answer
//!         ─▶ body.rs: JSON, what Cairn adds
//!         ─▶ chat · completions · responses · messages · decisions · embeddings (one a route)
//!                                                        │ GenerateRequest
//!                                                        ▼
//!            events of the route  ◀── answer.rs ◀── App::complete
//! ```
//! Fields are those that the two vendors document. Unknown ones are ignored; one that is known and
//! cannot be honoured is refused by its name. Errors have each vendor's own form (`error.rs`). A
//! client that goes away has cancelled its answer.

mod admission;
mod answer;
mod body;
mod chat;
mod chat_messages;
mod completions;
mod conversation;
mod decisions;
mod diagnosis;
mod embeddings;
mod error;
mod fault;
mod messages;
mod models;
mod namespaces;
mod openapi;
mod own_fields;
mod record;
mod responses;
mod sampling;
mod stream;
mod thinking;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};

use cairn_app::completion::EngineError;

use crate::request_guard::Refusal;
use crate::shared::Shared;
use error::{ApiError, Vendor};

pub(crate) use diagnosis::AnsweredPrompts;

/// How many answers may be asked for at once; the next one is told to come back later.
pub(crate) const MAX_ANSWERS: usize = 64;

/// The routes. Every one that says or does anything about this machine asks for the key.
pub(crate) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let (recorded, open): (Vec<_>, Vec<_>) =
        routes_by_path().into_iter().partition(|(path, _)| path.starts_with("/v1/"));
    let add = |router: Router<_>, (path, route)| router.route(path, route);
    let router = recorded
        .into_iter()
        .fold(Router::new(), add)
        .method_not_allowed_fallback(wrong_method)
        .route("/v1", any(unknown))
        .route("/v1/", any(unknown))
        .route("/v1/{*path}", any(unknown))
        .route_layer(middleware::from_fn_with_state(shared.clone(), record::keep));
    open.into_iter().fold(router, add).method_not_allowed_fallback(wrong_method)
}

fn routes_by_path() -> [(&'static str, MethodRouter<Arc<Shared>>); 11] {
    [
        ("/v1/models", get(models::list)),
        ("/v1/models/{*name}", get(models::show)),
        ("/v1/chat/completions", post(chat::create)),
        ("/v1/completions", post(completions::create)),
        ("/v1/responses", post(responses::create)),
        ("/v1/messages", post(messages::create)),
        ("/v1/messages/count_tokens", post(messages::count_tokens)),
        ("/v1/decisions", post(decisions::create)),
        ("/v1/embeddings", post(embeddings::create)),
        ("/health", get(health)),
        ("/openapi.json", get(openapi::show)),
    ]
}

/// Says that the server runs; whether a model is loaded is no part of it.
async fn health() -> Response {
    (StatusCode::OK, axum::Json(serde_json::json!({ "status": "ok" }))).into_response()
}

/// The answer to a request that did not pass the checks of every request.
pub(crate) fn refuse(request: &Parts, refusal: Refusal) -> Response {
    ApiError::refused(refusal).response(Vendor::of(request.uri.path()))
}

/// The answer to a request that comes after the server has stopped.
pub(crate) fn refuse_closing(request: &Parts) -> Response {
    ApiError::from(EngineError::Closed).response(Vendor::of(request.uri.path()))
}

/// A new id for a request, in the headers where each vendor's clients look for one.
pub(crate) fn request_id() -> Option<[(HeaderName, HeaderValue); 2]> {
    let id = HeaderValue::try_from(answer::new_id("req_")).ok()?;
    let names = ["x-request-id", "request-id"].map(HeaderName::from_static);
    Some(names.map(|name| (name, id.clone())))
}

async fn wrong_method(request: axum::extract::Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    ApiError::wrong_method(format!("{path} does not take {method}.")).response(Vendor::of(path))
}

/// The answer to a method that no page takes: its client may lack the `/v1` of its address.
pub(crate) async fn outside(request: axum::extract::Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{path} does not take {method}: the API is under /v1.");
    ApiError::wrong_method(message).response(Vendor::of(path))
}

async fn unknown(request: axum::extract::Request) -> Response {
    let path = request.uri().path();
    let message = format!(
        "Cairn has no {} {path}: see its documentation for the routes that it has.",
        request.method()
    );
    ApiError::not_found(message).response(Vendor::of(path))
}
