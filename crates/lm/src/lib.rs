//! Language models on MLX, synchronous: from a model folder to tokens.
//!
//! A model folder (MLX or Hugging Face layout) becomes a [`LoadedModel`]: the network ([`models`], one file per architecture), its
//! tokenizer, chat template and end-of-sequence tokens. [`generate_step`] reads a prompt into caches ([`cache`]) and samples an answer token
//! by token, [`stream_generate`] makes text of it, and a [`ModelKit`] does so for one prompt after another.
//!
//! ```text
//! load ── models/llama ── nn/{linear, embedding, rope, attention, norm} ── weights ── safetensors_header
//!   │         │
//!   │       cache
//! tokenizer   │
//!           generate ── sample
//!             │
//!         model_kit
//! gguf: foreign files become model folders          device, ffi: MLX itself
//! ```
//! This crate touches no network, database or channel. Bytes from outside are checked in modules that know nothing of MLX
//! ([`safetensors_header`], [`gguf`]), before MLX sees them. Everything that holds an MLX array stays on the thread that made it.

pub mod batch;
pub mod cache;
mod config;
pub mod device;
mod error;
pub mod ffi;
mod generate;
pub mod gguf;
mod load;
pub mod memory;
mod model_kit;
pub mod models;
mod nn;
pub mod safetensors_header;
mod sample;
mod tokenizer;
mod weights;

pub use error::LmError;
pub use generate::{
    Acceptance, Draft, GenerateOptions, Generated, GenerationResponse, Input, Logprobs, OnProgress, ResponseStream, Sampled, Sampling,
    SpeculativeStream, Stops, StreamRequest, TokenScore, TokenStream, check_length, check_prefill_step_size, generate, generate_step,
    score, speculative_generate_step, stream_generate,
};
pub use load::LoadedModel;
pub use model_kit::{
    GenerateParams, GenerationResult, GenerationStream, ModelKit, ModelKitOptions, PromptProgress, PromptProgressReporter, ResultToken,
    StopCondition, StopReason,
};
pub use sample::{LogitsProcessor, LogitsProcessors, RandomSampler, Sampler, TokenBuffer};
pub use tokenizer::{Detokenizer, Tokenizer};
pub use weights::LoadOptions;
