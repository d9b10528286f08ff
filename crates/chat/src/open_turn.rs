//! A turn left open: the text of a prompt cache that ends within a message, and the text that continues one.

use crate::{ChatError, ChatTemplate, Message};

impl ChatTemplate {
    /// The rendered text up to the end of the last message's words, as `mlx_lm.cache_prompt` reads it into a cache.
    ///
    /// Templates may trim a message; then its words end where the trimmed ones do.
    pub fn render_open(&self, messages: &[Message]) -> Result<String, ChatError> {
        let mut text = self.render(messages, false)?;
        let words = last_words(messages)?;
        let from = text.rfind(words.trim()).ok_or(ChatError::WordsNotRendered)?;
        let is_whole = text[from..].starts_with(words.trim_start());
        text.truncate(from + if is_whole { words.trim_start().len() } else { words.trim().len() });
        Ok(text)
    }

    /// The rendered text from the last message's words on, up to where the answer begins: what continues an open turn, as
    /// `mlx_lm.generate --prompt-cache-file` reads it.
    pub fn render_continuation(&self, messages: &[Message]) -> Result<String, ChatError> {
        const PROBE: &str = "<query>";
        last_words(messages)?;
        let text = self.render(messages, true)?;
        let mut probed = messages.to_vec();
        if let Some(last) = probed.last_mut() {
            last.content = PROBE.to_owned();
        }
        let probe = self.render(&probed, true)?;
        let from = probe.find(PROBE).ok_or(ChatError::WordsNotRendered)?;
        if text.get(..from) != probe.get(..from) {
            return Err(ChatError::WordsNotRendered);
        }
        Ok(text[from..].to_owned())
    }
}

fn last_words(messages: &[Message]) -> Result<&str, ChatError> {
    messages.last().map(|last| last.content.as_str()).filter(|words| !words.trim().is_empty()).ok_or(ChatError::WordsNotRendered)
}
