//! Token by token from one model: a decode pipeline two steps deep.

use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, memory, ops};

use super::history::History;
use super::logprobs::Logprobs;
use super::prefill::{Prompt, prefill};
use super::{GenerateOptions, Input, OnProgress, Sampled, Sampling, make_caches, quantize_if_due};
use crate::cache::LayerCache;
use crate::models::Model;
use crate::sample::logprobs;
use crate::{LmError, ffi};

/// Tokens being sampled. It owns the caches; [`TokenStream::into_caches`] gives them back.
#[derive(Debug)]
pub struct TokenStream {
    model: Model,
    caches: Vec<LayerCache>,
    sampling: Sampling,
    history: History,
    options: GenerateOptions,
    /// The step that is being computed: its token `[1]` and, where asked for, log-probabilities
    /// `[1, V]`.
    pending: Option<(Array, Option<Array>)>,
    num_sampled: usize,
}

/// MLX keeps freed buffers for reuse; letting them go this often bounds what long answers hold.
/// mlx-lm does the same.
pub(super) const CLEAR_CACHE_EVERY: usize = 256;

/// Reads `input` after what `caches` hold (they are made where the vector is empty), and launches
/// the first step.
///
/// `on_progress(processed, total)` is called before the first and after every chunk. Breaking ends
/// with [`LmError::Cancelled`], and `caches` keep what was read. Arguments that are refused leave
/// them as they were, any other error leaves them empty.
pub fn generate_step<'a>(
    model: &Model,
    input: impl Into<Input<'a>>,
    caches: &mut Vec<LayerCache>,
    sampling: impl Into<Sampling>,
    options: GenerateOptions,
    on_progress: OnProgress<'_>,
) -> Result<TokenStream, LmError> {
    let (input, sampling) = (input.into(), sampling.into());
    options.validate()?;
    let prompt = Prompt::checked(&input, model)?;
    let history = History::new(&sampling.processors, &[input.cached_tokens, input.tokens]);
    make_caches(caches, model, &options)?;
    prefill(&prompt, model, caches, &options, on_progress)?;
    let mut stream = TokenStream {
        model: model.clone(),
        caches: std::mem::take(caches),
        sampling,
        history,
        options,
        pending: None,
        num_sampled: 0,
    };
    let last = prompt.len() - 1;
    let hidden = prompt.forward(last..last + 1, model, &mut stream.caches)?;
    if stream.options.max_tokens > 0 {
        stream.pending = Some(stream.launch(&hidden)?);
    } else {
        quantize_if_due(&mut stream.caches, stream.options.kv_quantization.as_ref())?;
        mlx_rs::transforms::eval(stream.caches.iter().flat_map(LayerCache::arrays))?;
    }
    Ok(stream)
}

impl TokenStream {
    /// The next token; none after `max_tokens`. The step after it is launched before this one is
    /// waited for.
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

    /// Ends the stream and gives the caches back, when the device has finished what was launched.
    ///
    /// They hold the prompt and the sampled tokens that were fed back, as many as their offset
    /// tells. After a failed step they are not to be used.
    pub fn into_caches(mut self) -> Result<Vec<LayerCache>, LmError> {
        self.pending = None;
        ffi::synchronize()?;
        Ok(self.caches)
    }

    /// From the hidden state `[1, 1, D]` of the last token to the next token.
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
