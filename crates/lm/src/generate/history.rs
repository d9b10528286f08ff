//! The tokens that logits processors see: prompt and answer, also those that the device is still
//! computing.

use mlx_rs::Array;

use crate::LmError;
use crate::sample::{LogitsProcessors, TokenBuffer};

/// Prompt and answer so far. Empty, and free, where no processor asks for them.
#[derive(Debug)]
pub(super) struct History(Option<TokenBuffer>);

impl History {
    pub(super) fn new(processors: &LogitsProcessors, prompt: &[&[u32]]) -> Self {
        History((!processors.is_empty()).then(|| TokenBuffer::from_tokens(&prompt.concat())))
    }

    /// Appends a token `[1]`.
    pub(super) fn push(&mut self, token: &Array) -> Result<(), LmError> {
        match &mut self.0 {
            Some(tokens) => tokens.append(token),
            None => Ok(()),
        }
    }

    /// The array behind it, to be computed with each step: a processor that ignores it, as a bias
    /// does, would let its graph grow with the answer.
    pub(super) fn array(&self) -> Option<&Array> {
        self.0.as_ref().map(TokenBuffer::array)
    }

    /// Logits `[1, V]` as the processors leave them, after this history and `proposed`, tokens
    /// `[1]` that may yet be taken back.
    pub(super) fn process(
        &self,
        processors: &mut LogitsProcessors,
        proposed: &[Array],
        logits: Array,
    ) -> Result<Array, LmError> {
        let Some(tokens) = &self.0 else { return Ok(logits) };
        let shape = logits.shape().to_vec();
        let processed = if proposed.is_empty() {
            processors.apply(tokens, logits)?
        } else {
            let mut tokens = tokens.clone();
            proposed.iter().try_for_each(|token| tokens.append(token))?;
            processors.apply(&tokens, logits)?
        };
        if processed.shape() != shape {
            return Err(LmError::ProcessedShape {
                expected: shape[1],
                found: processed.shape().to_vec(),
            });
        }
        Ok(processed)
    }
}
