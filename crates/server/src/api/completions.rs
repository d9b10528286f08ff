//! `POST /v1/completions`: text that continues other text, without a chat template.

use std::sync::Arc;

use async_openai::types::chat::{Choice, CompletionFinishReason, Logprobs, Prompt};
use async_openai::types::completions::{CreateCompletionRequest, CreateCompletionResponse};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{FinishReason, PromptInput};
use futures_util::future::try_join_all;
use serde_json::{Map, Value};

use super::MAX_ANSWERS;
use super::answer::{
    Answer, AnswerRequest, BegunPrompt, Ending, FinishedAnswer, Piece, TokenText, WrittenToken, new_id,
    now_s,
};
use super::body::{self, Body, Fields};
use super::chat::{stops, usage};
use super::error::{ApiError, Vendor};
use super::sampling::VendorSampling;
use super::stream::{self, StreamFormat};
use crate::shared::Shared;

/// The most alternatives to a token that this route reports.
const MAX_LOGPROBS: u8 = 5;

/// OpenAI's limit, which programs that name none expect.
const DEFAULT_MAX_TOKENS: u32 = 16;

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match answer(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::OpenAi),
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    // A limit that the program was started with counts before OpenAI's.
    let default_length = shared.app.default_max_tokens().is_none().then_some(DEFAULT_MAX_TOKENS);
    let read = body::read(shared, request, &FIELDS, move |body: Body<CreateCompletionRequest>| {
        let streams = body.fields.stream.unwrap_or(false);
        let options = body.fields.stream_options.as_ref();
        let includes_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
        let questions = questions(body, default_length)?;
        if streams && questions.len() > 1 {
            let message = "Several prompts are answered at once only without `stream`.";
            return Err(ApiError::invalid("stream", message));
        }
        Ok((questions, streams, includes_usage))
    });
    let (mut questions, streams, includes_usage) = read.await?;
    if streams && let Some(question) = questions.pop() {
        let answer = Answer::begin(shared, question).await?;
        let chunk = response(answer.model.clone());
        let chunks = Chunks { chunk, includes_usage, num_chars: 0 };
        return stream::response(answer, chunks).await;
    }
    let whole = async |question| Answer::begin(shared, question).await?.whole().await;
    let answers = try_join_all(questions.into_iter().map(whole)).await?;
    let model = answers.first().map(|answer| answer.model.clone()).unwrap_or_default();
    let ends = answers.iter().map(|answer| answer.end.clone());
    let usage = ends.reduce(Ending::with_tokens_of).map(|end| usage(&end));
    let choices = answers.into_iter().zip(0..).map(|(answer, index)| {
        let text = answer.text();
        let FinishedAnswer { tokens, end, .. } = answer;
        let (logprobs, finish_reason) = (logprobs(tokens, &mut 0), Some(finish_reason(&end)));
        Choice { text, index, logprobs, finish_reason }
    });
    let choices = choices.collect();
    Ok(Json(CreateCompletionResponse { choices, usage, ..response(model) }).into_response())
}

pub(super) const FIELDS: Fields = Fields {
    schema: "CompletionRequest",
    read: &[
        "prompt",
        "stream",
        "stream_options",
        "logprobs",
        "max_tokens",
        "stop",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
    ],
    refused,
};

/// A field that asks for what Cairn cannot do.
fn refused(fields: &Map<String, Value>) -> Option<String> {
    let asks = |name: &str| match (name, fields.get(name)) {
        (_, None) => false,
        ("n", Some(number)) => *number != 1,
        ("echo", Some(echo)) => *echo != false,
        _ => true,
    };
    ["n", "echo", "suffix"].into_iter().find(|name| asks(name)).map(str::to_owned)
}

/// One request for each prompt. `default_length` is its limit of tokens if it names none.
fn questions(
    body: Body<CreateCompletionRequest>,
    default_length: Option<u32>,
) -> Result<Vec<AnswerRequest>, ApiError> {
    let Body { model, own, admitted, fields } = body;
    let is_empty = match &fields.prompt {
        Prompt::String(_) => false,
        Prompt::IntegerArray(tokens) => tokens.is_empty(),
        Prompt::StringArray(texts) => texts.is_empty(),
        Prompt::ArrayOfIntegerArray(rows) => rows.is_empty() || rows.iter().any(Vec::is_empty),
    };
    if is_empty {
        let message = "`prompt` is empty: send a text, or token ids, to be continued.";
        return Err(ApiError::invalid("prompt", message));
    }
    let prompts: Vec<PromptInput> = match fields.prompt {
        Prompt::String(text) => vec![PromptInput::Text(text)],
        Prompt::IntegerArray(tokens) => vec![PromptInput::Tokens(tokens)],
        Prompt::StringArray(texts) => texts.into_iter().map(PromptInput::Text).collect(),
        Prompt::ArrayOfIntegerArray(rows) => rows.into_iter().map(PromptInput::Tokens).collect(),
    };
    if prompts.len() > MAX_ANSWERS {
        let count = prompts.len();
        let message = format!("`prompt` has {count} prompts, and may have {MAX_ANSWERS}.");
        return Err(ApiError::invalid("prompt", message));
    }
    if fields.logprobs.is_some_and(|number| number > MAX_LOGPROBS) {
        let message = format!("logprobs is 0 to {MAX_LOGPROBS}.");
        return Err(ApiError::invalid("logprobs", message));
    }
    let stops = stops(fields.stop)?;
    let question = |prompt| AnswerRequest {
        id: new_id("cmpl-"),
        shape: None,
        earlier: None,
        model: model.clone(),
        admitted: admitted.clone(),
        prompt,
        tools: None,
        schema: None,
        sampling: VendorSampling {
            temperature: fields.temperature,
            top_p: fields.top_p,
            presence_penalty: fields.presence_penalty,
            frequency_penalty: fields.frequency_penalty,
            seed: fields.seed,
        },
        own: own.clone(),
        max_tokens: fields.max_tokens.or(default_length),
        stops: stops.clone(),
        num_top_logprobs: fields.logprobs.map(usize::from),
        prediction: None,
    };
    Ok(prompts.into_iter().map(question).collect())
}

fn response(model: String) -> CreateCompletionResponse {
    CreateCompletionResponse {
        id: new_id("cmpl-"),
        created: now_s(),
        model,
        object: "text_completion".to_owned(),
        ..CreateCompletionResponse::default()
    }
}

/// An answer as chunks.
struct Chunks {
    /// What all of them have.
    chunk: CreateCompletionResponse,
    includes_usage: bool,
    /// How long the text of the tokens before is.
    num_chars: u32,
}

impl Chunks {
    fn event(&self, choice: Choice) -> Event {
        stream::chunk(&CreateCompletionResponse { choices: vec![choice], ..self.chunk.clone() })
    }
}

impl StreamFormat for Chunks {
    fn begin(&mut self, _prompt: &BegunPrompt) -> Vec<Event> {
        Vec::new()
    }

    fn token(&mut self, pieces: Vec<Piece>, logprobs: Option<TokenText>) -> Vec<Event> {
        if pieces.is_empty() && logprobs.is_none() {
            return Vec::new();
        }
        let text = text(pieces);
        let logprobs = self::logprobs(logprobs.into_iter().collect(), &mut self.num_chars);
        vec![self.event(Choice { text, logprobs, ..Choice::default() })]
    }

    fn end(&mut self, pieces: Vec<Piece>, end: &Ending) -> Vec<Event> {
        let text = text(pieces);
        let finish_reason = Some(finish_reason(end));
        let last = self.event(Choice { text, finish_reason, ..Choice::default() });
        let usage = self.includes_usage.then(|| {
            let usage = Some(usage(end));
            stream::chunk(&CreateCompletionResponse { usage, ..self.chunk.clone() })
        });
        [Some(last), usage, Some(stream::done())].into_iter().flatten().collect()
    }

    fn failed(&mut self, error: &ApiError) -> Event {
        stream::json(&error.body(Vendor::OpenAi))
    }
}

/// The text of pieces; without segments they are nothing else.
fn text(pieces: Vec<Piece>) -> String {
    let texts = pieces.into_iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text),
        _ => None,
    });
    texts.collect()
}

fn finish_reason(end: &Ending) -> CompletionFinishReason {
    match end.reason {
        FinishReason::Length | FinishReason::Context => CompletionFinishReason::Length,
        FinishReason::Stop | FinishReason::Cancelled => CompletionFinishReason::Stop,
    }
}

/// `num_chars` counts the text of the tokens before.
fn logprobs(tokens: Vec<TokenText>, num_chars: &mut u32) -> Option<Logprobs> {
    if tokens.is_empty() {
        return None;
    }
    let mut all = Logprobs::default();
    for TokenText { written, logprob, top } in tokens {
        all.text_offset.push(*num_chars);
        *num_chars += u32::try_from(written.text.chars().count()).unwrap_or(u32::MAX);
        all.tokens.push(token_text(&written));
        all.token_logprobs.push(Some(logprob));
        let top: Map<String, Value> = top
            .into_iter()
            .map(|(written, logprob)| (token_text(&written), logprob.into()))
            .collect();
        all.top_logprobs.push(top.into());
    }
    Some(all)
}

/// Returns the text of a token. This form has no field for bytes, so OpenAI marks a token that ends
/// within a character.
fn token_text(token: &WrittenToken) -> String {
    let text = token.escaped_text();
    if token.is_cut() { format!("bytes:{text}") } else { text }
}
