//! A request's body: its key is right, it is JSON, and what Cairn adds to the vendors' fields has
//! been taken out of it.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;
use crate::shared::Shared;

/// Room for the longest context that a model has, and for what is around it.
const MAX_BODY_BYTES: usize = 32 << 20;

/// The fields of a request that are Cairn's own, or that Cairn reads more generously.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OwnFields {
    pub(super) top_k: Option<usize>,
    pub(super) min_p: Option<f32>,
    pub(super) repetition_penalty: Option<f32>,
    pub(super) xtc_probability: Option<f32>,
    pub(super) xtc_threshold: Option<f32>,
    pub(super) logit_bias: Option<Map<String, Value>>,
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
}

const OWN_FIELDS: [&str; 7] = [
    "top_k",
    "min_p",
    "repetition_penalty",
    "xtc_probability",
    "xtc_threshold",
    "logit_bias",
    "chat_template_kwargs",
];

/// A body in two parts.
pub(super) struct Body<T> {
    /// The model that is asked for; none: the loaded one.
    pub(super) model: Option<String>,
    pub(super) own: OwnFields,
    /// The vendor's fields.
    pub(super) fields: T,
}

/// Reads a request's body; a field that `refused` names is refused.
pub(super) async fn read<T: DeserializeOwned>(
    shared: &Arc<Shared>,
    request: Request,
    refused: impl FnOnce(&Map<String, Value>) -> Option<String>,
) -> Result<Body<T>, ApiError> {
    let (parts, body) = request.into_parts();
    shared.guard.check_api_command(&parts.headers).map_err(ApiError::refused)?;
    let bytes =
        to_bytes(body, MAX_BODY_BYTES).await.map_err(|_| ApiError::too_large(MAX_BODY_BYTES))?;
    let mut fields: Map<String, Value> =
        parsed(serde_json::from_slice(&bytes).map_err(|error| {
            let message = format!("The body is not JSON: {error}.");
            ApiError::invalid("", message)
        })?)?;
    // Null says as little as a field that is not there.
    fields.retain(|_, value| !value.is_null());
    if fields.contains_key("cairn") {
        return Err(ApiError::unsupported("cairn"));
    }
    if let Some(name) = refused(&fields) {
        return Err(ApiError::unsupported(name));
    }
    let own = OWN_FIELDS
        .iter()
        .filter_map(|&name| Some((name.to_owned(), fields.remove(name)?)))
        .collect::<Map<_, _>>();
    let own = parsed(Value::Object(own))?;
    // The vendors' types want one; without a name the loaded model answers.
    let model = fields.entry("model").or_insert_with(|| "".into()).as_str().map(str::to_owned);
    Ok(Body {
        model: model.filter(|name| !name.is_empty()),
        own,
        fields: parsed(Value::Object(fields))?,
    })
}

/// Deserializes, and names the field at fault.
fn parsed<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        let reason = error.into_inner();
        let message = match path.is_empty() {
            true => format!("The request cannot be read: {reason}."),
            false => format!("`{path}` cannot be read: {reason}."),
        };
        ApiError::invalid(path, message)
    })
}
