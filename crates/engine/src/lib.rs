//! The thread that owns MLX, and the handle to it.
//!
//! [`Engine`] is a handle: it sends plain data to one named thread, which owns device, stream, model
//! and caches, and receives events. No MLX array leaves that thread. A request returns a
//! [`Generation`], a stream of [`GenerateEvent`]s; dropping it cancels the work. [`EngineStatus`]
//! says what the engine is doing. An error or panic in a job ends that job only. Requests share a
//! batch (`scheduler`); those that cannot, because of a draft model or quantized keys and values,
//! take turns with it (`unbatched`). An [`AsyncLm`] asks for log-probabilities instead of answers, and
//! takes its turns too (`async_lm`).
//!
//! ```text
//! Engine ──Job──▶ thread ("cairn-engine") ── scheduler ── sequence ── worker ── cairn-lm
//!    ▲                  │ chunks                           │ longest prefix
//!    │                  ▼                                  ▼
//!  events          prompt_cache::writer ────────▶ prompt_cache::state
//!                  (thread "cairn-writer" writes files)
//! ```
//! The engine never accesses a database: its caller passes the rows as
//! [`ChunkRecord`](cairn_prompt_cache::ChunkRecord)s and [`CacheRef`](cairn_prompt_cache::CacheRef)s,
//! and receives [`CacheChange`](cairn_prompt_cache::CacheChange)s to store.
//!
//! # Example
//!
//! ```
//! use cairn_engine::{Engine, EngineError, EngineOptions, GenerateEvent, GenerateRequest, PromptInput};
//!
//! # #[tokio::main]
//! # async fn main() {
//! let (engine, _cache_events) = Engine::start(EngineOptions::default());
//! let prompt = PromptInput::Text("Tell me a story".to_owned());
//! let mut generation = engine.generate(GenerateRequest::new(prompt));
//! // With a model (`engine.load(name, folder).await`) the text comes in `GenerateEvent::Delta`s.
//! let event = generation.recv().await;
//! assert!(matches!(event, Some(GenerateEvent::Failed(EngineError::NoModel))));
//! engine.shutdown().await;
//! # }
//! ```

mod admission;
mod async_lm;
mod batch_run;
mod classify;
mod clock;
mod embedding;
mod engine;
mod error;
mod generate_job;
mod guard;
mod kv_format;
mod lm_job;
mod lookup;
mod mlx_engine;
mod model_pool;
mod next_tokens;
mod outlook;
mod perplexity;
mod prefix_pool;
mod probabilities;
mod prompt;
mod prompt_cache;
mod prompt_facts;
mod prompt_file;
mod request;
mod restoring;
mod scheduler;
mod scoring;
#[cfg(test)]
mod scripted_model;
mod segments;
mod sequence;
mod shared_reading;
mod slice_limits;
mod slice_policy;
mod status;
mod task;
mod thread;
mod unbatched;
mod verify_import;
mod wired_memory;
mod work;
mod worker;

pub use async_lm::{AsyncLm, AsyncLmOptions, CacheWalk, SampleRequest};
pub use cairn_chat::{Message, Role};
pub use cairn_formats::cache_file::PromptKind;
pub use cairn_lm::cache::{KvQuantization, PromptFileLayout, SnapKv};
pub use cairn_lm::device::{ComputeDevice, use_metal_library};
pub use cairn_lm::memory::default_limit_bytes as default_memory_limit_bytes;
pub use cairn_lm::memory::recommended_wired_bytes;
pub use cairn_lm::models::{
    SUPPORTED, SupportedModel, is_encoder, is_supported, nearest as nearest_model_type,
};
pub use cairn_lm::{
    Acceptance, LmError, LoadOptions, LoadProgress, ModelCheck, ModelMemory, ProblemKind,
    check_draft_model, check_model, has_chat_template,
};
pub use cairn_lm::{LoadedModel, LogitsProcessor, Tokenizer};
pub use classify::{
    Classification, ClassifyEvent, ClassifyRequest, ClassifyRow, LogitsProcessorFactory,
    OptionScoring, RowAnswer,
};
pub use embedding::{EmbedInput, EmbedRequest, Embeddings, InputProblem};
pub use engine::{Engine, EngineOptions};
pub use error::{EngineError, MemoryShortage, NeedsMemory};
pub use kv_format::KvCacheOptions;
pub use mlx_engine::{MlxEngine, MlxEngineOptions};
pub use next_tokens::LmCounts;
pub use outlook::Outlook;
pub use perplexity::{PERPLEXITY_TEXT, Perplexity, PerplexityError};
pub use prompt_cache::{
    CacheFigures, CacheHandle, CacheNode, CacheOptions, CacheView, FileCoding, Repaired,
};
pub use prompt_facts::{PromptFacts, PromptKeys};
pub use prompt_file::{CachePromptRequest, CachedPrompt, ExportRequest, Import, PromptFileInfo};
pub use request::{
    AnswerToken, FinishedGeneration, GenerateEvent, GenerateRequest, Generation, LikelyToken,
    MemoryPressure, ModelInfo, ModelOptions, PromptInput, PromptPrefix, Score, ScoreRequest,
    SegmentOptions, SoFar, Speculation, TokenLogprob, TopLogprob,
};
pub use sequence::LEAST_TIMED_TOKENS;
pub use status::{EngineState, EngineStatus, LoadedModelStatus, TimedTokens, WorkDone};
pub use wired_memory::is_tight;
pub use work::{RequestWork, WorkFor, WorkKind, WorkLog};
