//! A request's body: its key is right, it is JSON, and what Cairn adds to the vendors' fields has
//! been taken out of it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::admission::AdmittedRequest;
use super::error::ApiError;
use super::fault::{self, Fault};
use super::own_fields::{OWN_FIELDS, OwnFields};
use super::{openapi, sampling, thinking};
use crate::shared::Shared;

/// Room for the longest context that a model has, and for what is around it.
const MAX_BODY_BYTES: usize = 32 << 20;
/// The most messages of a chat. Templates are stopped long before they have written more.
const MAX_MESSAGES: usize = 100_000;
/// How long a body may take to arrive.
const UPLOAD_LIMIT: Duration = Duration::from_secs(60);

/// A body in two parts.
pub(super) struct Body<T> {
    /// The model that is asked for; none: the loaded one.
    pub(super) model: Option<String>,
    pub(super) own: OwnFields,
    /// Who asks. Counts the answer among those that run.
    pub(super) admitted: Arc<AdmittedRequest>,
    /// The vendor's fields.
    pub(super) fields: T,
}

/// The vendor's fields of a route.
pub(super) struct Fields {
    /// The schema of its requests in the OpenAPI document.
    pub(super) schema: &'static str,
    /// Those that it reads; others are ignored, whatever they hold.
    pub(super) read: &'static [&'static str],
    /// The first one that asks for what Cairn cannot do.
    pub(super) refused: fn(&Map<String, Value>) -> Option<String>,
}

impl Body<Map<String, Value>> {
    /// The vendor's fields as their types; the first one that cannot be read is named.
    pub(super) fn typed<T: DeserializeOwned>(self, route: &Fields) -> Result<Body<T>, ApiError> {
        let Body { model, own, admitted, fields } = self;
        Ok(Body { model, own, admitted, fields: parsed(&Value::Object(fields), route)? })
    }
}

/// Reads a request's body, with the vendor's fields as their types, and passes it to `then`: all of
/// it on another thread if the body is large.
pub(super) async fn read<T: DeserializeOwned, R: Send + 'static>(
    shared: &Arc<Shared>,
    request: Request,
    route: &'static Fields,
    then: impl FnOnce(Body<T>) -> Result<R, ApiError> + Send + 'static,
) -> Result<R, ApiError> {
    read_fields(shared, request, route, move |body| then(body.typed(route)?)).await
}

/// As [`read`], but leaves the vendor's fields that the route reads as they were sent.
pub(super) async fn read_fields<R: Send + 'static>(
    shared: &Arc<Shared>,
    request: Request,
    route: &'static Fields,
    then: impl FnOnce(Body<Map<String, Value>>) -> Result<R, ApiError> + Send + 'static,
) -> Result<R, ApiError> {
    let (parts, body) = request.into_parts();
    let admitted = Arc::new(AdmittedRequest::of(shared, &parts).await?);
    check_head(&parts.headers)?;
    let bytes = timeout(UPLOAD_LIMIT, to_bytes(body, MAX_BODY_BYTES)).await;
    let bytes = bytes
        .map_err(|_| ApiError::invalid("", "The body did not arrive in time."))?
        .map_err(|_| ApiError::too_large(MAX_BODY_BYTES))?;
    let num_bytes = bytes.len();
    let parse = move || then(parse_fields(&bytes, admitted, route)?);
    shared.parser.run(num_bytes, parse).await
}

/// Refuses a body by what its head says, before it arrives.
fn check_head(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let encoding = text(header::CONTENT_ENCODING).unwrap_or("identity").trim();
    if !encoding.eq_ignore_ascii_case("identity") {
        return Err(ApiError::encoded(encoding));
    }
    let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    match length {
        Some(length) if length > MAX_BODY_BYTES as u64 => Err(ApiError::too_large(MAX_BODY_BYTES)),
        _ => Ok(()),
    }
}

fn parse_fields(
    bytes: &[u8],
    admitted: Arc<AdmittedRequest>,
    route: &Fields,
) -> Result<Body<Map<String, Value>>, ApiError> {
    if bytes.is_empty() {
        return Err(ApiError::invalid("", "The body is empty: send a JSON object."));
    }
    let body = serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("The body is not JSON: {error}.");
        ApiError::invalid("", message)
    })?;
    let Value::Object(mut fields) = body else {
        return Err(ApiError::invalid("", "The body is not a JSON object."));
    };
    check_num_messages(&fields)?;
    // Null says as little as a field that is not there.
    fields.retain(|_, value| !value.is_null());
    for (name, value) in &mut fields {
        normalize_number(name, value);
    }
    if let Some(name) = (route.refused)(&fields).or_else(|| other_servers_field(&fields)) {
        return Err(ApiError::unsupported(name));
    }
    let own = OWN_FIELDS
        .iter()
        .filter_map(|&name| Some((name.to_owned(), fields.remove(name)?)))
        .collect::<Map<_, _>>();
    let own =
        OwnFields { thinking: thinking::wanted(&fields), ..parsed(&Value::Object(own), route)? };
    sampling::check(&own)?;
    fields.retain(|name, _| route.read.contains(&name.as_str()) || name == "model");
    // The vendors' types want one; without a name the loaded model answers.
    let Value::String(model) = fields.entry("model").or_insert_with(|| "".into()).clone() else {
        return Err(ApiError::invalid("model", "`model` is the name of a model."));
    };
    let model = Some(model).filter(|name| !name.is_empty());
    if let (Some(record), Some(model)) = (&admitted.record, &model) {
        record.set_model(model);
    }
    Ok(Body { model, own, admitted, fields })
}

/// Refuses a chat by the number of its messages, before they are looked at.
fn check_num_messages(fields: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, what) in [("messages", "messages"), ("input", "items")] {
        let count = fields.get(name).and_then(Value::as_array).map_or(0, Vec::len);
        if count > MAX_MESSAGES {
            let message = format!("`{name}` has {count} {what}, and may have {MAX_MESSAGES}.");
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(())
}

/// Writes a number as the vendors do: a whole one without a fraction, and as the limit of an answer,
/// where other servers take -1 for none, one that none reaches.
fn normalize_number(name: &str, value: &mut Value) {
    const LIMITS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
    /// Floats up to this one have a whole number of their own.
    const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
    let Some(number) = value.as_f64() else { return };
    if LIMITS.contains(&name) && number == -1.0 {
        *value = u32::MAX.into();
    } else if value.is_f64() && number.fract() == 0.0 && number.abs() <= MAX_EXACT {
        *value = (number as i64).into();
    }
}

/// The first field of another server that asks for another answer than Cairn would give.
fn other_servers_field(fields: &Map<String, Value>) -> Option<String> {
    const NAMES: [&str; 10] = [
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "grammar",
        "json_schema",
        "best_of",
        "adapters",
        "draft_model",
    ];
    let asks =
        |name: &&str| fields.get(*name).is_some_and(|value| *name != "best_of" || *value != 1);
    NAMES.into_iter().find(asks).map(str::to_owned)
}

/// Deserializes. Of what cannot be read, the error names the field and says what it may be.
fn parsed<T: DeserializeOwned>(value: &Value, route: &Fields) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        if let Some(Fault { path, message }) = fault::find(openapi::document(), route.schema, value)
        {
            return ApiError::invalid(path, message);
        }
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        let what = if path.is_empty() { "The request".to_owned() } else { format!("`{path}`") };
        let message = format!("{what} is not of the form that /openapi.json describes.");
        ApiError::invalid(path, message)
    })
}
