//! The text of an answer and the rules that end it.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use cairn_chat::{StopStrings, StopTokens};

use crate::tokenizer::{Detokenizer, Tokenizer};
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
pub(super) struct Step {
    /// The text that can be returned now.
    pub(super) text: String,
    /// The end of the answer, if this token ends it.
    pub(super) end: Option<End>,
}

/// The tokens that ended an answer, and the stop string that was found in them, if any.
#[derive(Debug)]
pub(super) struct End {
    pub(super) stop_string: Option<String>,
    pub(super) stop_tokens: Vec<u32>,
}

/// Decodes the text of one answer. The pieces concatenate to the decoded whole, up to the point
/// where a stop rule ended it.
#[derive(Debug)]
pub(super) struct AnswerText {
    detokenizer: Option<Detokenizer>,
    stops: Stops,
    search: StopTokens,
    strings: StopStrings,
    /// Tokens that may be the start of a stop sequence and are therefore not decoded yet.
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

    /// Ends the answer and returns the withheld text, which may complete a stop string.
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

    /// Decodes the first `count` undecided tokens.
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

/// The tokens whose text has not been returned completely, with the number of bytes still missing.
#[derive(Debug, Default)]
struct Withheld(VecDeque<(u32, usize)>);

impl Withheld {
    /// Removes the first `num_bytes` of text, and the tokens that have none left.
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
