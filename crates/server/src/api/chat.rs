//! `POST /v1/chat/completions`.

use std::sync::Arc;

use async_openai::types::chat::{
    ChatChoice, ChatChoiceLogprobs, ChatChoiceStream, ChatCompletionRequestAssistantMessageContent,
    ChatCompletionRequestAssistantMessageContentPart, ChatCompletionRequestDeveloperMessageContent,
    ChatCompletionRequestDeveloperMessageContentPart, ChatCompletionRequestMessage,
    ChatCompletionRequestSystemMessageContent, ChatCompletionRequestSystemMessageContentPart,
    ChatCompletionRequestUserMessageContent, ChatCompletionRequestUserMessageContentPart,
    ChatCompletionResponseMessage, ChatCompletionStreamResponseDelta, ChatCompletionTokenLogprob,
    CompletionUsage, CreateChatCompletionRequest, CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse, FinishReason, PromptTokensDetails, Role, StopConfiguration,
    TopLogprobs,
};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{self, Message};
use serde_json::{Map, Value};

use super::answer::{
    Answer, AnswerEvent, AnswerRequest, Ending, FinishedAnswer, TokenText, chat_prompt, new_id,
    now_s,
};
use super::body::{self, Body, Fields};
use super::error::{ApiError, Vendor};
use super::sampling::{VendorSampling, checked_stops};
use super::stream::{self, StreamFormat};
use crate::shared::Shared;

/// The most alternatives to a token that OpenAI's API reports.
const MAX_TOP_LOGPROBS: u8 = 20;

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match answer(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::OpenAi),
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let body: Body<CreateChatCompletionRequest> = body::read(shared, request, &FIELDS).await?;
    let streams = body.fields.stream.unwrap_or(false);
    let options = body.fields.stream_options.as_ref();
    let includes_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
    let answer = Answer::begin(shared, question(body)?).await?;
    if streams {
        let chunks = Chunks::new(answer.model.clone(), includes_usage);
        return stream::response(answer, chunks).await;
    }
    Ok(Json(whole(answer.whole().await?)).into_response())
}

const FIELDS: Fields = Fields {
    read: &[
        "messages",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "max_tokens",
        "max_completion_tokens",
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
        ("tools" | "functions", Some(Value::Array(tools))) => !tools.is_empty(),
        ("n", Some(number)) => *number != 1,
        ("response_format", Some(format)) => format["type"] != "text",
        ("modalities", Some(modalities)) => *modalities != serde_json::json!(["text"]),
        _ => true,
    };
    let names = ["tools", "functions", "n", "response_format", "modalities", "audio"];
    names.into_iter().chain(["web_search_options"]).find(|name| asks(name)).map(str::to_owned)
}

fn question(body: Body<CreateChatCompletionRequest>) -> Result<AnswerRequest, ApiError> {
    let Body { model, own, permit, fields } = body;
    if fields.messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty: ask something."));
    }
    let messages = fields.messages.into_iter().enumerate();
    let messages = messages.map(|(index, message)| self::message(index, message));
    let num_top_logprobs = match (fields.logprobs, fields.top_logprobs) {
        (Some(true), top) if top.unwrap_or(0) <= MAX_TOP_LOGPROBS => {
            Some(usize::from(top.unwrap_or(0)))
        }
        (Some(true), _) => {
            let message = format!("top_logprobs is 0 to {MAX_TOP_LOGPROBS}.");
            return Err(ApiError::invalid("top_logprobs", message));
        }
        (_, Some(_)) => {
            let message = "top_logprobs needs logprobs to be true.";
            return Err(ApiError::invalid("top_logprobs", message));
        }
        _ => None,
    };
    #[expect(deprecated, reason = "clients still send the fields that they replaced")]
    let (max_tokens, seed) = (fields.max_completion_tokens.or(fields.max_tokens), fields.seed);
    Ok(AnswerRequest {
        model,
        permit,
        prompt: chat_prompt(messages.collect::<Result<_, _>>()?),
        sampling: VendorSampling {
            temperature: fields.temperature,
            top_p: fields.top_p,
            presence_penalty: fields.presence_penalty,
            frequency_penalty: fields.frequency_penalty,
            seed,
        },
        own,
        max_tokens,
        stops: stops(fields.stop)?,
        num_top_logprobs,
    })
}

pub(super) fn stops(stop: Option<StopConfiguration>) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        None => Vec::new(),
        Some(StopConfiguration::String(text)) => vec![text],
        Some(StopConfiguration::StringArray(texts)) => texts,
    };
    checked_stops(stops, "stop")
}

/// A message of text; what is not text is refused by its place.
fn message(index: usize, message: ChatCompletionRequestMessage) -> Result<Message, ApiError> {
    use ChatCompletionRequestMessage as Request;
    let refused = |what: &str| ApiError::unsupported(format!("messages[{index}].{what}"));
    let (role, content) = match message {
        Request::Developer(message) => (completion::Role::System, developer(message.content)),
        Request::System(message) => (completion::Role::System, system(message.content)),
        Request::User(message) => {
            let content = user(message.content).ok_or_else(|| refused("content"))?;
            (completion::Role::User, content)
        }
        Request::Assistant(message) => {
            #[expect(deprecated, reason = "clients still send it")]
            let has_call = message.function_call.is_some();
            if has_call || message.tool_calls.is_some_and(|calls| !calls.is_empty()) {
                return Err(refused("tool_calls"));
            }
            (completion::Role::Assistant, message.content.map_or(String::new(), assistant))
        }
        Request::Tool(_) | Request::Function(_) => return Err(refused("role")),
    };
    Ok(Message { role, content, token_ids: None })
}

fn developer(content: ChatCompletionRequestDeveloperMessageContent) -> String {
    match content {
        ChatCompletionRequestDeveloperMessageContent::Text(text) => text,
        ChatCompletionRequestDeveloperMessageContent::Array(parts) => parts
            .into_iter()
            .map(|ChatCompletionRequestDeveloperMessageContentPart::Text(part)| part.text)
            .collect(),
    }
}

fn system(content: ChatCompletionRequestSystemMessageContent) -> String {
    match content {
        ChatCompletionRequestSystemMessageContent::Text(text) => text,
        ChatCompletionRequestSystemMessageContent::Array(parts) => parts
            .into_iter()
            .map(|ChatCompletionRequestSystemMessageContentPart::Text(part)| part.text)
            .collect(),
    }
}

/// None if a part is no text.
fn user(content: ChatCompletionRequestUserMessageContent) -> Option<String> {
    match content {
        ChatCompletionRequestUserMessageContent::Text(text) => Some(text),
        ChatCompletionRequestUserMessageContent::Array(parts) => parts
            .into_iter()
            .map(|part| match part {
                ChatCompletionRequestUserMessageContentPart::Text(part) => Some(part.text),
                _ => None,
            })
            .collect(),
    }
}

fn assistant(content: ChatCompletionRequestAssistantMessageContent) -> String {
    match content {
        ChatCompletionRequestAssistantMessageContent::Text(text) => text,
        ChatCompletionRequestAssistantMessageContent::Array(parts) => parts
            .into_iter()
            .map(|part| match part {
                ChatCompletionRequestAssistantMessageContentPart::Text(part) => part.text,
                ChatCompletionRequestAssistantMessageContentPart::Refusal(part) => part.refusal,
            })
            .collect(),
    }
}

fn whole(answer: FinishedAnswer) -> CreateChatCompletionResponse {
    let FinishedAnswer { model, text, tokens, end } = answer;
    let choice = ChatChoice {
        message: ChatCompletionResponseMessage {
            content: Some(text),
            role: Role::Assistant,
            ..ChatCompletionResponseMessage::default()
        },
        finish_reason: finish_reason(&end),
        logprobs: logprobs(tokens),
        ..ChatChoice::default()
    };
    CreateChatCompletionResponse {
        id: new_id("chatcmpl-"),
        choices: vec![choice],
        created: now_s(),
        model,
        object: "chat.completion".to_owned(),
        usage: Some(usage(&end)),
        ..CreateChatCompletionResponse::default()
    }
}

/// An answer as chunks.
struct Chunks {
    /// What all of them have.
    chunk: CreateChatCompletionStreamResponse,
    includes_usage: bool,
}

impl Chunks {
    fn new(model: String, includes_usage: bool) -> Self {
        let chunk = CreateChatCompletionStreamResponse {
            id: new_id("chatcmpl-"),
            created: now_s(),
            model,
            object: "chat.completion.chunk".to_owned(),
            ..CreateChatCompletionStreamResponse::default()
        };
        Chunks { chunk, includes_usage }
    }

    fn event(&self, choice: ChatChoiceStream) -> Event {
        let choices = vec![choice];
        stream::chunk(&CreateChatCompletionStreamResponse { choices, ..self.chunk.clone() })
    }

    fn text(&self, text: String, tokens: Vec<TokenText>) -> Option<Event> {
        if text.is_empty() && tokens.is_empty() {
            return None;
        }
        let delta = ChatCompletionStreamResponseDelta { content: Some(text), ..Default::default() };
        let logprobs = logprobs(tokens);
        Some(self.event(ChatChoiceStream { delta, logprobs, ..Default::default() }))
    }

    fn end(&self, end: &Ending) -> Vec<Event> {
        let finish_reason = finish_reason(end);
        let last = self.event(ChatChoiceStream { finish_reason, ..Default::default() });
        let usage = self.includes_usage.then(|| {
            let usage = Some(usage(end));
            stream::chunk(&CreateChatCompletionStreamResponse { usage, ..self.chunk.clone() })
        });
        [Some(last), usage, Some(stream::done())].into_iter().flatten().collect()
    }
}

impl StreamFormat for Chunks {
    fn begin(&mut self) -> Vec<Event> {
        let delta = ChatCompletionStreamResponseDelta {
            role: Some(Role::Assistant),
            content: Some(String::new()),
            ..Default::default()
        };
        vec![self.event(ChatChoiceStream { delta, ..Default::default() })]
    }

    fn part(&mut self, event: AnswerEvent) -> Vec<Event> {
        match event {
            AnswerEvent::Prefill => Vec::new(),
            AnswerEvent::Text { text, logprobs } => {
                self.text(text, logprobs.into_iter().collect()).into_iter().collect()
            }
            AnswerEvent::End { text, end } => {
                self.text(text, Vec::new()).into_iter().chain(self.end(&end)).collect()
            }
        }
    }

    fn failed(&mut self, error: &ApiError) -> Event {
        stream::json(&error.body(Vendor::OpenAi))
    }
}

fn finish_reason(end: &Ending) -> Option<FinishReason> {
    Some(match end.reason {
        completion::FinishReason::Length | completion::FinishReason::Context => {
            FinishReason::Length
        }
        completion::FinishReason::Stop | completion::FinishReason::Cancelled => FinishReason::Stop,
    })
}

pub(super) fn usage(end: &Ending) -> CompletionUsage {
    CompletionUsage {
        prompt_tokens: end.num_prompt_tokens,
        completion_tokens: end.num_answer_tokens,
        total_tokens: end.num_prompt_tokens.saturating_add(end.num_answer_tokens),
        prompt_tokens_details: Some(PromptTokensDetails {
            cached_tokens: Some(end.num_cached_tokens),
            ..PromptTokensDetails::default()
        }),
        completion_tokens_details: None,
    }
}

fn logprobs(tokens: Vec<TokenText>) -> Option<ChatChoiceLogprobs> {
    let token = |TokenText { text, logprob, top }: TokenText| ChatCompletionTokenLogprob {
        bytes: bytes(&text),
        token: text,
        logprob,
        top_logprobs: top
            .into_iter()
            .map(|(text, logprob)| TopLogprobs { bytes: bytes(&text), token: text, logprob })
            .collect(),
    };
    let content: Vec<_> = tokens.into_iter().map(token).collect();
    (!content.is_empty()).then_some(ChatChoiceLogprobs { content: Some(content), refusal: None })
}

/// A token's bytes; none for one that is a part of a character, whose text does not say them.
fn bytes(text: &str) -> Option<Vec<u8>> {
    (!text.contains('\u{fffd}')).then(|| text.as_bytes().to_vec())
}
