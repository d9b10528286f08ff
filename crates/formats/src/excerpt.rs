//! Words from a file or a model, fit to be repeated in an error or printed to a terminal.

use std::borrow::Cow;
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

/// Returns the beginning of what a file says, for a sentence that does not quote it: in one line,
/// with invisible characters escaped.
pub fn readable(text: impl Display) -> String {
    let begun = beginning(text, MAX_SENTENCE_CHARS);
    with_escapes(&begun, is_not_shown).into_owned()
}

/// A text for a terminal: characters that would control the terminal, change the order of the text
/// around them or not be seen become escapes such as `\u{1b}`. Line feeds and tabs stay.
///
/// Each character is looked at alone, so the pieces of a text give the same as the whole text.
pub fn printable(text: &str) -> Cow<'_, str> {
    with_escapes(text, |char| is_not_shown(char) && char != '\n' && char != '\t')
}

fn with_escapes(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_escaped(char) {
            escaped.extend(char.escape_default());
        } else {
            escaped.push(char);
        }
    }
    Cow::Owned(escaped)
}

/// Control characters, and Unicode's format characters without the two joiners, which words and emoji
/// need.
fn is_not_shown(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0001}'
                | '\u{e0020}'..='\u{e007f}'
        )
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
        assert_eq!(readable("exe.\u{202e}gnp"), "exe.\\u{202e}gnp");
    }

    #[test]
    fn escapes_what_a_terminal_would_obey() {
        fn check(text: &str, expected: &str) {
            assert_eq!(printable(text), expected);
            let pieces: String =
                text.chars().map(|char| printable(&char.to_string()).into_owned()).collect();
            assert_eq!(pieces, expected, "in pieces");
        }
        check("plain, ü, 語\n\tline", "plain, ü, 語\n\tline");
        check("\x1b]52;c;aGk=\x07", "\\u{1b}]52;c;aGk=\\u{7}");
        check("\u{9b}31m\r", "\\u{9b}31m\\r");
        check("\u{202e}a\u{2066}b\u{200f}", "\\u{202e}a\\u{2066}b\\u{200f}");
        // Persian words and joined emoji stay what they are.
        check("می\u{200c}خواهم 👩\u{200d}🚀", "می\u{200c}خواهم 👩\u{200d}🚀");
    }
}
