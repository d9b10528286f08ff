//! An answer of a kit, result by result.

use std::ops::ControlFlow;

use cairn_chat::FinishReason;

use super::cache_wrapper::{CacheWrapper, Reading};
use super::{GenerateParams, ModelKitOptions, PromptProgress};
use crate::generate::{Draft, GenerationResponse, Input, ResponseStream, Sampling, Stops, StreamRequest, stream_generate};
use crate::models::Model;
use crate::{LmError, LoadedModel};

/// Text that has become certain, with the tokens since the last result.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationResult {
    /// The text; empty in a last result without any.
    pub text: String,
    /// The tokens since the last result.
    pub tokens: Vec<ResultToken>,
    /// The likeliest alternatives to each of `tokens`, best first; empty lists where none were asked for.
    pub top_logprobs: Vec<Vec<ResultToken>>,
    /// Why the answer ends here; none before the last result.
    pub stop_condition: Option<StopCondition>,
}

/// A token of a result.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultToken {
    /// Its id.
    pub id: u32,
    /// Its own text, without what is around it.
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
    /// The tokens that the stop was found in.
    pub stop_tokens: Vec<u32>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it.
    EosToken,
    /// A stop string was found.
    StopString,
    /// The limit, or the end of the context.
    TokenLimit,
    /// The caller ended it.
    UserCancelled,
}

impl StopReason {
    /// mlx-engine's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::EosToken => "eos_token",
            StopReason::StopString => "stop_string",
            StopReason::TokenLimit => "token_limit",
            StopReason::UserCancelled => "user_cancelled",
        }
    }
}

/// An answer as it comes. It borrows the kit's caches, and brings them back when it is dropped.
#[derive(Debug)]
pub struct GenerationStream<'kit> {
    loaded: &'kit LoadedModel,
    wrapper: &'kit mut CacheWrapper,
    /// None when the answer was cancelled before its first token.
    responses: Option<ResponseStream>,
    has_ended: bool,
}

impl<'kit> GenerationStream<'kit> {
    /// Reads `prompt` and launches the first step.
    pub(super) fn start(
        loaded: &'kit LoadedModel,
        draft: Option<&LoadedModel>,
        wrapper: &'kit mut CacheWrapper,
        options: &ModelKitOptions,
        prompt: &[u32],
        params: GenerateParams,
        on_progress: &mut dyn FnMut(PromptProgress) -> ControlFlow<()>,
    ) -> Result<Self, LmError> {
        let options = params.options(options);
        let reading = Reading {
            prefill_step_size: options.prefill_step_size,
            max_kv_size: options.max_kv_size,
            kv_quantization: options.kv_quantization,
        };
        let sampling = Sampling::new(&params.sampling, loaded)?;
        let stops = Stops { strings: params.stop_strings, ..Stops::of(loaded) };
        let draft = draft.map(|draft| &draft.model);
        let mut stream = GenerationStream { loaded, wrapper, responses: None, has_ended: false };
        match stream.wrapper.read(prompt, &loaded.model, draft, reading, on_progress) {
            Ok(()) => stream.responses = Some(stream.launch(prompt, draft, sampling, stops, options)?),
            Err(LmError::Cancelled) => {}
            Err(error) => return Err(error),
        }
        Ok(stream)
    }

    fn launch(
        &mut self,
        prompt: &[u32],
        draft: Option<&Model>,
        sampling: Sampling,
        stops: Stops,
        options: crate::GenerateOptions,
    ) -> Result<ResponseStream, LmError> {
        let (cached_tokens, tokens) = prompt.split_at(prompt.len() - 1);
        let request = StreamRequest {
            input: Input { tokens, embeddings: None, cached_tokens },
            sampling,
            stops,
            options,
            caches: Some(&mut self.wrapper.main.caches),
            draft: draft.map(|model| Draft { model, caches: &mut self.wrapper.draft.caches }),
            on_progress: None,
        };
        stream_generate(self.loaded, request)
    }

    /// Ends the answer; the next result is the last, with the text that was held back.
    pub fn cancel(&mut self) {
        if !self.has_ended {
            self.has_ended = true;
        }
    }
}
