//! Verifies an import: computes the keys and values of all its tokens again and compares them.
//!
//! A sample would not suffice. Each position depends on the keys and values before it, so a sampled
//! position computed on top of altered ones agrees with them, and an undetected change would be
//! shared with every conversation that has the same beginning.

use std::ops::ControlFlow;

use cairn_lm::LmError;
use cairn_lm::cache::{Difference, LayerCache, first_difference};
use cairn_lm::models::Model;
use mlx_rs::Array;
use mlx_rs::transforms::eval;

/// Tokens of one step: on a CPU a second or two, which is how long a cancellation waits.
const STEP_TOKENS: usize = 256;

/// The result of a verification.
pub(crate) enum Verified {
    /// The file's contents are those of its tokens. These are the plain caches computed here.
    Equal(Vec<LayerCache>),
    /// The first difference, as a sentence.
    Differs(String),
}

/// Computes the caches of `tokens` and compares them with what `found` contains, which may be
/// quantized. `on_progress(processed, total)` counts tokens; breaking is [`LmError::Cancelled`].
pub(crate) fn verify(
    model: &Model,
    tokens: &[u32],
    found: &[LayerCache],
    mut on_progress: impl FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Verified, LmError> {
    let mut computed = model.make_cache();
    let mut processed = 0;
    for step in tokens.chunks(STEP_TOKENS) {
        if on_progress(processed, tokens.len()).is_break() {
            return Err(LmError::Cancelled);
        }
        let input = Array::from_slice(step, &[1, step.len() as i32]); // [1, L]
        model.forward(&input, &mut computed)?;
        // Evaluated step by step, as a prompt is prefilled: otherwise the activations of all steps
        // would be in memory at once.
        eval(computed.iter().flat_map(LayerCache::arrays))?;
        processed += step.len();
    }
    // A cancelled import must not be stored.
    if on_progress(tokens.len(), tokens.len()).is_break() {
        return Err(LmError::Cancelled);
    }
    if let Some(Difference { layer, token }) = first_difference(found, &computed, 0..tokens.len())?
    {
        let at = token.map_or_else(String::new, |token| format!("token {token}, "));
        return Ok(Verified::Differs(format!(
            "its contents are not what the model computes from its tokens ({at}layer {layer}): do not use it"
        )));
    }
    Ok(Verified::Equal(computed))
}
