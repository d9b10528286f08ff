//! The tokens of chunks and of prompts.

use std::sync::Arc;

/// The tokens of one chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokens {
    /// Their ids, shared by everyone who holds the chunk's record.
    Known(Arc<[u32]>),
    /// An imported file holds keys and values for this many tokens and does not name them; the
    /// chunk's [`crate::Provenance`] says which file. Rows and chunk files have zeros for them.
    Opaque {
        /// How many there are.
        count: usize,
    },
}

impl Tokens {
    /// Tokens of these ids.
    pub fn known(ids: impl Into<Arc<[u32]>>) -> Tokens {
        Tokens::Known(ids.into())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Tokens::Known(ids) => ids.len(),
            Tokens::Opaque { count } => *count,
        }
    }

    /// Whether there are none, which no chunk allows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids, as far as they are known.
    pub fn known_ids(&self) -> &[u32] {
        match self {
            Tokens::Known(ids) => ids,
            Tokens::Opaque { .. } => &[],
        }
    }

    /// The ids as rows and chunk files store them: zeros stand for those that nobody named.
    pub fn stored_ids(&self) -> Vec<u32> {
        match self {
            Tokens::Known(ids) => ids.to_vec(),
            Tokens::Opaque { count } => vec![0; *count],
        }
    }

    /// The stored ids as bytes.
    pub(crate) fn to_le_bytes(&self) -> Vec<u8> {
        match self {
            Tokens::Known(ids) => {
                let mut bytes = Vec::with_capacity(ids.len() * size_of::<u32>());
                ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
                bytes
            }
            Tokens::Opaque { count } => vec![0; count * size_of::<u32>()],
        }
    }
}

/// A prompt as it is looked up and saved. Only its beginning can be opaque.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTokens {
    num_opaque: usize,
    ids: Vec<u32>,
}

impl PromptTokens {
    /// A prompt whose tokens are all known.
    pub fn known(ids: impl Into<Vec<u32>>) -> PromptTokens {
        PromptTokens { num_opaque: 0, ids: ids.into() }
    }

    /// A prompt that begins with `num_opaque` tokens that an imported file does not name.
    pub fn after_opaque(num_opaque: usize, ids: impl Into<Vec<u32>>) -> PromptTokens {
        PromptTokens { num_opaque, ids: ids.into() }
    }

    /// How many tokens it has.
    pub fn len(&self) -> usize {
        self.num_opaque + self.ids.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shortens it to `len` tokens, if it has more.
    pub fn truncate(&mut self, len: usize) {
        self.num_opaque = self.num_opaque.min(len);
        self.ids.truncate(len - self.num_opaque);
    }

    /// How many leading tokens it shares with another prompt of the same namespace.
    pub fn num_shared(&self, other: &PromptTokens) -> usize {
        if self.num_opaque == other.num_opaque {
            self.num_opaque + common_prefix(&self.ids, &other.ids)
        } else {
            self.num_opaque.min(other.num_opaque)
        }
    }

    /// How many of a chunk's first tokens stand in this prompt at `start`.
    pub(crate) fn num_matching(&self, start: usize, tokens: &Tokens) -> usize {
        match (tokens, self.known_from(start)) {
            (Tokens::Known(ids), Some(rest)) => common_prefix(ids, rest),
            (Tokens::Opaque { count }, None) => (self.num_opaque - start).min(*count),
            _ => 0,
        }
    }

    /// The tokens from `start` on; none where the one at `start` is opaque.
    pub(crate) fn known_from(&self, start: usize) -> Option<&[u32]> {
        Some(&self.ids[start.checked_sub(self.num_opaque)?..])
    }

    /// The opaque tokens from `start` on.
    pub(crate) fn num_opaque_from(&self, start: usize) -> usize {
        self.num_opaque.saturating_sub(start)
    }

    /// The tokens of a chunk from `start` to at most `stop`: a chunk is either opaque or known.
    pub(crate) fn slice(&self, start: usize, stop: usize) -> Tokens {
        match start.checked_sub(self.num_opaque) {
            None => Tokens::Opaque { count: stop.min(self.num_opaque) - start },
            Some(from) => Tokens::known(&self.ids[from..stop - self.num_opaque]),
        }
    }
}

pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_tokens_match_only_opaque_tokens_at_their_positions() {
        let prompt = PromptTokens::after_opaque(10, [1, 2, 3]);
        let check = |start: usize, tokens: Tokens, expected: usize| {
            assert_eq!(prompt.num_matching(start, &tokens), expected, "{tokens:?} at {start}");
        };
        check(0, Tokens::Opaque { count: 10 }, 10);
        check(0, Tokens::Opaque { count: 12 }, 10);
        check(6, Tokens::Opaque { count: 3 }, 3);
        check(10, Tokens::Opaque { count: 3 }, 0);
        check(0, Tokens::known([0, 0]), 0);
        check(10, Tokens::known([1, 2, 4]), 2);
        check(12, Tokens::known([3, 4]), 1);
        check(13, Tokens::known([1]), 0);
    }

    #[test]
    fn prompts_share_a_beginning_as_far_as_both_are_known_or_both_opaque() {
        let check = |a: &PromptTokens, b: &PromptTokens, expected: usize| {
            assert_eq!((a.num_shared(b), b.num_shared(a)), (expected, expected));
        };
        let known = PromptTokens::known([1, 2, 3]);
        check(&known, &PromptTokens::known([1, 2, 9]), 2);
        check(&known, &PromptTokens::after_opaque(2, [1, 2, 3]), 0);
        let opaque = PromptTokens::after_opaque(4, [1, 2]);
        check(&opaque, &PromptTokens::after_opaque(4, [1, 3]), 5);
        check(&opaque, &PromptTokens::after_opaque(3, [1, 2]), 3);
    }

    #[test]
    fn a_prompt_can_be_shortened_into_its_opaque_tokens() {
        let shortened = |len: usize| {
            let mut prompt = PromptTokens::after_opaque(4, [1, 2]);
            prompt.truncate(len);
            (prompt.len(), prompt.num_opaque, prompt.ids)
        };
        assert_eq!(shortened(9), (6, 4, vec![1, 2]));
        assert_eq!(shortened(5), (5, 4, vec![1]));
        assert_eq!(shortened(3), (3, 3, vec![]));
    }
}
