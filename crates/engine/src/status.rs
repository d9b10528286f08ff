//! What the engine is doing, as a value to watch.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cairn_lm::LoadProgress;

/// What the engine is busy with.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum EngineState {
    /// No model is loaded.
    #[default]
    Empty,
    /// A model is being read from disk.
    Loading {
        /// Its name.
        model: String,
        /// How much of it has been read; zeros until its files have been looked at.
        progress: LoadProgress,
    },
    /// The model is loaded and no request runs.
    Ready {
        /// The loaded model.
        model: String,
    },
    /// A prompt is being prefilled.
    Prefilling {
        /// The model of requests that name none; another one may be at work.
        model: String,
        /// Prompt tokens read, cached ones included.
        processed_tokens: usize,
        /// Length of the prompt.
        total_tokens: usize,
    },
    /// Answers are being decoded.
    Generating {
        /// The model of requests that name none; another one may be at work.
        model: String,
        /// Tokens sampled so far.
        generation_tokens: usize,
        /// Tokens per second so far.
        generation_tps: f64,
    },
    /// The last load failed, or the engine's thread ended because of a bug. Requests that name no
    /// model fail until one is loaded.
    Failed {
        /// The model that could not be loaded, or was in use; empty if there was none.
        model: String,
        /// Why, as one sentence.
        message: String,
    },
}

impl EngineState {
    /// The name of the model that answers requests that name none; none where no model is loaded.
    pub fn loaded_model(&self) -> Option<&str> {
        match self {
            EngineState::Ready { model }
            | EngineState::Prefilling { model, .. }
            | EngineState::Generating { model, .. } => Some(model),
            EngineState::Empty | EngineState::Loading { .. } | EngineState::Failed { .. } => None,
        }
    }
}

/// A loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedModelStatus {
    /// The name it was loaded under.
    pub name: String,
    /// The folder it was loaded from.
    pub folder: PathBuf,
    /// Identifies the weights and the precision they are computed in.
    pub fingerprint: String,
    /// Bytes of its weights, with those of its draft model.
    pub weight_bytes: u64,
    /// The name of its draft model.
    pub draft: Option<String>,
    /// The most tokens of one conversation, prompt and answers together.
    pub context_length: usize,
    /// The size of the groups in which its keys and values can be quantized; none where they cannot
    /// be.
    pub kv_group_size: Option<i32>,
    /// Whether its chat template shows tools to it. Otherwise texts tell of them.
    pub takes_tools: bool,
    /// Whether it has a head that predicts further tokens, as [`crate::Speculation::Mtp`] needs.
    pub has_mtp_head: bool,
    /// See [`ModelOptions::bf16_state`](crate::ModelOptions::bf16_state).
    pub bf16_state: bool,
    /// Whether an answer or another job uses it, so that it cannot be unloaded.
    pub is_in_use: bool,
    /// When it was loaded, asked, or last seen in use.
    pub last_used: Instant,
}

/// The work for all requests together, since the engine's thread began. The difference of two gives
/// the work between them, and the speeds. Once all requests have ended, the sums of all
/// [`RequestWork`](crate::RequestWork) are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkDone {
    /// Prompt tokens read, without those from the prompt cache.
    pub num_read_tokens: u64,
    /// Prompt tokens from the prompt cache.
    pub num_cached_tokens: u64,
    /// Tokens written, without end-of-sequence tokens.
    pub num_written_tokens: u64,
    /// Tokens of the passes that read, with the time that these took. The last token of a prompt is not
    /// among them: the pass that samples the first token reads it.
    pub reading: TimedTokens,
    /// Tokens sampled, end-of-sequence tokens included, with the time that this took.
    pub writing: TimedTokens,
    /// Passes that several answers shared.
    pub num_shared_passes: u64,
}

/// Tokens, and how long they took altogether. A speed is the quotient of sums of both, never a mean of
/// speeds: a pass is launched in one slice and waited for in another, so that a single token says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimedTokens {
    /// The tokens.
    pub num_tokens: u64,
    /// The time of all slices that worked on them.
    pub took: Duration,
}

impl TimedTokens {
    pub(crate) fn add(&mut self, num_tokens: usize, took: Duration) {
        self.num_tokens += num_tokens as u64;
        self.took += took;
    }
}

/// The engine's state and memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineStatus {
    /// What it is busy with.
    pub state: EngineState,
    /// Requests that wait: for others to end, for memory, or for a model.
    pub num_waiting: usize,
    /// What has been computed so far.
    pub work: WorkDone,
    /// The fingerprint of the model of requests that name none.
    pub model_fingerprint: Option<String>,
    /// The models that are loaded, the least recently used first.
    pub models: Vec<LoadedModelStatus>,
    /// MLX memory in use, in bytes.
    pub mlx_active_bytes: u64,
    /// The most MLX memory in use since the last answer began, in bytes.
    pub mlx_peak_bytes: u64,
    /// Freed MLX memory that stays allocated for reuse, in bytes.
    pub mlx_cache_bytes: u64,
    /// Bytes of stored prompt caches on disk.
    pub cache_disk_bytes: u64,
    /// Bytes of stored prompt caches in memory, without the caches of the conversation that ran
    /// last.
    pub cache_memory_bytes: u64,
}
