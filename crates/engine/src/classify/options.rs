//! The probabilities of options, each of one token or several. Pure: it sees token ids and numbers.

use std::cell::RefCell;

/// What has to be read behind a row for the probabilities of its options.
///
/// An option of tokens a, b, c needs the distributions behind the row, behind a, and behind a b. Those
/// behind the row are needed by all options, so options that begin alike share what is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OptionReading {
    options: Vec<Vec<u32>>,
    /// What is read behind the row, each once: one entry, without tokens, where every option is one
    /// token.
    continuations: Vec<Vec<u32>>,
    /// For each option the continuation that begins with all of its tokens but the last.
    read_by: Vec<usize>,
}

impl OptionReading {
    /// Every option has at least one token; without options only the distribution behind the row is
    /// read.
    pub(super) fn new(options: Vec<Vec<u32>>) -> Self {
        let mut needed: Vec<Vec<u32>> =
            options.iter().map(|option| option[..option.len() - 1].to_vec()).collect();
        needed.push(Vec::new());
        needed.sort_by_key(|tokens| std::cmp::Reverse(tokens.len()));
        let mut continuations: Vec<Vec<u32>> = Vec::new();
        for tokens in needed {
            if !continuations.iter().any(|longer| longer.starts_with(&tokens)) {
                continuations.push(tokens);
            }
        }
        let reads = |option: &Vec<u32>| {
            let before_last = &option[..option.len() - 1];
            let found = continuations.iter().position(|tokens| tokens.starts_with(before_last));
            found.unwrap_or_default() // `continuations` covers what every option needs
        };
        let read_by = options.iter().map(reads).collect();
        OptionReading { options, continuations, read_by }
    }

    /// The tokens to read behind the row. The distributions behind the row and behind each of them
    /// are wanted.
    pub(super) fn continuations(&self) -> &[Vec<u32>] {
        &self.continuations
    }

    /// The natural logarithm of each option's probability: that its tokens follow the row, and none
    /// by which it would become a longer option.
    ///
    /// `logprob(continuation, step, token)` is that of a token behind the first `step` tokens of a
    /// continuation.
    pub(super) fn logprobs(&self, logprob: impl Fn(usize, usize, u32) -> f32) -> Vec<f32> {
        let one = |(option, &continuation): (&Vec<u32>, &usize)| {
            let steps = option.iter().enumerate();
            let whole: f32 = steps.map(|(step, &token)| logprob(continuation, step, token)).sum();
            let mut following: Vec<u32> = self
                .options
                .iter()
                .filter(|longer| longer.len() > option.len() && longer.starts_with(option))
                .map(|longer| longer[option.len()])
                .collect();
            following.sort_unstable();
            following.dedup();
            if following.is_empty() {
                return whole;
            }
            let reader = self.continuations.iter().position(|read| read.starts_with(option));
            let goes_on: f32 = following
                .iter()
                .map(|&token| logprob(reader.unwrap_or_default(), option.len(), token).exp())
                .sum();
            whole + (1.0 - goes_on).max(f32::MIN_POSITIVE).ln()
        };
        std::iter::zip(&self.options, &self.read_by).map(one).collect()
    }

    /// With what [`logprobs`](Self::logprobs) calls its argument.
    pub(super) fn asked(&self) -> Vec<(usize, usize, u32)> {
        let asked = RefCell::new(Vec::new());
        self.logprobs(|continuation, step, token| {
            asked.borrow_mut().push((continuation, step, token));
            0.0
        });
        asked.into_inner()
    }

    /// The tokens of each option.
    pub(super) fn options(&self) -> &[Vec<u32>] {
        &self.options
    }
}

/// The two options that begin with the same token, if there are any.
pub(super) fn that_begin_alike(options: &[Vec<u32>]) -> Option<(usize, usize)> {
    (0..options.len()).find_map(|second| {
        let first = (0..second).find(|&first| options[first].first() == options[second].first());
        first.map(|first| (first, second))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &[&[u32]], continuations: &[&[u32]]) -> OptionReading {
        let reading = OptionReading::new(options.iter().map(|option| option.to_vec()).collect());
        assert_eq!(reading.continuations(), continuations, "{options:?}");
        reading
    }

    #[test]
    fn what_is_read_is_read_once() {
        check(&[], &[&[]]);
        check(&[&[1], &[2]], &[&[]]);
        check(&[&[1, 2], &[1, 3]], &[&[1]]);
        check(&[&[1], &[1, 2], &[1, 2, 3]], &[&[1, 2]]);
        check(&[&[4, 5, 6], &[7], &[8, 9]], &[&[4, 5], &[8]]);
    }

    /// A tree of three tokens, each with its own probability behind what came before.
    fn logprob_in<'a>(
        reading: &'a OptionReading,
        probability: impl Fn(&[u32], u32) -> f32 + 'a,
    ) -> impl Fn(usize, usize, u32) -> f32 + 'a {
        move |continuation, step, token| {
            probability(&reading.continuations()[continuation][..step], token).ln()
        }
    }

    #[test]
    fn an_option_of_several_tokens_has_their_joint_probability() {
        let reading = check(&[&[1, 2], &[3]], &[&[1]]);
        let probability = |before: &[u32], token: u32| match (before, token) {
            ([], 1) => 0.5,
            ([], 3) => 0.25,
            ([1], 2) => 0.2,
            other => panic!("{other:?}"),
        };
        let found = reading.logprobs(logprob_in(&reading, probability));
        assert!((found[0].exp() - 0.1).abs() < 1e-6 && (found[1].exp() - 0.25).abs() < 1e-6);
    }

    #[test]
    fn an_option_does_not_count_what_goes_on_to_a_longer_one() {
        // "1", "10" and "100", each of as many tokens as digits.
        let reading = check(&[&[1], &[1, 0], &[1, 0, 0]], &[&[1, 0]]);
        let probability = |before: &[u32], token: u32| match (before, token) {
            ([], 1) => 0.8,
            ([1], 0) => 0.5,
            ([1, 0], 0) => 0.25,
            other => panic!("{other:?}"),
        };
        let found = reading.logprobs(logprob_in(&reading, probability));
        for (found, expected) in found.iter().zip([0.4, 0.3, 0.1]) {
            assert!((found.exp() - expected).abs() < 1e-6, "{} not {expected}", found.exp());
        }
    }

    #[test]
    fn options_with_the_same_first_token_are_named() {
        assert_eq!(that_begin_alike(&[vec![1], vec![2, 1], vec![3], vec![2]]), Some((1, 3)));
        assert_eq!(that_begin_alike(&[vec![1], vec![2]]), None);
    }
}
