//! What searches in messages and in documents find: conversations, new ones before old ones that are as
//! good, with excerpts.

use cairn_chat::Role;

use crate::Document;
use crate::search_text::together;

/// Words in up to this many messages, or passages of documents, are ranked; of those in more the newest
/// are taken: ranking them would take longer than all else.
pub(crate) const MAX_RANKED: usize = 1000;
/// How many words an excerpt has.
pub(crate) const EXCERPT_WORDS: u32 = 16;
/// Stand around the words that were found in an excerpt: characters that no keyboard has.
pub(crate) const MARKS: [char; 2] = ['\u{1}', '\u{2}'];
const MS_PER_MONTH: f64 = 30.0 * 24.0 * 3600.0 * 1000.0;

/// A conversation with the words of a query in its messages, or in a document.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundConversation {
    /// Its id.
    pub conversation_id: String,
    /// The message that fits best; of a common word the newest one.
    pub message_id: String,
    /// Who wrote it.
    pub role: Role,
    /// When, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// How many of its messages have the words; of a common word only the newest are counted.
    pub num_messages: u32,
    /// A part of the message or of the document, and which pieces of it are words of the query. Of a
    /// document that has them in its name only, nothing.
    pub excerpt: Vec<(String, bool)>,
    /// The document that has the words; then the message is the one that it stands before.
    pub document: Option<FoundDocument>,
}

/// A document with the words of a query.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundDocument {
    /// The document.
    pub document: Document,
    /// Where the words stand in its text, in UTF-16 code units; none: they are in its name.
    pub at_utf16: Option<u32>,
}

/// How much better something is because it is new.
pub(crate) fn newness(created_at_ms: i64, now_ms: i64) -> f64 {
    let months = (now_ms.saturating_sub(created_at_ms)).max(0) as f64 / MS_PER_MONTH;
    1.0 + 1.0 / (1.0 + months)
}

/// The pieces of an excerpt as SQLite marks it, with single spaces.
pub(crate) fn pieces(marked: &str) -> Vec<(String, bool)> {
    let mut pieces: Vec<(String, bool)> = Vec::new();
    let mut is_word = false;
    for part in together(marked).split_inclusive(MARKS) {
        let begins = part.ends_with(MARKS[0]);
        let mut text = String::new();
        for character in part.trim_end_matches(MARKS).chars() {
            match character.is_whitespace() || character.is_control() {
                true if text.ends_with(' ') => {}
                true => text.push(' '),
                false => text.push(character),
            }
        }
        if !text.is_empty() {
            pieces.push((text, is_word));
        }
        is_word = begins;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn an_excerpt_has_pieces_in_single_lines() {
        let piece = |text: &str, is_word| (text.to_owned(), is_word);
        assert_eq!(
            pieces("…an\n\n old \u{1}grey\u{2} \u{1}stone\u{2}…"),
            [
                piece("…an old ", false),
                piece("grey", true),
                piece(" ", false),
                piece("stone", true),
                piece("…", false)
            ]
        );
        let apart = "\u{1}\u{200B}模\u{200B}型\u{2}\u{200B}。";
        assert_eq!(pieces(apart), [piece("模型", true), piece("。", false)]);
        assert_eq!(pieces(""), []);
    }
}
