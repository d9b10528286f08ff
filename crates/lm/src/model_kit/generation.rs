//! The results of [`ModelKit::generate`](super::ModelKit::generate).

use std::ops::ControlFlow;

use cairn_chat::{Encode, FinishReason};

use super::{GenerateParams, KitRun, ModelKit, PromptProgress};
use crate::generate::{Acceptance, GenerationResponse};
use crate::{LmError, LoadedModel};

/// A piece of text, with the tokens since the last result.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationResult {
    /// The text; empty in a last result without any.
    pub text: String,
    /// The tokens since the last result.
    pub tokens: Vec<ResultToken>,
    /// The likeliest tokens in place of each of `tokens`, best first; empty lists if none were
    /// asked for.
    pub top_logprobs: Vec<Vec<ResultToken>>,
    /// Why the answer ended; `None` before the last result.
    pub stop_condition: Option<StopCondition>,
}

/// A token of a result.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultToken {
    /// Its id.
    pub id: u32,
    /// The text of this token alone.
    pub text: String,
    /// Its natural log-probability.
    pub logprob: f32,
    /// Whether the draft model proposed it.
    pub from_draft: bool,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopCondition {
    /// The reason.
    pub stop_reason: StopReason,
    /// The stop string that was found, or the text of the end-of-sequence token; empty otherwise.
    pub stop_string: String,
    /// The tokens in which the stop was found.
    pub stop_tokens: Vec<u32>,
}

/// The kinds of [`StopCondition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// An end-of-sequence token was sampled.
    EosToken,
    /// A stop string was found.
    StopString,
    /// The token limit or the end of the context was reached.
    TokenLimit,
    /// The caller cancelled.
    UserCancelled,
}

impl StopReason {
    /// mlx-engine's name of the reason.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::EosToken => "eos_token",
            StopReason::StopString => "stop_string",
            StopReason::TokenLimit => "token_limit",
            StopReason::UserCancelled => "user_cancelled",
        }
    }
}

/// A running generation. Iterate it for pieces of text, or call
/// [`GenerationStream::next_response`] for single tokens. It borrows the kit and returns the caches
/// to it when it is dropped.
#[derive(Debug)]
pub struct GenerationStream<'kit> {
    run: KitRun<&'kit mut ModelKit>,
    is_cancelled: bool,
    has_ended: bool,
}

impl<'kit> GenerationStream<'kit> {
    /// Reads the prompt and launches the first step.
    pub(super) fn start(
        kit: &'kit mut ModelKit,
        prompt: &[u32],
        params: &GenerateParams,
        on_progress: &mut dyn FnMut(PromptProgress) -> ControlFlow<()>,
    ) -> Result<Self, LmError> {
        let mut run = KitRun::new(kit, prompt.to_vec(), params)?;
        let is_cancelled = match run.read_all(on_progress) {
            Ok(()) => false,
            Err(LmError::Cancelled) => true,
            Err(error) => return Err(error),
        };
        Ok(GenerationStream { run, is_cancelled, has_ended: false })
    }

    /// Cancels the answer: the next result is the last, with the text that was withheld.
    pub fn cancel(&mut self) {
        self.is_cancelled = true;
    }

    /// How many draft tokens were accepted; zeros without a draft model.
    pub fn acceptance(&self) -> Acceptance {
        self.run.acceptance()
    }

    /// The next token, whether or not it completes a piece of text; `None` after the last one, and
    /// if the prompt was cancelled.
    pub fn next_response(&mut self) -> Result<Option<GenerationResponse>, LmError> {
        self.run.next_response()
    }

    fn next_result(&mut self) -> Result<Option<GenerationResult>, LmError> {
        let mut result = GenerationResult::default();
        if self.is_cancelled {
            result.text = self.run.stop()?;
            let (stop_string, stop_tokens) = (String::new(), Vec::new());
            result.stop_condition = Some(StopCondition {
                stop_reason: StopReason::UserCancelled,
                stop_string,
                stop_tokens,
            });
            return Ok(Some(result));
        }
        while let Some(response) = self.next_response()? {
            result.text.push_str(&response.text);
            result.stop_condition = stop_condition(self.run.kit().model(), &response)?;
            let top = response.logprobs.iter().flat_map(|logprobs| &logprobs.top);
            let top = top
                .map(|&(id, logprob)| result_token(self.run.kit().model(), id, logprob, false))
                .collect::<Result<_, _>>()?;
            result.top_logprobs.push(top);
            let own = response.logprobs.as_ref().map_or(0.0, |logprobs| logprobs.own);
            let GenerationResponse { token, from_draft, .. } = response;
            result.tokens.push(result_token(self.run.kit().model(), token, own, from_draft)?);
            if !result.text.is_empty() || result.stop_condition.is_some() {
                return Ok(Some(result));
            }
        }
        Ok(None)
    }
}

impl Iterator for GenerationStream<'_> {
    type Item = Result<GenerationResult, LmError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let result = self.next_result();
        self.has_ended = !matches!(&result, Ok(Some(result)) if result.stop_condition.is_none());
        result.transpose()
    }
}

impl Drop for GenerationStream<'_> {
    fn drop(&mut self) {
        // After a failure there is nothing to return.
        let _ = self.run.end();
    }
}

fn stop_condition(
    loaded: &LoadedModel,
    response: &GenerationResponse,
) -> Result<Option<StopCondition>, LmError> {
    let (stop_reason, stop_string) = match (response.finish_reason, &response.stop_string) {
        (None, _) => return Ok(None),
        (Some(FinishReason::Stop), Some(stop_string)) => {
            (StopReason::StopString, stop_string.clone())
        }
        (Some(FinishReason::Stop), None) => {
            (StopReason::EosToken, loaded.tokenizer.decode(&response.stop_tokens)?)
        }
        (Some(FinishReason::Length | FinishReason::Context), _) => {
            (StopReason::TokenLimit, String::new())
        }
        (Some(FinishReason::Cancelled), _) => (StopReason::UserCancelled, String::new()),
    };
    Ok(Some(StopCondition { stop_reason, stop_string, stop_tokens: response.stop_tokens.clone() }))
}

fn result_token(
    loaded: &LoadedModel,
    id: u32,
    logprob: f32,
    from_draft: bool,
) -> Result<ResultToken, LmError> {
    Ok(ResultToken { id, text: loaded.tokenizer.decode(&[id])?, logprob, from_draft })
}
