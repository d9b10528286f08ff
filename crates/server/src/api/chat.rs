//! `POST /v1/chat/completions`.

use std::sync::Arc;

use async_openai::types::chat::{
    ChatChoice, ChatChoiceLogprobs, ChatChoiceStream, ChatCompletionMessageToolCall,
    ChatCompletionMessageToolCallChunk, ChatCompletionMessageToolCalls,
    ChatCompletionResponseMessage, ChatCompletionStreamResponseDelta, ChatCompletionTokenLogprob,
    CompletionTokensDetails, CompletionUsage, CreateChatCompletionRequest,
    CreateChatCompletionResponse, CreateChatCompletionStreamResponse, FinishReason, FunctionCall,
    FunctionCallStream, FunctionType, PredictionContent, PredictionContentContent,
    PromptTokensDetails, Role, StopConfiguration, TopLogprobs,
};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{self, PromptEnd};
use serde_json::{Map, Value};

use super::answer::{
    Answer, AnswerRequest, BegunPrompt, Ending, FinishedAnswer, Part, Piece, TokenText, new_id,
    now_s,
};
use super::body::{self, Body, Fields};
use super::chat_messages::{conversation, schema, take_reasoning, tools};
use super::diagnosis::compared_answer;
use super::error::{ApiError, Vendor};
use super::sampling::{VendorSampling, checked_stops};
use super::stream::{self, StreamFormat};
use crate::shared::Shared;

/// The most alternatives to a token that OpenAI's API reports.
const MAX_TOP_LOGPROBS: u8 = 20;

/// OpenAI's types lack this field, with which responses say why a prompt was read again.
const DIAGNOSTICS: &str = "prompt_cache_diagnostics";

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match answer(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::OpenAi),
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let read = body::read_fields(shared, request, &FIELDS, |mut body| {
        let reasoning = take_reasoning(&mut body.fields);
        let earlier = compared_answer(body.fields.get("prompt_cache_options"))?;
        let body: Body<CreateChatCompletionRequest> = body.typed(&FIELDS)?;
        let streams = body.fields.stream.unwrap_or(false);
        let options = body.fields.stream_options.as_ref();
        let includes_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
        let question = AnswerRequest { earlier, ..question(body, reasoning)? };
        Ok((question, streams, includes_usage))
    });
    let (question, streams, includes_usage) = read.await?;
    let answer = Answer::begin(shared, question).await?;
    if streams {
        let chunks = Chunks::new(answer.id.clone(), answer.model.clone(), includes_usage);
        return stream::response(answer, chunks).await;
    }
    let whole = whole(answer.whole().await?);
    // Serializing cannot fail: OpenAI's types have string keys and finite numbers only.
    Ok(Json(whole.unwrap_or_default()).into_response())
}

pub(super) const FIELDS: Fields = Fields {
    schema: "ChatCompletionRequest",
    read: &[
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
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
        "prediction",
        "prompt_cache_options",
    ],
    refused,
};

/// A field that asks for what Cairn cannot do.
fn refused(fields: &Map<String, Value>) -> Option<String> {
    let asks = |name: &str| match (name, fields.get(name)) {
        (_, None) => false,
        ("functions", Some(Value::Array(functions))) => !functions.is_empty(),
        ("n", Some(number)) => *number != 1,
        ("modalities", Some(modalities)) => *modalities != serde_json::json!(["text"]),
        _ => true,
    };
    let names = ["functions", "n", "modalities", "audio"];
    names.into_iter().chain(["web_search_options"]).find(|name| asks(name)).map(str::to_owned)
}

fn question(
    body: Body<CreateChatCompletionRequest>,
    reasoning: Vec<Option<String>>,
) -> Result<AnswerRequest, ApiError> {
    let Body { model, own, admitted, fields } = body;
    if fields.messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` is empty: ask something."));
    }
    let tools = tools(fields.tools, fields.tool_choice, fields.parallel_tool_calls)?;
    let conversation = conversation(fields.messages, reasoning)?;
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
        id: new_id("chatcmpl-"),
        shape: Some(conversation.shape(&tools)),
        earlier: None,
        model,
        admitted,
        prompt: conversation.prompt(&tools, PromptEnd::NewAnswer),
        tools: Some(tools),
        schema: schema(fields.response_format)?,
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
        prediction: fields.prediction.map(predicted_text),
    })
}

fn predicted_text(PredictionContent::Content(content): PredictionContent) -> String {
    match content {
        PredictionContentContent::Text(text) => text,
        PredictionContentContent::Array(parts) => parts.into_iter().map(|part| part.text).collect(),
    }
}

pub(super) fn stops(stop: Option<StopConfiguration>) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        None => Vec::new(),
        Some(StopConfiguration::String(text)) => vec![text],
        Some(StopConfiguration::StringArray(texts)) => texts,
    };
    checked_stops(stops, "stop")
}

fn whole(answer: FinishedAnswer) -> Result<Value, serde_json::Error> {
    let text = answer.text();
    let FinishedAnswer { id, model, parts, tokens, end } = answer;
    let (mut reasoning, mut calls) = (String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(_) => {}
            Part::Reasoning(text) => reasoning.push_str(&text),
            Part::Call { id, name, arguments } => {
                let function = FunctionCall { name, arguments };
                let call = ChatCompletionMessageToolCall { id, function };
                calls.push(ChatCompletionMessageToolCalls::Function(call));
            }
        }
    }
    let choice = ChatChoice {
        message: ChatCompletionResponseMessage {
            content: (!text.is_empty() || calls.is_empty()).then_some(text),
            tool_calls: (!calls.is_empty()).then_some(calls),
            role: Role::Assistant,
            ..ChatCompletionResponseMessage::default()
        },
        finish_reason: finish_reason(&end),
        logprobs: logprobs(tokens),
        ..ChatChoice::default()
    };
    let mut response = serde_json::to_value(CreateChatCompletionResponse {
        id,
        choices: vec![choice],
        created: now_s(),
        model,
        object: "chat.completion".to_owned(),
        usage: Some(usage(&end)),
        ..CreateChatCompletionResponse::default()
    })?;
    let message = &mut response["choices"][0]["message"];
    // Clients look for null in what OpenAI's types leave out, and for DeepSeek's field.
    if message.get("content").is_none() {
        message["content"] = Value::Null;
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if let Some(diagnosis) = &end.diagnosis {
        response[DIAGNOSTICS] = diagnosis.of_response("messages");
    }
    Ok(response)
}

/// An answer as chunks.
struct Chunks {
    /// What all of them have.
    chunk: CreateChatCompletionStreamResponse,
    includes_usage: bool,
    num_calls: u32,
}

impl Chunks {
    fn new(id: String, model: String, includes_usage: bool) -> Self {
        let chunk = CreateChatCompletionStreamResponse {
            id,
            created: now_s(),
            model,
            object: "chat.completion.chunk".to_owned(),
            ..CreateChatCompletionStreamResponse::default()
        };
        Chunks { chunk, includes_usage, num_calls: 0 }
    }

    fn event(&self, choice: ChatChoiceStream) -> Event {
        let choices = vec![choice];
        stream::chunk(&CreateChatCompletionStreamResponse { choices, ..self.chunk.clone() })
    }

    /// A piece, with the log-probabilities of the token that completed it.
    fn piece(&mut self, piece: Piece, tokens: Vec<TokenText>) -> Option<Event> {
        let mut delta = ChatCompletionStreamResponseDelta::default();
        match piece {
            Piece::Text(text) => delta.content = Some(text),
            Piece::Reasoning(text) => return Some(self.reasoning(text, tokens)),
            Piece::Call { id, name } => {
                self.num_calls += 1;
                let function =
                    FunctionCallStream { name: Some(name), arguments: Some(String::new()) };
                delta.tool_calls = Some(vec![ChatCompletionMessageToolCallChunk {
                    index: self.num_calls - 1,
                    id: Some(id),
                    r#type: Some(FunctionType::Function),
                    function: Some(function),
                }]);
            }
            Piece::Arguments(json) => {
                let function = FunctionCallStream { name: None, arguments: Some(json) };
                delta.tool_calls = Some(vec![ChatCompletionMessageToolCallChunk {
                    index: self.num_calls - 1,
                    id: None,
                    r#type: None,
                    function: Some(function),
                }]);
            }
            Piece::CallEnd => return None,
        }
        let logprobs = logprobs(tokens);
        Some(self.event(ChatChoiceStream { delta, logprobs, ..Default::default() }))
    }

    /// A piece of reasoning, in DeepSeek's field: OpenAI's types have none.
    fn reasoning(&self, text: String, tokens: Vec<TokenText>) -> Event {
        let choice = ChatChoiceStream { logprobs: logprobs(tokens), ..Default::default() };
        let chunk =
            CreateChatCompletionStreamResponse { choices: vec![choice], ..self.chunk.clone() };
        let mut chunk = serde_json::to_value(&chunk).unwrap_or_default();
        chunk["choices"][0]["delta"]["reasoning_content"] = text.into();
        stream::chunk(&chunk)
    }
}

impl StreamFormat for Chunks {
    fn begin(&mut self, _prompt: Option<&BegunPrompt>) -> Vec<Event> {
        let delta = ChatCompletionStreamResponseDelta {
            role: Some(Role::Assistant),
            content: Some(String::new()),
            ..Default::default()
        };
        vec![self.event(ChatChoiceStream { delta, ..Default::default() })]
    }

    /// Log-probabilities come with the first piece, and also where there is none.
    fn token(&mut self, pieces: Vec<Piece>, logprobs: Option<TokenText>) -> Vec<Event> {
        let mut tokens: Vec<TokenText> = logprobs.into_iter().collect();
        let mut events = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let has_event = piece != Piece::CallEnd;
            let own = if has_event { std::mem::take(&mut tokens) } else { Vec::new() };
            events.extend(self.piece(piece, own));
        }
        if !tokens.is_empty() {
            events.extend(self.piece(Piece::Text(String::new()), tokens));
        }
        events
    }

    fn end(&mut self, pieces: Vec<Piece>, end: &Ending) -> Vec<Event> {
        let mut events = self.token(pieces, None);
        let finish_reason = finish_reason(end);
        let choices = vec![ChatChoiceStream { finish_reason, ..Default::default() }];
        let last = CreateChatCompletionStreamResponse { choices, ..self.chunk.clone() };
        let mut last = serde_json::to_value(&last).unwrap_or_default();
        if let Some(diagnosis) = &end.diagnosis {
            last[DIAGNOSTICS] = diagnosis.of_response("messages");
        }
        events.push(stream::chunk(&last));
        if self.includes_usage {
            let usage = Some(usage(end));
            let chunk = CreateChatCompletionStreamResponse { usage, ..self.chunk.clone() };
            events.push(stream::chunk(&chunk));
        }
        events.push(stream::done());
        events
    }

    fn failed(&mut self, error: &ApiError) -> Event {
        stream::json(&error.body(Vendor::OpenAi))
    }
}

fn finish_reason(end: &Ending) -> Option<FinishReason> {
    Some(match end.reason {
        _ if end.calls_tools => FinishReason::ToolCalls,
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
        completion_tokens_details: Some(CompletionTokensDetails {
            reasoning_tokens: Some(end.num_reasoning_tokens),
            accepted_prediction_tokens: Some(end.num_accepted_tokens),
            rejected_prediction_tokens: Some(end.num_rejected_tokens),
            ..CompletionTokensDetails::default()
        }),
    }
}

fn logprobs(tokens: Vec<TokenText>) -> Option<ChatChoiceLogprobs> {
    let token = |TokenText { written, logprob, top }: TokenText| ChatCompletionTokenLogprob {
        token: written.escaped_text(),
        bytes: written.bytes,
        logprob,
        top_logprobs: top
            .into_iter()
            .map(|(written, logprob)| TopLogprobs {
                token: written.escaped_text(),
                bytes: written.bytes,
                logprob,
            })
            .collect(),
    };
    let content: Vec<_> = tokens.into_iter().map(token).collect();
    (!content.is_empty()).then_some(ChatChoiceLogprobs { content: Some(content), refusal: None })
}
