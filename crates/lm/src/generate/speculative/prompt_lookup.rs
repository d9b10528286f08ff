//! Proposes the tokens that followed the latest ones when they stood in the prompt or the answer
//! before (Saxena 2023, Prompt lookup decoding), or in a prediction of the answer.

use super::token_index::{Match, TokenIndex};

/// How tokens are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptLookup {
    /// So many are proposed after every match.
    Always(usize),
    /// As many are proposed as pay, which is measured; none where none do.
    WhereItPays,
}

/// The prompt and the answer so far, and where its latest tokens stood before.
#[derive(Debug)]
pub(super) struct LookupDrafter {
    index: TokenIndex,
    found: Option<Match>,
}

impl LookupDrafter {
    /// Looks up the end of `tokens`, the prompt. Where the same stands in the prompt and in
    /// `prediction`, what follows it in the prediction is proposed.
    pub(super) fn new<'a>(tokens: impl IntoIterator<Item = &'a u32>, prediction: &[u32]) -> Self {
        let mut index = TokenIndex::default();
        tokens.into_iter().for_each(|&token| index.push(token));
        if !prediction.is_empty() {
            index.push_continuation(prediction);
        }
        let found = index.find();
        LookupDrafter { index, found }
    }

    /// Adds a token of the answer. If there was a match before it, returns how long that was, and
    /// whether it predicted this token.
    pub(super) fn push(&mut self, token: u32) -> Option<(usize, bool)> {
        let predicted = self
            .found
            .map(|found| (found.length, self.index.following(found).next() == Some(token)));
        self.index.push(token);
        self.found = self.index.find();
        predicted
    }

    /// How many of the latest tokens stood somewhere before.
    pub(super) fn match_length(&self) -> Option<usize> {
        self.found.map(|found| found.length)
    }

    /// At most `limit` tokens that may follow.
    pub(super) fn propose(&self, limit: usize) -> Vec<u32> {
        let Some(found) = self.found else { return Vec::new() };
        self.index.following(found).take(limit).collect()
    }

    /// A token that may follow, and at most `limit` that may follow that one.
    pub(super) fn propose_after_next(&self, limit: usize) -> Option<(u32, Vec<u32>)> {
        let mut following = self.index.following(self.found?);
        let next = following.next()?;
        Some((next, following.take(limit).collect()))
    }
}
