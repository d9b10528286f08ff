//! Generation for one prompt: prefill in chunks, then decode token by token.
//!
//! The functions have mlx-lm's names. [`generate_step`] reads a prompt into caches and returns a
//! [`TokenStream`] of token ids; [`speculative_generate_step`] does the same with a drafter.
//! [`stream_generate`] decodes the ids to text, with one [`GenerationResponse`] per token, and
//! applies stop rules; [`generate`] collects its responses.

mod answer_reader;
mod embedder;
mod history;
mod logprobs;
mod prefill;
mod reader;
mod response;
mod rollback;
mod speculative;
mod stream;
mod text;
mod tokens;

use std::ops::Range;

use cairn_chat::{Encode, SamplingParams};
use mlx_rs::Array;

use crate::cache::batch::continued_by_rows;
use crate::cache::{
    KvQuantization, LayerCache, SnapKv, make_prompt_cache, not_quantized, observe_queries,
};
use crate::models::Model;
use crate::sample::{LogitsProcessors, Sampler, check_token_ids};
use crate::{LmError, LoadedModel};

pub(crate) use prefill::{finish_pass, prefill_chunks};
pub(crate) use rollback::RollbackPoint;

pub use answer_reader::{AnswerReader, TokenChoice};
pub use embedder::Embedder;
pub use logprobs::{Logprobs, RowScore, Scorer, TokenScore, likeliest, score};
pub use prefill::Input;
pub use reader::PromptReader;
pub use response::{Generated, GenerationResponse};
pub use speculative::{
    Acceptance, Draft, Drafter, OwnDrafter, OwnedDraft, PromptLookup, SpeculativeStream,
    check_vocabularies, speculative_generate_step,
};
pub use stream::{ResponseStream, StreamRequest, generate, stream_generate};
pub use text::{AnswerEnd, AnswerStep, AnswerText, Stops};
pub use tokens::{TokenStream, generate_step};

/// Called with `(processed, total)` prompt tokens; breaking cancels.
pub type OnProgress<'a> = &'a mut dyn FnMut(usize, usize) -> std::ops::ControlFlow<()>;

/// As `max_tokens`: sample until a stop rule or the model's context ends the answer. The same as -1
/// in mlx-lm.
pub const NO_TOKEN_LIMIT: usize = usize::MAX;

/// `max_tokens` after `num_prompt_tokens`, at least 1 where [`NO_TOKEN_LIMIT`] asks for what the
/// context leaves.
pub(crate) fn token_limit(max_tokens: usize, num_prompt_tokens: usize, model: &Model) -> usize {
    match max_tokens {
        NO_TOKEN_LIMIT => model.context_length().saturating_sub(num_prompt_tokens).max(1),
        max_tokens => max_tokens,
    }
}

/// How many tokens `caches` have read.
pub(crate) fn num_cached(caches: &[LayerCache]) -> usize {
    caches.iter().map(LayerCache::offset).max().unwrap_or(0)
}

/// Options of prefill and decode. The defaults are mlx-lm's, except for `max_tokens`.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to sample. With 0 the whole prompt is read and nothing is sampled; with
    /// [`NO_TOKEN_LIMIT`] only the model's context is a limit.
    pub max_tokens: usize,
    /// Prompt tokens per forward pass, at least 1.
    pub prefill_step_size: usize,
    /// How many of the likeliest tokens to report with each token; `None` for no log-probabilities.
    pub num_top_logprobs: Option<usize>,
    /// Bounds caches that are created here to this many tokens, see
    /// [`make_prompt_cache`]; caches that the caller passes in are not changed.
    pub max_kv_size: Option<usize>,
    /// Quantizes keys and values; `None` keeps them as computed.
    pub kv_quantization: Option<KvQuantization>,
    /// Keeps only some of the prompt's tokens once it has been read; `None` keeps all.
    pub snapkv: Option<SnapKv>,
    /// How many tokens a draft model proposes at a time. Ignored without a draft model.
    pub num_draft_tokens: usize,
    /// What the answer is expected to say, by whoever asks: prompt lookup finds tokens there too. Empty
    /// where nothing is expected. Ignored where nothing is looked up.
    pub prediction: Vec<u32>,
}

impl GenerateOptions {
    /// mlx-lm's prefill_step_size.
    pub const DEFAULT_PREFILL_STEP_SIZE: usize = 2048;

    pub(crate) fn validate(&self) -> Result<(), LmError> {
        check_prefill_step_size(self.prefill_step_size)?;
        self.snapkv.map_or(Ok(()), |snapkv| snapkv.check())
    }
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            max_tokens: 256,
            prefill_step_size: Self::DEFAULT_PREFILL_STEP_SIZE,
            num_top_logprobs: None,
            max_kv_size: None,
            kv_quantization: None,
            snapkv: None,
            num_draft_tokens: 3,
            prediction: Vec::new(),
        }
    }
}

/// Fails if `prefill_step_size` is 0.
pub fn check_prefill_step_size(prefill_step_size: usize) -> Result<(), LmError> {
    if prefill_step_size > 0 {
        return Ok(());
    }
    Err(LmError::OutOfRange {
        name: "prefill_step_size",
        value: prefill_step_size.to_string(),
        allowed: "1 or more".to_owned(),
    })
}

/// How tokens are chosen: processors change the logits, then the sampler draws. The default is
/// greedy, without processors.
#[derive(Debug)]
pub struct Sampling {
    /// Draws a token from the logits.
    pub sampler: Sampler,
    /// Change the logits; they see all tokens so far, the prompt included.
    pub processors: LogitsProcessors,
}

impl Sampling {
    /// Fails if `params` are outside their ranges or the model's vocabulary.
    pub fn check(params: &SamplingParams, loaded: &LoadedModel) -> Result<(), LmError> {
        params.validate()?;
        check_token_ids(params, loaded.model.vocab_size())
    }

    /// Sampling by `params`. Fails as [`Sampling::check`] does.
    pub fn new(params: &SamplingParams, loaded: &LoadedModel) -> Result<Self, LmError> {
        Self::check(params, loaded)?;
        let mut xtc_special_tokens = Vec::new();
        if params.xtc_probability > 0.0 {
            // XTC must not exclude line breaks and end-of-sequence tokens.
            xtc_special_tokens = loaded.tokenizer.encode("\n", true)?;
            xtc_special_tokens.extend(&loaded.eos_token_ids);
        }
        let processors = LogitsProcessors::new(params, loaded.model.vocab_size())?;
        Ok(Sampling { sampler: Sampler::new(params, &xtc_special_tokens), processors })
    }
}

impl From<Sampler> for Sampling {
    fn from(sampler: Sampler) -> Self {
        Sampling { sampler, processors: LogitsProcessors::default() }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::from(Sampler::Greedy)
    }
}

/// A sampled token.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Whether the draft model proposed it.
    pub from_draft: bool,
    /// The distribution after processors and before the sampler's filters; if asked for.
    pub logprobs: Option<Logprobs>,
}

/// Caches for rows that are read together, and the length of the longest row. Fails on a row that is
/// empty, longer than the context, or has ids outside the vocabulary.
fn begin_rows(model: &Model, rows: &[Vec<u32>]) -> Result<(Vec<LayerCache>, usize), LmError> {
    for tokens in rows {
        if tokens.is_empty() {
            return Err(LmError::EmptyPrompt);
        }
        check_tokens(tokens, model.vocab_size())?;
        check_length(tokens.len(), model)?;
    }
    let caches = match rows.len() {
        1 => model.make_cache(),
        num_rows => continued_by_rows(&model.make_cache(), num_rows)?,
    };
    Ok((caches, rows.iter().map(Vec::len).max().unwrap_or(0)))
}

/// Fails if `num_tokens` exceed the model's context.
pub fn check_length(num_tokens: usize, model: &Model) -> Result<(), LmError> {
    let context_length = model.context_length();
    if num_tokens > context_length {
        Err(LmError::PromptTooLong { num_tokens, context_length })
    } else {
        Ok(())
    }
}

pub(crate) fn check_tokens(tokens: &[u32], vocab_size: usize) -> Result<(), LmError> {
    match tokens.iter().find(|&&token| token as usize >= vocab_size) {
        Some(&token) => Err(LmError::TokenOutOfRange { token, vocab_size }),
        None => Ok(()),
    }
}

pub(crate) fn token_array(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[1, tokens.len() as i32])
}

/// The tokens `[B, stop - start]` of some columns of rows; those behind a row's end are padding.
pub(crate) fn padded_columns<'a>(
    rows: impl Iterator<Item = &'a [u32]>,
    columns: Range<usize>,
) -> Array {
    let width = columns.len();
    let mut ids = Vec::new();
    for row in rows {
        // Nothing looks at what padding gives.
        ids.extend(columns.clone().map(|column| row.get(column).copied().unwrap_or_default()));
    }
    let num_rows = ids.len().checked_div(width).unwrap_or(0);
    Array::from_slice(&ids, &[num_rows as i32, width as i32])
}

/// Creates caches if `caches` is empty. Fails, before anything is read, on caches for another
/// number of layers and on options that the caches do not support.
pub(crate) fn make_caches(
    caches: &mut Vec<LayerCache>,
    model: &Model,
    options: &GenerateOptions,
) -> Result<(), LmError> {
    if caches.is_empty() {
        *caches = make_prompt_cache(model, options.max_kv_size)?;
    }
    let (found, expected) = (caches.len(), model.cache_spec().layers().len());
    if found != expected {
        return Err(LmError::CacheLayers { found, expected });
    }
    if let Some(quantization) = &options.kv_quantization {
        if options.snapkv.is_some() {
            return Err(not_quantized(quantization.bits));
        }
        quantization.check_caches(caches)?;
        model.cache_spec().check_group_size(quantization.group_size)?;
    }
    if options.snapkv.is_some() {
        observe_queries(caches);
    }
    Ok(())
}

/// Quantizes the caches that have reached `quantization.start`.
fn quantize_if_due(
    caches: &mut [LayerCache],
    quantization: Option<&KvQuantization>,
) -> Result<(), LmError> {
    match quantization {
        Some(quantization) => quantization.apply(caches),
        None => Ok(()),
    }
}
