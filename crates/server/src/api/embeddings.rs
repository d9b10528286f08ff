//! `POST /v1/embeddings`: a vector for each of several texts, as the model's own files pool its
//! hidden states.

use std::sync::Arc;
use std::time::Instant;

use async_openai::types::embeddings::{
    Base64Embedding, Base64EmbeddingVector, CreateBase64EmbeddingResponse, CreateEmbeddingRequest,
    CreateEmbeddingResponse, Embedding, EmbeddingInput, EmbeddingUsage, EncodingFormat,
};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use cairn_app::embeddings::{EmbedError, EmbedInput, EmbedRequest, Embeddings, base64_text};
use serde_json::{Map, Value};

use super::admission::AdmittedRequest;
use super::answer::ended_early;
use super::body::{self, Body, Fields};
use super::error::{ApiError, Vendor};
use super::record::ReadTokens;
use crate::shared::Shared;

/// The most inputs of a request, as at OpenAI.
const MAX_INPUTS: usize = 2048;

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match embed(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::OpenAi),
    }
}

pub(super) const FIELDS: Fields = Fields {
    schema: "EmbeddingRequest",
    read: &["input", "dimensions", "encoding_format"],
    refused: |_: &Map<String, Value>| None,
};

async fn embed(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let AskedVectors { request, format, admitted } =
        body::read(shared, request, &FIELDS, asked).await?;
    let wanted = request.model.clone();
    let start = Instant::now();
    let (model, embeddings) = tokio::select! {
        embedded = shared.app.embed(request) => embedded.map_err(|error| match error {
            EmbedError::Model(failure) => ApiError::of_model(failure, wanted.as_deref()),
            EmbedError::Engine(error) => error.into(),
        })?,
        error = ended_early(shared, &admitted) => return Err(error),
    };
    let input = ReadTokens { num_tokens: embeddings.num_tokens, num_cached: 0 };
    admitted.record.iter().for_each(|record| record.read(&model, input, start.elapsed()));
    drop(admitted);
    let num_bytes = embeddings.vectors.iter().map(|vector| size_of_val(vector.as_slice())).sum();
    Ok(shared.parser.run(num_bytes, move || response(model, embeddings, format)).await)
}

/// The inputs of a request.
struct AskedVectors {
    request: EmbedRequest,
    format: EncodingFormat,
    admitted: Arc<AdmittedRequest>,
}

fn asked(body: Body<CreateEmbeddingRequest>) -> Result<AskedVectors, ApiError> {
    let Body { model, own, fields, admitted } = body;
    if own.cairn.start_from.is_some() {
        return Err(ApiError::unsupported("cairn.start_from"));
    }
    let CreateEmbeddingRequest { input, encoding_format, dimensions, .. } = fields;
    let inputs: Vec<EmbedInput> = match input {
        EmbeddingInput::String(text) => vec![EmbedInput::Text(text)],
        EmbeddingInput::IntegerArray(tokens) => vec![EmbedInput::Tokens(tokens)],
        EmbeddingInput::StringArray(texts) => texts.into_iter().map(EmbedInput::Text).collect(),
        EmbeddingInput::ArrayOfIntegerArray(rows) => {
            rows.into_iter().map(EmbedInput::Tokens).collect()
        }
    };
    if inputs.is_empty() {
        let message = "`input` is empty: send a text, or token ids.";
        return Err(ApiError::invalid("input", message));
    }
    if inputs.len() > MAX_INPUTS {
        let count = inputs.len();
        let message = format!("`input` has {count} inputs, and may have {MAX_INPUTS}.");
        return Err(ApiError::invalid("input", message));
    }
    let dimensions = dimensions.map(|dimensions| usize::try_from(dimensions).unwrap_or(usize::MAX));
    let request = EmbedRequest { model, inputs, dimensions };
    Ok(AskedVectors { request, format: encoding_format.unwrap_or_default(), admitted })
}

fn response(model: String, embeddings: Embeddings, format: EncodingFormat) -> Response {
    let num_tokens = u32::try_from(embeddings.num_tokens).unwrap_or(u32::MAX);
    let usage = EmbeddingUsage { prompt_tokens: num_tokens, total_tokens: num_tokens };
    let object = "list".to_owned();
    let vectors = embeddings.vectors.into_iter().zip(0..);
    let kind = || "embedding".to_owned();
    match format {
        EncodingFormat::Float => {
            let entry = |(embedding, index)| Embedding { index, object: kind(), embedding };
            let data = vectors.map(entry).collect();
            Json(CreateEmbeddingResponse { object, model, data, usage }).into_response()
        }
        EncodingFormat::Base64 => {
            let entry = |(vector, index): (Vec<f32>, u32)| {
                let bytes: Vec<u8> =
                    vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                let embedding = Base64EmbeddingVector(base64_text(&bytes));
                Base64Embedding { index, object: kind(), embedding }
            };
            let data = vectors.map(entry).collect();
            Json(CreateBase64EmbeddingResponse { object, model, data, usage }).into_response()
        }
    }
}
