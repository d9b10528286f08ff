//! Words from a file, fit to be repeated in an error.

use std::fmt::Display;

/// What is repeated of a name; a hostile one can be megabytes long, and quoted each of its
/// characters may become eight.
const MAX_NAME_CHARS: usize = 60;
/// What is repeated of a parser's message, which may itself repeat a name.
const MAX_MESSAGE_CHARS: usize = 120;

/// The beginning of a name or value from a file, with an ellipsis if there is more.
pub(crate) fn excerpt(text: impl Display) -> String {
    beginning(text, MAX_NAME_CHARS)
}

/// The beginning of a message about a file, with an ellipsis if there is more.
pub(crate) fn message_excerpt(text: impl Display) -> String {
    beginning(text, MAX_MESSAGE_CHARS)
}

fn beginning(text: impl Display, max_chars: usize) -> String {
    let text = text.to_string();
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
