//! The model's input, assembled from rendered text and the token ids that earlier turns were made of.

use crate::{ChatError, ChatTemplate, Message};

/// A tokenizer, as far as prompts need one.
pub trait Encode {
    /// Token ids of a text in which special tokens are recognised; `add_special_tokens` adds what the tokenizer puts around a text by
    /// itself, such as a beginning-of-sequence token.
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ChatError>;
    /// Token ids of a text in which the texts of special tokens are ordinary text.
    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ChatError>;
    /// The text of token ids, special tokens included, without cleaning anything up.
    fn decode(&self, ids: &[u32]) -> Result<String, ChatError>;
    /// The texts and ids of the special tokens.
    fn special_tokens(&self) -> &[(String, u32)];
}

/// What the model is given to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The whole input.
    pub tokens: Vec<u32>,
    /// Index of the first token after the last reused ids; 0 when none were reused.
    pub new_from: usize,
    /// Ascending token counts at which a cached chunk should end; the last is `tokens.len()`.
    pub boundaries: Vec<usize>,
    /// The rendered text that `tokens` stand for.
    pub text: String,
}

/// Renders the messages and turns the text into tokens.
pub fn assemble<E: Encode + ?Sized>(template: &ChatTemplate, messages: &[Message], encoder: &E) -> Result<Prompt, ChatError> {
    let text = template.render(messages, true)?;
    let tokens = encoder.encode(&text, false)?;
    Ok(Prompt { new_from: 0, boundaries: vec![tokens.len()], tokens, text })
}
