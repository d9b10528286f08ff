//! Open turns: the text of a prompt cache that ends within a message, and the text that continues
//! it.

use crate::{ChatError, ChatTemplate, Message};

/// A placeholder for the last message's text, to find where a template puts it: the text itself may
/// occur elsewhere too.
const PROBE: &str = "<query>";

impl ChatTemplate {
    /// The rendered text up to the end of the last message's text, as `mlx_lm.cache_prompt` reads
    /// it into a cache.
    ///
    /// If a template trims the message, the text ends with the trimmed one.
    pub fn render_open(&self, messages: &[Message]) -> Result<String, ChatError> {
        let template = self.for_one_prompt();
        up_to_last_words(messages, &|messages| template.render(messages, false))
    }

    /// The rendered text from the last message's text on, up to where the answer begins: the
    /// continuation of an open turn, as `mlx_lm.generate --prompt-cache-file` reads it.
    pub fn render_continuation(&self, messages: &[Message]) -> Result<String, ChatError> {
        let template = self.for_one_prompt();
        let render = |messages: &[Message]| template.render(messages, true);
        let (before, _) = around_last_words(messages, &render)?;
        let text = render(messages)?;
        text.strip_prefix(before.as_str()).map(str::to_owned).ok_or(ChatError::WordsNotRendered)
    }
}

/// How messages become text.
type Render<'a> = &'a dyn Fn(&[Message]) -> Result<String, ChatError>;

/// The rendered text up to the end of the last message's text.
pub(crate) fn up_to_last_words(
    messages: &[Message],
    render: Render<'_>,
) -> Result<String, ChatError> {
    let (_, after) = around_last_words(messages, render)?;
    let mut text = render(messages)?;
    let end =
        text.len().checked_sub(after.len()).filter(|&end| text.get(end..) == Some(after.as_str()));
    text.truncate(
        end.filter(|&end| text[..end].trim_end().ends_with(last_words(messages)))
            .ok_or(ChatError::WordsNotRendered)?,
    );
    Ok(text)
}

/// The rendered text before and after the last message's text.
fn around_last_words(
    messages: &[Message],
    render: Render<'_>,
) -> Result<(String, String), ChatError> {
    if last_words(messages).is_empty() {
        return Err(ChatError::WordsNotRendered);
    }
    let mut probed = messages.to_vec();
    if let Some(last) = probed.last_mut() {
        last.content = PROBE.to_owned();
    }
    let text = render(&probed)?;
    let (before, after) = text.rsplit_once(PROBE).ok_or(ChatError::WordsNotRendered)?;
    Ok((before.to_owned(), after.to_owned()))
}

fn last_words(messages: &[Message]) -> &str {
    messages.last().map_or("", |last| last.content.trim())
}
