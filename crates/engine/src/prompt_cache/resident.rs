//! Conversations that stay as their last answers left them, so that their next turns copy nothing.

use cairn_lm::cache::LayerCache;

use super::common_prefix;
use crate::records::Namespace;

/// The conversations, the one that ran last at the end. Owned by the engine's thread.
#[derive(Default)]
pub(super) struct ResidentConversations(Vec<Conversation>);

/// A conversation as it is in memory.
pub(super) struct Conversation {
    pub(super) namespace: Namespace,
    /// Exactly those that the caches hold.
    pub(super) tokens: Vec<u32>,
    pub(super) caches: Vec<LayerCache>,
    pub(super) owner: Option<String>,
}

/// The beginning of a prompt, as a conversation held it.
pub(super) struct Taken {
    pub(super) namespace: Namespace,
    pub(super) num_tokens: usize,
    pub(super) caches: Vec<LayerCache>,
}

impl ResidentConversations {
    /// Caches of the longest beginning of `tokens` that a conversation in one of `namespaces` holds,
    /// and its length; none where it has fewer than `at_least` tokens.
    ///
    /// They leave, unless that would take from another conversation what it has beyond them: then
    /// they are a snapshot, which shares its arrays until the first write.
    pub(super) fn take(
        &mut self,
        namespaces: &[&Namespace],
        tokens: &[u32],
        at_least: usize,
        owner: Option<&str>,
    ) -> Option<Taken> {
        let held = |(index, conversation): (usize, &Conversation)| {
            Some((conversation.num_shared(namespaces, tokens)?, index))
        };
        let (num_tokens, index) = self.0.iter().enumerate().filter_map(held).max()?;
        if num_tokens < at_least.max(1) {
            return None;
        }
        let conversation = &self.0[index];
        let leaves = match (conversation.owner.as_deref(), owner) {
            (Some(own), Some(other)) => own == other || num_tokens == conversation.tokens.len(),
            // Nobody says whose it is: what shares most of its tokens is most likely its next turn,
            // or the same again.
            _ => num_tokens > conversation.tokens.len() / 2,
        };
        let (surplus, namespace) =
            (conversation.tokens.len() - num_tokens, conversation.namespace.clone());
        let mut caches =
            if leaves { self.0.remove(index).caches } else { conversation.caches.clone() };
        // A cache that said it can be trimmed and is not cannot be used, nor can it be left behind.
        let is_trimmed =
            caches.iter_mut().all(|cache| surplus == 0 || cache.trim(surplus) == surplus);
        is_trimmed.then_some(Taken { namespace, num_tokens, caches })
    }

    /// Adds the conversation that ran last, instead of what it was before.
    pub(super) fn put(&mut self, conversation: Conversation) {
        self.0.retain(|earlier| !conversation.replaces(earlier));
        self.0.push(conversation);
    }

    /// Lets go of those that ran longest ago until all but the last take at most `bytes`.
    pub(super) fn keep_to(&mut self, bytes: u64) {
        while self.bytes_without_last() > bytes {
            self.0.remove(0);
        }
    }

    /// What all but the last take.
    pub(super) fn bytes_without_last(&self) -> u64 {
        let others = self.0.len().saturating_sub(1);
        self.0[..others]
            .iter()
            .flat_map(|conversation| &conversation.caches)
            .map(|cache| cache.nbytes() as u64)
            .sum()
    }

    /// Lets go of what an owner has.
    pub(super) fn forget(&mut self, owner: &str) {
        self.0.retain(|conversation| conversation.owner.as_deref() != Some(owner));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Conversation {
    /// Up to where it can be gone back to begin as `tokens` do; none where it is of another namespace,
    /// or cannot go back.
    fn num_shared(&self, namespaces: &[&Namespace], tokens: &[u32]) -> Option<usize> {
        let shared =
            namespaces.contains(&&self.namespace).then(|| common_prefix(&self.tokens, tokens))?;
        (shared == self.tokens.len() || self.caches.iter().all(LayerCache::is_trimmable))
            .then_some(shared)
    }

    /// Whether nobody comes back to an earlier one.
    fn replaces(&self, earlier: &Conversation) -> bool {
        let is_same = self.owner.is_some() && self.owner == earlier.owner;
        is_same || (self.namespace == earlier.namespace && self.tokens.starts_with(&earlier.tokens))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_lm::cache::{ArraysCache, KvCache};
    use mlx_rs::Array;

    use super::*;

    const TOKENS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    fn namespace(kv_format: &str) -> Namespace {
        Namespace::computed("f", kv_format.parse().unwrap())
    }

    fn conversation(owner: Option<&str>, tokens: &[u32]) -> Conversation {
        let rows = Array::zeros::<f32>(&[1, 1, tokens.len() as i32, 4]).unwrap();
        let cache =
            KvCache::from_parts(std::slice::from_ref(&rows), std::slice::from_ref(&rows)).unwrap();
        Conversation {
            namespace: namespace("plain"),
            tokens: tokens.to_vec(),
            caches: vec![LayerCache::Kv(cache)],
            owner: owner.map(str::to_owned),
        }
    }

    fn states(tokens: &[u32]) -> Conversation {
        let mut cache = ArraysCache::new(1);
        cache.set(0, Array::zeros::<f32>(&[1, 4]).unwrap());
        cache.advance(tokens.len());
        Conversation { caches: vec![LayerCache::Arrays(cache)], ..conversation(None, tokens) }
    }

    fn resident(conversations: Vec<Conversation>) -> ResidentConversations {
        let mut resident = ResidentConversations::default();
        conversations.into_iter().for_each(|conversation| resident.put(conversation));
        resident
    }

    /// What `owner` gets for `tokens`, and whether the conversation it comes from is still there.
    fn check(
        kept: Conversation,
        owner: Option<&str>,
        tokens: &[u32],
        expected: Option<usize>,
        stays: bool,
    ) {
        let case = format!("{:?} of {:?} for {tokens:?} of {owner:?}", kept.tokens, kept.owner);
        let whole = kept.tokens.len();
        let mut resident = resident(vec![kept]);
        let taken = resident.take(&[&namespace("plain")], tokens, 0, owner);
        assert_eq!(taken.as_ref().map(|taken| taken.num_tokens), expected, "{case}");
        if let Some(Taken { num_tokens, caches, .. }) = taken {
            assert!(caches.iter().all(|cache| cache.offset() == num_tokens), "{case}");
        }
        assert_eq!(resident.0.len(), usize::from(stays), "{case}");
        assert!(resident.0.iter().all(|kept| kept.caches[0].offset() == whole), "{case}");
    }

    #[test]
    fn a_conversation_goes_on_as_it_was_left_and_others_with_its_beginning_leave_it_whole() {
        let next_turn = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        check(conversation(Some("a"), &TOKENS), Some("a"), &next_turn, Some(8), false);
        // Its earlier answer is made again.
        check(conversation(Some("a"), &TOKENS), Some("a"), &[1, 2, 9], Some(2), false);
        check(conversation(Some("a"), &TOKENS), Some("b"), &[1, 2, 3, 4, 5, 6, 9], Some(6), true);
        check(conversation(Some("a"), &TOKENS), Some("b"), &[9], None, true);
        // Nobody says whose it is.
        check(conversation(None, &TOKENS), None, &[1, 2, 3, 4, 5, 9], Some(5), false);
        check(conversation(None, &TOKENS), None, &[1, 2, 9], Some(2), true);
        // States cannot go back.
        check(states(&TOKENS), None, &next_turn, Some(8), false);
        check(states(&TOKENS), None, &TOKENS[..7], None, true);
    }

    #[test]
    fn a_conversation_of_another_space_or_with_less_than_is_stored_stays() {
        let mut resident = resident(vec![conversation(Some("a"), &TOKENS)]);
        assert!(resident.take(&[&namespace("kv8g64")], &TOKENS, 0, Some("a")).is_none());
        assert!(resident.take(&[&namespace("plain")], &TOKENS, 9, Some("a")).is_none());
        assert!(resident.take(&[&namespace("plain")], &TOKENS, 8, Some("a")).is_some());
    }

    #[test]
    fn the_longest_comes_first_and_what_nobody_comes_back_to_goes() {
        let mut resident = resident(vec![
            conversation(Some("a"), &TOKENS[..2]),
            conversation(Some("b"), &TOKENS[..6]), // holds all of a's
            conversation(Some("c"), &[1, 2, 3, 9]),
            conversation(Some("c"), &[1, 2, 9]), // one question earlier
        ]);
        let owners: Vec<_> = resident
            .0
            .iter()
            .map(|kept| (kept.owner.clone().unwrap(), kept.tokens.len()))
            .collect();
        assert_eq!(owners, [("b".to_owned(), 6), ("c".to_owned(), 3)]);
        assert_eq!(
            resident.take(&[&namespace("plain")], &TOKENS, 0, Some("d")).unwrap().num_tokens,
            6
        );
    }

    #[test]
    fn the_budget_is_for_all_but_the_one_that_ran_last() {
        let conversations =
            [[1, 2], [3, 4], [5, 6], [7, 8]].map(|tokens| conversation(None, &tokens));
        let each = conversations[0].caches[0].nbytes() as u64;
        let mut resident = resident(conversations.into());
        for (budget, expected) in
            [(4 * each, 4), (3 * each, 4), (3 * each - 1, 3), (each, 2), (0, 1)]
        {
            resident.keep_to(budget);
            assert_eq!(resident.0.len(), expected, "{budget}");
            assert!(resident.bytes_without_last() <= budget);
        }
        assert_eq!(resident.0[0].tokens, [7, 8]);
    }
}
