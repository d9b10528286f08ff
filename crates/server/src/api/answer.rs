//! One answer for a program: its events, as every route needs them.

use std::sync::Arc;

use cairn_app::completion::{
    EngineError, FinishReason, FinishedGeneration, GenerateEvent, Generation, PromptInput,
    TokenLogprob,
};
use tokio::sync::OwnedSemaphorePermit;

use super::MAX_ANSWERS;
use super::body::OwnFields;
use super::error::ApiError;
use super::sampling::{self, VendorSampling};
use crate::shared::Shared;

/// What a route asks for.
pub(super) struct Question {
    pub(super) model: Option<String>,
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
    /// Counts it among the answers that run.
    _permit: OwnedSemaphorePermit,
}

/// A part of an answer.
#[derive(Debug)]
pub(super) enum Piece {
    /// The prompt is being read.
    Reading,
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

impl Answer {
    /// Loads the model if need be and begins the answer.
    pub(super) async fn begin(shared: &Arc<Shared>, question: Question) -> Result<Self, ApiError> {
        let permit = Arc::clone(&shared.answers)
            .try_acquire_owned()
            .map_err(|_| ApiError::busy(MAX_ANSWERS))?;
        let Question { model, prompt, sampling, own, max_tokens, stops, num_top_logprobs } =
            question;
        let mut request = shared.app.completion(model.as_deref(), prompt).await?;
        sampling::apply(&mut request, &sampling, &own)?;
        if let Some(max_tokens) = max_tokens {
            request.max_tokens = max_tokens as usize;
        }
        request.stop = stops;
        request.num_top_logprobs = num_top_logprobs;
        request.template_variables = own.chat_template_kwargs.unwrap_or_default();
        let model = request.model.clone().unwrap_or_default();
        let generation = shared.app.complete(request);
        Ok(Answer { shared: shared.clone(), model, generation, _permit: permit })
    }

    /// The next part; none after the end.
    pub(super) async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        Some(match self.generation.recv().await? {
            GenerateEvent::Prefill { .. } => Ok(Piece::Reading),
            GenerateEvent::Delta { text, token: _, logprob } => {
                let logprobs = match logprob {
                    Some(logprob) => Some(self.token_text(logprob).await),
                    None => None,
                };
                match logprobs.transpose() {
                    Ok(logprobs) => Ok(Piece::Text { text, logprobs }),
                    Err(error) => Err(error),
                }
            }
            GenerateEvent::Finished(finished) => Ok(Piece::end(*finished)),
            GenerateEvent::Failed(error) => Err(error.into()),
        })
    }

    async fn token_text(&self, logprob: TokenLogprob) -> Result<TokenText, ApiError> {
        let TokenLogprob { token, logprob, top } = logprob;
        let ids = std::iter::once(token).chain(top.iter().map(|&(id, _)| id));
        let ids = ids.map(|id| vec![id]).collect();
        let mut texts = self.shared.app.token_texts(&self.model, ids).await?.into_iter();
        let text = texts.next().unwrap_or_default();
        let top = texts.zip(top).map(|(text, (_, logprob))| (text, logprob)).collect();
        Ok(TokenText { text, logprob, top })
    }

    /// Waits for the end.
    pub(super) async fn whole(mut self) -> Result<Whole, ApiError> {
        let (mut all, mut tokens) = (String::new(), Vec::new());
        while let Some(piece) = self.next().await {
            match piece? {
                Piece::Reading => {}
                Piece::Text { text, logprobs } => {
                    all.push_str(&text);
                    tokens.extend(logprobs);
                }
                Piece::End { text, end } => {
                    all.push_str(&text);
                    return Ok(Whole { model: self.model, text: all, tokens, end });
                }
            }
        }
        Err(EngineError::Closed.into())
    }
}

/// A whole answer.
pub(super) struct Whole {
    pub(super) model: String,
    pub(super) text: String,
    pub(super) tokens: Vec<TokenText>,
    pub(super) end: Ending,
}

impl Piece {
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
        Piece::End { text, end }
    }
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
