//! From tokens to the text of an answer, and where it ends.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use cairn_chat::{StopStrings, StopTokens};

use crate::tokenizer::{Detokenizer, Tokenizer};
use crate::{LmError, LoadedModel};

/// What ends an answer before its limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stops {
    /// Tokens that end it. They have no text.
    pub eos_token_ids: BTreeSet<u32>,
    /// Sequences of tokens that end it. Their text is not given out either.
    pub token_sequences: Vec<Vec<u32>>,
    /// Texts that end it, wherever the tokens are cut. The answer ends before them.
    pub strings: Vec<String>,
}

impl Stops {
    /// The model's own end-of-sequence tokens.
    pub fn of(loaded: &LoadedModel) -> Self {
        Stops { eos_token_ids: loaded.eos_token_ids.clone(), ..Stops::default() }
    }
}

/// What one token leads to.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// Text that is certain now.
    pub(super) text: String,
    /// What ended the answer.
    pub(super) end: Option<End>,
}

/// The tokens that ended an answer, and the stop string that was found in them, if it was one.
#[derive(Debug)]
pub(super) struct End {
    pub(super) stop_string: Option<String>,
    pub(super) stop_tokens: Vec<u32>,
}

/// The text of one answer. Joined, the pieces are the decoded whole, up to where a stop rule ended
/// it.
#[derive(Debug)]
pub(super) struct AnswerText {
    detokenizer: Option<Detokenizer>,
    stops: Stops,
    search: StopTokens,
    strings: StopStrings,
    /// Tokens that may become a stop sequence: not yet decoded.
    undecided: VecDeque<u32>,
    withheld: Withheld,
}

impl AnswerText {
    pub(super) fn new(tokenizer: &Rc<Tokenizer>, stops: Stops) -> Result<Self, LmError> {
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
    pub(super) fn push(&mut self, token: u32) -> Result<Step, LmError> {
        if self.stops.eos_token_ids.contains(&token) {
            return self.finish_with(End { stop_string: None, stop_tokens: vec![token] });
        }
        self.undecided.push_back(token);
        if let Some(index) = self.search.push(token) {
            let sequence = self.stops.token_sequences.get(index).cloned().unwrap_or_default();
            self.undecided.truncate(self.undecided.len().saturating_sub(sequence.len()));
            return self.finish_with(End { stop_string: None, stop_tokens: sequence });
        }
        self.decode(self.undecided.len() - self.possible_start())
    }

    /// The text still held back when the answer ends; a stop string may be in it.
    pub(super) fn finish(&mut self) -> Result<Step, LmError> {
        let mut step = self.decode(self.undecided.len())?;
        if let Some(detokenizer) = self.detokenizer.take() {
            let found = self.strings.push(&detokenizer.finish()?);
            self.withheld.release(found.text.len());
            step.text += &found.text;
            step.end = found.stopped.map(|stop_string| self.withheld.end(stop_string));
            step.text += &self.strings.finish();
        }
        Ok(step)
    }

    fn finish_with(&mut self, end: End) -> Result<Step, LmError> {
        let mut step = self.finish()?;
        step.end.get_or_insert(end);
        Ok(step)
    }

    /// Makes text of the first `count` undecided tokens.
    fn decode(&mut self, count: usize) -> Result<Step, LmError> {
        let mut step = Step::default();
        for token in self.undecided.drain(..count) {
            let Some(detokenizer) = &mut self.detokenizer else { break };
            let piece = detokenizer.push(token)?;
            let found = self.strings.push(&piece);
            self.withheld.0.push_back((token, piece.len()));
            self.withheld.release(found.text.len());
            step.text += &found.text;
            if let Some(stop_string) = found.stopped {
                step.end = Some(self.withheld.end(stop_string));
                self.detokenizer = None;
                break;
            }
        }
        Ok(step)
    }

    /// How many of the last undecided tokens may be the beginning of a stop sequence.
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

/// Tokens with text that is not given out yet, and how many bytes of it each has.
#[derive(Debug, Default)]
struct Withheld(VecDeque<(u32, usize)>);

impl Withheld {
    /// Lets the tokens of the first `num_bytes` go.
    fn release(&mut self, mut num_bytes: usize) {
        while num_bytes > 0
            && let Some((_, length)) = self.0.front_mut()
        {
            let given = num_bytes.min(*length);
            *length -= given;
            num_bytes -= given;
            if *length == 0 {
                self.0.pop_front();
            }
        }
    }

    fn end(&self, stop_string: String) -> End {
        End {
            stop_string: Some(stop_string),
            stop_tokens: self.0.iter().map(|(token, _)| *token).collect(),
        }
    }
}
