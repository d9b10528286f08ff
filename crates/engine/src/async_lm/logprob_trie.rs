//! The log-probabilities that were computed, by the tokens before them. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A trie over token ids; a node holds the log-probabilities of the token after it.
///
/// - The values and the nodes take at most `budget_bytes`; the least recently used values go first,
///   with the nodes that lead to nothing then.
/// - Every node but the root leads to a value.
#[derive(Debug)]
pub(super) struct LogprobTrie {
    budget_bytes: usize,
    num_bytes: usize,
    /// The nodes by their numbers; the root is 0.
    nodes: HashMap<u64, Node>,
    children: HashMap<(u64, u32), u64>,
    next_node: u64,
    /// The nodes with values, by when they were last used.
    by_use: BTreeMap<u64, u64>,
    num_uses: u64,
}

#[derive(Debug, Default)]
struct Node {
    /// The node before it and its own token.
    parent: Option<(u64, u32)>,
    num_children: usize,
    value: Option<Value>,
}

#[derive(Debug)]
struct Value {
    logprobs: Arc<[f32]>,
    last_use: u64,
}

const ROOT: u64 = 0;

/// About what a node takes in both maps.
const NODE_BYTES: usize = 128;

impl LogprobTrie {
    pub(super) fn new(budget_bytes: usize) -> Self {
        LogprobTrie {
            budget_bytes,
            num_bytes: 0,
            nodes: HashMap::from([(ROOT, Node::default())]),
            children: HashMap::new(),
            next_node: ROOT + 1,
            by_use: BTreeMap::new(),
            num_uses: 0,
        }
    }

    /// The log-probabilities after exactly these tokens, which count as used.
    pub(super) fn get(&mut self, ids: &[u32]) -> Option<Arc<[f32]>> {
        let id = ids.iter().try_fold(ROOT, |node, &token| self.child(node, token))?;
        let now = self.use_number();
        let value = self.nodes.get_mut(&id)?.value.as_mut()?;
        self.by_use.remove(&value.last_use);
        value.last_use = now;
        self.by_use.insert(now, id);
        Some(Arc::clone(&value.logprobs))
    }

    /// How many of the first tokens have stored log-probabilities after them; none of fewer need
    /// to have.
    pub(super) fn longest(&self, ids: &[u32]) -> usize {
        let (mut node, mut longest) = (ROOT, 0);
        for (index, &token) in ids.iter().enumerate() {
            let Some(next) = self.child(node, token) else { break };
            node = next;
            if self.nodes.get(&node).is_some_and(|node| node.value.is_some()) {
                longest = index + 1;
            }
        }
        longest
    }

    /// Stores the log-probabilities after these tokens, unless some are stored there.
    pub(super) fn insert(&mut self, ids: &[u32], logprobs: Arc<[f32]>) {
        let needed = value_bytes(&logprobs) + ids.len() * NODE_BYTES;
        if ids.is_empty() || needed > self.budget_bytes || self.get(ids).is_some() {
            return;
        }
        let id = ids.iter().fold(ROOT, |node, &token| self.child_or_new(node, token));
        self.num_bytes += value_bytes(&logprobs);
        let last_use = self.use_number();
        if let Some(node) = self.nodes.get_mut(&id) {
            node.value = Some(Value { logprobs, last_use });
            self.by_use.insert(last_use, id);
        }
        while self.num_bytes > self.budget_bytes
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.drop_value(oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = LogprobTrie::new(self.budget_bytes);
    }

    /// How many values there are, and how many bytes all takes.
    pub(super) fn figures(&self) -> (usize, usize) {
        (self.by_use.len(), self.num_bytes)
    }

    fn child(&self, node: u64, token: u32) -> Option<u64> {
        self.children.get(&(node, token)).copied()
    }

    fn child_or_new(&mut self, node: u64, token: u32) -> u64 {
        if let Some(child) = self.child(node, token) {
            return child;
        }
        let child = self.next_node;
        self.next_node += 1;
        self.num_bytes += NODE_BYTES;
        self.children.insert((node, token), child);
        self.nodes.insert(child, Node { parent: Some((node, token)), ..Node::default() });
        if let Some(node) = self.nodes.get_mut(&node) {
            node.num_children += 1;
        }
        child
    }

    /// Drops a value, and the nodes that led to it alone.
    fn drop_value(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Some(value) = node.value.take() {
            self.num_bytes -= value_bytes(&value.logprobs);
        }
        let mut id = id;
        while let Some(node) = self.nodes.get(&id)
            && node.num_children == 0
            && node.value.is_none()
            && let Some((parent, token)) = node.parent
        {
            self.nodes.remove(&id);
            self.children.remove(&(parent, token));
            self.num_bytes -= NODE_BYTES;
            if let Some(parent) = self.nodes.get_mut(&parent) {
                parent.num_children -= 1;
            }
            id = parent;
        }
    }

    fn use_number(&mut self) -> u64 {
        self.num_uses += 1;
        self.num_uses
    }
}

fn value_bytes(logprobs: &[f32]) -> usize {
    std::mem::size_of_val(logprobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: f32) -> Arc<[f32]> {
        Arc::from(vec![number; 100])
    }

    /// What a value takes that shares `num_shared` of its tokens with others.
    fn bytes(num_new_tokens: usize) -> usize {
        400 + NODE_BYTES * num_new_tokens
    }

    #[test]
    fn a_value_is_found_by_exactly_its_tokens() {
        let mut trie = LogprobTrie::new(1 << 20);
        trie.insert(&[1, 2, 3], row(3.0));
        trie.insert(&[1, 2], row(2.0));
        trie.insert(&[1, 9], row(9.0));
        // The first stays.
        trie.insert(&[1, 2], row(7.0));
        trie.insert(&[], row(0.0));
        let table: &[(&[u32], Option<f32>, usize)] = &[
            (&[1, 2, 3], Some(3.0), 3),
            (&[1, 2], Some(2.0), 2),
            (&[1, 9], Some(9.0), 2),
            (&[1], None, 0),
            (&[1, 2, 3, 4], None, 3),
            (&[1, 9, 3], None, 2),
            (&[2], None, 0),
            (&[], None, 0),
        ];
        for (ids, expected, longest) in table {
            assert_eq!(trie.get(ids).map(|row| row[0]), *expected, "{ids:?}");
            assert_eq!(trie.longest(ids), *longest, "{ids:?}");
        }
        assert_eq!(trie.figures(), (3, bytes(3) + bytes(0) + bytes(1)));
        trie.clear();
        assert_eq!((trie.figures(), trie.get(&[1, 2])), ((0, 0), None));
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut trie = LogprobTrie::new(bytes(2) + bytes(1) + bytes(1));
        trie.insert(&[1, 2], row(2.0));
        trie.insert(&[1, 3], row(3.0));
        trie.insert(&[1, 4], row(4.0));
        assert!(trie.get(&[1, 2]).is_some());
        trie.insert(&[1, 5], row(5.0));
        let held = |trie: &mut LogprobTrie| {
            (2..8).filter(|&token| trie.get(&[1, token]).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(held(&mut trie), [2, 4, 5]);
        // A beginning goes before what follows it, if that was used later.
        trie.clear();
        trie.insert(&[1], row(1.0));
        trie.insert(&[1, 2], row(2.0));
        trie.insert(&[1, 2, 3], row(3.0));
        trie.insert(&[1, 2, 3, 4], row(4.0));
        assert_eq!((trie.get(&[1]), trie.longest(&[1, 2, 3, 4])), (None, 4));
    }

    #[test]
    fn bytes_stay_within_the_budget_whatever_comes() {
        let budget = 10 * bytes(3);
        let mut trie = LogprobTrie::new(budget);
        for number in 0..1000u32 {
            trie.insert(&[number % 7, number % 11, number], row(0.0));
            assert!(trie.figures().1 <= budget);
            assert_eq!(trie.nodes.len(), trie.children.len() + 1);
        }
        // What is larger than all is not stored, and takes nothing's place.
        let before = trie.figures();
        trie.insert(&[0; 1000], row(0.0));
        trie.insert(&[5], Arc::from(vec![0.0; 100_000]));
        assert_eq!(trie.figures(), before);
    }
}
