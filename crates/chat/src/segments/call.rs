//! What the readers of all forms of a call share: how far they got, what they need besides the text,
//! what a name may be, and how an object of arguments is read.

use super::OfferedTool;
use super::events::Events;
use super::json::{Mender, Scanner};

/// The longest text before a name is known, and the longest name of an argument, in bytes.
pub(super) const MAX_HEADER_BYTES: usize = 256;

/// How far a piece was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fed {
    /// Bytes that belong to the call.
    pub(super) used: usize,
    pub(super) status: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// The call goes on; what was not used is too short to be understood.
    More,
    Complete,
    Malformed,
}

impl Fed {
    pub(super) fn more(used: usize) -> Fed {
        Fed { used, status: Status::More }
    }

    pub(super) fn complete(used: usize) -> Fed {
        Fed { used, status: Status::Complete }
    }

    pub(super) fn malformed(used: usize) -> Fed {
        Fed { used, status: Status::Malformed }
    }
}

/// What readers need besides the text.
#[derive(Debug)]
pub(super) struct Surroundings<'a> {
    pub(super) tools: &'a [OfferedTool],
    /// Whether the text is the answer's last.
    pub(super) is_last: bool,
}

/// Where a header that has `num_before` bytes and goes on to `end` becomes too long: at the same
/// character however the text was cut, because a marker behind it counts.
pub(super) fn header_overflow(num_before: usize, text: &str, end: usize) -> Option<usize> {
    let positions = || text[..end].char_indices().map(|(at, _)| at).skip(1).chain([end]);
    let is_too_long = |at: &usize| num_before + at > MAX_HEADER_BYTES;
    is_too_long(&end).then(|| positions().find(is_too_long)).flatten()
}

/// Whether a text can be a tool's name: no form writes these characters within one.
pub(super) fn is_name(text: &str) -> bool {
    let is_foreign = |char: char| char.is_whitespace() || char.is_control();
    (1..=MAX_HEADER_BYTES).contains(&text.len())
        && !text.contains(|char| is_foreign(char) || "<>[]{}()|`\"'".contains(char))
}

/// Reads an object of arguments that stands alone.
#[derive(Debug, Clone)]
pub(super) struct Arguments {
    scanner: Scanner,
    mender: Mender,
}

impl Arguments {
    pub(super) fn new() -> Arguments {
        Arguments { scanner: Scanner::new(), mender: Mender::default() }
    }

    /// Hands on the bytes of the object, whose first byte is its brace, until it is closed.
    pub(super) fn feed(&mut self, text: &str, events: &mut Events) -> Fed {
        for (at, byte) in text.bytes().enumerate() {
            if self.scanner.push(byte).is_err() {
                events.arguments(&self.mender.push(&text[..at]));
                return Fed::malformed(at);
            }
            if self.scanner.is_closed() {
                events.arguments(&self.mender.push(&text[..=at]));
                return Fed::complete(at + 1);
            }
        }
        events.arguments(&self.mender.push(text));
        Fed::more(text.len())
    }
}
