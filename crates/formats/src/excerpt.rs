//! Words from a file, fit to be repeated in an error.

use std::fmt::Display;

/// What is repeated of a name; a hostile one can be megabytes long, and quoted each of its
/// characters may become eight.
const MAX_NAME_CHARS: usize = 60;
/// What is repeated of a parser's message, which may itself repeat a name.
const MAX_MESSAGE_CHARS: usize = 120;
/// Of a sentence that a program wrote around what it found.
const MAX_SENTENCE_CHARS: usize = 300;

/// The beginning of a name or value from a file, with an ellipsis if there is more.
pub(crate) fn excerpt(text: impl Display) -> String {
    beginning(text, MAX_NAME_CHARS)
}

/// The beginning of a message about a file, with an ellipsis if there is more.
pub(crate) fn message_excerpt(text: impl Display) -> String {
    beginning(text, MAX_MESSAGE_CHARS)
}

/// The beginning of what a file says, for a sentence that does not quote it: control characters are
/// written as escapes.
pub fn readable(text: impl Display) -> String {
    let begun = beginning(text, MAX_SENTENCE_CHARS);
    let escaped = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    begun.chars().map(escaped).collect()
}

fn beginning(text: impl Display, max_chars: usize) -> String {
    let text = text.to_string();
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_is_one_line_that_ends() {
        assert_eq!(readable("a\0b\n\u{85}é"), "a\\u{0}b\\n\\u{85}é");
        assert_eq!(readable("x".repeat(400)), format!("{}…", "x".repeat(300)));
    }
}
