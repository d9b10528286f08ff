//! The results of [`ModelKit::generate`](super::ModelKit::generate).

use std::ops::ControlFlow;

use cairn_chat::{Encode, FinishReason};

use super::PromptProgress;
use super::cache_wrapper::CacheWrapper;
use crate::generate::{
    Acceptance, Draft, GenerateOptions, GenerationResponse, Input, ResponseStream, Sampling, Stops,
    StreamRequest, stream_generate,
};
use crate::models::Model;
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
/// [`GenerationStream::next_response`] for single tokens. It borrows the kit's caches and returns
/// them when it is dropped.
#[derive(Debug)]
pub struct GenerationStream<'kit> {
    loaded: &'kit LoadedModel,
    wrapper: &'kit mut CacheWrapper,
    /// `None` if the prompt was cancelled before the first token, and after a failure.
    responses: Option<ResponseStream>,
    is_cancelled: bool,
    has_ended: bool,
}

/// The checked arguments of a generation.
pub(super) struct Call<'a> {
    pub(super) prompt: &'a [u32],
    pub(super) draft: Option<&'a Model>,
    pub(super) sampling: Sampling,
    pub(super) stops: Stops,
    pub(super) options: GenerateOptions,
}

impl<'kit> GenerationStream<'kit> {
    /// Reads the prompt and launches the first step.
    pub(super) fn start(
        loaded: &'kit LoadedModel,
        wrapper: &'kit mut CacheWrapper,
        call: Call<'_>,
        on_progress: &mut dyn FnMut(PromptProgress) -> ControlFlow<()>,
    ) -> Result<Self, LmError> {
        let read = wrapper.read(call.prompt, &loaded.model, call.draft, &call.options, on_progress);
        let responses = match read {
            Ok(()) => Some(launch(loaded, wrapper, call)?),
            Err(LmError::Cancelled) => None,
            Err(error) => return Err(error),
        };
        Ok(GenerationStream {
            loaded,
            wrapper,
            is_cancelled: responses.is_none(),
            responses,
            has_ended: false,
        })
    }

    /// Cancels the answer: the next result is the last, with the text that was withheld.
    pub fn cancel(&mut self) {
        self.is_cancelled = true;
    }

    /// How many draft tokens were accepted; zeros without a draft model.
    pub fn acceptance(&self) -> Acceptance {
        self.responses.as_ref().map(ResponseStream::acceptance).unwrap_or_default()
    }

    /// The next token, whether or not it completes a piece of text; `None` after the last one, and
    /// if the prompt was cancelled.
    pub fn next_response(&mut self) -> Result<Option<GenerationResponse>, LmError> {
        let Some(responses) = &mut self.responses else { return Ok(None) };
        let response = responses.next().transpose();
        match &response {
            Ok(response) => {
                self.wrapper.tokens.extend(response.iter().map(|response| response.token))
            }
            // After a failure the caches' contents are unknown, so they are not returned.
            Err(_) => self.responses = None,
        }
        response
    }

    fn next_result(&mut self) -> Result<Option<GenerationResult>, LmError> {
        let mut result = GenerationResult::default();
        if self.is_cancelled {
            if let Some(responses) = &mut self.responses {
                result.text = responses.stop()?;
            }
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
            result.stop_condition = stop_condition(self.loaded, &response)?;
            let top = response.logprobs.iter().flat_map(|logprobs| &logprobs.top);
            let top = top
                .map(|&(id, logprob)| result_token(self.loaded, id, logprob, false))
                .collect::<Result<_, _>>()?;
            result.top_logprobs.push(top);
            let own = response.logprobs.as_ref().map_or(0.0, |logprobs| logprobs.own);
            result.tokens.push(result_token(
                self.loaded,
                response.token,
                own,
                response.from_draft,
            )?);
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
        let Some(Ok((caches, draft_caches))) =
            self.responses.take().map(ResponseStream::into_caches)
        else {
            return;
        };
        self.wrapper.main.caches = caches;
        if let Some(draft_caches) = draft_caches {
            self.wrapper.draft.caches = draft_caches;
        }
    }
}

/// Launches the first step after `wrapper` has read the prompt without its last token.
pub(super) fn launch(
    loaded: &LoadedModel,
    wrapper: &mut CacheWrapper,
    call: Call<'_>,
) -> Result<ResponseStream, LmError> {
    let (cached_tokens, tokens) = call.prompt.split_at(call.prompt.len() - 1);
    let request = StreamRequest {
        input: Input { tokens, embeddings: None, cached_tokens },
        sampling: call.sampling,
        stops: call.stops,
        options: call.options,
        caches: Some(&mut wrapper.main.caches),
        draft: call.draft.map(|model| Draft { model, caches: &mut wrapper.draft.caches }),
        on_progress: None,
    };
    stream_generate(loaded, request)
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
        (Some(FinishReason::Length), _) => (StopReason::TokenLimit, String::new()),
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
