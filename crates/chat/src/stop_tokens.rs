//! Ending an answer at a token, or a sequence of tokens.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Searches for stop sequences in the tokens of one answer; an end-of-sequence token is a sequence
/// of one.
///
/// Aho and Corasick's automaton (Efficient string matching, 1975), with token ids for letters: a
/// token costs O(1) on average however many sequences there are, and overlapping sequences are all
/// found. Clones share the automaton and continue from the same state.
#[derive(Debug, Clone)]
pub struct StopTokens {
    nodes: Arc<[Node]>,
    /// The node of the longest beginning of a sequence that the tokens so far end with.
    state: usize,
}

/// A beginning of one or more sequences. The first node is the empty beginning.
#[derive(Debug, Default)]
struct Node {
    next: HashMap<u32, usize>,
    /// The node of the longest proper suffix that begins a sequence too.
    fallback: usize,
    /// The longest sequence that ends here, by its index in the list.
    sequence: Option<usize>,
}

impl StopTokens {
    /// A search for `sequences`. Empty ones, which would end every answer at once, are ignored, as
    /// in mlx-lm.
    pub fn new(sequences: Vec<Vec<u32>>) -> Self {
        let mut nodes = vec![Node::default()];
        for (index, sequence) in
            sequences.iter().enumerate().filter(|(_, sequence)| !sequence.is_empty())
        {
            let mut node = 0;
            for &token in sequence {
                let new = nodes.len();
                node = *nodes[node].next.entry(token).or_insert(new);
                if node == new {
                    nodes.push(Node::default());
                }
            }
            nodes[node].sequence.get_or_insert(index);
        }
        link(&mut nodes);
        StopTokens { nodes: nodes.into(), state: 0 }
    }

    /// Processes the next token; returns the index of the longest sequence that ends with it.
    pub fn push(&mut self, token: u32) -> Option<usize> {
        self.state = step(&self.nodes, self.state, token);
        self.nodes[self.state].sequence
    }

    /// Resets the search for another answer.
    pub fn reset(&mut self) {
        self.state = 0;
    }
}

/// Sets each node's fallback, nearer nodes first, because longer beginnings fall back to shorter
/// ones.
fn link(nodes: &mut [Node]) {
    let mut waiting: VecDeque<usize> = nodes[0].next.values().copied().collect();
    while let Some(parent) = waiting.pop_front() {
        let children: Vec<(u32, usize)> =
            nodes[parent].next.iter().map(|(&token, &child)| (token, child)).collect();
        for (token, child) in children {
            let fallback = step(nodes, nodes[parent].fallback, token);
            nodes[child].fallback = fallback;
            nodes[child].sequence = nodes[child].sequence.or(nodes[fallback].sequence);
            waiting.push_back(child);
        }
    }
}

fn step(nodes: &[Node], mut state: usize, token: u32) -> usize {
    loop {
        match nodes[state].next.get(&token) {
            Some(&next) => return next,
            None if state == 0 => return 0,
            None => state = nodes[state].fallback,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the first sequence ends, and which it is.
    fn check(sequences: &[&[u32]], tokens: &[u32], expected: Option<(usize, usize)>) {
        let mut search =
            StopTokens::new(sequences.iter().map(|sequence| sequence.to_vec()).collect());
        for _ in 0..2 {
            let found = tokens
                .iter()
                .enumerate()
                .find_map(|(position, &token)| Some((position, search.push(token)?)));
            assert_eq!(found, expected, "{sequences:?} in {tokens:?}");
            search.reset();
        }
    }

    #[test]
    fn the_end_of_a_sequence_is_seen() {
        check(&[&[2]], &[1, 2, 3], Some((1, 0)));
        check(&[&[7], &[2]], &[1, 2, 7], Some((1, 1)));
        check(&[&[1, 2, 3]], &[1, 1, 2, 3], Some((3, 0)));
        check(&[&[1, 1, 2]], &[1, 1, 1, 2], Some((3, 0)));
        check(&[&[1, 2, 1, 3]], &[1, 2, 1, 2, 1, 3], Some((5, 0)));
        check(&[&[1, 2, 3]], &[1, 2, 1, 2], None);
        check(&[], &[1, 2], None);
        check(&[&[]], &[1, 2], None);
        check(&[&[], &[2]], &[1, 2], Some((1, 1)));
    }

    #[test]
    fn sequences_that_overlap_are_all_seen() {
        check(&[&[1, 2, 3, 4], &[2, 3]], &[1, 2, 3, 4], Some((2, 1)));
        check(&[&[1, 2, 3, 4], &[2, 5]], &[1, 2, 5], Some((2, 1)));
        check(&[&[1, 2, 3], &[3, 4]], &[1, 2, 4, 3, 4], Some((4, 1)));
        check(&[&[3], &[2, 3], &[1, 2, 3]], &[1, 2, 3], Some((2, 2)));
        check(&[&[1, 2], &[1, 2]], &[1, 2], Some((1, 0)));
        check(&[&[5, 6, 7, 8], &[6, 7, 9], &[7, 4]], &[5, 6, 7, 4], Some((3, 2)));
    }

    #[test]
    fn every_end_is_the_one_that_a_plain_search_finds() {
        // All texts of nine tokens over an alphabet of three, against every suffix compared by
        // hand.
        let sequences: [&[u32]; 5] = [&[0, 1], &[1, 0, 2], &[2, 2, 2], &[0, 1, 0, 1], &[1, 1]];
        let search = StopTokens::new(sequences.iter().map(|sequence| sequence.to_vec()).collect());
        for number in 0..3u32.pow(9) {
            let text: Vec<u32> = (0..9).map(|digit| number / 3u32.pow(digit) % 3).collect();
            let mut search = search.clone();
            for end in 1..=text.len() {
                let plain =
                    (0..sequences.len()).filter(|&index| text[..end].ends_with(sequences[index]));
                assert_eq!(
                    search.push(text[end - 1]),
                    plain.max_by_key(|&index| sequences[index].len()),
                    "{text:?} to {end}"
                );
            }
        }
    }
}
