//! `POST /api/models/import`: upload of a model to import.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use cairn_app::wire::Reply;

use crate::call::{done, failed};
use crate::shared::Shared;
use crate::upload;

/// Receives a GGUF file and answers with the model when it is imported; progress comes as events.
pub(crate) async fn import(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (upload, name) = match upload::receive(&shared, request).await {
        Ok(received) => received,
        Err(refusal) => return refusal,
    };
    match shared.app.import_uploaded_model(upload, &name).await {
        Ok(model) => done(Reply::ModelImported { model }),
        Err(failure) => failed(failure),
    }
}
