//! Finding markers in text that arrives in pieces.

/// A set of markers, none of them empty.
#[derive(Debug, Clone)]
pub(super) struct Markers {
    texts: Vec<String>,
    /// Whether a marker begins with the byte.
    is_first: Box<[bool]>,
}

/// What a search found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// A marker: where it begins, its length in bytes, its index in the set.
    Found { at: usize, length: usize, index: usize },
    /// From here on the text may become a marker.
    Hold { at: usize },
    /// No marker begins in the text.
    Nothing,
}

impl Markers {
    /// A set of these; empty ones are ignored.
    pub(super) fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Markers {
        let mut is_first = vec![false; 256].into_boxed_slice();
        let texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
        for first in texts.iter().filter_map(|text| text.bytes().next()) {
            is_first[usize::from(first)] = true;
        }
        Markers { texts, is_first }
    }

    /// The first marker in the text; of those that begin together, the longest. Without `is_last`,
    /// text that may still become a marker, or a longer one, is held. So what is found does not
    /// depend on how the text was cut, and at most one marker's length is searched twice.
    pub(super) fn scan(&self, text: &str, is_last: bool) -> Scan {
        let bytes = text.bytes().enumerate();
        for (at, _) in bytes.filter(|(_, byte)| self.is_first[usize::from(*byte)]) {
            let tail = &text[at..];
            let may_become =
                |marker: &String| marker.len() > tail.len() && marker.starts_with(tail);
            if !is_last && self.texts.iter().any(may_become) {
                return Scan::Hold { at };
            }
            let matches = self
                .texts
                .iter()
                .enumerate()
                .filter(|(_, marker)| !marker.is_empty() && tail.starts_with(marker.as_str()));
            // Of two that are the same, the first.
            if let Some((index, marker)) = matches.rev().max_by_key(|(_, marker)| marker.len()) {
                return Scan::Found { at, length: marker.len(), index };
            }
        }
        Scan::Nothing
    }
}

/// How a text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    With,
    Otherwise,
    /// It is too short to say.
    Unclear,
}

/// Whether `text` begins with `marker`.
pub(super) fn begins(text: &str, marker: &str, is_last: bool) -> Begins {
    if text.starts_with(marker) {
        Begins::With
    } else if !is_last && marker.starts_with(text) {
        Begins::Unclear
    } else {
        Begins::Otherwise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_longest_marker_is_found_and_a_possible_one_is_held() {
        fn check(markers: &[&str], text: &str, expected: Scan) {
            assert_eq!(Markers::new(markers.iter().copied()).scan(text, false), expected, "{text}");
        }
        check(&["<a>"], "x<a>", Scan::Found { at: 1, length: 3, index: 0 });
        check(&["<a>"], "x<a", Scan::Hold { at: 1 });
        check(&["<a>"], "<a<a>", Scan::Found { at: 2, length: 3, index: 0 });
        check(&["<a>"], "<b>", Scan::Nothing);
        check(&["abcd", "bc"], "xabc", Scan::Hold { at: 1 });
        check(&["abcd", "bc"], "xabce", Scan::Found { at: 2, length: 2, index: 1 });
        check(&["<a>", "<a><b>"], "<a>", Scan::Hold { at: 0 });
        check(&["<a>", "<a><b>"], "<a><c>", Scan::Found { at: 0, length: 3, index: 0 });
        check(&["<a>", "<a><b>"], "<a><b>", Scan::Found { at: 0, length: 6, index: 1 });
        check(&["<a>", "<a>"], "<a>", Scan::Found { at: 0, length: 3, index: 0 });
        check(&["｜é"], "é｜é", Scan::Found { at: 2, length: 5, index: 0 });
        check(&["", "<a>"], "é", Scan::Nothing);
    }

    #[test]
    fn at_the_end_of_the_text_nothing_is_held() {
        let markers = Markers::new(["<a>", "<a><b>"]);
        assert_eq!(markers.scan("<a><b", true), Scan::Found { at: 0, length: 3, index: 0 });
        assert_eq!(markers.scan("x <a", true), Scan::Nothing);
    }
}
