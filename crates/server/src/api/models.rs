//! `GET /v1/models`: the models on this machine that can answer, in the form of the vendor whose
//! client asks.

use std::sync::Arc;

use async_openai::types::models::{ListModelResponse, Model};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::admission::client;
use super::error::{ApiError, Vendor};
use crate::shared::Shared;

pub(super) async fn list(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let vendor = Vendor::of_client(request.headers());
    if let Err(error) = client(&shared, request.headers(), request.extensions()).await {
        return error.response(vendor);
    }
    let names = shared.app.usable_models().await;
    match vendor {
        Vendor::OpenAi => {
            let data = names.into_iter().map(openai_model).collect();
            Json(ListModelResponse { object: "list".to_owned(), data }).into_response()
        }
        Vendor::Anthropic => Json(anthropic_list(&names)).into_response(),
    }
}

pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let vendor = Vendor::of_client(request.headers());
    if let Err(error) = client(&shared, request.headers(), request.extensions()).await {
        return error.response(vendor);
    }
    // A name that is no UTF-8 is no model's.
    let Ok(Path(wanted)) = name else {
        return ApiError::no_model("of this name").response(vendor);
    };
    let Some(name) = shared.app.usable_model(&wanted).await else {
        return ApiError::no_model(&wanted).response(vendor);
    };
    match vendor {
        Vendor::OpenAi => Json(openai_model(name)).into_response(),
        Vendor::Anthropic => Json(anthropic_model(&name)).into_response(),
    }
}

/// When a model was made is not known, and whose it is stands in its name.
fn openai_model(id: String) -> Model {
    let owned_by = id.split_once('/').map_or("cairn", |(owner, _)| owner).to_owned();
    Model { id, object: "model".to_owned(), created: 0, owned_by, shutdown_date: None }
}

/// When a model was made is not known: Anthropic's clients are told the Unix epoch then.
fn anthropic_model(id: &str) -> Value {
    let created_at = "1970-01-01T00:00:00Z";
    json!({ "type": "model", "id": id, "display_name": id, "created_at": created_at })
}

/// All models on one page.
fn anthropic_list(names: &[String]) -> Value {
    let data: Vec<Value> = names.iter().map(|name| anthropic_model(name)).collect();
    json!({
        "data": data, "has_more": false, "first_id": names.first(), "last_id": names.last(),
    })
}
