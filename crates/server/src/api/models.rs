//! `GET /v1/models`: the models on this machine that can answer, in the form of the vendor whose
//! client asks.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{Date, UsableModel};
use serde_json::{Value, json};

use super::admission::client;
use super::error::{ApiError, Vendor};
use crate::shared::Shared;

pub(super) async fn list(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let vendor = Vendor::of_client(request.headers());
    if let Err(error) = client(&shared, request.headers(), request.extensions()).await {
        return error.response(vendor);
    }
    let models = shared.app.usable_models().await;
    match vendor {
        Vendor::OpenAi => {
            let data: Vec<Value> = models.iter().map(openai_model).collect();
            Json(json!({ "object": "list", "data": data })).into_response()
        }
        Vendor::Anthropic => Json(anthropic_list(&models)).into_response(),
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
    let Some(model) = shared.app.usable_model(&wanted).await else {
        return ApiError::no_model(&wanted).response(vendor);
    };
    match vendor {
        Vendor::OpenAi => Json(openai_model(&model)).into_response(),
        Vendor::Anthropic => Json(anthropic_model(&model)).into_response(),
    }
}

/// OpenAI's form, with the title that the window shows (`name`) and the alias, which may be asked for
/// as well. The name begins with the owner.
fn openai_model(model: &UsableModel) -> Value {
    let UsableModel { name, title, alias, changed_s } = model;
    let owned_by = name.split_once('/').map_or("cairn", |(owner, _)| owner);
    let mut shown = json!({
        "id": name, "object": "model", "created": changed_s, "owned_by": owned_by, "name": title,
    });
    if let Some(alias) = alias {
        shown["aliases"] = json!([alias]);
    }
    shown
}

fn anthropic_model(model: &UsableModel) -> Value {
    let created_at = utc(model.changed_s);
    json!({
        "type": "model", "id": model.name, "display_name": model.title, "created_at": created_at,
    })
}

/// All models on one page.
fn anthropic_list(models: &[UsableModel]) -> Value {
    let data: Vec<Value> = models.iter().map(anthropic_model).collect();
    let id = |model: Option<&UsableModel>| model.map(|model| model.name.clone());
    json!({
        "data": data, "has_more": false, "first_id": id(models.first()), "last_id": id(models.last()),
    })
}

/// A number of seconds since 1970 as a time in UTC, as RFC 3339 writes it.
fn utc(seconds: u64) -> String {
    let Date { year, month, day } = Date::from_unix_seconds(seconds as i64);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(1_790_000_000), "2026-09-21T14:13:20Z");
    }
}
