//! Proposes the tokens that followed the latest ones when they stood in the prompt or the answer
//! before (Saxena 2023, Prompt lookup decoding).

use std::time::Duration;

use super::pace::Pace;
use super::token_index::{Match, TokenIndex};

/// How tokens are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptLookup {
    /// So many are proposed after every match.
    Always(usize),
    /// As many are proposed as pay, which is measured; none where none do.
    WhereItPays,
}

/// The prompt and the answer so far, and what has become of the proposals.
#[derive(Debug)]
pub(super) struct LookupDrafter {
    index: TokenIndex,
    found: Option<Match>,
    lookup: PromptLookup,
    pace: Pace,
}

impl LookupDrafter {
    pub(super) fn new<'a>(lookup: PromptLookup, tokens: impl IntoIterator<Item = &'a u32>) -> Self {
        let mut index = TokenIndex::default();
        tokens.into_iter().for_each(|&token| index.push(token));
        let found = index.find();
        LookupDrafter { index, found, lookup, pace: Pace::default() }
    }

    /// Adds a token of the answer.
    pub(super) fn push(&mut self, token: u32) {
        if let Some(found) = self.found {
            let predicted = self.index.following(found).next();
            self.pace.predicted(found.length, predicted == Some(token));
        }
        self.index.push(token);
        self.found = self.index.find();
    }

    /// At most `limit` tokens that may follow.
    pub(super) fn propose(&self, limit: usize) -> Vec<u32> {
        let Some(found) = self.found else { return Vec::new() };
        let number = self.number(found, 0).min(limit);
        self.index.following(found).take(number).collect()
    }

    /// A token that may follow, and at most `limit` that may follow that one. With no proposals there
    /// is no such token either.
    pub(super) fn propose_after_next(&self, limit: usize) -> Option<(u32, Vec<u32>)> {
        let found = self.found?;
        let number = self.number(found, 1).min(limit);
        let mut following = self.index.following(found);
        let next = following.next()?;
        (number > 0).then(|| (next, following.take(number).collect()))
    }

    /// A pass over the last token and so many proposals took so long.
    pub(super) fn passed(&mut self, num_tokens: usize, took: Duration) {
        self.pace.passed(num_tokens, took);
    }

    fn number(&self, found: Match, num_before: usize) -> usize {
        match self.lookup {
            PromptLookup::Always(number) => number,
            PromptLookup::WhereItPays => self.pace.num_tokens(found.length, num_before),
        }
    }
}
