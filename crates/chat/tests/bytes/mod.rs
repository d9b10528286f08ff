//! Tokens for tests that need no vocabulary.

use cairn_chat::{ChatError, Encode};

/// A byte is a token; the special tokens are those that it is given.
#[derive(Default)]
pub struct Bytes(pub Vec<(String, u32)>);

impl Encode for Bytes {
    fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, ChatError> {
        self.encode_plain(text)
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, ids: &[u32]) -> Result<String, ChatError> {
        let bytes = ids.iter().map(|&id| id as u8).collect::<Vec<_>>();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn special_tokens(&self) -> &[(String, u32)] {
        &self.0
    }
}
