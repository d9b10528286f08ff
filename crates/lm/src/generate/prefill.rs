//! Prefill of one prompt in chunks, with progress reports and cancellation between them.

use std::ops::{ControlFlow, Range};

use mlx_rs::transforms::eval;
use mlx_rs::{Array, memory, ops};

use super::{GenerateOptions, OnProgress, check_tokens, quantize_if_due, token_array};
use crate::cache::{KvQuantization, LayerCache, compress};
use crate::models::Model;
use crate::{LmError, ffi};

/// The input that a model reads after what its caches hold: token ids, embeddings, or both (then
/// the embeddings are read, and processors see the ids).
#[derive(Debug, Clone, Copy, Default)]
pub struct Input<'a> {
    /// Token ids; may be empty if embeddings are given.
    pub tokens: &'a [u32],
    /// Embeddings `[L, D]` or `[1, L, D]` that the first layer reads instead of those of `tokens`.
    pub embeddings: Option<&'a Array>,
    /// The tokens that the caches hold: processors see them, and `prompt_tokens` counts them.
    pub cached_tokens: &'a [u32],
}

impl<'a> From<&'a [u32]> for Input<'a> {
    fn from(tokens: &'a [u32]) -> Self {
        Input { tokens, ..Input::default() }
    }
}

impl<'a> From<&'a Vec<u32>> for Input<'a> {
    fn from(tokens: &'a Vec<u32>) -> Self {
        Input::from(tokens.as_slice())
    }
}

/// A checked input: at least one token or embedding.
#[derive(Debug)]
pub(super) struct Prompt<'a> {
    tokens: &'a [u32],
    embeddings: Option<Array>, // [1, L, D]
}

impl<'a> Prompt<'a> {
    pub(super) fn checked(input: &Input<'a>, model: &Model) -> Result<Self, LmError> {
        check_tokens(input.tokens, model.vocab_size())?;
        // Processors index logits by them, and MLX does not check indices.
        check_tokens(input.cached_tokens, model.vocab_size())?;
        let embeddings = match input.embeddings {
            Some(embeddings) => Some(checked_embeddings(embeddings, input.tokens.len(), model)?),
            None => None,
        };
        let prompt = Prompt { tokens: input.tokens, embeddings };
        if prompt.len() == 0 { Err(LmError::EmptyPrompt) } else { Ok(prompt) }
    }

    pub(super) fn len(&self) -> usize {
        self.embeddings.as_ref().map_or(self.tokens.len(), |embeddings| embeddings.dim(1) as usize)
    }

    /// Runs the model over the tokens `range` and returns their hidden states `[1, L, D]`.
    pub(super) fn forward(
        &self,
        range: Range<usize>,
        model: &Model,
        caches: &mut [LayerCache],
    ) -> Result<Array, LmError> {
        match &self.embeddings {
            Some(embeddings) => {
                let (start, stop) =
                    ([0, range.start as i32, 0], [1, range.end as i32, embeddings.dim(2)]);
                model.forward_embeddings(ffi::slice(embeddings, &start, &stop)?, caches)
            }
            None => model.forward(&token_array(&self.tokens[range]), caches),
        }
    }
}

fn checked_embeddings(
    embeddings: &Array,
    num_tokens: usize,
    model: &Model,
) -> Result<Array, LmError> {
    let refuse = |allowed: String| LmError::OutOfRange {
        name: "input_embeddings",
        value: format!("{:?}", embeddings.shape()),
        allowed,
    };
    let batched = match embeddings.shape() {
        [_, _] => ops::expand_dims(embeddings, 0)?,
        [1, _, _] => embeddings.clone(),
        _ => {
            return Err(refuse(
                "a shape of [length, hidden size] or [1, length, hidden size]".to_owned(),
            ));
        }
    };
    let hidden_size = model.embed(&token_array(&[0]))?.dim(2);
    if batched.dim(2) != hidden_size {
        return Err(refuse(format!("{hidden_size} numbers for each token of this model")));
    }
    if num_tokens > 0 && batched.dim(1) as usize != num_tokens {
        return Err(refuse(format!(
            "as many embeddings as the prompt has tokens ({num_tokens}), or an empty prompt"
        )));
    }
    Ok(batched)
}

/// Reads all of `prompt` but its last token, and then drops what `options` do not keep; reports
/// progress before the first and after every chunk.
pub(super) fn prefill(
    prompt: &Prompt<'_>,
    model: &Model,
    caches: &mut Vec<LayerCache>,
    options: &GenerateOptions,
    on_progress: OnProgress<'_>,
) -> Result<(), LmError> {
    prefill_with(prompt, model, caches, options, &mut |_, _| Ok(()), on_progress)
}

/// Called with the hidden states `[1, L, D]` of a chunk, and the place of its first token.
pub(super) type OnHidden<'a> = &'a mut dyn FnMut(&Array, usize) -> Result<(), LmError>;

/// As [`prefill`]; also calls `on_hidden` with every chunk that was read.
pub(super) fn prefill_with(
    prompt: &Prompt<'_>,
    model: &Model,
    caches: &mut Vec<LayerCache>,
    options: &GenerateOptions,
    on_hidden: OnHidden<'_>,
    on_progress: OnProgress<'_>,
) -> Result<(), LmError> {
    let total = prompt.len();
    if on_progress(0, total).is_break() {
        return Err(LmError::Cancelled);
    }
    let forward = &mut |range: Range<usize>, caches: &mut [LayerCache]| {
        let hidden = prompt.forward(range.clone(), model, caches)?;
        on_hidden(&hidden, range.start)?;
        Ok(hidden)
    };
    let quantization = options.kv_quantization.as_ref();
    prefill_chunks(
        0..total - 1,
        options.prefill_step_size,
        forward,
        caches,
        quantization,
        &mut |processed| on_progress(processed, total),
    )?;
    if let Some(snapkv) = &options.snapkv {
        compress(caches, snapkv).inspect_err(|_| caches.clear())?;
    }
    Ok(())
}

/// Runs the model over a range of tokens and returns their hidden states.
pub(crate) type Forward<'a> =
    &'a mut dyn FnMut(Range<usize>, &mut [LayerCache]) -> Result<Array, LmError>;

/// Reads the tokens of `range` with `forward`, at most `step_size` at once, and calls `on_chunk`
/// with the end of every chunk. Computes no logits.
///
/// If `on_chunk` breaks, the error is [`LmError::Cancelled`] and `caches` hold what was read. After
/// any other error they are empty, because layers may have read different numbers of tokens.
pub(crate) fn prefill_chunks(
    range: Range<usize>,
    step_size: usize,
    forward: Forward<'_>,
    caches: &mut Vec<LayerCache>,
    quantization: Option<&KvQuantization>,
    on_chunk: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<(), LmError> {
    let mut start = range.start;
    while start < range.end {
        let stop = range.end.min(start + step_size);
        let mut read = || {
            forward(start..stop, caches)?;
            quantize_if_due(caches, quantization)?;
            finish_pass(caches)
        };
        if let Err(error) = read() {
            caches.clear();
            return Err(error);
        }
        start = stop;
        if on_chunk(start).is_break() {
            return Err(LmError::Cancelled);
        }
    }
    Ok(())
}

/// Ends a pass that computed no logits: evaluates the caches, and releases the buffers that it
/// needed besides.
pub(crate) fn finish_pass(caches: &[LayerCache]) -> Result<(), LmError> {
    eval(caches.iter().flat_map(LayerCache::arrays))?;
    memory::clear_cache()?;
    Ok(())
}
