//! Prefill and decode with one model, in a pipeline two steps deep.

use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, memory, ops};

use super::history::History;
use super::logprobs::Logprobs;
use super::prefill::{Prompt, prefill};
use super::{
    GenerateOptions, Input, OnProgress, Sampled, Sampling, make_caches, num_cached,
    quantize_if_due, token_limit,
};
use crate::cache::LayerCache;
use crate::models::Model;
use crate::sample::logprobs;
use crate::{LmError, ffi};

/// A stream of generated tokens. It owns the caches until [`TokenStream::into_caches`].
#[derive(Debug)]
pub struct TokenStream {
    model: Model,
    caches: Vec<LayerCache>,
    sampling: Sampling,
    history: History,
    options: GenerateOptions,
    /// The step that has been launched: its token `[1]` and, if asked for, its log-probabilities
    /// `[1, V]`.
    pending: Option<(Array, Option<Array>)>,
    num_sampled: usize,
}

/// MLX keeps freed buffers for reuse. Releasing them after this many tokens, as mlx-lm does, bounds
/// the memory of long answers.
pub(super) const CLEAR_CACHE_EVERY: usize = 256;

/// Reads `input` after what `caches` hold (an empty vector is filled), and launches the first step.
///
/// `on_progress(processed, total)` is called before the first and after every chunk; if it breaks,
/// the error is [`LmError::Cancelled`] and `caches` hold what was read. After an invalid argument
/// `caches` are unchanged, after any other error they are empty.
pub fn generate_step<'a>(
    model: &Model,
    input: impl Into<Input<'a>>,
    caches: &mut Vec<LayerCache>,
    sampling: impl Into<Sampling>,
    mut options: GenerateOptions,
    on_progress: OnProgress<'_>,
) -> Result<TokenStream, LmError> {
    let (input, sampling) = (input.into(), sampling.into());
    options.validate()?;
    let prompt = Prompt::checked(&input, model)?;
    let history = History::new(&sampling.processors, &[input.cached_tokens, input.tokens]);
    make_caches(caches, model, &options)?;
    let num_prompt_tokens = num_cached(caches) + prompt.len();
    options.max_tokens = token_limit(options.max_tokens, num_prompt_tokens, model);
    prefill(&prompt, model, caches, &options, on_progress)?;
    let last = prompt.len() - 1;
    let mut caches = std::mem::take(caches);
    let hidden = prompt.forward(last..last + 1, model, &mut caches)?;
    TokenStream::start(model.clone(), caches, sampling, history, options, &hidden)
}

impl TokenStream {
    /// Launches the first step from the hidden state `[1, 1, D]` of the prompt's last token, which
    /// `caches` hold.
    pub(super) fn start(
        model: Model,
        caches: Vec<LayerCache>,
        sampling: Sampling,
        history: History,
        options: GenerateOptions,
        hidden: &Array,
    ) -> Result<Self, LmError> {
        let mut stream = TokenStream {
            model,
            caches,
            sampling,
            history,
            options,
            pending: None,
            num_sampled: 0,
        };
        if stream.options.max_tokens > 0 {
            stream.pending = Some(stream.launch(hidden)?);
        } else {
            quantize_if_due(&mut stream.caches, stream.options.kv_quantization.as_ref())?;
            mlx_rs::transforms::eval(stream.caches.iter().flat_map(LayerCache::arrays))?;
        }
        Ok(stream)
    }

    /// The most tokens that are sampled.
    pub(super) fn max_tokens(&self) -> usize {
        self.options.max_tokens
    }

    /// The next token; `None` after `max_tokens`. The step after it is launched before waiting for
    /// this one.
    pub fn next_token(&mut self) -> Result<Option<Sampled>, LmError> {
        let Some((token, logprobs)) = self.pending.take() else { return Ok(None) };
        self.num_sampled += 1;
        if self.num_sampled < self.options.max_tokens {
            self.history.push(&token)?;
            let hidden = self.model.forward(&ops::reshape(&token, &[1, 1])?, &mut self.caches)?;
            self.pending = Some(self.launch(&hidden)?);
        }
        let id = token
            .try_item_exact::<u32>()
            .map_err(|error| mlx_rs::error::Exception::custom(error.to_string()))?;
        let logprobs = match logprobs {
            Some(logprobs) => Some(Logprobs::read(
                ops::reshape(&logprobs, &[-1])?,
                id,
                self.options.num_top_logprobs.unwrap_or(0),
            )?),
            None => None,
        };
        if self.num_sampled.is_multiple_of(CLEAR_CACHE_EVERY) {
            memory::clear_cache()?;
        }
        Ok(Some(Sampled { token: id, from_draft: false, logprobs }))
    }

    /// Waits for the device, ends the stream and returns the caches.
    ///
    /// Their offsets tell how many tokens of the prompt and the answer they hold. After a failed
    /// step they must not be used.
    pub fn into_caches(mut self) -> Result<Vec<LayerCache>, LmError> {
        self.pending = None;
        ffi::synchronize()?;
        Ok(self.caches)
    }

    /// Samples the token after the hidden state `[1, 1, D]` and launches the computation.
    fn launch(&mut self, hidden: &Array) -> Result<(Array, Option<Array>), LmError> {
        let logits = self.model.logits(hidden)?;
        let logits = self.history.process(
            &mut self.sampling.processors,
            &[],
            ops::reshape(&logits, &[1, -1])?,
        )?;
        quantize_if_due(&mut self.caches, self.options.kv_quantization.as_ref())?;
        let token = self.sampling.sampler.sample(&logits)?;
        let logprobs =
            if self.options.num_top_logprobs.is_some() { Some(logprobs(&logits)?) } else { None };
        async_eval(std::iter::once(&token).chain(&logprobs).chain(self.history.array()))?;
        Ok((token, logprobs))
    }
}
