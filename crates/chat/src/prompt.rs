//! The model's input, assembled from the rendered text and the token ids of earlier turns.
//!
//! Two things depend on the position of each message's own text in the rendered text: stored ids
//! must not be used at a position that merely reads the same, and text that spells a special token
//! must not become one. So the template is rendered a second time with marks around each message's
//! text; if removing the marks restores the first rendering, the marks give the positions. If a
//! template treats marked text differently, the positions are unknown: then no ids are reused, and
//! special tokens that any message spells are ordinary text.

use crate::{ChatError, ChatTemplate, Message, Role};
use std::collections::HashMap;
use std::ops::Range;

/// The tokenizer's interface for prompts. Texts are encoded in pieces, so neither encoding may
/// treat the start of a text specially.
pub trait Encode {
    /// Token ids of a text in which special tokens are recognised; `add_special_tokens` adds those
    /// that the tokenizer puts around a text, such as a beginning-of-sequence token.
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ChatError>;
    /// Token ids of a text in which the texts of special tokens are ordinary text; adds nothing.
    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ChatError>;
    /// The text of token ids, special tokens included, without cleaning anything up.
    fn decode(&self, ids: &[u32]) -> Result<String, ChatError>;
    /// The texts and ids of the special tokens.
    fn special_tokens(&self) -> &[(String, u32)];
}

/// The model's input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The whole input.
    pub tokens: Vec<u32>,
    /// Index of the first token after the last reused ids; 0 when none were reused.
    pub new_from: usize,
    /// Index of the first token of the last message, more or less: what comes before it can have been
    /// read, by whichever model. Never less than `new_from`.
    pub last_from: usize,
    /// Ascending token counts at which a cached chunk should end: where conversations with the same
    /// system prompt diverge, where each message with reused ids ends, and `tokens.len()`.
    pub boundaries: Vec<usize>,
    /// The role that ends at each boundary: the system's where conversations diverge, then each
    /// message's author, and the user at the end.
    pub roles: Vec<Role>,
    /// Ascending token counts up to which later prompts are said to agree with this one: where the
    /// asked-for places of the messages' texts are, rounded down to a token's end.
    pub breakpoints: Vec<usize>,
    /// The rendered text that `tokens` stand for.
    pub text: String,
}

/// A place in the text of a message or turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPlace {
    /// Which one of the conversation, counted from 0.
    pub turn: usize,
    /// How many bytes of its text come before.
    pub num_bytes: usize,
}

/// Renders the messages up to where the answer begins and encodes the text, reusing the messages'
/// stored ids wherever they decode to the rendered text.
///
/// The tokens always decode to the rendered text: where reused ids would not, the text is encoded
/// again.
pub fn assemble<E: Encode + ?Sized>(
    template: &ChatTemplate,
    messages: &[Message],
    encoder: &E,
) -> Result<Prompt, ChatError> {
    let template = template.for_one_prompt();
    let render = |messages: &[Message]| template.render(messages, true);
    lay_out(&Rendering { render: &render, has_beginning: true }, messages, &[], encoder)
}

/// How messages are rendered.
pub(crate) struct Rendering<'a> {
    pub(crate) render: &'a dyn Fn(&[Message]) -> Result<String, ChatError>,
    /// Whether the text is the beginning of the model's input, which other conversations may share.
    pub(crate) has_beginning: bool,
}

/// The rendered messages as tokens; see [`assemble`]. Breakpoints at places that are not found in the
/// rendered text are left out.
pub(crate) fn lay_out<E: Encode + ?Sized>(
    rendering: &Rendering<'_>,
    messages: &[Message],
    breakpoints: &[TextPlace],
    encoder: &E,
) -> Result<Prompt, ChatError> {
    let text = (rendering.render)(messages)?;
    let specials = Specials::new(encoder.special_tokens());
    let has_ids = messages.iter().any(|message| message.token_ids.is_some());
    let are_wanted = rendering.has_beginning || has_ids || !breakpoints.is_empty();
    let positions = Positions::find(rendering, messages, &text, &specials, are_wanted)?;
    let layout = Layout {
        encoder,
        text: &text,
        ordinary: positions.special_tokens_as_words(&text, &specials),
        specials: &specials,
    };

    let mut reused = layout.pieces_with_stored_ids(messages, &positions)?;
    if !reused.is_empty() {
        let tokens: Vec<u32> = reused.iter().flat_map(|piece| piece.ids.iter().copied()).collect();
        let decoded = encoder.decode(&tokens)?;
        // Stored ids can match one by one but not together, when a character is split between them.
        // For a tokenizer that does not reproduce its text exactly, compare with the newly encoded
        // text.
        if decoded != text && decoded != encoder.decode(&layout.encode(0..text.len())?)? {
            reused.clear();
        }
    }
    if reused.is_empty() {
        reused.push(Piece { ids: layout.encode(0..text.len())?, start: 0, stored_by: None });
    }

    let shared_end =
        if rendering.has_beginning { positions.shared_end(messages, &text) } else { 0 };
    let places = breakpoints.iter().filter_map(|place| positions.of_place(messages, *place));
    let breakpoints = layout.breakpoints(&reused, places.collect())?;
    let Joined { tokens, new_from, boundaries } = layout.join(&reused, shared_end)?;
    let mut last_from = new_from;
    // Only the last message is encoded again: what is before it may be very long.
    let earlier = messages.split_last().map_or(&[][..], |(_, earlier)| earlier);
    if new_from == 0 && earlier.iter().any(|message| message.role != Role::System) {
        let last_start = positions.words.last().and_then(|words| Some(words.as_ref()?.start));
        let last = last_start.map(|start| layout.encode(start..text.len())).transpose()?;
        last_from = last.map_or(0, |last| tokens.len().saturating_sub(last.len()));
    }
    let (boundaries, roles) = boundaries.into_iter().unzip();
    Ok(Prompt { tokens, new_from, last_from, boundaries, roles, breakpoints, text })
}

/// The tokens of one part of the text.
struct Piece {
    ids: Vec<u32>,
    /// The start of the part in the text, in bytes.
    start: usize,
    /// The author of the message whose stored ids these are.
    stored_by: Option<Role>,
}

/// The tokens of all pieces; see the fields of [`Prompt`].
struct Joined {
    tokens: Vec<u32>,
    new_from: usize,
    boundaries: Vec<(usize, Role)>,
}

struct Layout<'a, E: ?Sized> {
    encoder: &'a E,
    text: &'a str,
    specials: &'a Specials<'a>,
    /// The ranges in which messages spell a special token, ascending.
    ordinary: Vec<Range<usize>>,
}

impl<E: Encode + ?Sized> Layout<'_, E> {
    /// The whole text in pieces, some of them stored ids; no pieces if no stored ids can be used.
    fn pieces_with_stored_ids(
        &self,
        messages: &[Message],
        positions: &Positions,
    ) -> Result<Vec<Piece>, ChatError> {
        let mut pieces = Vec::new();
        let mut pos = 0;
        let mut tokens_of_template = None;
        for (message, words) in messages.iter().zip(&positions.words) {
            let (Some(ids), Some(words)) = (&message.token_ids, words) else { continue };
            let stored = self.encoder.decode(ids)?;
            let Some(start) = find_around(self.text, pos, &stored, words) else { continue };
            // The part must not begin or end inside a special token of the template.
            let template_specials =
                tokens_of_template.get_or_insert_with(|| self.special_tokens(0..self.text.len()));
            let end = start + stored.len();
            if template_specials
                .iter()
                .any(|(at, _)| [start, end].iter().any(|cut| at.start < *cut && *cut < at.end))
            {
                continue;
            }
            if start > pos {
                pieces.push(Piece { ids: self.encode(pos..start)?, start: pos, stored_by: None });
            }
            pieces.push(Piece { ids: ids.clone(), start, stored_by: Some(message.role) });
            pos = end;
        }
        if pos < self.text.len() && !pieces.is_empty() {
            pieces.push(Piece {
                ids: self.encode(pos..self.text.len())?,
                start: pos,
                stored_by: None,
            });
        }
        Ok(pieces)
    }

    /// Joins pieces that cover the text. Other conversations may share the text up to `shared_end`;
    /// 0 if they share none.
    fn join(&self, pieces: &[Piece], shared_end: usize) -> Result<Joined, ChatError> {
        let mut tokens = Vec::new();
        let mut new_from = 0;
        let mut boundaries = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let end = pieces.get(index + 1).map_or(self.text.len(), |next| next.start);
            if (piece.start + 1..=end).contains(&shared_end) {
                let num_shared = tokens.len() + self.tokens_within(piece, shared_end)?;
                boundaries.push((num_shared, Role::System));
            }
            tokens.extend_from_slice(&piece.ids);
            if let Some(role) = piece.stored_by {
                new_from = tokens.len();
                boundaries.push((tokens.len(), role));
            }
        }
        boundaries.push((tokens.len(), Role::User));
        boundaries.retain(|(boundary, _)| *boundary > 0);
        boundaries.dedup_by_key(|(boundary, _)| *boundary);
        Ok(Joined { tokens, new_from, boundaries })
    }

    /// How many tokens of the pieces end at or before each position of the text; ascending, without
    /// those of none.
    fn breakpoints(
        &self,
        pieces: &[Piece],
        mut positions: Vec<usize>,
    ) -> Result<Vec<usize>, ChatError> {
        positions.sort_unstable();
        let mut found = Vec::with_capacity(positions.len());
        for position in positions {
            let num_before = pieces.partition_point(|piece| piece.start < position);
            let Some((last, whole)) = pieces[..num_before].split_last() else { continue };
            let num_whole: usize = whole.iter().map(|piece| piece.ids.len()).sum();
            found.push(num_whole + self.tokens_within(last, position)?);
        }
        found.retain(|&num_tokens| num_tokens > 0);
        found.dedup();
        Ok(found)
    }

    /// Encodes a part of the text; only the template's special tokens are recognised.
    fn encode(&self, range: Range<usize>) -> Result<Vec<u32>, ChatError> {
        if !self.ordinary.iter().any(|at| at.start < range.end && range.start < at.end) {
            return self.encoder.encode(&self.text[range], false);
        }
        let mut ids = Vec::new();
        let mut pos = range.start;
        for (at, id) in self.special_tokens(range.clone()) {
            if at.start > pos {
                ids.extend(self.encoder.encode_plain(&self.text[pos..at.start])?);
            }
            ids.push(id);
            pos = at.end;
        }
        if pos < range.end {
            ids.extend(self.encoder.encode_plain(&self.text[pos..range.end])?);
        }
        Ok(ids)
    }

    /// The template's special tokens in a part of the text.
    fn special_tokens(&self, range: Range<usize>) -> Vec<(Range<usize>, u32)> {
        let is_word = |at: &Range<usize>| {
            self.ordinary.iter().any(|word| word.start < at.end && at.start < word.end)
        };
        self.specials.find(self.text, range, is_word)
    }

    /// How many of a piece's tokens end at or before a position in the text.
    fn tokens_within(&self, piece: &Piece, position: usize) -> Result<usize, ChatError> {
        let before = &self.text[piece.start..position];
        let (mut fitting, mut too_many) = (0, piece.ids.len() + 1);
        while fitting + 1 < too_many {
            let middle = fitting.midpoint(too_many);
            // An incomplete character decodes to a replacement character; rounding down past it is
            // right.
            if self.encoder.decode(&piece.ids[..middle])?.trim_end_matches('\u{FFFD}').len()
                <= before.len()
            {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        // A few tokens may share a character. A tokenizer that does not reproduce its text never
        // reaches the position: then there is none.
        for fitting in (fitting.saturating_sub(8)..=fitting).rev() {
            if before.starts_with(&self.encoder.decode(&piece.ids[..fitting])?) {
                return Ok(fitting);
            }
        }
        Ok(0)
    }
}

/// The position of `stored` in the text at or after `pos` so that it covers the message's text.
fn find_around(text: &str, pos: usize, stored: &str, words: &Range<usize>) -> Option<usize> {
    if stored.is_empty() || words.start < pos {
        return None;
    }
    let mut from = text.ceil_char_boundary(pos.max(words.end.saturating_sub(stored.len())));
    let window = &text[..text.ceil_char_boundary(text.len().min(words.start + stored.len()))];
    while from <= words.start {
        let start = from + window[from..].find(stored)?;
        if start <= words.start && words.end <= start + stored.len() {
            return Some(start);
        }
        from = text.ceil_char_boundary(start + 1);
    }
    None
}

/// The special tokens of a tokenizer, indexed for searching a text.
pub(crate) struct Specials<'a> {
    ids: HashMap<&'a str, u32>,
    /// For each first byte the lengths of the tokens that begin with it, longest first. Some
    /// tokenizers have thousands of special tokens with one first byte and few lengths.
    lengths: Vec<Vec<usize>>,
}

impl<'a> Specials<'a> {
    pub(crate) fn new(tokens: &'a [(String, u32)]) -> Specials<'a> {
        let mut lengths = vec![Vec::new(); 256];
        for first_and_length in
            tokens.iter().filter_map(|(text, _)| Some((text.bytes().next()?, text.len())))
        {
            lengths[usize::from(first_and_length.0)].push(first_and_length.1);
        }
        for lengths in &mut lengths {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        Specials { ids: tokens.iter().map(|(text, id)| (text.as_str(), *id)).collect(), lengths }
    }

    /// The longest special token that a text begins with: its length and id.
    fn at_start(&self, rest: &str) -> Option<(usize, u32)> {
        let lengths = &self.lengths[usize::from(rest.bytes().next()?)];
        lengths.iter().find_map(|length| Some((*length, *self.ids.get(rest.get(..*length)?)?)))
    }

    /// The special tokens in a part of a text, without those for which `skip` holds.
    pub(crate) fn find(
        &self,
        text: &str,
        range: Range<usize>,
        skip: impl Fn(&Range<usize>) -> bool,
    ) -> Vec<(Range<usize>, u32)> {
        let mut found = Vec::new();
        let mut pos = range.start;
        while pos < range.end {
            if let Some((length, id)) = self.at_start(&text[pos..range.end]) {
                let at = pos..pos + length;
                if !skip(&at) {
                    pos = at.end;
                    found.push((at, id));
                    continue;
                }
            }
            pos += text[pos..].chars().next().map_or(1, char::len_utf8);
        }
        found
    }
}

/// The positions of the messages' texts in the rendered text.
struct Positions {
    /// One range for each message, without the blanks around its text; none where it was not found.
    words: Vec<Option<Range<usize>>>,
    /// Where messages spell a special token, in bytes; none if the positions are unknown.
    spelled: Option<Vec<usize>>,
    /// The special tokens that messages spell.
    spelled_tokens: Vec<String>,
}

// Marks from the private use area: the start of a message's text, then its number in digits,
// `BEGUN`; the text; `END`. `SPLIT` is put after the first character of a special token that the
// text spells, so that a template cannot recognise it there.
const START: char = '\u{F8A0}';
const BEGUN: char = '\u{F8A1}';
const END: char = '\u{F8A2}';
const SPLIT: char = '\u{F8A3}';

/// The messages with marks, and the special tokens that their texts spell.
fn mark(messages: &[Message], specials: &Specials<'_>) -> (Vec<Message>, Vec<String>) {
    let mut spelled_tokens = Vec::new();
    let mut marked = messages.to_vec();
    for (index, message) in marked.iter_mut().enumerate() {
        let words = message.content.trim();
        if words.is_empty() {
            continue;
        }
        let before = message.content.len() - message.content.trim_start().len();
        let mut split = String::with_capacity(words.len());
        let mut pos = 0;
        for (at, _) in specials.find(words, 0..words.len(), |_| false) {
            let first_end = at.start + words[at.start..].chars().next().map_or(0, char::len_utf8);
            split.push_str(&words[pos..first_end]);
            split.push(SPLIT);
            pos = first_end;
            spelled_tokens.push(words[at].to_owned());
        }
        split.push_str(&words[pos..]);
        let (blanks_before, blanks_after) =
            (&message.content[..before], &message.content[before + words.len()..]);
        message.content = format!("{blanks_before}{START}{index}{BEGUN}{split}{END}{blanks_after}");
    }
    (marked, spelled_tokens)
}

impl Positions {
    fn find(
        rendering: &Rendering<'_>,
        messages: &[Message],
        text: &str,
        specials: &Specials<'_>,
        are_wanted: bool,
    ) -> Result<Positions, ChatError> {
        let (marked, spelled_tokens) = mark(messages, specials);
        let mut positions =
            Positions { words: vec![None; messages.len()], spelled: None, spelled_tokens };
        // A long text is not rendered again for nothing.
        if !are_wanted && positions.spelled_tokens.is_empty() {
            return Ok(positions);
        }
        if text.contains([START, BEGUN, END, SPLIT]) {
            return Ok(positions);
        }
        match (rendering.render)(&marked) {
            Ok(marked_text) => positions.read_marks(&marked_text, text),
            // Otherwise the tokens would depend on how fast the machine is.
            Err(error) if error.is_interruption() => return Err(error),
            // If a template fails on the marks, the positions are unknown; its error for the real text
            // was already reported.
            Err(_) => {}
        }
        Ok(positions)
    }

    /// Takes the positions from the text that was rendered with marks. They stay unknown unless it
    /// is `text` apart from the marks.
    fn read_marks(&mut self, marked_text: &str, text: &str) {
        let mut plain = String::with_capacity(text.len());
        let mut words = vec![None; self.words.len()];
        let mut spelled = Vec::new();
        let mut open: Option<(usize, usize)> = None;
        let mut rest = marked_text;
        while let Some(at) = rest.find([START, END, SPLIT]) {
            plain.push_str(&rest[..at]);
            let mark = rest[at..].chars().next().unwrap_or(END);
            rest = &rest[at + mark.len_utf8()..];
            match mark {
                START => {
                    let Some((number, after)) = rest.split_once(BEGUN) else { return };
                    let Ok(index) = number.parse::<usize>() else { return };
                    open = Some((index, plain.len()));
                    rest = after;
                }
                END => {
                    // If the template dropped the beginning of a message, its position is unknown.
                    if let Some((index, start)) = open.take()
                        && let Some(range) = words.get_mut(index)
                    {
                        *range = Some(start..plain.len());
                    }
                }
                _ => spelled.push(plain.char_indices().next_back().map_or(0, |(first, _)| first)),
            }
        }
        plain.push_str(rest);
        if plain == text {
            self.words = words;
            self.spelled = Some(spelled);
        }
    }

    /// The position of a place in the rendered text; none where the message was not found. Places in
    /// the blanks around a message's text are at its ends, because templates strip blanks.
    fn of_place(&self, messages: &[Message], place: TextPlace) -> Option<usize> {
        let words = self.words.get(place.turn)?.as_ref()?;
        let content = &messages.get(place.turn)?.content;
        let blanks = content.len() - content.trim_start().len();
        Some((words.start + place.num_bytes.saturating_sub(blanks)).min(words.end))
    }

    /// The ranges of the text that spell special tokens, but belong to messages; ascending.
    fn special_tokens_as_words(&self, text: &str, specials: &Specials<'_>) -> Vec<Range<usize>> {
        if self.spelled_tokens.is_empty() {
            return Vec::new();
        }
        match &self.spelled {
            Some(starts) => {
                let token_at =
                    |start: &usize| Some(*start..start + specials.at_start(&text[*start..])?.0);
                starts.iter().filter_map(token_at).collect()
            }
            None => {
                let is_spelled = |at: &Range<usize>| {
                    self.spelled_tokens.iter().any(|token| *token == text[at.clone()])
                };
                specials
                    .find(text, 0..text.len(), |_| false)
                    .into_iter()
                    .map(|(at, _)| at)
                    .filter(is_spelled)
                    .collect()
            }
        }
    }

    /// Where conversations with the same system prompt diverge: before the text of the first
    /// message of another role.
    fn shared_end(&self, messages: &[Message], text: &str) -> usize {
        let mut others =
            messages.iter().zip(&self.words).filter(|(message, _)| message.role != Role::System);
        // If the position of the first of them is unknown, a later one may come after text that is
        // not shared.
        let Some((first, Some(words))) = others.next() else { return 0 };
        let start = others
            .filter_map(|(_, words)| words.as_ref())
            .map(|words| words.start)
            .fold(words.start, usize::min);
        let blanks = &first.content[..first.content.len() - first.content.trim_start().len()];
        text[..start].strip_suffix(blanks).map_or(start, str::len)
    }
}
