//! Wire types of what the engine does and how much memory it takes.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::models::LoadedModel;

/// What the engine does now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "state", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum EngineState {
    /// No model is loaded.
    Empty,
    /// Reads a model's weights.
    Loading {
        model: String,
        #[ts(type = "number")]
        bytes_read: u64,
        #[ts(type = "number")]
        total_bytes: u64,
    },
    /// Waits for work.
    Ready { model: String },
    /// Reads a prompt.
    Prefilling { model: String, processed_tokens: u32, total_tokens: u32 },
    /// Writes an answer.
    Generating { model: String, generation_tokens: u32, generation_tps: f64 },
    /// The last load failed.
    Failed { model: String, message: String },
}

/// The status bar and the menu-bar item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Status {
    pub engine: EngineState,
    /// Fingerprint of the loaded model, which is the same under every name; none if no model is
    /// loaded.
    pub model_fingerprint: Option<String>,
    /// The models in memory, the least recently used first.
    pub models: Vec<LoadedModel>,
    /// "cpu" or "gpu".
    pub device: String,
    #[ts(type = "number")]
    pub process_bytes: u64,
    #[ts(type = "number")]
    pub process_peak_bytes: u64,
    #[ts(type = "number")]
    pub mlx_active_bytes: u64,
    #[ts(type = "number")]
    pub mlx_peak_bytes: u64,
    #[ts(type = "number")]
    pub mlx_cache_bytes: u64,
    /// Size of the saved context on disk.
    #[ts(type = "number")]
    pub cache_disk_bytes: u64,
    /// Size of the saved context in memory, without the conversation that ran last.
    #[ts(type = "number")]
    pub cache_ram_bytes: u64,
    /// None where models cannot be kept wired: everywhere but on a Mac.
    pub wired_memory: Option<WiredMemory>,
}

/// What the GPU of a Mac can keep of loaded models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct WiredMemory {
    /// The most that the system recommends.
    #[ts(type = "number")]
    pub recommended_bytes: u64,
    /// The largest loaded model, if it takes nearly all of that, or more: then it is slow.
    pub tight_model: Option<LoadedModel>,
}
