//! Language models on MLX, synchronous: from a model folder to tokens.
//!
//! A model folder (MLX or Hugging Face layout) becomes a [`LoadedModel`]: the network ([`models`],
//! one file per architecture), its tokenizer, chat template and end-of-sequence tokens. The keys,
//! values and states of the tokens read so far are in [`cache`], one cache per layer. There are
//! three ways to generate:
//!
//! - [`generate_step`] reads a prompt and samples token by token; [`stream_generate`] adds text and
//!   stop rules, [`generate()`] collects the whole answer.
//! - A [`ModelKit`] does so for one prompt after another, and reads only the part of each that its
//!   caches do not hold.
//! - A [`batch::BatchGenerator`] generates for many prompts at once.
//!
//! ```text
//! model_kit                                one prompt after another
//! batch                                    many prompts at once
//! generate                                 prefill, decode, draft models, text, stop rules
//! check_model · model_memory               what a folder is and takes, without reading its weights
//! convert                                  a folder in MLX's layout made of another, quantized or not
//! sample · load                            choosing tokens · loading a model folder
//! models                                   one architecture, one file; decoder/ for dense ones
//! nn                                       the mathematics that architectures share
//! cuda · chosen_kernels                    CUDA kernels for some of it · the ones that a model has
//! cache · weights · tokenizer              KV caches and states · tensors by name · text and token ids
//! embedding                                how a model's texts become vectors
//! tensor_list · pass_costs                 the tensors of an architecture · what proposals cost it
//! published_numbers                        numbers that published files hold in another form
//! memory · ffi · device_kernels            MLX's memory · MLX itself · the kernels of a device
//! config · text_part · error               config.json · the text part of a whole · errors
//! device · dtype                           where MLX computes · types of numbers
//! ```
//! A module uses those below it. The one exception is [`cache::make_prompt_cache`], which asks a
//! model for the kinds of its caches.
//!
//! # Example
//!
//! ```no_run
//! use cairn_lm::{GenerateOptions, LoadOptions, LoadedModel, StreamRequest, generate};
//!
//! # fn main() -> Result<(), cairn_lm::LmError> {
//! let folder = std::path::Path::new("models/SmolLM2-135M-Instruct");
//! let loaded = LoadedModel::load(folder, LoadOptions::new())?;
//! let prompt = loaded.tokenizer.encode_prompt("Tell me a story")?;
//! let options = GenerateOptions { max_tokens: 8, ..GenerateOptions::default() };
//! let request = StreamRequest { options, ..StreamRequest::new(&loaded, &prompt) };
//! let answer = generate(&loaded, request)?;
//! assert_eq!(answer.last.generation_tokens, answer.tokens.len());
//! # Ok(())
//! # }
//! ```
//!
//! This crate touches no network, database or channel. `cairn-formats` checks weight files and
//! prompt-cache files before MLX sees their contents. A value that holds an MLX array must stay on
//! the thread that made it.

pub mod batch;
mod byte_level;
pub mod cache;
mod chat_templates;
mod check_draft;
mod check_model;
mod chosen_kernels;
mod compare_state;
mod config;
mod constraint;
mod convert;
mod cuda;
pub mod device;
mod device_kernels;
mod dtype;
mod embedding;
mod error;
pub mod ffi;
mod generate;
mod grammar;
mod load;
mod load_progress;
pub mod memory;
mod metal_library;
mod model_kit;
mod model_memory;
pub mod models;
mod nn;
mod pass_costs;
mod published;
mod published_numbers;
mod rope_keys;
mod sample;
mod tensor_list;
mod text_part;
mod tokenizer;
mod weights;

pub use chat_templates::has_chat_template;
pub use check_draft::check_draft_model;
pub use check_model::{ModelCheck, ProblemKind, check_model};
pub use chosen_kernels::{with_layers_by_parts, without_kernels};
pub use compare_state::{StateComparison, compare_state};
pub use config::{Quantization, QuantizationMode};
pub use constraint::Constraint;
pub use convert::{
    ConvertError, ConvertOptions, ConvertProgress, ConvertTo, ConvertedModel, FloatType,
    MixedRecipe, convert,
};
pub use device_kernels::num_kernel_failures;
pub use embedding::{EmbeddingSettings, Pooling};
pub use error::LmError;
pub use generate::{
    Acceptance, AnswerEnd, AnswerReader, AnswerStep, AnswerText, Draft, Drafter, Embedder,
    GenerateOptions, Generated, GenerationResponse, Input, Logprobs, NO_TOKEN_LIMIT, OnProgress,
    OwnDrafter, OwnedDraft, PromptLookup, PromptReader, ResponseStream, RowScore, Sampled,
    Sampling, Scorer, SpeculativeStream, Stops, StreamRequest, TokenChoice, TokenScore,
    TokenStream, check_length, check_prefill_step_size, check_vocabularies, generate,
    generate_step, likeliest, score, speculative_generate_step, stream_generate,
};
pub use grammar::{Grammar, GrammarCompiler};
pub use load::{LoadedModel, ModelIdentity};
pub use load_progress::LoadProgress;
pub use metal_library::{METAL_LIBRARY, MetalLibraryError, find_metal_library};
pub use model_kit::{
    GenerateParams, GenerationResult, GenerationStream, KitRun, ModelKit, ModelKitOptions,
    PromptProgress, PromptProgressReporter, ResultToken, StopCondition, StopReason,
};
pub use model_memory::{ModelMemory, PassSizes};
pub use nn::has_kernel as has_attention_kernel;
pub use sample::{
    LogitsProcessor, LogitsProcessors, RandomSampler, Sampler, SamplerFn, TokenBuffer, logprobs,
};
pub use tokenizer::{Detokenizer, TextPiece, Tokenizer};
pub use weights::LoadOptions;
