//! What goes into a batch and what comes out of it.

use cairn_chat::FinishReason;

use crate::cache::LayerCache;
use crate::{LmError, LogitsProcessors, Sampler, TokenScore};

/// How requests share the device.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchOptions {
    /// The most answers that are written at once; at least `prefill_batch_size`.
    pub completion_batch_size: usize,
    /// The most prompts that are read at once.
    pub prefill_batch_size: usize,
    /// The most tokens of a prompt that are read between two steps of the answers under way.
    pub prefill_step_size: usize,
    /// Read waiting prompts to their end before answers go on: more tokens in all, at the price of
    /// pauses in answers under way.
    pub prefer_prefill_when_pending: bool,
    /// Token sequences that end any answer, such as each end-of-sequence token alone.
    pub stop: Vec<Vec<u32>>,
    /// Remember only so many last tokens of each answer, for models that would remember all.
    pub max_kv_size: Option<usize>,
}

impl Default for BatchOptions {
    /// mlx-lm's figures, without stop sequences or limit.
    fn default() -> Self {
        BatchOptions {
            completion_batch_size: 32,
            prefill_batch_size: 8,
            prefill_step_size: 2048,
            prefer_prefill_when_pending: false,
            stop: Vec::new(),
            max_kv_size: None,
        }
    }
}

/// One prompt to be answered.
#[derive(Debug)]
pub struct BatchRequest {
    /// The tokens to read, after those that `caches` hold.
    ///
    /// It may be empty where `cached_tokens` are named: their last one is then read again, or all
    /// of them where caches cannot be trimmed.
    pub prompt: Vec<u32>,
    /// Places in `prompt` where reading stops for a round, so that
    /// [`crate::batch::BatchGenerator::extract_cache`] can take a snapshot there.
    pub boundaries: Vec<usize>,
    /// What was computed for an earlier part of the conversation, one per layer; none begins anew.
    pub caches: Option<Vec<LayerCache>>,
    /// The tokens that `caches` hold, for logits processors and for an empty `prompt`; may be left
    /// empty otherwise.
    pub cached_tokens: Vec<u32>,
    /// The most tokens to sample, at least 1.
    pub max_tokens: usize,
    /// Chooses the tokens.
    pub sampler: Sampler,
    /// What is done to the logits before; they are given all tokens, cached ones and prompt
    /// included. One that fails ends its request.
    pub processors: LogitsProcessors,
    /// Token sequences that end this answer, besides those of [`BatchOptions::stop`].
    pub stop: Vec<Vec<u32>>,
    /// How many alternatives to report with each token; none: no log-probabilities at all.
    pub num_top_logprobs: Option<usize>,
}

impl BatchRequest {
    /// A greedy answer to `prompt`, of at most `max_tokens`.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        BatchRequest {
            prompt,
            boundaries: Vec::new(),
            caches: None,
            cached_tokens: Vec::new(),
            max_tokens,
            sampler: Sampler::Greedy,
            processors: LogitsProcessors::default(),
            stop: Vec::new(),
            num_top_logprobs: None,
        }
    }
}

/// A request of one generator, numbered in the order of insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// What one round brought.
#[derive(Debug, Default)]
pub struct BatchStep {
    /// Prompts that were read further.
    pub prompts: Vec<PromptProgress>,
    /// A token for each answer under way.
    pub tokens: Vec<BatchToken>,
    /// Requests that ended with an error.
    pub failed: Vec<(RequestId, LmError)>,
}

impl BatchStep {
    /// One failure of several rows: the first gets the error itself, the others its text.
    pub(crate) fn fail(&mut self, ids: Vec<RequestId>, error: LmError) {
        let text = error.to_string();
        let mut error = Some(error);
        for id in ids {
            let again = || LmError::Mlx(mlx_rs::error::Exception::custom(text.clone()));
            self.failed.push((id, error.take().unwrap_or_else(again)));
        }
    }

    pub(crate) fn has_failed(&self, id: RequestId) -> bool {
        self.failed.iter().any(|(failed, _)| *failed == id)
    }
}

/// How far a prompt has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptProgress {
    /// Whose.
    pub id: RequestId,
    /// Tokens read.
    pub processed: usize,
    /// Tokens of the prompt.
    pub total: usize,
    /// Whether reading stopped at one of the request's boundaries, or before the last token.
    pub end_of_segment: bool,
    /// Whether all was read and the first step of the answer is next.
    pub end_of_prompt: bool,
}

/// A sampled token.
#[derive(Debug)]
pub struct BatchToken {
    /// Whose.
    pub id: RequestId,
    /// Its id; the token that ends an answer is reported too.
    pub token: u32,
    /// Its natural log-probability and the most likely alternatives, best first; where asked for.
    pub logprobs: Option<(f32, Vec<TokenScore>)>,
    /// The end of the answer, if this is its last token.
    pub finish: Option<BatchFinish>,
}

/// The end of an answer.
#[derive(Debug)]
pub struct BatchFinish {
    /// A stop sequence, also where `max_tokens` was reached with it; or else the length.
    pub reason: FinishReason,
    /// One per layer, or none where the pass over the last token failed; they share no memory with
    /// the batch.
    pub caches: Vec<LayerCache>,
    /// What `caches` hold since `cached_tokens` and including them: prompt and answer, in which the
    /// last token may be missing.
    pub tokens: Vec<u32>,
}

/// What was computed for a request that has not ended.
#[derive(Debug)]
pub struct RowState {
    /// One per layer.
    pub caches: Vec<LayerCache>,
    /// What `caches` hold since `cached_tokens` and including them.
    pub tokens: Vec<u32>,
}
