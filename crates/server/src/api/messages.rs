//! `POST /v1/messages`: Anthropic's form of a chat.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{FinishReason, Message, Role};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{
    Answer, AnswerEvent, AnswerRequest, Ending, FinishedAnswer, chat_prompt, new_id,
};
use super::body::{self, Body, Fields};
use super::error::{ApiError, Vendor};
use super::sampling::{VendorSampling, checked_stops};
use super::stream::{self, StreamFormat};
use crate::shared::Shared;

#[derive(Deserialize)]
struct MessagesRequest {
    max_tokens: u32,
    messages: Vec<RequestMessage>,
    #[serde(default)]
    system: Option<Content>,
    #[serde(default)]
    stop_sequences: Vec<String>,
    #[serde(default)]
    stream: bool,
    temperature: Option<f32>,
    top_p: Option<f32>,
}

#[derive(Deserialize)]
struct RequestMessage {
    role: RequestRole,
    content: Content,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RequestRole {
    User,
    Assistant,
}

/// A text, or blocks of which each says what it is.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Blocks(Vec<Map<String, Value>>),
}

impl Content {
    /// The text; what is not text is refused by its place.
    fn text(self, place: &str) -> Result<String, ApiError> {
        let blocks = match self {
            Content::Text(text) => return Ok(text),
            Content::Blocks(blocks) => blocks,
        };
        let text = |(index, block): (usize, Map<String, Value>)| match (
            block.get("type").and_then(Value::as_str),
            block.get("text").and_then(Value::as_str),
        ) {
            (Some("text"), Some(text)) => Ok(text.to_owned()),
            // What the model had thought is no part of what it said.
            (Some("thinking" | "redacted_thinking"), _) => Ok(String::new()),
            _ => Err(ApiError::unsupported(format!("{place}[{index}]"))),
        };
        blocks.into_iter().enumerate().map(text).collect()
    }
}

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match answer(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::Anthropic),
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let body: Body<MessagesRequest> = body::read(shared, request, &FIELDS).await?;
    let streams = body.fields.stream;
    let answer = Answer::begin(shared, question(body)?).await?;
    if streams {
        let events = Events { model: answer.model.clone() };
        return stream::response(answer, events).await;
    }
    let FinishedAnswer { model, text, end, .. } = answer.whole().await?;
    let mut message = message(&model);
    message["content"] = json!([{ "type": "text", "text": text }]);
    message["stop_reason"] = stop_reason(&end).into();
    message["stop_sequence"] = end.stop_string.clone().into();
    message["usage"] = usage(&end);
    Ok(Json(message).into_response())
}

const FIELDS: Fields = Fields {
    read: &["max_tokens", "messages", "system", "stop_sequences", "stream", "temperature", "top_p"],
    refused,
};

/// A field that asks for what Cairn cannot do.
fn refused(fields: &Map<String, Value>) -> Option<String> {
    let asks = |name: &str| match (name, fields.get(name)) {
        (_, None) => false,
        ("tools" | "mcp_servers", Some(Value::Array(tools))) => !tools.is_empty(),
        ("thinking", Some(thinking)) => thinking["type"] != "disabled",
        ("output_config", Some(config)) => config.get("format").is_some(),
        _ => true,
    };
    ["tools", "mcp_servers", "thinking", "container", "output_config", "output_format"]
        .into_iter()
        .find(|name| asks(name))
        .map(str::to_owned)
}

fn question(body: Body<MessagesRequest>) -> Result<AnswerRequest, ApiError> {
    let Body { model, own, permit, fields } = body;
    if let Some(RequestMessage { role: RequestRole::Assistant, .. }) = fields.messages.last() {
        // Anthropic's API continues it; answering it instead would look right and not be.
        let last = fields.messages.len() - 1;
        return Err(ApiError::unsupported(format!("messages[{last}]")));
    }
    if fields.messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty: ask something."));
    }
    let message = |role, content| Message { role, content, token_ids: None };
    let mut messages = Vec::with_capacity(fields.messages.len() + 1);
    if let Some(system) = fields.system {
        messages.push(message(Role::System, system.text("system")?));
    }
    for (index, RequestMessage { role, content }) in fields.messages.into_iter().enumerate() {
        let role = match role {
            RequestRole::User => Role::User,
            RequestRole::Assistant => Role::Assistant,
        };
        messages.push(message(role, content.text(&format!("messages[{index}].content"))?));
    }
    Ok(AnswerRequest {
        model,
        permit,
        prompt: chat_prompt(messages),
        sampling: VendorSampling {
            temperature: fields.temperature,
            top_p: fields.top_p,
            ..VendorSampling::default()
        },
        own,
        max_tokens: Some(fields.max_tokens),
        stops: checked_stops(fields.stop_sequences, "stop_sequences")?,
        num_top_logprobs: None,
    })
}

/// A message without content, as a stream begins with.
fn message(model: &str) -> Value {
    json!({
        "id": new_id("msg_"), "type": "message", "role": "assistant", "model": model,
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": { "input_tokens": 0, "output_tokens": 0 },
    })
}

/// An answer as events with names.
struct Events {
    model: String,
}

/// An event whose name is its type.
fn named(data: &Value) -> Event {
    let name = data["type"].as_str().unwrap_or_default();
    stream::json(data).event(name)
}

fn text_event(text: &str) -> Option<Event> {
    let delta = json!({ "type": "text_delta", "text": text });
    let event = json!({ "type": "content_block_delta", "index": 0, "delta": delta });
    (!text.is_empty()).then(|| named(&event))
}

fn end_events(end: &Ending) -> [Event; 3] {
    let delta = json!({ "stop_reason": stop_reason(end), "stop_sequence": end.stop_string });
    [
        named(&json!({ "type": "content_block_stop", "index": 0 })),
        named(&json!({ "type": "message_delta", "delta": delta, "usage": usage(end) })),
        named(&json!({ "type": "message_stop" })),
    ]
}

impl StreamFormat for Events {
    fn begin(&mut self) -> Vec<Event> {
        let block = json!({ "type": "text", "text": "" });
        vec![
            named(&json!({ "type": "message_start", "message": message(&self.model) })),
            named(&json!({ "type": "content_block_start", "index": 0, "content_block": block })),
        ]
    }

    fn part(&mut self, event: AnswerEvent) -> Vec<Event> {
        match event {
            AnswerEvent::Prefill => vec![named(&json!({ "type": "ping" }))],
            AnswerEvent::Text { text, .. } => text_event(&text).into_iter().collect(),
            AnswerEvent::End { text, end } => {
                text_event(&text).into_iter().chain(end_events(&end)).collect()
            }
        }
    }

    fn failed(&mut self, error: &ApiError) -> Event {
        named(&error.body(Vendor::Anthropic))
    }
}

fn stop_reason(end: &Ending) -> &'static str {
    match (end.reason, &end.stop_string) {
        (FinishReason::Length | FinishReason::Context, _) => "max_tokens",
        (_, Some(_)) => "stop_sequence",
        (_, None) => "end_turn",
    }
}

/// Anthropic counts what came from the cache apart.
fn usage(end: &Ending) -> Value {
    json!({
        "input_tokens": end.num_prompt_tokens - end.num_cached_tokens,
        "cache_read_input_tokens": end.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": end.num_answer_tokens,
    })
}
