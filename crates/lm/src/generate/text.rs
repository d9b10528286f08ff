//! The text of an answer and the rules that end it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use cairn_chat::{StopStrings, StopTokens};

use crate::tokenizer::{Detokenizer, TextPiece, Tokenizer};
use crate::{LmError, LoadedModel};

/// The rules that end an answer before its token limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stops {
    /// Tokens that end it; their text is not part of the answer.
    pub eos_token_ids: BTreeSet<u32>,
    /// Token sequences that end it; their text is not part of the answer.
    pub token_sequences: Vec<Vec<u32>>,
    /// Strings that end it, whatever the token boundaries are; the text ends before them.
    pub strings: Vec<String>,
}

impl Stops {
    /// The model's own end-of-sequence tokens.
    pub fn of(loaded: &LoadedModel) -> Self {
        Stops { eos_token_ids: loaded.eos_token_ids.clone(), ..Stops::default() }
    }
}

/// The effect of one token.
#[derive(Debug, Default)]
pub struct AnswerStep {
    /// The text that can be returned now, with special tokens.
    pub text: String,
    /// The same text without special tokens, to be shown.
    pub visible: String,
    /// The end of the answer, if this token ends it.
    pub end: Option<AnswerEnd>,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerEnd {
    /// The stop string that was found, if one ended the answer.
    pub stop_string: Option<String>,
    /// The tokens that ended it: see [`super::GenerationResponse::stop_tokens`].
    pub stop_tokens: Vec<u32>,
    /// Whether the last token ended it as an end-of-sequence token or as the end of a stop sequence,
    /// and so is no part of the answer.
    pub excludes_last_token: bool,
}

/// Decodes the text of one answer and applies its [`Stops`]. The pieces concatenate to the decoded
/// whole, up to the point where a stop rule ended it.
#[derive(Debug)]
pub struct AnswerText {
    detokenizer: Option<Detokenizer>,
    stops: Stops,
    search: StopTokens,
    strings: StopStrings,
    /// Tokens that may be the start of a stop sequence and are therefore not decoded yet.
    undecided: VecDeque<u32>,
    withheld: Withheld,
}

impl AnswerText {
    /// The text of a new answer. Fails if a stop string is empty.
    pub fn new(tokenizer: &Arc<Tokenizer>, stops: Stops) -> Result<Self, LmError> {
        Ok(AnswerText {
            detokenizer: Some(tokenizer.stream()),
            search: StopTokens::new(stops.token_sequences.clone()),
            strings: StopStrings::new(stops.strings.clone())?,
            stops,
            undecided: VecDeque::new(),
            withheld: Withheld::default(),
        })
    }

    /// Takes the next token.
    pub fn push(&mut self, token: u32) -> Result<AnswerStep, LmError> {
        if self.stops.eos_token_ids.contains(&token) {
            return self.finish_with(vec![token]);
        }
        self.undecided.push_back(token);
        if let Some(index) = self.search.push(token) {
            let sequence = self.stops.token_sequences.get(index).cloned().unwrap_or_default();
            self.undecided.truncate(self.undecided.len().saturating_sub(sequence.len()));
            return self.finish_with(sequence);
        }
        self.decode(self.undecided.len() - self.possible_start())
    }

    /// Ends the answer and returns the withheld text, which may complete a stop string.
    pub fn finish(&mut self) -> Result<AnswerStep, LmError> {
        let mut step = self.decode(self.undecided.len())?;
        if let Some(detokenizer) = self.detokenizer.take() {
            let rest = detokenizer.finish()?;
            let found = self.strings.push(&rest.text);
            self.withheld.push_rest(rest);
            self.release(&found.text, &mut step);
            match found.stopped {
                Some(stop_string) => step.end = Some(self.withheld.end(stop_string)),
                None => {
                    let text = self.strings.finish();
                    self.release(&text, &mut step);
                    step.visible += &self.withheld.release_all();
                }
            }
        }
        Ok(step)
    }

    fn finish_with(&mut self, stop_tokens: Vec<u32>) -> Result<AnswerStep, LmError> {
        let mut step = self.finish()?;
        let end = AnswerEnd { stop_string: None, stop_tokens, excludes_last_token: true };
        // The withheld text may have completed a stop string before this token.
        let end = match step.end.take() {
            Some(earlier) => AnswerEnd { excludes_last_token: true, ..earlier },
            None => end,
        };
        step.end = Some(end);
        Ok(step)
    }

    /// Decodes the first `count` undecided tokens.
    fn decode(&mut self, count: usize) -> Result<AnswerStep, LmError> {
        let mut step = AnswerStep::default();
        let tokens: Vec<u32> = self.undecided.drain(..count).collect();
        for token in tokens {
            let Some(detokenizer) = &mut self.detokenizer else { break };
            let piece = detokenizer.push(token)?;
            let found = self.strings.push(&piece.text);
            self.withheld.push(token, piece);
            self.release(&found.text, &mut step);
            if let Some(stop_string) = found.stopped {
                step.end = Some(self.withheld.end(stop_string));
                self.detokenizer = None;
            }
        }
        Ok(step)
    }

    /// Adds `text`, the beginning of the withheld text, to `step`.
    fn release(&mut self, text: &str, step: &mut AnswerStep) {
        step.text += text;
        step.visible += &self.withheld.release(text.len());
    }

    /// How many of the last undecided tokens may be the start of a stop sequence.
    fn possible_start(&self) -> usize {
        let begins = |sequence: &Vec<u32>| {
            let longest = sequence.len().saturating_sub(1).min(self.undecided.len());
            (1..=longest).rev().find(|&length| {
                self.undecided.iter().skip(self.undecided.len() - length).eq(&sequence[..length])
            })
        };
        self.stops.token_sequences.iter().filter_map(begins).max().unwrap_or(0)
    }
}

/// The pieces of text that have not been returned completely.
#[derive(Debug, Default)]
struct Withheld(VecDeque<WithheldPiece>);

/// The rest of a token's text.
#[derive(Debug)]
struct WithheldPiece {
    token: Option<u32>,
    piece: TextPiece,
}

impl Withheld {
    fn push(&mut self, token: u32, piece: TextPiece) {
        self.0.push_back(WithheldPiece { token: Some(token), piece });
    }

    /// Adds the text of the detokenizer's end, which belongs to the last token if that has none.
    fn push_rest(&mut self, rest: TextPiece) {
        match self.0.back_mut() {
            Some(last) if last.piece.text.is_empty() => {
                last.piece.text = rest.text;
                last.piece.visible += &rest.visible;
            }
            _ => self.0.push_back(WithheldPiece { token: None, piece: rest }),
        }
    }

    /// Removes the first `num_bytes` of text, and the pieces that have none left; returns the
    /// visible part.
    fn release(&mut self, mut num_bytes: usize) -> String {
        let mut visible = String::new();
        while num_bytes > 0
            && let Some(WithheldPiece { piece, .. }) = self.0.front_mut()
        {
            if num_bytes >= piece.text.len() {
                num_bytes -= piece.text.len();
                visible += &piece.visible;
                self.0.pop_front();
                continue;
            }
            // A stop string may begin within this piece: what both texts begin with is visible.
            let released: String = piece.text.drain(..num_bytes).collect();
            let shared = released.chars().zip(piece.visible.chars());
            let shared = shared.take_while(|(released, visible)| released == visible);
            let length: usize = shared.map(|(character, _)| character.len_utf8()).sum();
            visible.extend(piece.visible.drain(..length));
            num_bytes = 0;
        }
        visible
    }

    /// Removes all pieces and returns their visible text.
    fn release_all(&mut self) -> String {
        self.0.drain(..).map(|withheld| withheld.piece.visible).collect()
    }

    fn end(&self, stop_string: String) -> AnswerEnd {
        AnswerEnd {
            stop_string: Some(stop_string),
            stop_tokens: self.0.iter().filter_map(|withheld| withheld.token).collect(),
            excludes_last_token: false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// Tokens below 256 are bytes; 256 to 258 are "<|endoftext|>", "<|im_start|>" and "<|im_end|>".
    fn tokenizer() -> Arc<Tokenizer> {
        Arc::new(Tokenizer::load(&cairn_tiny_models::tiny_model("llama/tiny-chat")).unwrap())
    }

    /// Decodes `tokens` and compares the text, its visible part and the stop string.
    fn check(
        stops: &[&str],
        tokens: &[u32],
        (text, visible): (&str, &str),
        stop_string: Option<&str>,
    ) {
        let strings = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut answer =
            AnswerText::new(&tokenizer(), Stops { strings, ..Stops::default() }).unwrap();
        let (mut found, mut shown, mut end) = (String::new(), String::new(), None);
        for &token in tokens {
            let step = answer.push(token).unwrap();
            found += &step.text;
            shown += &step.visible;
            end = end.or(step.end);
        }
        if end.is_none() {
            let step = answer.finish().unwrap();
            found += &step.text;
            shown += &step.visible;
            end = step.end;
        }
        let found_stop = end.and_then(|end| end.stop_string);
        assert_eq!((found.as_str(), found_stop.as_deref()), (text, stop_string), "{tokens:?}");
        assert_eq!(shown, visible, "{tokens:?}");
    }

    #[test]
    fn special_tokens_are_part_of_the_text_and_of_stop_strings() {
        let [a, b] = [u32::from(b'a'), u32::from(b'b')];
        check(&[], &[a, 257, b], ("a<|im_start|>b", "ab"), None);
        check(&["<|im_end|>"], &[a, 258, b], ("a", "a"), Some("<|im_end|>"));
        check(&["a<|im_end|>b"], &[b, a, 258, b, b], ("b", "b"), Some("a<|im_end|>b"));
        check(&["end|>"], &[a, 258], ("a<|im_", "a"), Some("end|>"));
        check(&["<|im_end|>!"], &[a, 258, b], ("a<|im_end|>b", "ab"), None);
        let broken = ("a\u{fffd}<|im_end|>b", "a\u{fffd}b");
        check(&["never"], &[a, 0xe2, 258, b], broken, None);
        check(&["\u{fffd}"], &[a, 0xe2], ("a", "a"), Some("\u{fffd}"));
        check(&["b\u{fffd}"], &[a, b, 0xe2], ("a", "a"), Some("b\u{fffd}"));
    }

    #[test]
    fn visible_text_is_the_decoded_text_without_special_tokens() {
        let tokenizer = tokenizer();
        let line: Vec<u32> = "word ".repeat(30).bytes().map(u32::from).collect();
        let tokens = [&line, &[258, 257, 10][..], &line, &[0xc3, 258, 0xa9], &line].concat();
        let decode = |skip| tokenizer.decode_tail(&tokens, skip).unwrap();
        check(&[], &tokens, (&decode(false), &decode(true)), None);
    }
}
