//! The tokens that logits processors see: the prompt and the generated tokens, including those that
//! the device has not computed yet.

use mlx_rs::Array;

use crate::LmError;
use crate::sample::{LogitsProcessors, TokenBuffer};

/// The prompt and the tokens generated so far; `None` without processors, which costs nothing.
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

    /// The token array, to be evaluated with each step: if no processor reads it (a bias does not),
    /// its graph would otherwise grow with every token.
    pub(super) fn array(&self) -> Option<&Array> {
        self.0.as_ref().map(TokenBuffer::array)
    }

    /// Applies the processors to logits `[1, V]`. They see this history followed by `proposed`,
    /// draft tokens `[1]` that may still be refused.
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
