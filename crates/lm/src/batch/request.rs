//! The options, requests and results of a [`super::BatchGenerator`].

use cairn_chat::FinishReason;

use crate::cache::{Compressed, LayerCache, SnapKv};
use crate::{LmError, LogitsProcessors, Logprobs, Sampler};

/// Limits and scheduling of a [`super::BatchGenerator`].
#[derive(Debug, Clone, PartialEq)]
pub struct BatchOptions {
    /// The most sequences that decode at once; at least `prefill_batch_size`.
    pub completion_batch_size: usize,
    /// The most prompts in prefill at once.
    pub prefill_batch_size: usize,
    /// The most tokens of a prompt that are read between two decode steps.
    pub prefill_step_size: usize,
    /// Prefill waiting prompts completely before decoding continues: higher throughput, but running
    /// sequences pause.
    pub prefer_prefill_when_pending: bool,
    /// Token sequences that end any sequence, for example each end-of-sequence token.
    pub stop: Vec<Vec<u32>>,
    /// Bounds every [`KvCache`](crate::cache::KvCache) to the last `max_kv_size` tokens; other
    /// kinds of cache ignore it.
    pub max_kv_size: Option<usize>,
}

impl Default for BatchOptions {
    /// mlx-lm's defaults, without stop sequences or cache limit.
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

/// One prompt and how to continue it.
#[derive(Debug)]
pub struct BatchRequest {
    /// The tokens to read after those that `caches` hold.
    ///
    /// It may be empty if `cached_tokens` are given: then their last one is read again, or all of
    /// them if the caches cannot be trimmed.
    pub prompt: Vec<u32>,
    /// Positions in `prompt` at which a chunk ends, so that
    /// [`crate::batch::BatchGenerator::extract_cache`] can be called exactly there.
    pub boundaries: Vec<usize>,
    /// Caches of an earlier part of the sequence, one per layer; `None` starts with empty ones.
    pub caches: Option<Vec<LayerCache>>,
    /// The tokens that `caches` hold. Needed for logits processors and for an empty `prompt`;
    /// otherwise it may be empty.
    pub cached_tokens: Vec<u32>,
    /// The most tokens to sample, at least 1; with [`NO_TOKEN_LIMIT`](crate::NO_TOKEN_LIMIT) only
    /// the model's context is a limit.
    pub max_tokens: usize,
    /// Chooses tokens from logits.
    pub sampler: Sampler,
    /// Change the logits before sampling; they see all tokens, cached ones and prompt included. If
    /// one fails, its request fails.
    pub processors: LogitsProcessors,
    /// Keeps only some of the prompt's tokens once it has been read; `None` keeps all. Such a prompt
    /// is read by itself.
    pub snapkv: Option<SnapKv>,
    /// Token sequences that end this sequence, in addition to [`BatchOptions::stop`].
    pub stop: Vec<Vec<u32>>,
    /// How many of the likeliest tokens to report with each token; `None` for no log-probabilities.
    pub num_top_logprobs: Option<usize>,
    /// Whether the caches are returned when the request ends or is removed. That copies and
    /// evaluates the caches of a row that was in a batch.
    pub return_caches: bool,
}

impl BatchRequest {
    /// A request for at most `max_tokens` greedily chosen tokens after `prompt`.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        BatchRequest {
            prompt,
            boundaries: Vec::new(),
            caches: None,
            cached_tokens: Vec::new(),
            max_tokens,
            sampler: Sampler::Greedy,
            processors: LogitsProcessors::default(),
            snapkv: None,
            stop: Vec::new(),
            num_top_logprobs: None,
            return_caches: false,
        }
    }
}

/// A request of one generator, numbered in the order of insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// The results of one round.
#[derive(Debug, Default)]
pub struct BatchStep {
    /// The prompts of which a chunk was read.
    pub prompts: Vec<PromptProgress>,
    /// One token of each decoding request.
    pub tokens: Vec<BatchToken>,
    /// The requests that failed.
    pub failed: Vec<(RequestId, LmError)>,
}

impl BatchStep {
    /// Records one failure for several rows: the first gets the error itself, the others its text.
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
    /// The request.
    pub id: RequestId,
    /// How many tokens of `prompt` have been read.
    pub processed: usize,
    /// How many tokens `prompt` has.
    pub total: usize,
    /// Whether the chunk ended at one of the request's boundaries, or before the last token.
    pub end_of_segment: bool,
    /// Whether prefill is complete and decoding begins with the next round.
    pub end_of_prompt: bool,
    /// What has been dropped behind this chunk; `None` if nothing was.
    pub compressed: Option<Compressed>,
}

/// A sampled token.
#[derive(Debug)]
pub struct BatchToken {
    /// The request.
    pub id: RequestId,
    /// The token's id; the token that completes a stop sequence is reported too.
    pub token: u32,
    /// The distribution from which it was sampled; if asked for. Its array shares the memory of all
    /// rows of the step.
    pub logprobs: Option<Logprobs>,
    /// Set with the last token of the request.
    pub finish: Option<BatchFinish>,
}

/// How a request ended.
#[derive(Debug)]
pub struct BatchFinish {
    /// `Stop` for a stop sequence, also if it ends with the token number `max_tokens`; else
    /// `Length`.
    pub reason: FinishReason,
    /// One per layer; empty unless [`BatchRequest::return_caches`], and if the pass over the last
    /// token failed. They share no memory with the batch.
    pub caches: Vec<LayerCache>,
    /// The tokens that the caches hold: `cached_tokens`, prompt and generated tokens, of which the
    /// last may be missing.
    pub tokens: Vec<u32>,
}

/// The caches and tokens of a request that has not ended.
#[derive(Debug)]
pub struct RowState {
    /// One per layer.
    pub caches: Vec<LayerCache>,
    /// The tokens that the caches hold, beginning with `cached_tokens`.
    pub tokens: Vec<u32>,
}
