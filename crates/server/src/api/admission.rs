//! Who asks, and whether there is room for another answer.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap};
use cairn_app::ApiClient;
use tokio::sync::OwnedSemaphorePermit;

use super::MAX_ANSWERS;
use super::error::ApiError;
use super::record::RequestRecord;
use crate::request_guard::{Refusal, check_json, keys};
use crate::shared::Shared;

/// A request for an answer that may begin. It counts among the answers that run, as one of
/// them whatever it asks for, until it is dropped.
#[derive(Debug)]
pub(super) struct AdmittedRequest {
    pub(super) client: ApiClient,
    pub(super) record: Option<Arc<RequestRecord>>,
    _permit: OwnedSemaphorePermit,
}

impl AdmittedRequest {
    /// Admits a request with a key and a JSON body, if fewer answers run than may.
    pub(super) async fn of(shared: &Arc<Shared>, request: &Parts) -> Result<Self, ApiError> {
        let client = client(shared, &request.headers, &request.extensions).await?;
        check_json(&request.headers).map_err(ApiError::refused)?;
        let permit = Arc::clone(&shared.answers).try_acquire_owned();
        let permit = permit.map_err(|_| ApiError::busy(MAX_ANSWERS))?;
        Ok(AdmittedRequest {
            client,
            record: RequestRecord::of(&request.extensions),
            _permit: permit,
        })
    }
}

/// Who has the key of a request: the server's token, or one that was made in the app.
pub(super) async fn client(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<ApiClient, ApiError> {
    let client = match shared.guard.has_token(headers) {
        true => Some(ApiClient::with_token()),
        false => with_key(shared, headers).await?,
    };
    let client = client.ok_or(ApiError::refused(Refusal::Token))?;
    if let Some(record) = RequestRecord::of(extensions) {
        record.set_key(client.name());
    }
    Ok(client)
}

async fn with_key(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
) -> Result<Option<ApiClient>, ApiError> {
    for key in keys(headers) {
        if let Some(client) = shared.app.api_client(key).await? {
            return Ok(Some(client));
        }
    }
    Ok(None)
}
