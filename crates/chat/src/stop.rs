//! Ending an answer at a stop string, wherever the pieces of its text are cut.

use crate::ChatError;

/// Searches for stop strings in text that arrives in pieces, and withholds what may become one.
///
/// Follows LM Studio's StopStringProcessor, with two differences: it works on decoded text, so
/// pieces must be whole characters, and text before a possible stop string is emitted at once.
///
/// 1. The emitted texts, joined, are the incoming text up to the stop string, or all of it after
///    [`finish`](Self::finish).
/// 2. Text after the first character of a stop string is never emitted.
/// 3. Among stop strings that a piece completes, the one that starts first ends the answer; of two
///    that start together, the shorter.
#[derive(Debug, Clone)]
pub struct StopStrings {
    stop_strings: Vec<String>,
    /// The end of the text so far, if a stop string may begin there.
    held: String,
    stopped: Option<usize>,
}

/// The result of a piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopStep {
    /// Text that can be shown now; may be empty.
    pub text: String,
    /// The stop string that ended the answer.
    pub stopped: Option<String>,
}

impl StopStrings {
    /// A search for `stop_strings`; without any, all text passes. An empty string is refused.
    pub fn new(stop_strings: Vec<String>) -> Result<Self, ChatError> {
        if stop_strings.iter().any(String::is_empty) {
            return Err(ChatError::OutOfRange {
                name: "stop",
                value: "an empty string".to_owned(),
                allowed: "text of one character or more",
            });
        }
        Ok(StopStrings { stop_strings, held: String::new(), stopped: None })
    }

    /// Processes the next piece. After a stop it emits nothing more and returns the stop string
    /// again.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped.is_none() {
            self.held.push_str(text);
            let matches = self
                .stop_strings
                .iter()
                .enumerate()
                .filter_map(|(index, stop)| Some((self.held.find(stop)?, stop.len(), index)));
            if let Some((start, _, index)) = matches.min() {
                self.stopped = Some(index);
                self.held.truncate(start);
                return StopStep {
                    text: std::mem::take(&mut self.held),
                    stopped: self.stop_string(),
                };
            }
        }
        let held = self.held.split_off(self.held.len() - self.possible_start());
        StopStep { text: std::mem::replace(&mut self.held, held), stopped: self.stop_string() }
    }

    /// The withheld text when the answer ends for another reason: no stop string was completed.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn stop_string(&self) -> Option<String> {
        self.stopped.and_then(|index| self.stop_strings.get(index)).cloned()
    }

    /// Bytes at the end of the text that begin a stop string: the most there are.
    fn possible_start(&self) -> usize {
        let longest = |stop: &String| {
            let beginnings = stop.char_indices().map(|(length, _)| length).rev();
            beginnings
                .filter(|&length| length <= self.held.len())
                .find(|&length| self.held.ends_with(&stop[..length]))
        };
        self.stop_strings.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop_strings(stops: &[&str]) -> StopStrings {
        StopStrings::new(stops.iter().map(|&stop| stop.to_owned()).collect()).expect("stop strings")
    }

    /// Feeds the text in pieces; returns the emitted text and the stop string that ended it.
    fn answer(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut search = stop_strings(stops);
        let (mut text, mut stopped) = (String::new(), None);
        for piece in pieces {
            let step = search.push(piece);
            assert!(
                stopped.is_none() || step.text.is_empty(),
                "{:?} came after the stop",
                step.text
            );
            text.push_str(&step.text);
            stopped = step.stopped;
        }
        text.push_str(&search.finish());
        (text, stopped)
    }

    /// The outcome must be the same however the text is cut.
    fn check(stops: &[&str], text: &str, expected: &str, stop_string: Option<&str>) {
        let expected = (expected.to_owned(), stop_string.map(str::to_owned));
        assert_eq!(answer(stops, &[text]), expected, "{text:?} whole");
        let cuts: Vec<usize> = text.char_indices().map(|(position, _)| position).collect();
        for &first in &cuts {
            for &second in cuts.iter().filter(|&&second| second >= first) {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(answer(stops, &pieces), expected, "{pieces:?}");
            }
        }
        let characters: Vec<&str> = text.split_inclusive(|_: char| true).collect();
        assert_eq!(answer(stops, &characters), expected, "{characters:?}");
    }

    #[test]
    fn an_answer_ends_before_its_stop_string() {
        let sentence = "The objective of chess";
        check(&["of"], sentence, "The objective ", Some("of"));
        check(&["Hello"], "Hello world", "", Some("Hello"));
        check(&["world"], "Hello world", "Hello ", Some("world"));
        check(&["\n"], "Hello\nworld", "Hello", Some("\n"));
        check(&["cti"], sentence, "The obje", Some("cti"));
        check(&["objective of"], sentence, "The ", Some("objective of"));
        check(&["é", "ñ", "北京"], "Hello 北京 é ñ", "Hello ", Some("北京"));
        check(&["🌟"], "The objective 🌟 of chess", "The objective ", Some("🌟"));
        check(&["of", "chess", "objective"], sentence, "The ", Some("objective"));
        check(&["objective of", "of chess"], sentence, "The ", Some("objective of"));
        check(&["aab"], "aaab", "a", Some("aab"));
        check(&["abab", "bb"], "ababab", "", Some("abab"));
        check(&["</s>", "</stop>"], "a </s </stop> b", "a </s ", Some("</stop>"));
    }

    #[test]
    fn without_a_stop_string_all_text_comes_out() {
        let sentence = "The objective of chess";
        check(&[], sentence, sentence, None);
        check(&["other"], sentence, sentence, None);
        check(&["Stop"], "This is a STOP sign", "This is a STOP sign", None);
        check(&["The objective of checkers"], sentence, sentence, None);
        check(&["<end>"], "x < y a <", "x < y a <", None);
        check(&["北京"], "東京 北", "東京 北", None);
        check(&["ab"], "", "", None);
    }

    #[test]
    fn the_longest_possible_start_is_held_back_and_nothing_more() {
        fn check(stops: &[&str], piece: &str, shown: &str) {
            assert_eq!(
                stop_strings(stops).push(piece),
                StopStep { text: shown.to_owned(), stopped: None },
                "{stops:?}"
            );
        }
        check(&["objective of"], "The obj", "The ");
        check(&["other"], "The", "The");
        check(&["<a>", "x <a>b"], "x <a", "");
        check(&["aab"], "aaa", "a");
        check(&["é!"], "caffé", "caff");
        check(&["The objective of checkers"], "The objective of", "");
    }

    #[test]
    fn of_stop_strings_completed_together_the_first_to_start_wins() {
        fn check(stops: &[&str], expected: &str, stop_string: &str) {
            assert_eq!(
                answer(stops, &["xabcd"]),
                (expected.to_owned(), Some(stop_string.to_owned()))
            );
        }
        check(&["bc", "abcd"], "x", "abcd");
        check(&["ab", "a"], "x", "a");
        check(&["cd", "b"], "xa", "b");
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let refusal =
            StopStrings::new(vec!["valid".to_owned(), String::new()]).expect_err("is refused");
        assert_eq!(
            refusal.to_string(),
            "stop is an empty string, but must be text of one character or more"
        );
    }
}
