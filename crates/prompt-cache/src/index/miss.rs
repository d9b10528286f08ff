//! Why a turn had to compute tokens that earlier turns had computed already.

use super::ChunkIndex;
use crate::{CacheRef, ChunkProblem, KvFormat, Miss, MissReason, Namespace, Owner, PromptTokens};

/// A prompt that was looked up, and what is known about it.
#[derive(Debug, Clone)]
pub struct Lookup<'a> {
    /// The namespace that it was looked up in.
    pub namespace: &'a Namespace,
    /// The name under which the model was loaded.
    pub model_name: &'a str,
    /// The conversation that it belongs to.
    pub owner: Option<&'a Owner>,
    /// All of its tokens.
    pub tokens: &'a PromptTokens,
    /// Where the messages begin that earlier turns cannot have seen.
    pub new_from: usize,
    /// Where its last message begins: another model can have read what is before it.
    pub last_from: usize,
    /// Where its system prompt ends; 0 without one.
    pub system_end: usize,
    /// The most tokens that could have been reused.
    pub limit: usize,
    /// What was wrong with stored chunks.
    pub problem: Option<ChunkProblem>,
    /// Why recent chunks could not be written, if any.
    pub not_written: Option<&'a str>,
}

/// A miss of up to this many tokens is expected where caches are saved only near a position.
const NEARBY: usize = 16;

impl ChunkIndex {
    /// Why only `num_cached` tokens were reused; none where that is all that could be expected.
    pub fn explain(&self, lookup: &Lookup<'_>, num_cached: usize) -> Option<Miss> {
        // The tokens that earlier turns of this conversation share with the prompt.
        let expected = self.expected(lookup).saturating_sub(1).min(lookup.limit);
        let reason = match &lookup.problem {
            Some(problem) => MissReason::Unusable(problem.clone()),
            None if num_cached + NEARBY >= expected => return None,
            None => self.reason(lookup),
        };
        Some(Miss { num_tokens: lookup.limit + 1 - num_cached, reason })
    }

    /// How many tokens earlier turns of the conversation can have read. Another model's tokens are not
    /// this one's, so that none of the prompt are known to be old; then its text says where it is new.
    fn expected(&self, lookup: &Lookup<'_>) -> usize {
        let before = lookup.owner.and_then(|owner| self.ref_of(owner));
        let is_of_another = before.is_some_and(|before| before.namespace != *lookup.namespace);
        if lookup.new_from == 0 && is_of_another { lookup.last_from } else { lookup.new_from }
    }

    fn reason(&self, lookup: &Lookup<'_>) -> MissReason {
        let not_stored = || match lookup.not_written {
            Some(problem) => MissReason::NotWritten(problem.to_owned()),
            None => MissReason::NotStored,
        };
        let Some(cache_ref) = lookup.owner.and_then(|owner| self.ref_of(owner)) else {
            return not_stored();
        };
        let other_namespace = self.other_namespace(lookup, cache_ref);
        other_namespace
            .or_else(|| self.changed(lookup, cache_ref))
            .unwrap_or_else(|| lost(cache_ref).unwrap_or_else(not_stored))
    }

    /// Whether what the reference has cannot match because it belongs to another namespace.
    fn other_namespace(&self, lookup: &Lookup<'_>, cache_ref: &CacheRef) -> Option<MissReason> {
        let (before, now) = (&cache_ref.namespace, lookup.namespace);
        if before.model != now.model {
            if cache_ref.model_name != lookup.model_name {
                return Some(MissReason::OtherModel { name: cache_ref.model_name.clone() });
            }
            // Where nothing is stored any more, the loss says why: an update of Cairn may
            // fingerprint the same files anew.
            let loss = lost(cache_ref).filter(|_| cache_ref.target.is_none());
            return Some(loss.unwrap_or(MissReason::OtherRevision));
        }
        if cache_ref.loss.is_some() {
            return None;
        }
        if before.provenance != now.provenance {
            return Some(MissReason::ImportedAgain);
        }
        // Lookups of quantized keys and values also take plain ones, which a prompt has until it is
        // long enough to be quantized.
        let is_other = before.kv_format != now.kv_format && before.kv_format != KvFormat::Plain;
        let (before, now) = (before.kv_format, now.kv_format);
        is_other.then_some(MissReason::OtherKvFormat { before, now })
    }

    /// Whether the prompt differs from what the reference has. That is the reason even where the
    /// caches can only be restored far before the change.
    fn changed(&self, lookup: &Lookup<'_>, cache_ref: &CacheRef) -> Option<MissReason> {
        let path = cache_ref.target.map_or(Vec::new(), |key| self.path(&key));
        let mut at_token = 0;
        for chunk in path {
            let record = chunk.record();
            let matching = lookup.tokens.num_matching(record.start, &record.tokens);
            at_token = record.start + matching;
            if matching < record.num_tokens() {
                break;
            }
        }
        if at_token >= cache_ref.num_tokens || at_token >= lookup.tokens.len() {
            return None;
        }
        Some(match at_token < lookup.system_end {
            true => MissReason::SystemPromptChanged { at_token },
            false => MissReason::MessageChanged { at_token },
        })
    }
}

fn lost(cache_ref: &CacheRef) -> Option<MissReason> {
    let loss = cache_ref.loss.as_ref()?;
    Some(MissReason::Lost { reason: loss.reason.clone(), at_ms: loss.at_ms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budgets, ChunkKind, ChunkRecord, Loss, LossReason, Provenance, RestoreNeeds};

    fn owner() -> Owner {
        Owner::Conversation("1".to_owned())
    }

    fn namespace(model: &str) -> Namespace {
        Namespace::computed(model.repeat(16), KvFormat::Plain)
    }

    /// An index with a conversation of 3000 tokens, and its reference.
    fn saved() -> (ChunkIndex, CacheRef) {
        let budgets = Budgets { disk_bytes: 0, memory_bytes: u64::MAX };
        let (mut index, _) = ChunkIndex::new(budgets, Vec::new(), Vec::new());
        let tokens = PromptTokens::known((0..3000).collect::<Vec<u32>>());
        let boundaries = [(100, ChunkKind::System), (3000, ChunkKind::User)];
        let namespace = namespace("f");
        for chunk in
            index.write_plan(&namespace, &tokens, &boundaries, &[], RestoreNeeds::default())
        {
            let record = ChunkRecord {
                key: chunk.key,
                parent: chunk.parent,
                namespace: namespace.clone(),
                kind: chunk.kind,
                start: chunk.start,
                tokens: chunk.tokens,
                held_from: chunk.start,
                has_state: false,
                file: None,
                hits: 0,
                created_at_ms: 0,
                last_used_at_ms: 0,
            };
            index.insert(record, 1);
        }
        let cache_ref = CacheRef {
            name: owner().into(),
            target: index.end_of(&namespace, &tokens, RestoreNeeds::default()),
            namespace,
            model_name: "m".to_owned(),
            num_tokens: 3000,
            is_pinned: false,
            loss: None,
        };
        (index, cache_ref)
    }

    /// Looks up a prompt of 3200 tokens, of which 3001 are older and the one at `changed_at` differs,
    /// with `num_cached` found.
    fn check(
        change: impl Fn(&mut CacheRef),
        changed_at: usize,
        num_cached: usize,
        expected: Option<MissReason>,
    ) {
        let (mut index, mut cache_ref) = saved();
        let target = cache_ref.target;
        change(&mut cache_ref);
        let loss = cache_ref.loss.clone();
        let _ = index.set_ref(cache_ref);
        // A reference is set without a loss; it gets one where its chunks go.
        if let Some(Loss { reason, at_ms, .. }) = loss {
            let path = index.path(&target.unwrap_or_else(|| panic!("a target")));
            let first_lost = path.iter().find(|chunk| chunk.record().start >= num_cached);
            let key = first_lost.map(|chunk| chunk.key());
            let _ = key.map(|key| index.remove(&key, reason, at_ms));
        }
        let mut ids: Vec<u32> = (0..3200).collect();
        ids.iter_mut().skip(changed_at).take(1).for_each(|id| *id += 10_000);
        let lookup = Lookup {
            namespace: &namespace("f"),
            model_name: "m",
            owner: Some(&owner()),
            tokens: &PromptTokens::known(ids),
            new_from: 3001,
            last_from: 3001,
            system_end: 100,
            limit: 3199,
            problem: None,
            not_written: None,
        };
        let found = index.explain(&lookup, num_cached);
        let expected = expected.map(|reason| Miss { num_tokens: 3200 - num_cached, reason });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_miss_is_explained_by_its_cause() {
        let nothing = |_: &mut CacheRef| {};
        check(nothing, 5000, 3000, None);
        check(nothing, 5000, 2990, None);
        let system = |at_token| Some(MissReason::SystemPromptChanged { at_token });
        let message = |at_token| Some(MissReason::MessageChanged { at_token });
        check(nothing, 12, 12, system(12));
        check(nothing, 100, 100, message(100));
        check(nothing, 1500, 1500, message(1500));
        check(nothing, 1500, 100, message(1500));
        check(nothing, 5000, 100, Some(MissReason::NotStored));

        let evicted = |cache_ref: &mut CacheRef| {
            let reason = LossReason::DiskBudget;
            cache_ref.loss = Some(Loss { num_tokens: 3000, reason, at_ms: 8 });
        };
        let lost = Some(MissReason::Lost { reason: LossReason::DiskBudget, at_ms: 8 });
        check(evicted, 5000, 100, lost.clone());
        check(evicted, 5000, 0, lost.clone());
        check(evicted, 12, 0, lost.clone());

        let revised = |cache_ref: &mut CacheRef| cache_ref.namespace = namespace("a");
        check(revised, 5000, 0, Some(MissReason::OtherRevision));
        let renamed = |cache_ref: &mut CacheRef| {
            (cache_ref.namespace, cache_ref.model_name) = (namespace("a"), "n".to_owned());
        };
        check(renamed, 5000, 0, Some(MissReason::OtherModel { name: "n".to_owned() }));
        // Where nothing is stored any more, the loss is the reason.
        let revised_and_evicted = |cache_ref: &mut CacheRef| {
            revised(cache_ref);
            evicted(cache_ref);
        };
        check(revised_and_evicted, 5000, 0, lost);
        check(revised_and_evicted, 5000, 100, Some(MissReason::OtherRevision));

        let before = KvFormat::Quantized { bits: 8, group_size: 64 };
        let quantized = move |cache_ref: &mut CacheRef| cache_ref.namespace.kv_format = before;
        let now = KvFormat::Plain;
        check(quantized, 5000, 0, Some(MissReason::OtherKvFormat { before, now }));
        let imported = |cache_ref: &mut CacheRef| {
            cache_ref.namespace.provenance = Provenance::Import("0f".into());
        };
        check(imported, 5000, 0, Some(MissReason::ImportedAgain));
    }

    #[test]
    fn another_models_tokens_are_missed_though_they_are_none_of_the_prompts() {
        let (mut index, mut cache_ref) = saved();
        (cache_ref.namespace, cache_ref.model_name) = (namespace("a"), "n".to_owned());
        let _ = index.set_ref(cache_ref);
        let check = |index: &ChunkIndex, owner, last_from, expected| {
            let (namespace, tokens) = (namespace("f"), PromptTokens::known([1; 3200]));
            let lookup = Lookup {
                namespace: &namespace,
                model_name: "m",
                owner,
                tokens: &tokens,
                new_from: 0,
                last_from,
                system_end: 0,
                limit: 3199,
                problem: None,
                not_written: None,
            };
            let reason = index.explain(&lookup, 1).map(|miss| miss.reason);
            assert_eq!(reason, expected);
        };
        let other = MissReason::OtherModel { name: "n".to_owned() };
        let owner = owner();
        check(&index, Some(&owner), 3001, Some(other));
        // Its first question alone was read, and is asked again.
        check(&index, Some(&owner), 1, None);
        check(&index, None, 3001, None);
        // What this model has not read is not read again.
        check(&saved().0, Some(&owner), 3001, None);
    }

    #[test]
    fn without_a_reference_the_last_failure_to_write_is_the_reason() {
        let (index, _) = saved();
        let check = |not_written, problem, num_cached, expected: Option<MissReason>| {
            let lookup = Lookup {
                namespace: &namespace("f"),
                model_name: "m",
                owner: None,
                tokens: &PromptTokens::known([1; 3200]),
                new_from: 3001,
                last_from: 3001,
                system_end: 100,
                limit: 3199,
                problem,
                not_written,
            };
            let found = index.explain(&lookup, num_cached).map(|miss| miss.reason);
            assert_eq!(found, expected);
        };
        check(None, None, 2990, None);
        check(None, None, 0, Some(MissReason::NotStored));
        let full = MissReason::NotWritten("the disk is full".to_owned());
        check(Some("the disk is full"), None, 0, Some(full));
        let damaged = ChunkProblem::Damaged(None);
        check(None, Some(damaged.clone()), 2990, Some(MissReason::Unusable(damaged)));
    }
}
