//! Conversations whose caches stay in memory after an answer, so that their next turns copy
//! nothing.

use std::collections::HashSet;
use std::sync::Arc;

use cairn_lm::cache::LayerCache;
use cairn_prompt_cache::{ChunkKey, Namespace, Owner, PromptTokens};

use super::save_permit::{SavePermit, is_purged};

/// The resident conversations, the one that ran last at the end. Owned by the engine's thread.
#[derive(Default)]
pub(super) struct ResidentConversations(Vec<Conversation>);

/// The tokens and caches of one conversation.
pub(super) struct Conversation {
    pub(super) namespace: Namespace,
    /// Exactly the tokens in `caches`.
    pub(super) tokens: PromptTokens,
    pub(super) caches: Vec<LayerCache>,
    /// Says whose it is.
    pub(super) permit: Option<Arc<SavePermit>>,
    /// The chunks that `tokens` are stored in, or will be.
    pub(super) keys: Vec<ChunkKey>,
    /// Whether a draft model has read them, beside the model that answered.
    pub(super) is_draft: bool,
}

/// The caches of a prompt's beginning, taken from a resident conversation.
pub(super) struct Taken {
    /// Whether they belong to the owner that asks.
    pub(super) is_own: bool,
    pub(super) namespace: Namespace,
    pub(super) num_tokens: usize,
    pub(super) caches: Vec<LayerCache>,
}

impl ResidentConversations {
    /// Returns the caches of the longest beginning of `tokens` that a conversation in one of
    /// `namespaces` shares; none where it has fewer than `at_least` tokens.
    ///
    /// The conversation leaves with them if its owner asks, or if the whole of it matches.
    /// Otherwise it stays, and the returned caches are a snapshot that shares its arrays until the
    /// first write.
    pub(super) fn take(
        &mut self,
        namespaces: &[&Namespace],
        tokens: &PromptTokens,
        at_least: usize,
        owner: Option<&Owner>,
    ) -> Option<Taken> {
        let (num_tokens, index) = self.longest(namespaces, tokens, at_least)?;
        let conversation = &self.0[index];
        let leaves = match (conversation.owner(), owner) {
            (Some(own), Some(other)) => own == other || num_tokens == conversation.tokens.len(),
            // Without an owner, a prompt that shares most of the tokens is most likely the next
            // turn, or the same turn again.
            _ => num_tokens > conversation.tokens.len() / 2,
        };
        let (surplus, namespace) =
            (conversation.tokens.len() - num_tokens, conversation.namespace.clone());
        let is_own = conversation.owner() == owner;
        let caches = if leaves { self.0.remove(index).caches } else { conversation.caches.clone() };
        trimmed(caches, surplus).map(|caches| Taken { is_own, namespace, num_tokens, caches })
    }

    /// As [`ResidentConversations::take`], but every conversation stays.
    pub(super) fn copy(
        &self,
        namespaces: &[&Namespace],
        tokens: &PromptTokens,
        at_least: usize,
    ) -> Option<Taken> {
        let (num_tokens, index) = self.longest(namespaces, tokens, at_least)?;
        let Conversation { namespace, tokens, caches, .. } = &self.0[index];
        let caches = trimmed(caches.clone(), tokens.len() - num_tokens)?;
        Some(Taken { is_own: true, namespace: namespace.clone(), num_tokens, caches })
    }

    /// How many tokens the conversation that shares most of them shares, and its index.
    fn longest(
        &self,
        namespaces: &[&Namespace],
        tokens: &PromptTokens,
        at_least: usize,
    ) -> Option<(usize, usize)> {
        let shared = |(index, conversation): (usize, &Conversation)| {
            Some((conversation.num_shared(namespaces, tokens)?, index))
        };
        let longest = self.0.iter().enumerate().filter_map(shared).max();
        longest.filter(|(num_tokens, _)| *num_tokens >= at_least.max(1))
    }

    /// The most tokens that [`ResidentConversations::take`] would return.
    pub(super) fn num_shared(&self, namespaces: &[&Namespace], tokens: &PromptTokens) -> usize {
        let shared = self.0.iter().filter_map(|one| one.num_shared(namespaces, tokens));
        shared.max().unwrap_or(0)
    }

    /// Adds the conversation that ran last, and drops the earlier versions that it replaces.
    pub(super) fn put(&mut self, conversation: Conversation) {
        self.0.retain(|earlier| !conversation.replaces(earlier));
        self.0.push(conversation);
    }

    /// How many belong to what ran last: a conversation, and before it what its draft model has read.
    fn num_last(&self) -> usize {
        match self.0.as_slice() {
            [.., draft, last] if draft.is_draft && draft.owner() == last.owner() => 2,
            all => all.len().min(1),
        }
    }

    /// Drops the least recently used until all but the last take at most `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        while self.bytes_without_last() > bytes {
            self.0.remove(0);
        }
    }

    /// The bytes of all but the last.
    pub(super) fn bytes_without_last(&self) -> u64 {
        let others = self.0.len() - self.num_last();
        self.0[..others]
            .iter()
            .flat_map(|conversation| &conversation.caches)
            .map(|cache| cache.nbytes() as u64)
            .sum()
    }

    /// The chunks that any of them holds.
    pub(super) fn keys(&self) -> HashSet<ChunkKey> {
        self.0.iter().flat_map(|conversation| &conversation.keys).copied().collect()
    }

    /// Drops the conversations that were purged.
    pub(super) fn drop_purged(&mut self) {
        self.0.retain(|conversation| !is_purged(conversation.permit.as_deref()));
    }

    /// Drops the conversations with a model.
    pub(super) fn forget_model(&mut self, fingerprint: &str) {
        self.0.retain(|conversation| conversation.namespace.model.as_str() != fingerprint);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Caches without their last `surplus` tokens. If one fails to trim despite `is_trimmable`, none can be
/// used.
fn trimmed(mut caches: Vec<LayerCache>, surplus: usize) -> Option<Vec<LayerCache>> {
    let is_trimmed = caches.iter_mut().all(|cache| surplus == 0 || cache.trim(surplus) == surplus);
    is_trimmed.then_some(caches)
}

impl Conversation {
    fn owner(&self) -> Option<&Owner> {
        self.permit.as_ref().and_then(|permit| permit.owner())
    }

    /// The number of leading tokens that it shares with `tokens`; none where it belongs to another
    /// namespace, or cannot be trimmed to that length.
    fn num_shared(&self, namespaces: &[&Namespace], tokens: &PromptTokens) -> Option<usize> {
        let shared =
            namespaces.contains(&&self.namespace).then(|| self.tokens.num_shared(tokens))?;
        (shared == self.tokens.len() || self.caches.iter().all(LayerCache::is_trimmable))
            .then_some(shared)
    }

    /// Whether an earlier one is not needed beside this: it has the same owner, or is a prefix of
    /// it.
    fn replaces(&self, earlier: &Conversation) -> bool {
        let is_same = self.owner().is_some()
            && self.owner() == earlier.owner()
            && self.is_draft == earlier.is_draft;
        let is_prefix = self.tokens.num_shared(&earlier.tokens) == earlier.tokens.len();
        is_same || (self.namespace == earlier.namespace && is_prefix)
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

    fn named(id: &str) -> Owner {
        Owner::Conversation(id.to_owned())
    }

    fn prompt(ids: &[u32]) -> PromptTokens {
        PromptTokens::known(ids)
    }

    fn conversation(owner: Option<&str>, tokens: &[u32]) -> Conversation {
        let rows = Array::zeros::<f32>(&[1, 1, tokens.len() as i32, 4]).unwrap();
        let cache =
            KvCache::from_parts(std::slice::from_ref(&rows), std::slice::from_ref(&rows)).unwrap();
        Conversation {
            namespace: namespace("plain"),
            tokens: PromptTokens::known(tokens),
            caches: vec![LayerCache::Kv(cache)],
            permit: Some(Arc::new(SavePermit::new(owner.map(named)))),
            keys: Vec::new(),
            is_draft: false,
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

    /// Checks how many of `tokens` are taken for `owner`, and whether the conversation stays
    /// resident.
    fn check(
        conversation: Conversation,
        owner: Option<&str>,
        tokens: &[u32],
        expected: Option<usize>,
        stays: bool,
    ) {
        let case = format!(
            "{:?} of {:?} for {tokens:?} of {owner:?}",
            conversation.tokens,
            conversation.owner()
        );
        let whole = conversation.tokens.len();
        let mut resident = resident(vec![conversation]);
        let taken =
            resident.take(&[&namespace("plain")], &prompt(tokens), 0, owner.map(named).as_ref());
        assert_eq!(taken.as_ref().map(|taken| taken.num_tokens), expected, "{case}");
        if let Some(Taken { num_tokens, caches, .. }) = taken {
            assert!(caches.iter().all(|cache| cache.offset() == num_tokens), "{case}");
        }
        assert_eq!(resident.0.len(), usize::from(stays), "{case}");
        assert!(resident.0.iter().all(|stays| stays.caches[0].offset() == whole), "{case}");
    }

    #[test]
    fn the_owner_takes_its_caches_and_other_owners_get_a_snapshot() {
        let next_turn = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        check(conversation(Some("a"), &TOKENS), Some("a"), &next_turn, Some(8), false);
        // The same conversation, with an earlier answer regenerated.
        check(conversation(Some("a"), &TOKENS), Some("a"), &[1, 2, 9], Some(2), false);
        check(conversation(Some("a"), &TOKENS), Some("b"), &[1, 2, 3, 4, 5, 6, 9], Some(6), true);
        check(conversation(Some("a"), &TOKENS), Some("b"), &[9], None, true);
        // Without an owner.
        check(conversation(None, &TOKENS), None, &[1, 2, 3, 4, 5, 9], Some(5), false);
        check(conversation(None, &TOKENS), None, &[1, 2, 9], Some(2), true);
        // Recurrent states cannot be trimmed.
        check(states(&TOKENS), None, &next_turn, Some(8), false);
        check(states(&TOKENS), None, &TOKENS[..7], None, true);
    }

    #[test]
    fn a_conversation_of_another_namespace_or_shorter_than_the_stored_prefix_is_not_taken() {
        let mut resident = resident(vec![conversation(Some("a"), &TOKENS)]);
        let mut is_taken = |kv_format: &str, at_least| {
            let taken = resident.take(
                &[&namespace(kv_format)],
                &prompt(&TOKENS),
                at_least,
                Some(&named("a")),
            );
            taken.is_some()
        };
        assert!(!is_taken("kv8g64", 0));
        assert!(!is_taken("plain", 9));
        assert!(is_taken("plain", 8));
    }

    #[test]
    fn the_longest_match_is_taken_and_replaced_conversations_are_dropped() {
        let mut resident = resident(vec![
            conversation(Some("a"), &TOKENS[..2]),
            conversation(Some("b"), &TOKENS[..6]), // contains all of a's tokens
            conversation(Some("c"), &[1, 2, 3, 9]),
            conversation(Some("c"), &[1, 2, 9]), // replaces the one above, of the same owner
        ]);
        let owners: Vec<_> = resident
            .0
            .iter()
            .map(|one| (one.owner().cloned().unwrap(), one.tokens.len()))
            .collect();
        assert_eq!(owners, [(named("b"), 6), (named("c"), 3)]);
        let taken = resident.take(&[&namespace("plain")], &prompt(&TOKENS), 0, Some(&named("d")));
        assert_eq!(taken.unwrap().num_tokens, 6);
    }

    #[test]
    fn the_budget_does_not_count_the_conversation_that_ran_last() {
        let conversations =
            [[1, 2], [3, 4], [5, 6], [7, 8]].map(|tokens| conversation(None, &tokens));
        let each = conversations[0].caches[0].nbytes() as u64;
        let mut resident = resident(conversations.into());
        for (budget, expected) in
            [(4 * each, 4), (3 * each, 4), (3 * each - 1, 3), (each, 2), (0, 1)]
        {
            resident.shrink_to(budget);
            assert_eq!(resident.0.len(), expected, "{budget}");
            assert!(resident.bytes_without_last() <= budget);
        }
        assert_eq!(resident.0[0].tokens, prompt(&[7, 8]));
    }
}
