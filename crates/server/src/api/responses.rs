//! `POST /v1/responses`: OpenAI's newer form of a chat. Nothing is stored: each request has the
//! whole conversation.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{FinishReason, Message, Role};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{
    Answer, AnswerEvent, AnswerRequest, Ending, FinishedAnswer, chat_prompt, new_id, now_s,
};
use super::body::{self, Body, Fields};
use super::error::{ApiError, Vendor};
use super::sampling::VendorSampling;
use super::stream::{self, StreamFormat};
use crate::shared::Shared;

#[derive(Deserialize)]
struct ResponsesRequest {
    input: Input,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    #[serde(default)]
    stream: bool,
}

/// A question, or a conversation.
#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Item>),
}

#[derive(Deserialize)]
struct Item {
    /// A message, where it is not said.
    r#type: Option<String>,
    role: Option<ItemRole>,
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ItemRole {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Map<String, Value>>),
}

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match answer(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::OpenAi),
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let body: Body<ResponsesRequest> = body::read(shared, request, &FIELDS).await?;
    let streams = body.fields.stream;
    let instructions = body.fields.instructions.clone();
    let answer = Answer::begin(shared, question(body)?).await?;
    let state = ResponseState::new(answer.model.clone(), instructions);
    if streams {
        return stream::response(answer, Events { state, num_sent: 0 }).await;
    }
    let FinishedAnswer { text, end, .. } = answer.whole().await?;
    let state = ResponseState { text, ..state };
    Ok(Json(state.response(Some(&end))).into_response())
}

const FIELDS: Fields = Fields {
    read: &["input", "instructions", "max_output_tokens", "temperature", "top_p", "stream"],
    refused,
};

/// A field that asks for what Cairn cannot do.
fn refused(fields: &Map<String, Value>) -> Option<String> {
    let asks = |name: &str| match (name, fields.get(name)) {
        (_, None) => false,
        ("tools", Some(Value::Array(tools))) => !tools.is_empty(),
        ("background", Some(background)) => *background != false,
        ("text", Some(text)) => text.get("format").is_some_and(|format| format["type"] != "text"),
        _ => true,
    };
    [
        "previous_response_id",
        "conversation",
        "prompt",
        "tools",
        "background",
        "text",
        "top_logprobs",
    ]
    .into_iter()
    .find(|name| asks(name))
    .map(str::to_owned)
}

fn question(body: Body<ResponsesRequest>) -> Result<AnswerRequest, ApiError> {
    let Body { model, own, permit, fields } = body;
    let message = |role, content| Message { role, content, token_ids: None };
    let mut messages: Vec<Message> = Vec::new();
    messages.extend(fields.instructions.map(|text| message(Role::System, text)));
    match fields.input {
        Input::Text(text) => messages.push(message(Role::User, text)),
        Input::Items(items) => {
            for (index, item) in items.into_iter().enumerate() {
                messages.push(self::message(index, item)?);
            }
        }
    }
    if messages.is_empty() {
        return Err(ApiError::invalid("input", "`input` is empty: ask something."));
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
        max_tokens: fields.max_output_tokens,
        stops: Vec::new(),
        num_top_logprobs: None,
    })
}

/// A message of text; what is not text is refused by its place.
fn message(index: usize, item: Item) -> Result<Message, ApiError> {
    let refused = |what: &str| ApiError::unsupported(format!("input[{index}]{what}"));
    if item.r#type.is_some_and(|kind| kind != "message") {
        return Err(refused(""));
    }
    let role = match item.role.ok_or_else(|| refused(""))? {
        ItemRole::System | ItemRole::Developer => Role::System,
        ItemRole::User => Role::User,
        ItemRole::Assistant => Role::Assistant,
    };
    let content = match item.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            parts.iter().map(text).collect::<Option<_>>().ok_or_else(|| refused(".content"))?
        }
    };
    Ok(Message { role, content, token_ids: None })
}

/// The text of a part; none if it is no text.
fn text(part: &Map<String, Value>) -> Option<String> {
    let field = |name: &str| part.get(name).and_then(Value::as_str);
    match (field("type")?, field("text")) {
        ("input_text" | "output_text" | "text", Some(text)) => Some(text.to_owned()),
        ("refusal", _) => field("refusal").map(str::to_owned),
        _ => None,
    }
}

/// What has been written of an answer.
struct ResponseState {
    id: String,
    message_id: String,
    created_at: u32,
    model: String,
    instructions: Option<String>,
    text: String,
}

impl ResponseState {
    fn new(model: String, instructions: Option<String>) -> Self {
        ResponseState {
            id: new_id("resp_"),
            message_id: new_id("msg_"),
            created_at: now_s(),
            model,
            instructions,
            text: String::new(),
        }
    }

    fn part(&self) -> Value {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }

    /// The message; without parts before it has ended.
    fn message(&self, end: Option<&Ending>) -> Value {
        let parts: Vec<Value> = end.iter().map(|_| self.part()).collect();
        json!({
            "type": "message", "id": self.message_id, "role": "assistant",
            "status": status(end), "content": parts,
        })
    }

    /// The response; without output before it has ended.
    fn response(&self, end: Option<&Ending>) -> Value {
        let output: Vec<Value> = end.iter().map(|end| self.message(Some(end))).collect();
        let is_cut = end.is_some_and(|end| status(Some(end)) == "incomplete");
        json!({
            "id": self.id, "object": "response", "created_at": self.created_at,
            "model": self.model, "status": status(end), "error": null,
            "incomplete_details": is_cut.then(|| json!({ "reason": "max_output_tokens" })),
            "instructions": self.instructions, "metadata": {}, "output": output,
            "parallel_tool_calls": false, "previous_response_id": null, "store": false,
            "tool_choice": "none", "tools": [], "usage": end.map(usage),
        })
    }
}

fn status(end: Option<&Ending>) -> &'static str {
    match end.map(|end| end.reason) {
        None => "in_progress",
        Some(FinishReason::Length | FinishReason::Context) => "incomplete",
        Some(FinishReason::Stop | FinishReason::Cancelled) => "completed",
    }
}

fn usage(end: &Ending) -> Value {
    json!({
        "input_tokens": end.num_prompt_tokens,
        "input_tokens_details": { "cached_tokens": end.num_cached_tokens },
        "output_tokens": end.num_answer_tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": end.num_prompt_tokens.saturating_add(end.num_answer_tokens),
    })
}

/// An answer as events, which are numbered.
struct Events {
    state: ResponseState,
    num_sent: u32,
}

impl Events {
    fn event(&mut self, name: &str, more: Value) -> Event {
        let mut data = json!({ "type": name, "sequence_number": self.num_sent });
        self.num_sent += 1;
        // Every caller gives an object.
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        stream::json(&data).event(name)
    }

    /// An event about the one part of the one message.
    fn part_event(&mut self, name: &str, key: &str, value: Value) -> Event {
        let mut more = json!({
            "item_id": self.state.message_id, "output_index": 0, "content_index": 0,
        });
        more[key] = value;
        if name.starts_with("response.output_text") {
            more["logprobs"] = json!([]);
        }
        self.event(name, more)
    }

    fn text(&mut self, text: String) -> Option<Event> {
        self.state.text.push_str(&text);
        let name = "response.output_text.delta";
        (!text.is_empty()).then(|| self.part_event(name, "delta", text.into()))
    }

    fn end(&mut self, end: &Ending) -> Vec<Event> {
        let (text, part) = (self.state.text.clone(), self.state.part());
        let (message, response) = (self.state.message(Some(end)), self.state.response(Some(end)));
        let last = match end.reason {
            FinishReason::Length | FinishReason::Context => "response.incomplete",
            FinishReason::Stop | FinishReason::Cancelled => "response.completed",
        };
        vec![
            self.part_event("response.output_text.done", "text", text.into()),
            self.part_event("response.content_part.done", "part", part),
            self.event("response.output_item.done", json!({ "output_index": 0, "item": message })),
            self.event(last, json!({ "response": response })),
        ]
    }
}

impl StreamFormat for Events {
    fn begin(&mut self) -> Vec<Event> {
        let (response, message, part) =
            (self.state.response(None), self.state.message(None), self.state.part());
        vec![
            self.event("response.created", json!({ "response": response })),
            self.event("response.in_progress", json!({ "response": response })),
            self.event("response.output_item.added", json!({ "output_index": 0, "item": message })),
            self.part_event("response.content_part.added", "part", part),
        ]
    }

    fn part(&mut self, event: AnswerEvent) -> Vec<Event> {
        match event {
            AnswerEvent::Prefill => Vec::new(),
            AnswerEvent::Text { text, .. } => self.text(text).into_iter().collect(),
            AnswerEvent::End { text, end } => {
                let last_text = self.text(text);
                last_text.into_iter().chain(self.end(&end)).collect()
            }
        }
    }

    fn failed(&mut self, error: &ApiError) -> Event {
        let mut response = self.state.response(None);
        response["status"] = "failed".into();
        response["error"] = error.body(Vendor::OpenAi)["error"].take();
        self.event("response.failed", json!({ "response": response }))
    }
}
