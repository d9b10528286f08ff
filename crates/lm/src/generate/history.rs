//! The tokens that logits processors see: prompt and answer, also those that the device is still computing.

use mlx_rs::{Array, ops};

use crate::LmError;
use crate::processors::LogitsProcessors;

/// Prompt and answer so far. Empty, and free, where no processor asks for them.
#[derive(Debug)]
pub(super) struct History(Option<Array>);

impl History {
    pub(super) fn new(processors: &LogitsProcessors, prompt: &[&[u32]]) -> Result<Self, LmError> {
        if processors.is_empty() {
            return Ok(History(None));
        }
        let prompt = prompt.concat();
        Ok(History(Some(Array::from_slice(&prompt, &[prompt.len() as i32]))))
    }

    /// Appends a token `[1]`.
    pub(super) fn push(&mut self, token: &Array) -> Result<(), LmError> {
        if let History(Some(tokens)) = self {
            *tokens = ops::concatenate(&[tokens.clone(), token.clone()], 0)?;
        }
        Ok(())
    }

    /// Logits `[1, V]` as the processors leave them, after this history and `proposed`, tokens `[1]` that may yet be taken back.
    pub(super) fn process(&mut self, processors: &mut LogitsProcessors, proposed: &[Array], logits: Array) -> Result<Array, LmError> {
        let History(Some(tokens)) = self else { return Ok(logits) };
        let mut seen = vec![tokens.clone()];
        seen.extend_from_slice(proposed);
        processors.process(&ops::concatenate(&seen, 0)?, logits)
    }
}
