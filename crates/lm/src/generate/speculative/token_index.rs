//! Finds where the latest tokens have stood before.

use std::collections::HashMap;

/// Matches are looked for with these lengths, the longest first. Three tokens are the fewest that
/// say something about the next one.
const LENGTHS: [usize; 3] = [8, 5, 3];

/// An index of a text's tokens: adding one and looking up the latest take the same time however long
/// the text is.
#[derive(Debug, Default)]
pub(super) struct TokenIndex {
    tokens: Vec<u32>,
    /// For each of `LENGTHS`: where the latest run of so many tokens ends, by the run's hash. Only
    /// runs that another token follows are here.
    ends: [HashMap<u64, u32>; LENGTHS.len()],
}

/// An earlier occurrence of the latest tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Where the tokens behind it begin.
    end: usize,
    /// At least so many tokens are equal.
    pub(super) length: usize,
}

impl TokenIndex {
    pub(super) fn push(&mut self, token: u32) {
        let end = self.tokens.len();
        for (length, ends) in LENGTHS.iter().zip(&mut self.ends) {
            if let Some(start) = end.checked_sub(*length) {
                ends.insert(hash(&self.tokens[start..]), end as u32);
            }
        }
        self.tokens.push(token);
    }

    /// Adds tokens that may follow, and the latest tokens once more: they have stood before
    /// `continuation` then, so that its beginning is found at once. Proposals at its end go on with them.
    pub(super) fn push_continuation(&mut self, continuation: &[u32]) {
        let [longest, ..] = LENGTHS;
        let latest = self.tokens[self.tokens.len().saturating_sub(longest)..].to_vec();
        continuation.iter().chain(&latest).for_each(|&token| self.push(token));
    }

    /// The latest earlier occurrence of the longest run of the latest tokens that has one.
    pub(super) fn find(&self) -> Option<Match> {
        LENGTHS.iter().zip(&self.ends).find_map(|(&length, ends)| {
            let run = &self.tokens[self.tokens.len().checked_sub(length)?..];
            let end = *ends.get(&hash(run))? as usize;
            // Other tokens may have the same hash.
            (self.tokens[end - length..end] == *run).then_some(Match { end, length })
        })
    }

    /// The tokens that followed `found`, as many as are asked for: what overlaps the latest tokens
    /// repeats itself.
    pub(super) fn following(&self, found: Match) -> impl Iterator<Item = u32> {
        self.tokens[found.end..].iter().copied().cycle()
    }
}

/// FNV-1a over whole tokens.
fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &token| {
        (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tokens: &[u32], length: usize, following: &[u32]) {
        let mut index = TokenIndex::default();
        tokens.iter().for_each(|&token| index.push(token));
        let found = index.find();
        assert_eq!(found.map_or(0, |found| found.length), length, "{tokens:?}");
        if let Some(found) = found {
            let next: Vec<u32> = index.following(found).take(following.len()).collect();
            assert_eq!(next, following, "{tokens:?}");
        }
    }

    #[test]
    fn the_latest_and_longest_match_tells_what_follows() {
        check(&[], 0, &[]);
        check(&[1, 2, 3, 4, 5], 0, &[]);
        // Two equal tokens are too few.
        check(&[1, 2, 9, 1, 2], 0, &[]);
        check(&[1, 2, 3, 9, 8, 1, 2, 3], 3, &[9, 8, 1]);
        // The later of two.
        check(&[1, 2, 3, 9, 1, 2, 3, 7, 1, 2, 3], 3, &[7, 1, 2]);
        // The longer of two, although it is earlier.
        check(&[1, 2, 3, 4, 5, 9, 0, 3, 4, 5, 7, 1, 2, 3, 4, 5], 5, &[9, 0]);
    }

    #[test]
    fn a_continuation_is_found_from_its_beginning() {
        let mut index = TokenIndex::default();
        [1, 2, 3, 7, 1, 2, 3].into_iter().for_each(|token| index.push(token));
        index.push_continuation(&[4, 5, 6, 8]);
        for expected in [4, 5, 6, 8] {
            let found = index.find().expect("a match");
            assert_eq!(index.following(found).next(), Some(expected));
            index.push(expected);
        }
    }

    #[test]
    fn what_repeats_goes_on_repeating() {
        check(&[4, 4, 4, 4], 3, &[4, 4, 4, 4, 4]);
        check(&[1, 2, 1, 2, 1, 2, 1], 5, &[2, 1, 2, 1, 2]);
    }
}
