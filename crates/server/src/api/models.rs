//! `GET /v1/models`: the models on this machine that can answer.

use std::sync::Arc;

use async_openai::types::models::{ListModelResponse, Model};
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};

use super::admission::client;
use super::error::{ApiError, Vendor};
use crate::shared::Shared;

pub(super) async fn list(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if let Err(error) = client(&shared, request.headers(), request.extensions()).await {
        return error.response(Vendor::OpenAi);
    }
    let data = shared.app.usable_models().await.into_iter().map(model).collect();
    Json(ListModelResponse { object: "list".to_owned(), data }).into_response()
}

pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    if let Err(error) = client(&shared, request.headers(), request.extensions()).await {
        return error.response(Vendor::OpenAi);
    }
    match shared.app.usable_models().await.contains(&name) {
        true => Json(model(name)).into_response(),
        false => ApiError::no_model(&name).response(Vendor::OpenAi),
    }
}

/// When a model was made is not known, and whose it is stands in its name.
fn model(id: String) -> Model {
    let owned_by = id.split_once('/').map_or("cairn", |(owner, _)| owner).to_owned();
    Model { id, object: "model".to_owned(), created: 0, owned_by, shutdown_date: None }
}
