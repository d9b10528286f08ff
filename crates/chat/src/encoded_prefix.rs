//! The tokens of a text that many prompts begin with, encoded once.

use crate::prompt::{Rendering, lay_out};
use crate::{ChatError, ChatTemplate, Encode, Message, Role};

/// How far before the end of a text a place is looked for at which it can be cut.
const MAX_CUT_TOKENS: usize = 64;

/// What could follow any text.
const PROBE: &str = "apple";

/// The beginning of a text, up to where its tokens no longer depend on what follows.
///
/// A tokenizer joins letters across any place in a text, so a text cannot be encoded in two halves.
/// It never joins across a special token, and words that follow a blank begin a token of their own:
/// the text is cut behind the last special token, or before the last word, whichever comes later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedPrefix {
    text: String,
    ids: Vec<u32>,
}

impl EncodedPrefix {
    /// The longest beginning of `text` that can be encoded by itself; an empty one if there is none.
    pub fn of<E: Encode + ?Sized>(text: &str, encoder: &E) -> Result<Self, ChatError> {
        let ids = encoder.encode(text, false)?;
        let followed = encoder.encode(&format!("{text}{PROBE}"), false)?;
        let earliest = ids.len().saturating_sub(MAX_CUT_TOKENS).max(1);
        for cut in (earliest..=ids.len()).rev() {
            let before = encoder.decode(&ids[..cut])?;
            let Some(rest) = text.strip_prefix(before.as_str()) else { continue };
            if is_special(ids[cut - 1], encoder) || begins_word(&before, rest) {
                // A tokenizer that treats the start of a text specially encodes the rest otherwise.
                let rest = encoder.encode(&format!("{rest}{PROBE}"), false)?;
                if followed.starts_with(&ids[..cut]) && rest == followed[cut..] {
                    let text = before;
                    return Ok(EncodedPrefix { ids: ids[..cut].to_vec(), text });
                }
            }
        }
        Ok(EncodedPrefix::default())
    }

    /// The beginning of every conversation of `messages` followed by another message: what the
    /// template writes before that message's text is part of it.
    pub fn of_messages<E: Encode + ?Sized>(
        template: &ChatTemplate,
        messages: &[Message],
        encoder: &E,
    ) -> Result<Self, ChatError> {
        let role = match messages.last().map(|message| message.role) {
            Some(Role::User) => Role::Assistant,
            _ => Role::User,
        };
        let template = template.for_one_prompt();
        let followed_by = |content: &str| {
            let content = content.to_owned();
            let all = [messages, &[Message { role, content, token_ids: None }]].concat();
            template.render(&all, true)
        };
        // Two texts without a common beginning, and none that a template would treat specially.
        let (first, second) = (followed_by(PROBE)?, followed_by("Berry")?);
        EncodedPrefix::of(common_beginning(&first, &second), encoder)
    }

    /// Its tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The tokens of `text` without added special tokens.
    pub fn encode<E: Encode + ?Sized>(
        &self,
        text: &str,
        encoder: &E,
    ) -> Result<Vec<u32>, ChatError> {
        let Some(rest) = text.strip_prefix(self.text.as_str()) else {
            return encoder.encode(text, false);
        };
        let mut ids = self.ids.clone();
        if !rest.is_empty() {
            ids.extend(encoder.encode(rest, false)?);
        }
        Ok(ids)
    }

    /// The tokens of a conversation up to where its answer begins. Stored ids of its messages are
    /// not used.
    pub fn encode_messages<E: Encode + ?Sized>(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        encoder: &E,
    ) -> Result<Vec<u32>, ChatError> {
        let plain = |message: &Message| Message { token_ids: None, ..message.clone() };
        let messages: Vec<Message> = messages.iter().map(plain).collect();
        let template = template.for_one_prompt();
        let render = |messages: &[Message]| template.render(messages, true);
        let rendering = Rendering { render: &render, has_beginning: false };
        Ok(lay_out(&rendering, &messages, &[], &Prefixed { encoder, prefix: self })?.tokens)
    }
}

fn is_special<E: Encode + ?Sized>(id: u32, encoder: &E) -> bool {
    encoder.special_tokens().iter().any(|(_, special)| *special == id)
}

/// Whether `rest` begins with a blank and a letter or digit, behind something else than blanks.
fn begins_word(before: &str, rest: &str) -> bool {
    let mut rest = rest.chars();
    rest.next() == Some(' ')
        && rest.next().is_some_and(char::is_alphanumeric)
        && before.chars().next_back().is_some_and(|last| !last.is_whitespace())
}

/// What both texts begin with.
pub fn common_beginning<'a>(first: &'a str, second: &str) -> &'a str {
    let differs = first.char_indices().zip(second.chars()).find(|((_, a), b)| a != b);
    match differs {
        Some(((at, _), _)) => &first[..at],
        None => &first[..first.len().min(second.len())],
    }
}

/// An encoder that knows the tokens of a beginning.
struct Prefixed<'a, E: ?Sized> {
    encoder: &'a E,
    prefix: &'a EncodedPrefix,
}

impl<E: Encode + ?Sized> Encode for Prefixed<'_, E> {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ChatError> {
        match add_special_tokens {
            true => self.encoder.encode(text, true),
            false => self.prefix.encode(text, self.encoder),
        }
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        self.encoder.encode_plain(text)
    }

    fn decode(&self, ids: &[u32]) -> Result<String, ChatError> {
        self.encoder.decode(ids)
    }

    fn special_tokens(&self) -> &[(String, u32)] {
        self.encoder.special_tokens()
    }
}
