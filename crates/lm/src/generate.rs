//! One answer, token by token: chunked prefill, then a decode pipeline two steps deep.

use std::ops::ControlFlow;

use mlx_rs::transforms::{async_eval, eval};
use mlx_rs::{Array, memory};

use crate::LmError;
use crate::cache::LayerCache;
use crate::ffi;
use crate::models::Model;
use crate::sample::{Sampler, logprobs};

/// How a prompt is read and an answer written.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to sample.
    pub max_tokens: usize,
    /// Prompt tokens per forward pass.
    pub prefill_step_size: usize,
    /// How many alternatives to report with each token; none: no log-probabilities at all.
    pub num_top_logprobs: Option<usize>,
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Its natural log-probability and the most likely alternatives, best first; where asked for.
    pub logprobs: Option<(f32, Vec<(u32, f32)>)>,
}

/// Tokens being sampled. It owns the caches; [`TokenStream::into_caches`] gives them back.
#[derive(Debug)]
pub struct TokenStream {
    model: Model,
    caches: Vec<LayerCache>,
    sampler: Sampler,
    options: GenerateOptions,
    /// The step that is being computed: its token `[1]` and, where asked for, log-probabilities `[1, V]`.
    pending: Option<(Array, Option<Array>)>,
    num_sampled: usize,
}

/// MLX keeps freed buffers for reuse; letting them go this often bounds what long answers hold. mlx-lm does the same.
const CLEAR_CACHE_EVERY: usize = 256;

impl TokenStream {
    /// Reads `prompt`, the tokens after those in `caches`, and launches the first step.
    ///
    /// `on_progress(processed, total)` is called before the first and after every chunk; breaking ends with [`LmError::Cancelled`].
    /// On any error `caches` keep what was read, trimmed to whole chunks.
    pub fn start(
        model: &Model,
        prompt: &[u32],
        caches: &mut Vec<LayerCache>,
        sampler: Sampler,
        options: GenerateOptions,
        on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Self, LmError> {
        let Some((&last, most)) = prompt.split_last() else { return Err(LmError::EmptyPrompt) };
        check_tokens(prompt, model.vocab_size())?;
        let total = prompt.len();
        let mut processed = 0;
        if on_progress(processed, total).is_break() {
            return Err(LmError::Cancelled);
        }
        for chunk in most.chunks(options.prefill_step_size.max(1)) {
            model.forward(&token_array(chunk), caches)?;
            eval(caches.iter().flat_map(LayerCache::arrays))?;
            memory::clear_cache()?;
            processed += chunk.len();
            if on_progress(processed, total).is_break() {
                return Err(LmError::Cancelled);
            }
        }
        let mut stream =
            TokenStream { model: model.clone(), caches: std::mem::take(caches), sampler, options, pending: None, num_sampled: 0 };
        if stream.options.max_tokens > 0 {
            stream.pending = Some(stream.launch(&token_array(&[last]))?);
        }
        Ok(stream)
    }

    /// The next token; none after `max_tokens`. The step after it is launched before this one is waited for.
    pub fn next_token(&mut self) -> Result<Option<Sampled>, LmError> {
        let Some((token, logprobs)) = self.pending.take() else { return Ok(None) };
        self.num_sampled += 1;
        if self.num_sampled < self.options.max_tokens {
            let input = mlx_rs::ops::reshape(&token, &[1, 1])?;
            self.pending = Some(self.launch(&input)?);
        }
        let id = token.try_item_exact::<u32>().map_err(|error| mlx_rs::error::Exception::custom(error.to_string()))?;
        let logprobs = match logprobs {
            Some(logprobs) => Some(top_logprobs(&logprobs, id, self.options.num_top_logprobs.unwrap_or(0))?),
            None => None,
        };
        if self.num_sampled.is_multiple_of(CLEAR_CACHE_EVERY) {
            memory::clear_cache()?;
        }
        Ok(Some(Sampled { token: id, logprobs }))
    }

    /// Ends the stream and gives the caches back, when the device has finished what was launched.
    ///
    /// They hold the prompt and the sampled tokens that were fed back; the count tells how many of them are there.
    pub fn into_caches(mut self) -> Result<Vec<LayerCache>, LmError> {
        self.pending = None;
        ffi::synchronize()?;
        Ok(self.caches)
    }

    fn launch(&mut self, input: &Array) -> Result<(Array, Option<Array>), LmError> {
        let hidden = self.model.forward(input, &mut self.caches)?;
        let logits = self.model.logits(&hidden)?;
        let logits = mlx_rs::ops::reshape(&logits, &[1, -1])?;
        let token = self.sampler.sample(&logits)?;
        let logprobs = if self.options.num_top_logprobs.is_some() { Some(logprobs(&logits)?) } else { None };
        async_eval(std::iter::once(&token).chain(&logprobs))?;
        Ok((token, logprobs))
    }
}

/// A token id with its natural log-probability.
pub type TokenScore = (u32, f32);

/// Natural log-probabilities of each of `tokens` given those before it (none for the first), and the `num_top` likeliest next tokens.
pub fn score(model: &Model, tokens: &[u32], num_top: usize) -> Result<(Vec<Option<f32>>, Vec<TokenScore>), LmError> {
    if tokens.is_empty() {
        return Err(LmError::EmptyPrompt);
    }
    check_tokens(tokens, model.vocab_size())?;
    check_length(tokens.len(), model)?;
    let mut caches = model.make_cache();
    let mut scores = vec![None];
    let mut next = Vec::new();
    // Each chunk holds a row of logits per token, so chunks are shorter than in prefill.
    for (index, chunk) in tokens.chunks(256).enumerate() {
        let hidden = model.forward(&token_array(chunk), &mut caches)?;
        let logprobs = logprobs(&model.logits(&hidden)?)?; // [1, L, V]
        logprobs.eval()?;
        let vocab_size = logprobs.dim(2) as usize;
        let rows = logprobs.try_as_slice::<f32>()?;
        for (position, row) in rows.chunks(vocab_size).enumerate() {
            match tokens.get(index * 256 + position + 1) {
                Some(&following) => scores.push(row.get(following as usize).copied()),
                None => next = likeliest(row, num_top),
            }
        }
    }
    Ok((scores, next))
}

/// Fails if the prompt leaves no room for an answer.
pub fn check_length(num_tokens: usize, model: &Model) -> Result<(), LmError> {
    let context_length = model.context_length();
    if num_tokens > context_length { Err(LmError::PromptTooLong { num_tokens, context_length }) } else { Ok(()) }
}

pub(crate) fn check_tokens(tokens: &[u32], vocab_size: usize) -> Result<(), LmError> {
    match tokens.iter().find(|&&token| token as usize >= vocab_size) {
        Some(&token) => Err(LmError::TokenOutOfRange { token, vocab_size }),
        None => Ok(()),
    }
}

fn token_array(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[1, tokens.len() as i32])
}

pub(crate) fn top_logprobs(logprobs: &Array, token: u32, count: usize) -> Result<(f32, Vec<(u32, f32)>), LmError> {
    let row = logprobs.try_as_slice::<f32>()?;
    let own = row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    Ok((own, likeliest(row, count)))
}

fn likeliest(row: &[f32], count: usize) -> Vec<(u32, f32)> {
    let count = count.min(row.len());
    if count == 0 {
        return Vec::new();
    }
    let mut indexed: Vec<(u32, f32)> = row.iter().enumerate().map(|(id, &value)| (id as u32, value)).collect();
    indexed.select_nth_unstable_by(count - 1, |a, b| b.1.total_cmp(&a.1));
    indexed.truncate(count);
    indexed.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    indexed
}
