//! Assembles messages that follow a stored prompt cache.
//!
//! The cache's tokens are not rendered again, so the template is probed for the position at which
//! its text for the new messages begins. The text before that position is assumed to be in the
//! cache.

use crate::prompt::{Encode, Prompt, Rendering, Specials, lay_out};
use crate::{ChatError, ChatTemplate, Message, Role};

/// How the tokens before the messages end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending<'a> {
    /// In a user turn, as `mlx_lm.cache_prompt` leaves it: the first message continues that turn.
    OpenUserTurn,
    /// After an answer.
    Answer {
        /// The decoded last tokens, special tokens included: an answer may end before, within or
        /// after the text that closes its turn. None if unknown; then the answer is assumed to end
        /// with its end-of-sequence token.
        tail: Option<&'a str>,
    },
}

/// Assembles the tokens of messages that follow cached tokens, as [`crate::assemble`] does for a
/// whole conversation; positions are counted from the first new token. No boundary belongs to the
/// system prompt, which the cached tokens contain.
///
/// The first message is the user's. [`ChatError::NotContinuable`] if the template does not show the
/// messages one after the other.
pub fn assemble_after<E: Encode + ?Sized>(
    template: &ChatTemplate,
    ending: Ending<'_>,
    messages: &[Message],
    encoder: &E,
) -> Result<Prompt, ChatError> {
    let template = &template.for_one_prompt();
    let (earlier, before) = match ending {
        Ending::OpenUserTurn => (Vec::new(), up_to_first_words(template, messages, &[])?),
        Ending::Answer { tail } => {
            let earlier = [(Role::User, PROBE), (Role::Assistant, ANSWER)];
            let earlier = earlier.map(|(role, content)| Message {
                role,
                content: content.to_owned(),
                token_ids: None,
            });
            let text = up_to_first_words(template, messages, &earlier)?;
            let answer_end = text.find(ANSWER).ok_or(ChatError::NotContinuable)? + ANSWER.len();
            let num_held = held_of_closing(
                &text[answer_end..],
                tail,
                &Specials::new(encoder.special_tokens()),
            );
            (earlier.to_vec(), text[..answer_end + num_held].to_owned())
        }
    };
    let render = |messages: &[Message]| {
        let text = template.render(&[earlier.as_slice(), messages].concat(), true)?;
        text.strip_prefix(before.as_str()).map(str::to_owned).ok_or(ChatError::NotContinuable)
    };
    lay_out(&Rendering { render: &render, has_beginning: false }, messages, &[], encoder)
}

/// Placeholders for message texts, to find where a template puts them.
const PROBE: &str = "<query>";
const ANSWER: &str = "<reply>";

/// The rendered text of `earlier` and `messages` before the text of the first of `messages`.
fn up_to_first_words(
    template: &ChatTemplate,
    messages: &[Message],
    earlier: &[Message],
) -> Result<String, ChatError> {
    if messages.first().is_none_or(|first| first.role != Role::User) {
        return Err(ChatError::NotContinuable);
    }
    let mut probed = [earlier, messages].concat();
    probed[earlier.len()].content = PROBE.to_owned();
    let mut text = template.render(&probed, true)?;
    // After the placeholder of an earlier message.
    let from = if earlier.is_empty() { Some(0) } else { text.find(ANSWER) };
    let words = from
        .and_then(|from| Some(from + text[from..].find(PROBE)?))
        .ok_or(ChatError::NotContinuable)?;
    text.truncate(words);
    Ok(text)
}

/// How many bytes of the text that closes an answer's turn are already in the cached tokens, in
/// whole special tokens.
fn held_of_closing(closing: &str, tail: Option<&str>, specials: &Specials<'_>) -> usize {
    let tokens = specials.find(closing, 0..closing.len(), |_| false);
    let Some(tail) = tail else {
        return tokens
            .first()
            .filter(|(at, _)| closing[..at.start].trim().is_empty())
            .map_or(0, |(at, _)| at.end);
    };
    let splits_token = |end: usize| tokens.iter().any(|(at, _)| at.start < end && end < at.end);
    let is_held = |&end: &usize| {
        closing.get(..end).is_some_and(|beginning| tail.ends_with(beginning)) && !splits_token(end)
    };
    (0..=closing.len().min(tail.len())).rev().find(is_held).unwrap_or(0)
}
