//! Random sequences of calls, compared after each with a naive model.

mod naive;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{ChunkKind, MAX_CHUNK_TOKENS, Namespace, Owner, PromptTokens};
use naive::{Naive, NaiveChunk, NaiveRef, Path, common, key_of, namespace};

/// A linear congruential generator (Knuth's MMIX constants): the same sequence on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        (!items.is_empty()).then(|| &items[self.below(items.len())])
    }
}

/// One sequence: the index, the model of it, and the rows that a store would have.
struct Sequence {
    random: Random,
    index: ChunkIndex,
    naive: Naive,
    /// What the model of this sequence needs.
    needs: RestoreNeeds,
    rows: BTreeMap<ChunkKey, ChunkRecord>,
    ref_rows: BTreeMap<RefName, CacheRef>,
    now_ms: i64,
}

impl Sequence {
    fn new(seed: u64) -> Sequence {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        let needs = RestoreNeeds {
            window: random.one_in(3).then(|| 1 + random.below(6)),
            needs_state: random.one_in(3),
        };
        let budgets = Budgets { disk_bytes: 40, memory_bytes: 40 };
        Sequence {
            random,
            index: ChunkIndex::new(budgets, Vec::new(), Vec::new()).0,
            naive: Naive::default(),
            needs,
            rows: BTreeMap::new(),
            ref_rows: BTreeMap::new(),
            now_ms: 0,
        }
    }

    /// A prompt over two token ids, most often one that begins as something stored.
    fn ids(&mut self) -> Vec<u32> {
        let stored = self.random.pick(&self.naive.chunks).map(NaiveChunk::ids);
        let mut ids = stored.unwrap_or_default();
        ids.truncate(self.random.below(ids.len() + 2));
        // Now and then longer than a chunk can be.
        let longest = if self.random.one_in(40) { 2 * MAX_CHUNK_TOKENS } else { 12 };
        for _ in 0..=self.random.below(longest) {
            ids.push(self.random.below(2) as u32);
        }
        ids
    }

    fn step(&mut self) -> &'static str {
        self.now_ms += 1;
        match self.random.below(21) {
            0..=5 => self.save(),
            6..=8 => self.write(),
            9 | 10 => self.set_ref(),
            11 => self.make_room(),
            12 => self.enforce_budgets(),
            13 => self.use_chunks(),
            14 => self.pin(),
            15 => self.drop_refs(),
            16 => self.remove(),
            17 => self.purge(),
            18 => self.reopen(),
            19 => self.point_ref(),
            _ => self.remove_many(),
        }
    }

    /// Applies changes to the rows, as a store would.
    fn store(&mut self, changes: Vec<CacheChange>) {
        for change in changes {
            match change {
                CacheChange::Written(record) => drop(self.rows.insert(record.key, record)),
                CacheChange::Removed { chunks, .. } => {
                    chunks.iter().for_each(|record| drop(self.rows.remove(&record.key)))
                }
                CacheChange::Used { keys, at_ms } => keys.iter().for_each(|key| {
                    if let Some(row) = self.rows.get_mut(key) {
                        (row.last_used_at_ms, row.hits) = (at_ms, row.hits + 1);
                    }
                }),
                CacheChange::RefSet(row) => drop(self.ref_rows.insert(row.name.clone(), row)),
                CacheChange::RefRemoved(name) => drop(self.ref_rows.remove(&name)),
            }
        }
    }

    fn save(&mut self) -> &'static str {
        let (number, ids) = (self.random.below(2), self.ids());
        let tokens = PromptTokens::known(ids.as_slice());
        let mut ends: Vec<usize> =
            (0..self.random.below(4)).map(|_| 1 + self.random.below(ids.len())).collect();
        ends.sort_unstable();
        ends.dedup();
        let kind = |at: usize| if at == 0 { ChunkKind::System } else { ChunkKind::User };
        let boundaries: Vec<(usize, ChunkKind)> =
            ends.iter().enumerate().map(|(at, end)| (*end, kind(at))).collect();
        let needs_checkpoints = self.needs != RestoreNeeds::default();
        let checkpoints: Vec<usize> = match needs_checkpoints && self.random.one_in(2) {
            true => vec![1 + self.random.below(ids.len())],
            false => Vec::new(),
        };
        let mut positions = checkpoints.clone();
        positions.extend(needs_checkpoints.then_some(ids.len()));
        let namespace = namespace(number);
        let planned =
            self.index.write_plan(&namespace, &tokens, &boundaries, &checkpoints, self.needs);
        let begin = self.naive.num_extendable(number, &ids, self.needs, &positions);
        assert_eq!(planned.first().map_or(ids.len(), |chunk| chunk.start), begin, "the plan");
        let is_uncuttable = planned.iter().any(|chunk| self.index.contains(&chunk.key));
        let ends: BTreeSet<usize> = ends.into_iter().chain(checkpoints.iter().copied()).collect();
        for chunk in planned {
            let stop = chunk.start + chunk.tokens.len();
            assert!(chunk.tokens.len() <= MAX_CHUNK_TOKENS);
            assert_eq!(ends.range(chunk.start + 1..stop).next(), None, "a boundary inside");
            self.insert(&namespace, number, &ids, chunk, &positions);
        }
        if !is_uncuttable {
            for position in checkpoints.into_iter().chain([ids.len()]) {
                let mut tokens = tokens.clone();
                tokens.truncate(position);
                let plan = self.index.restore_plan(&namespace, &tokens, self.needs);
                assert_eq!(plan.num_tokens, position, "what was saved can be restored");
            }
        }
        "saving a prompt"
    }

    /// Adds a chunk of `ids` with what caches at `positions` hold of it.
    fn insert(
        &mut self,
        namespace: &Namespace,
        number: usize,
        ids: &[u32],
        chunk: PlannedChunk,
        positions: &[usize],
    ) {
        let (start, stop) = (chunk.start, chunk.start + chunk.tokens.len());
        let window = self.needs.window.unwrap_or(usize::MAX);
        let later = positions.iter().filter(|position| **position >= stop);
        let held_from = later.map(|position| position.saturating_sub(window).clamp(start, stop));
        let held_from = held_from.min().unwrap_or(start);
        let has_state = self.needs.needs_state && positions.contains(&stop);
        let used_ms = self.index.next_use_ms(self.now_ms);
        let record = ChunkRecord {
            key: chunk.key,
            parent: chunk.parent,
            namespace: namespace.clone(),
            kind: chunk.kind,
            start,
            tokens: chunk.tokens,
            held_from,
            has_state,
            file: None,
            hits: 0,
            created_at_ms: used_ms,
            last_used_at_ms: used_ms,
        };
        if self.index.insert(record, (stop - start) as u64) {
            let parent = chunk.parent.map_or(Path::new(), |key| self.naive.get(key).path.clone());
            let path: Path = parent.into_iter().chain([ids[start..stop].to_vec()]).collect();
            assert_eq!(chunk.key, key_of(number, &path));
            let is_pending = self.random.one_in(4);
            self.index.set_pending(&chunk.key, is_pending);
            self.naive.chunks.push(NaiveChunk {
                namespace: number,
                path,
                key: chunk.key,
                kind: chunk.kind,
                held_from,
                has_state,
                used_ms,
                disk_bytes: None,
                memory_bytes: Some((stop - start) as u64),
                is_pending,
            });
        }
    }

    /// Writes some chunk whose parent is on disk.
    fn write(&mut self) -> &'static str {
        let naive = &self.naive;
        let is_next = |chunk: &&NaiveChunk| {
            let path = naive.path(chunk);
            let (last, before) = path.split_last().expect("its own chunk");
            last.disk_bytes.is_none() && before.iter().all(|chunk| chunk.disk_bytes.is_some())
        };
        let next: Vec<ChunkKey> =
            naive.chunks.iter().filter(is_next).map(NaiveChunk::key).collect();
        let Some(&key) = self.random.pick(&next) else { return "writing nothing" };
        let num_bytes = naive.get(key).memory_bytes.expect("contents in memory") + 1;
        let changes =
            self.index.written(&key, ChunkFile { num_bytes, hash: "0".repeat(64).into() });
        let chunk = self.naive.chunks.iter_mut().find(|chunk| chunk.key() == key);
        let chunk = chunk.expect("a chunk");
        (chunk.disk_bytes, chunk.is_pending) = (Some(num_bytes), false);
        self.naive.drop_resident_contents();
        self.store(changes);
        "writing a chunk"
    }

    fn owner(&mut self) -> Owner {
        Owner::Conversation(self.random.below(4).to_string())
    }

    fn set_ref(&mut self) -> &'static str {
        let (owner, number, ids) = (self.owner(), self.random.below(2), self.ids());
        let tokens = PromptTokens::known(ids.as_slice());
        let target = self.index.end_of(&namespace(number), &tokens, self.needs);
        let longest =
            self.naive.whole_matches(number, &ids).into_iter().map(NaiveChunk::stop).max();
        assert_eq!(target.map(|key| self.naive.get(key).stop()), longest, "the end of a prompt");
        let is_pinned = self.random.one_in(4);
        let name = RefName::from(owner);
        let changes = self.index.set_ref(CacheRef {
            name: name.clone(),
            namespace: namespace(number),
            model_name: "m".to_owned(),
            target,
            num_tokens: 0,
            is_pinned,
            loss: None,
        });
        self.naive.set_ref(name, number, target, is_pinned);
        self.store(changes);
        "setting a reference"
    }

    /// Shows a branch of a conversation, or copies one.
    fn point_ref(&mut self) -> &'static str {
        let (of, ids) = (self.owner(), self.ids());
        let owner = if self.random.one_in(2) { of.clone() } else { self.owner() };
        let changes = self.index.point_ref(&owner, &of, &PromptTokens::known(ids.as_slice()));
        let naive = &mut self.naive;
        let stop = |key: Option<ChunkKey>| key.map_or(0, |key| naive.get(key).stop());
        let end = |number| {
            let ends = naive.whole_matches(number, &ids).into_iter();
            ends.max_by_key(|chunk| chunk.stop()).map(NaiveChunk::key)
        };
        let mut wanted: Option<(usize, Option<ChunkKey>)> = None;
        // The one that is not stale comes first.
        for name in naive.names_of(&of) {
            let number = naive.refs[&name].namespace;
            let has_more = |&(_, key): &(usize, Option<ChunkKey>)| stop(key) < stop(end(number));
            if wanted.as_ref().is_none_or(has_more) {
                wanted = Some((number, end(number)));
            }
        }
        let name = RefName::from(owner.clone());
        let before = naive.refs.get(&name).cloned();
        if let Some((number, key)) = wanted.filter(|(_, key)| key.is_some() || owner == of) {
            // Several paths may have the same tokens.
            let target = self.index.ref_of(&owner).and_then(|cache_ref| cache_ref.target);
            assert_eq!(stop(target), stop(key), "the end of a branch");
            if before.as_ref().is_none_or(|before| before.target != target) {
                naive.set_ref(name, number, target, before.is_some_and(|before| before.is_pinned));
            }
        }
        self.store(changes);
        "showing a branch"
    }

    fn make_room(&mut self) -> &'static str {
        let bytes = self.random.below(60) as u64;
        let keys = self.naive.keys();
        let keep = self.random.pick(&keys).copied().filter(|_| self.now_ms % 2 == 0);
        let budget = self.index.budgets().disk_bytes;
        let surplus = (self.naive.disk_bytes() + bytes).saturating_sub(budget);
        let can_free = self.naive.disk_bytes() - self.naive.protected_bytes(keep) >= surplus;
        let has_room = bytes <= budget && (surplus == 0 || can_free);
        match self.index.make_room_on_disk(bytes, keep.as_ref(), self.now_ms) {
            Ok(changes) => {
                assert!(has_room, "room for {bytes} bytes");
                self.store(changes);
                self.naive.free_on_disk(surplus, keep, self.now_ms);
                assert!(self.index.disk_bytes() + bytes <= budget, "the disk budget holds");
            }
            Err(_) => assert!(!has_room, "no room for {bytes} bytes"),
        }
        "making room on disk"
    }

    fn enforce_budgets(&mut self) -> &'static str {
        let budgets = Budgets {
            disk_bytes: self.random.below(80) as u64,
            memory_bytes: self.random.below(80) as u64,
        };
        self.index.set_budgets(budgets);
        let MemoryChanges { dropped, changes } = self.index.enforce_memory_budget(self.now_ms);
        assert!(dropped.iter().all(|key| self.index.is_on_disk(key)));
        self.store(changes);
        self.naive.enforce_memory_budget(budgets.memory_bytes, self.now_ms);
        let surplus = self.naive.disk_bytes().saturating_sub(budgets.disk_bytes);
        let changes = self.index.enforce_disk_budget(self.now_ms);
        self.store(changes);
        let protected = self.naive.protected_bytes(None);
        self.naive.free_on_disk(surplus, None, self.now_ms);
        assert!(self.index.disk_bytes() <= budgets.disk_bytes.max(protected), "the disk budget");
        "enforcing the budgets"
    }

    fn use_chunks(&mut self) -> &'static str {
        let (number, ids) = (self.random.below(2), self.ids());
        let keys = self.index.keys_of(&namespace(number), &PromptTokens::known(ids.as_slice()));
        let change = self.index.used(keys.clone(), self.now_ms);
        let CacheChange::Used { at_ms, .. } = change else { panic!("{change:?}") };
        for chunk in self.naive.chunks.iter_mut().filter(|chunk| keys.contains(&chunk.key())) {
            chunk.used_ms = at_ms;
        }
        self.store(vec![change]);
        "using chunks"
    }

    fn pin(&mut self) -> &'static str {
        let (owner, is_pinned) = (self.owner(), self.random.one_in(2));
        let changes = self.index.pin(&owner, is_pinned);
        if let Some(reference) = self.naive.refs.get_mut(&RefName::from(owner)) {
            reference.is_pinned = is_pinned;
        }
        self.store(changes);
        "pinning"
    }

    fn drop_refs(&mut self) -> &'static str {
        let owner = self.owner();
        let changes = self.index.remove_refs_of(&owner);
        self.naive.refs.retain(|name, _| name.owner != owner);
        self.store(changes);
        "removing references"
    }

    fn remove(&mut self) -> &'static str {
        let keys = self.naive.keys();
        let Some(key) = self.random.pick(&keys) else { return "removing nothing" };
        let changes = self.index.remove(key, LossReason::FileDamaged, self.now_ms);
        self.naive.remove_subtree(*key, self.now_ms);
        self.store(changes);
        "removing a chunk"
    }

    fn purge(&mut self) -> &'static str {
        let owner = self.owner();
        let changes = self.index.purge(&owner, self.now_ms);
        let naive = &mut self.naive;
        // Stale references first.
        let (own, mut names): (Vec<_>, Vec<_>) =
            naive.names_of(&owner).into_iter().partition(|name| !name.is_stale());
        names.extend(own);
        for name in &names {
            let target = naive.refs.get(name).and_then(|reference| reference.target);
            let path = target.map_or(Vec::new(), |key| naive.path(naive.get(key)));
            let is_other = |name: &RefName| name.owner != owner;
            let mut path = path.iter().map(|chunk| chunk.key());
            if let Some(first) = path.find(|key| !naive.is_covered(*key, is_other)) {
                naive.remove_subtree(first, self.now_ms);
            }
        }
        naive.refs.retain(|name, _| name.owner != owner || !name.is_stale());
        self.store(changes);
        "purging an owner"
    }

    fn remove_many(&mut self) -> &'static str {
        if self.random.one_in(2) {
            let changes = self.index.clear(self.now_ms);
            while let Some(leaf) = self.naive.next_leaf(|_| true) {
                self.naive.remove(leaf, self.now_ms);
            }
            self.store(changes);
            return "clearing";
        }
        if self.random.one_in(2) {
            return self.make_resident();
        }
        self.index.demote();
        for chunk in self.naive.chunks.iter_mut().filter(|chunk| chunk.disk_bytes.is_some()) {
            chunk.memory_bytes = None;
        }
        "demoting"
    }

    /// Lets resident conversations hold the chunks of one prompt, or of none.
    fn make_resident(&mut self) -> &'static str {
        let (number, ids) = (self.random.below(2), self.ids());
        let mut keys = self.index.keys_of(&namespace(number), &PromptTokens::known(ids.as_slice()));
        if self.random.one_in(4) {
            keys.clear();
        }
        let had_contents = |key: &ChunkKey| self.index.get(key).is_some_and(Chunk::is_in_memory);
        let on_both = keys.iter().filter(|key| self.index.is_on_disk(key) && had_contents(key));
        let expected: BTreeSet<ChunkKey> = on_both.copied().collect();
        let dropped = self.index.set_resident(keys.iter().copied().collect());
        assert_eq!(dropped.into_iter().collect::<BTreeSet<_>>(), expected);
        assert!(keys.iter().all(|key| self.index.is_in_memory(key)));
        self.naive.resident = keys;
        self.naive.drop_resident_contents();
        "making a conversation resident"
    }

    /// Ends, and starts again from the rows, of which one may be damaged.
    fn reopen(&mut self) -> &'static str {
        let changes = self.index.remove_unwritten(LossReason::OnlyInMemory, self.now_ms);
        let unwritten = |chunk: &&NaiveChunk| chunk.disk_bytes.is_none();
        let roots: Vec<ChunkKey> =
            self.naive.chunks.iter().filter(unwritten).map(NaiveChunk::key).collect();
        for key in roots {
            if self.naive.chunks.iter().any(|chunk| chunk.key() == key) {
                self.naive.remove_subtree(key, self.now_ms);
            }
        }
        self.store(changes);
        let mut records: Vec<ChunkRecord> = self.rows.values().cloned().collect();
        let damaged = (!records.is_empty() && self.random.one_in(2)).then(|| {
            let index = self.random.below(records.len());
            records[index].held_from = usize::MAX;
            records[index].key
        });
        let refs = self.ref_rows.values().cloned().collect();
        let (index, rejected) = ChunkIndex::new(self.index.budgets(), records, refs);
        self.index = index;
        self.naive.resident.clear();
        for record in rejected {
            self.rows.remove(&record.key);
        }
        let changes = self.index.resolve_refs(self.now_ms);
        self.store(changes);
        for chunk in &mut self.naive.chunks {
            chunk.memory_bytes = None;
        }
        if let Some(key) = damaged {
            self.lose(key);
        }
        "reopening"
    }

    /// A row was damaged: references to what continues it have lost everything.
    fn lose(&mut self, key: ChunkKey) {
        let naive = &mut self.naive;
        let is_lost = |target: ChunkKey| naive.continues(naive.get(target), key);
        let lost = naive.refs.iter().filter(|(_, found)| found.target.is_some_and(is_lost));
        let names: Vec<RefName> = lost.map(|(name, _)| name.clone()).collect();
        for name in names {
            let reference = naive.refs[&name].clone();
            let num_tokens = reference.target.map_or(0, |key| naive.get(key).stop());
            let loss = reference.loss.or(Some((num_tokens, self.now_ms)));
            naive.refs.remove(&name);
            if !name.is_stale() {
                naive.refs.insert(name, NaiveRef { target: None, loss, ..reference });
            }
        }
        naive.remove_subtree(key, self.now_ms);
    }

    /// Looks up a prompt in both.
    fn look_up(&mut self, when: &str) {
        let (number, ids) = (self.random.below(2), self.ids());
        let anywhere = RestoreNeeds::default();
        for needs in [self.needs, anywhere] {
            let tokens = PromptTokens::known(ids.as_slice());
            let plan = self.index.restore_plan(&namespace(number), &tokens, needs);
            let expected = self.naive.num_restorable(number, &ids, needs);
            assert_eq!(plan.num_tokens, expected, "{when}: {needs:?} of {ids:?}");
            let stored: Vec<u32> =
                plan.chunks.iter().flat_map(|record| record.tokens.known_ids().to_vec()).collect();
            assert_eq!(common(&stored, &ids).min(plan.num_tokens), plan.num_tokens, "{when}");
        }
    }
}

#[test]
fn any_sequence_of_calls_leaves_what_a_naive_model_has() {
    for seed in cairn_sweeps::sweep("prompt-cache sequences", 200) {
        let mut sequence = Sequence::new(seed);
        for number in 0..40 {
            let did = sequence.step();
            let when = format!("seed {seed}, step {number}, {did}");
            sequence.index.check(&when);
            sequence.naive.compare(&sequence.index, &when);
            sequence.look_up(&when);
            // What a crash would leave: each row's reference names a chunk that has a row.
            for row in sequence.ref_rows.values() {
                assert!(row.target.is_none_or(|key| sequence.rows.contains_key(&key)), "{when}");
            }
        }
    }
}
