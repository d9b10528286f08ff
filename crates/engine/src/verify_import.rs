//! Verifies an import: computes the keys and values of all its tokens again and compares them.
//!
//! A sample would not suffice. Each position depends on the keys and values before it, so a sampled
//! position computed on top of altered ones agrees with them, and an undetected change would be
//! shared with every conversation that has the same beginning.

use cairn_lm::LmError;
use cairn_lm::cache::{Difference, LayerCache, first_difference};
use cairn_lm::models::Model;
use mlx_rs::Array;
use mlx_rs::transforms::eval;

/// The result of a verification.
pub(crate) enum Verified {
    /// The file's contents are those of its tokens. These are the plain caches computed here.
    Equal(Vec<LayerCache>),
    /// The first difference, as a sentence.
    Differs(String),
}

/// A verification in slices.
pub(crate) struct Verification {
    model: Model,
    tokens: Vec<u32>,
    computed: Vec<LayerCache>,
    num_read: usize,
}

impl Verification {
    /// A verification of caches that are said to hold `tokens`. Computes nothing yet.
    pub(crate) fn new(model: &Model, tokens: Vec<u32>) -> Self {
        Verification { model: model.clone(), tokens, computed: model.make_cache(), num_read: 0 }
    }

    /// How many tokens have been computed.
    pub(crate) fn num_read(&self) -> usize {
        self.num_read
    }

    /// Computes the next `max_tokens`, or all that are left.
    pub(crate) fn advance(&mut self, max_tokens: usize) -> Result<(), LmError> {
        let end = self.tokens.len().min(self.num_read + max_tokens);
        let slice = &self.tokens[self.num_read..end];
        if slice.is_empty() {
            return Ok(());
        }
        let input = Array::from_slice(slice, &[1, slice.len() as i32]); // [1, L]
        self.model.forward(&input, &mut self.computed)?;
        // Evaluated slice by slice, as a prompt is prefilled: otherwise the activations of all
        // slices would be in memory at once.
        eval(self.computed.iter().flat_map(LayerCache::arrays))?;
        self.num_read = end;
        Ok(())
    }

    /// Compares what was computed with what `found` contains, which may be quantized.
    pub(crate) fn compare(self, found: &[LayerCache]) -> Result<Verified, LmError> {
        let difference = first_difference(found, &self.computed, 0..self.tokens.len())?;
        let Some(Difference { layer, token }) = difference else {
            return Ok(Verified::Equal(self.computed));
        };
        let at = token.map_or_else(String::new, |token| format!("token {token}, "));
        Ok(Verified::Differs(format!(
            "its contents are not what the model computes from its tokens ({at}layer {layer}): do not use it"
        )))
    }
}
