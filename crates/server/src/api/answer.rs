//! One answer for a program: its events, as every route needs them.

use std::sync::Arc;

use cairn_app::completion::{
    EngineError, FinishReason, FinishedGeneration, GenerateEvent, Generation, Message, PromptInput,
    Role, TokenLogprob,
};
use tokio::sync::OwnedSemaphorePermit;

use super::body::OwnFields;
use super::error::ApiError;
use super::sampling::{self, VendorSampling};
use crate::shared::Shared;

/// What a route asks for.
pub(super) struct AnswerRequest {
    pub(super) model: Option<String>,
    /// Counts it among the answers that run.
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) prompt: PromptInput,
    pub(super) sampling: VendorSampling,
    pub(super) own: OwnFields,
    pub(super) max_tokens: Option<u32>,
    pub(super) stops: Vec<String>,
    pub(super) num_top_logprobs: Option<usize>,
}

/// A running answer. Dropping it cancels the work.
pub(super) struct Answer {
    shared: Arc<Shared>,
    pub(super) model: String,
    generation: Generation,
    /// An event that was received before it was asked for.
    first: Option<GenerateEvent>,
    _permit: OwnedSemaphorePermit,
}

/// A part of an answer.
#[derive(Debug)]
pub(super) enum AnswerEvent {
    /// Prefill goes on.
    Prefill,
    /// Text; empty where a character is still in pieces. With its token's log-probabilities, where
    /// they were asked for.
    Text { text: String, logprobs: Option<TokenText> },
    /// The end. `text` was held back until now.
    End { text: String, end: Ending },
}

/// A token with its text and log-probability, and those of the likeliest ones.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TokenText {
    pub(super) text: String,
    pub(super) logprob: f32,
    pub(super) top: Vec<(String, f32)>,
}

/// How an answer has ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ending {
    pub(super) reason: FinishReason,
    pub(super) stop_string: Option<String>,
    pub(super) num_prompt_tokens: u32,
    pub(super) num_cached_tokens: u32,
    pub(super) num_answer_tokens: u32,
}

impl TokenText {
    fn of(token: TokenLogprob) -> Self {
        let TokenLogprob { text, logprob, top, .. } = token;
        let top = top.into_iter().map(|top| (top.text, finite(top.logprob))).collect();
        TokenText { text, logprob: finite(logprob), top }
    }
}

impl Answer {
    /// Loads the model if need be and begins the answer.
    pub(super) async fn begin(
        shared: &Arc<Shared>,
        request: AnswerRequest,
    ) -> Result<Self, ApiError> {
        let mut generate = shared.app.completion(request.model.as_deref(), request.prompt).await?;
        sampling::apply(&mut generate, &request.sampling, &request.own)?;
        if let Some(max_tokens) = request.max_tokens {
            generate.max_tokens = max_tokens as usize;
        }
        generate.stop = request.stops;
        generate.num_top_logprobs = request.num_top_logprobs;
        generate.template_variables = request.own.chat_template_kwargs.unwrap_or_default();
        let model = generate.model.clone().unwrap_or_default();
        let generation = shared.app.complete(generate);
        let shared = shared.clone();
        Ok(Answer { shared, model, generation, first: None, _permit: request.permit })
    }

    /// Waits for the first event, which [`Answer::next`] then returns; fails if that is a failure.
    pub(super) async fn wait_for_first_event(&mut self) -> Result<(), ApiError> {
        match self.generation.recv().await {
            Some(GenerateEvent::Failed(error)) => Err(error.into()),
            first => {
                self.first = first;
                Ok(())
            }
        }
    }

    /// The next part; none after the end.
    pub(super) async fn next(&mut self) -> Option<Result<AnswerEvent, ApiError>> {
        let event = match self.first.take() {
            Some(first) => first,
            None => tokio::select! {
                biased;
                () = self.shared.closing.cancelled() => return Some(Err(EngineError::Closed.into())),
                event = self.generation.recv() => event?,
            },
        };
        Some(match event {
            GenerateEvent::Prefill { .. } => Ok(AnswerEvent::Prefill),
            GenerateEvent::Delta { text, logprob, .. } => {
                Ok(AnswerEvent::Text { text, logprobs: logprob.map(TokenText::of) })
            }
            // Nobody but a closing app cancels it and still waits for it.
            GenerateEvent::Finished(finished)
                if finished.stats.finish_reason == FinishReason::Cancelled =>
            {
                Err(EngineError::Closed.into())
            }
            GenerateEvent::Finished(finished) => Ok(AnswerEvent::end(*finished)),
            GenerateEvent::Failed(error) => Err(error.into()),
        })
    }

    /// Waits for the end.
    pub(super) async fn whole(mut self) -> Result<FinishedAnswer, ApiError> {
        let (mut all, mut tokens) = (String::new(), Vec::new());
        while let Some(event) = self.next().await {
            match event? {
                AnswerEvent::Prefill => {}
                AnswerEvent::Text { text, logprobs } => {
                    all.push_str(&text);
                    tokens.extend(logprobs);
                }
                AnswerEvent::End { text, end } => {
                    all.push_str(&text);
                    return Ok(FinishedAnswer { model: self.model, text: all, tokens, end });
                }
            }
        }
        Err(EngineError::Closed.into())
    }
}

/// A whole answer.
pub(super) struct FinishedAnswer {
    pub(super) model: String,
    pub(super) text: String,
    pub(super) tokens: Vec<TokenText>,
    pub(super) end: Ending,
}

impl AnswerEvent {
    fn end(finished: FinishedGeneration) -> Self {
        let FinishedGeneration { text, stop_string, stats, .. } = finished;
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let end = Ending {
            reason: stats.finish_reason,
            stop_string,
            num_prompt_tokens: count(stats.num_prompt_tokens),
            num_cached_tokens: count(stats.num_cached_tokens),
            num_answer_tokens: count(stats.num_generation_tokens),
        };
        AnswerEvent::End { text, end }
    }
}

/// The prompt of a chat. Instructions that come in several messages are one, because many templates
/// take only one.
pub(super) fn chat_prompt(messages: Vec<Message>) -> PromptInput {
    let mut joined: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match joined.as_mut_slice() {
            [system] if system.role == Role::System && message.role == Role::System => {
                system.content = format!("{}\n\n{}", system.content, message.content);
            }
            _ => joined.push(message),
        }
    }
    PromptInput::Messages(joined)
}

/// JSON has no infinity; a token that is forbidden gets what OpenAI's API gives such a one.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// An id for an answer, as the vendors' have: a prefix, and letters and digits.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}{}", uuid::Uuid::now_v7().simple())
}

/// Seconds since the Unix epoch.
pub(super) fn now_s() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u32::try_from(since.as_secs()).unwrap_or(u32::MAX))
}
