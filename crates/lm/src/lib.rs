//! Language models on MLX, synchronous: from a model folder to tokens.
//!
//! A model folder (MLX or Hugging Face layout) becomes a [`LoadedModel`]: the network ([`models`],
//! one file per architecture), its tokenizer, chat template and end-of-sequence tokens. What the
//! network remembers of the tokens before is in [`cache`], one per layer. Three ways lead from a
//! prompt to an answer:
//!
//! - [`generate_step`] reads a prompt and samples token by token; [`stream_generate`] makes text of
//!   that, [`generate()`] collects it.
//! - A [`ModelKit`] does so for one prompt after another, and reads only what is new.
//! - A [`batch::BatchGenerator`] answers many prompts side by side.
//!
//! ```text
//! model_kit                                one prompt after another
//! batch                                    many prompts side by side
//! generate                                 prefill, decode, drafts, text, stop rules
//! sample · load                            logits to a token · a model folder as a whole
//! models                                   one architecture, one file
//! nn                                       the mathematics that architectures share
//! cache · weights · tokenizer              what layers remember · tensors by name · text to tokens and back
//! safetensors_header · config · error      bytes from outside, checked · what can go wrong
//! ffi · device · memory                    MLX itself
//!
//! gguf                                     apart: foreign files become model folders
//! ```
//! A row uses those below it; only [`cache::make_prompt_cache`] looks up, to ask a model which
//! caches it wants.
//!
//! This crate touches no network, database or channel. Bytes from outside are checked in modules
//! that know nothing of MLX ([`safetensors_header`], [`gguf`]), before MLX sees them. Everything
//! that holds an MLX array stays on the thread that made it.

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
    Acceptance, Draft, GenerateOptions, Generated, GenerationResponse, Input, Logprobs, OnProgress,
    ResponseStream, Sampled, Sampling, SpeculativeStream, Stops, StreamRequest, TokenScore,
    TokenStream, check_length, check_prefill_step_size, check_vocabularies, generate,
    generate_step, score, speculative_generate_step, stream_generate,
};
pub use load::{LoadedModel, ModelIdentity};
pub use model_kit::{
    GenerateParams, GenerationResult, GenerationStream, ModelKit, ModelKitOptions, PromptProgress,
    PromptProgressReporter, ResultToken, StopCondition, StopReason,
};
pub use sample::{LogitsProcessor, LogitsProcessors, RandomSampler, Sampler, TokenBuffer};
pub use tokenizer::{Detokenizer, Tokenizer};
pub use weights::LoadOptions;
