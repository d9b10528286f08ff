//! Facts about a prompt for its caller when the answer begins, and keys that compare it with a
//! later prompt without keeping its tokens.

use std::hash::{DefaultHasher, Hash, Hasher};

use cairn_prompt_cache::{ChunkProblem, MissReason};

/// How many tokens have a key of their own.
const BLOCK_TOKENS: usize = 32;

/// The prompt of an answer that has begun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptFacts {
    /// Its length.
    pub num_tokens: usize,
    /// How many of them came from the prompt cache.
    pub num_cached: usize,
    /// Its tokens, without those of a prompt-cache file.
    pub token_ids: Vec<u32>,
    /// Why tokens that were saved could not be used, such as "evicted to stay within the disk
    /// limit". `None` if nothing was lost.
    pub loss: Option<String>,
}

/// Keys of a prompt's tokens: one for each block of 32, and one for the rest. Each depends on all
/// tokens before it, so equal keys mean an equal beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptKeys {
    keys: Vec<u64>,
    num_tokens: usize,
}

impl PromptKeys {
    /// The keys of these tokens.
    pub fn new(token_ids: &[u32]) -> PromptKeys {
        let keys = keys(token_ids.chunks(BLOCK_TOKENS)).collect();
        PromptKeys { keys, num_tokens: token_ids.len() }
    }

    /// How many tokens they stand for.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// How many of the tokens that the keys stand for begin another prompt too: all of them, or as
    /// many as whole blocks have.
    pub fn num_shared(&self, token_ids: &[u32]) -> usize {
        let compared = &token_ids[..token_ids.len().min(self.num_tokens)];
        let blocks = compared.chunks(BLOCK_TOKENS);
        let same =
            self.keys.iter().zip(keys(blocks)).take_while(|(earlier, now)| **earlier == *now);
        (same.count() * BLOCK_TOKENS).min(compared.len())
    }
}

fn keys<'a>(blocks: impl Iterator<Item = &'a [u32]>) -> impl Iterator<Item = u64> {
    blocks.scan(0_u64, |before, block| {
        let mut hasher = DefaultHasher::new();
        (*before, block).hash(&mut hasher);
        *before = hasher.finish();
        Some(*before)
    })
}

/// Why saved tokens could not be used. `None` if the prompt differs from what was saved, or nothing
/// was.
pub(crate) fn loss(reason: &MissReason) -> Option<String> {
    match reason {
        MissReason::Lost { reason, .. } => Some(reason.to_string()),
        MissReason::Unusable(problem) => Some(match problem {
            ChunkProblem::Missing => "its file is missing".to_owned(),
            ChunkProblem::Unreadable(reason) => format!("its file cannot be read: {reason}"),
            ChunkProblem::Damaged(_) => "its file is damaged".to_owned(),
            ChunkProblem::NotRestorable(reason) => format!("it cannot be restored: {reason}"),
        }),
        MissReason::NotWritten(problem) => Some(format!("it was not saved: {problem}")),
        MissReason::ImportedAgain => Some("its starting point was imported again".to_owned()),
        MissReason::SystemPromptChanged { .. }
        | MissReason::MessageChanged { .. }
        | MissReason::OtherModel { .. }
        | MissReason::OtherRevision
        | MissReason::OtherKvFormat { .. }
        | MissReason::NotStored => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_tokens_of_whole_blocks() {
        fn check(earlier: &[u32], now: &[u32], expected: usize) {
            assert_eq!(PromptKeys::new(earlier).num_shared(now), expected);
        }
        let long: Vec<u32> = (0..100).collect();
        let mut changed = long.clone();
        changed[70] = 7;
        check(&long, &long, 100);
        // A longer prompt begins with all of it, the part of a block included.
        check(&long[..70], &long, 70);
        check(&long[..71], &changed, 64);
        check(&long, &changed, 64);
        // The last block is only a part of the earlier one.
        check(&long, &long[..70], 64);
        check(&long[1..], &long, 0);
        check(&[], &long, 0);
        check(&long, &[], 0);
    }
}
