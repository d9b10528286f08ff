//! What the engine is doing, as a value to watch.

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
    },
    /// The model is loaded and no request runs.
    Ready {
        /// The loaded model.
        model: String,
    },
    /// A prompt is being prefilled.
    Prefilling {
        /// The loaded model.
        model: String,
        /// Prompt tokens read, cached ones included.
        processed_tokens: usize,
        /// Length of the prompt.
        total_tokens: usize,
    },
    /// Answers are being decoded.
    Generating {
        /// The loaded model.
        model: String,
        /// Tokens sampled so far.
        generation_tokens: usize,
        /// Tokens per second so far.
        generation_tps: f64,
    },
    /// The last load failed, so no model is loaded.
    Failed {
        /// The model that could not be loaded.
        model: String,
        /// Why, as one sentence.
        message: String,
    },
}

/// The engine's state and memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineStatus {
    /// What it is busy with.
    pub state: EngineState,
    /// The fingerprint of the loaded model.
    pub model_fingerprint: Option<String>,
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
