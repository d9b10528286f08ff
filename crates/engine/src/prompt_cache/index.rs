//! Which chunks there are, what they continue, and what a prompt can take from them: pure policy,
//! no files.
//!
//! `eviction` decides what goes, `refs` who holds which place; both are parts of the same index.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::records::{CacheRef, ChunkKind, ChunkRecord, Namespace};

/// The most tokens of one chunk.
pub(super) const MAX_CHUNK_TOKENS: usize = 256;

/// All chunks, as a forest by parent.
///
/// - Every chunk is on disk, in memory, or both.
/// - A chunk's parent is there as long as it is; on disk too where the chunk is.
/// - `leaves` are the chunks that nothing continues, by kind; `in_memory` those whose contents are
///   in memory.
/// - A reference's chunk is there, or the reference has none.
/// - `owners_of` are the owners of the references at a chunk or behind it, for the chunks that have
///   some.
#[derive(Debug)]
pub(super) struct ChunkIndex {
    pub(super) entries: HashMap<String, Entry>,
    /// Children by parent key; the roots of a namespace under its root key. By their first tokens,
    /// because ten thousand conversations may continue one system prompt.
    pub(super) children: HashMap<String, BTreeSet<Child>>,
    pub(super) leaves: [BTreeSet<Rank>; 3],
    pub(super) in_memory: BTreeSet<Rank>,
    pub(super) refs: BTreeMap<String, CacheRef>,
    /// Kept beside the references, so that looking at one of ten thousand does not take a walk over
    /// all.
    pub(super) owners_of: HashMap<String, BTreeSet<Arc<str>>>,
    /// Owners of references that have changed since somebody asked.
    pub(super) changed_refs: BTreeSet<String>,
    pub(super) disk: Tier,
    /// Contents.
    pub(super) memory: Tier,
    /// Chunks from the caller's rows without a parent.
    pub(super) orphans: Vec<ChunkRecord>,
    /// References from the caller's rows to chunks that are not there, by owner.
    pub(super) unresolved_refs: BTreeMap<String, CacheRef>,
    /// What resident conversations take of the memory budget.
    pub(super) resident_bytes: u64,
    /// The latest time that [`ChunkIndex::next_use_ms`] returned or a record has.
    last_use_ms: i64,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: ChunkRecord,
    pub(super) is_on_disk: bool,
    /// What its contents take in memory; none where they are not there.
    pub(super) memory_bytes: Option<u64>,
    /// It waits to be written, so its contents stay in memory.
    pub(super) is_pending: bool,
}

/// How much of something is used, and may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tier {
    pub(super) bytes: u64,
    pub(super) budget: u64,
}

/// A chunk among those that continue another: its first token and its key.
pub(super) type Child = (Option<u32>, String);

pub(super) fn child(record: &ChunkRecord) -> Child {
    (record.token_ids.first().copied(), record.key.clone())
}

/// Chunks in the order in which they may go: least recently used first, among equals the deepest,
/// because beginnings are shared more.
pub(super) type Rank = (i64, Reverse<usize>, String);

pub(super) fn rank(record: &ChunkRecord) -> Rank {
    (record.last_used_at_ms, Reverse(record.start), record.key.clone())
}

/// The longest stored beginning of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    /// The chunks in order; of the last one perhaps only the first tokens.
    pub(super) parts: Vec<PrefixPart>,
    /// Their tokens together.
    pub(super) num_tokens: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PrefixPart {
    pub(super) record: ChunkRecord,
    pub(super) num_tokens: usize,
}

/// What a model needs of chunks to go on behind them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// The tokens that the widest ring holds; none where every layer holds all.
    pub(super) window: Option<usize>,
    /// Recurrent states at exactly the place.
    pub(super) state: bool,
}

impl Prefix {
    /// The last of its chunks that match whole.
    pub(super) fn last_whole(&self) -> Option<&ChunkRecord> {
        self.parts.iter().rfind(|part| part.is_whole()).map(|part| &part.record)
    }

    /// The tokens of the first chunks that match whole and hide none of `places`: behind those that
    /// they reach, a model with these needs can go on.
    fn num_open(&self, needs: Needs, places: &[usize]) -> usize {
        let whole: Vec<&ChunkRecord> =
            self.parts.iter().filter(|part| part.is_whole()).map(|part| &part.record).collect();
        let mut open = whole.len();
        for &place in places {
            let hides = |record: &ChunkRecord| {
                place < record.stop()
                    || (place == record.stop() && needs.state && !record.has_state)
            };
            // Of the window before the place.
            let from = place - needs.window.unwrap_or_default().min(place);
            let lacks = |record: &ChunkRecord| {
                record.stop() > from && record.held_from > record.start.max(from)
            };
            let mut before = whole.iter().take_while(|record| record.start < place);
            open = before
                .position(|record| hides(record) || lacks(record))
                .map_or(open, |hiding| open.min(hiding));
        }
        whole[..open].last().map_or(0, |record| record.stop())
    }

    /// The most tokens, at most `limit`, behind which a model with these needs can go on.
    pub(super) fn num_restorable(&self, needs: Needs, limit: usize) -> usize {
        let mut place = self.num_tokens.min(limit);
        'places: while place > 0 {
            if needs.state {
                let last_state = self
                    .parts
                    .iter()
                    .filter(|part| part.record.has_state && part.is_whole())
                    .map(|part| part.record.stop());
                let Some(state) = last_state.filter(|&stop| stop <= place).max() else { return 0 };
                place = state;
            }
            let Some(window) = needs.window else { return place };
            let from = place.saturating_sub(window);
            for part in self.parts.iter().rev() {
                let record = &part.record;
                let is_used = record.start < place && record.stop() > from;
                if is_used && record.held_from > record.start.max(from) {
                    // What is missing here is missing for every place that needs it, down to the
                    // chunk's own start.
                    place = record.start;
                    continue 'places;
                }
            }
            return place;
        }
        0
    }
}

impl PrefixPart {
    fn is_whole(&self) -> bool {
        self.num_tokens == self.record.token_ids.len()
    }
}

/// A chunk that is to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedChunk {
    pub(super) key: String,
    pub(super) parent_key: Option<String>,
    pub(super) kind: ChunkKind,
    pub(super) start: usize,
    pub(super) token_ids: Vec<u32>,
}

impl ChunkIndex {
    /// The chunks that are on disk, and the references on them. Those that continue a chunk that is
    /// not there are [`ChunkIndex::orphans`].
    pub(super) fn new(
        disk_budget: u64,
        memory_budget: u64,
        records: Vec<ChunkRecord>,
        refs: Vec<CacheRef>,
    ) -> Self {
        let mut index = ChunkIndex {
            entries: HashMap::with_capacity(records.len()),
            children: HashMap::with_capacity(records.len()),
            leaves: Default::default(),
            in_memory: BTreeSet::new(),
            refs: BTreeMap::new(),
            owners_of: HashMap::new(),
            changed_refs: BTreeSet::new(),
            disk: Tier { bytes: 0, budget: disk_budget },
            memory: Tier { bytes: 0, budget: memory_budget },
            resident_bytes: 0,
            last_use_ms: records.iter().map(|record| record.last_used_at_ms).max().unwrap_or(0),
            orphans: Vec::new(),
            unresolved_refs: BTreeMap::new(),
        };
        // As `insert` would, but quicker for ten thousand: what becomes a leaf is known at the end.
        for record in records {
            index.disk.bytes += record.bytes;
            index.children.entry(index.parent_of(&record)).or_default().insert(child(&record));
            let entry = Entry { is_on_disk: true, memory_bytes: None, is_pending: false, record };
            index.entries.insert(entry.record.key.clone(), entry);
        }
        index.take_orphans();
        for Entry { record, .. } in
            index.entries.values().filter(|entry| !index.children.contains_key(&entry.record.key))
        {
            index.leaves[record.kind as usize].insert(rank(record));
        }
        for cache_ref in refs {
            if cache_ref.chunk_key.as_ref().is_none_or(|key| index.contains(key)) {
                index.restore_ref(cache_ref);
            } else {
                index.unresolved_refs.insert(cache_ref.owner.clone(), cache_ref);
            }
        }
        index
    }

    /// Takes over the references whose chunks were not there at the start: some may have been
    /// rebuilt from their files since, the others have lost theirs.
    pub(super) fn resolve_refs(&mut self) {
        for (owner, cache_ref) in std::mem::take(&mut self.unresolved_refs) {
            if !self.refs.contains_key(&owner) {
                self.restore_ref(cache_ref);
            }
        }
    }

    /// Moves the chunks that no chain of parents connects to a prompt's first token to `orphans`.
    fn take_orphans(&mut self) {
        let is_root = |record: &&ChunkRecord| record.parent_key.is_none() && record.start == 0;
        let roots = self.entries.values().map(|entry| &entry.record).filter(is_root);
        let mut reached: HashSet<String> = HashSet::with_capacity(self.entries.len());
        let mut pending: Vec<(String, usize)> =
            roots.map(|root| (root.key.clone(), root.stop())).collect();
        while let Some((key, stop)) = pending.pop() {
            let children = self.children_of(&key).map(|child| &child.record);
            let continuing = children.filter(|child| child.start == stop);
            pending.extend(continuing.map(|child| (child.key.clone(), child.stop())));
            reached.insert(key);
        }
        if reached.len() == self.entries.len() {
            return;
        }
        for (_, Entry { record, .. }) in self.entries.extract_if(|key, _| !reached.contains(key)) {
            self.disk.bytes -= record.bytes;
            self.orphans.push(record);
        }
        for record in &self.orphans {
            let parent = self.parent_of(record);
            if let Some(siblings) = self.children.get_mut(&parent) {
                siblings.remove(&child(record));
                if siblings.is_empty() {
                    self.children.remove(&parent);
                }
            }
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn is_on_disk(&self, key: &str) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.is_on_disk)
    }

    /// What counts against the memory budget.
    pub(super) fn bytes_in_memory(&self) -> u64 {
        self.memory.bytes + self.resident_bytes
    }

    /// Every chunk, in no order.
    pub(super) fn records(&self) -> impl Iterator<Item = &ChunkRecord> {
        self.entries.values().map(|entry| &entry.record)
    }

    /// Adds a chunk that continues one that is there, or none: on disk, or with contents of
    /// `memory_bytes` that are yet to be written.
    pub(super) fn insert(&mut self, record: ChunkRecord, memory_bytes: Option<u64>) {
        if self.contains(&record.key) {
            return;
        }
        let parent = self.parent_of(&record);
        if let Some(parent) = self.entries.get(&parent) {
            self.leaves[parent.record.kind as usize].remove(&rank(&parent.record));
        }
        self.children.entry(parent).or_default().insert(child(&record));
        self.leaves[record.kind as usize].insert(rank(&record));
        match memory_bytes {
            Some(bytes) => {
                self.memory.bytes += bytes;
                self.in_memory.insert(rank(&record));
            }
            None => self.disk.bytes += record.bytes,
        }
        let entry =
            Entry { is_on_disk: memory_bytes.is_none(), memory_bytes, is_pending: false, record };
        self.entries.insert(entry.record.key.clone(), entry);
    }

    /// Notes that a chunk is on its way to disk, or that it has not got there.
    pub(super) fn set_pending(&mut self, key: &str, is_pending: bool) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_pending = is_pending;
        }
    }

    /// Notes that a chunk's file of `bytes` is there, and returns its record; none if the chunk is
    /// gone meanwhile.
    pub(super) fn mark_written(
        &mut self,
        key: &str,
        bytes: u64,
        file_hash: String,
    ) -> Option<ChunkRecord> {
        let entry = self.entries.get_mut(key)?;
        entry.is_pending = false;
        if !entry.is_on_disk {
            entry.is_on_disk = true;
            entry.record.bytes = bytes;
            entry.record.file_hash = file_hash;
            self.disk.bytes += bytes;
        }
        let record = entry.record.clone();
        self.mark_refs_at(key);
        Some(record)
    }

    /// The longest run of chunks that begins as `tokens` do; the last may match in part.
    #[cfg(test)]
    pub(super) fn longest_prefix(&self, namespace: &Namespace, tokens: &[u32]) -> Prefix {
        self.best_prefix(namespace, tokens, |prefix| prefix.num_tokens)
    }

    /// The chunks that let a model with these needs go on behind the most of `tokens`, and behind
    /// how many.
    pub(super) fn restorable_prefix(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        needs: Needs,
    ) -> (Prefix, usize) {
        let prefix = self
            .best_prefix(namespace, tokens, |prefix| prefix.num_restorable(needs, tokens.len()));
        let num_tokens = prefix.num_restorable(needs, tokens.len());
        (prefix, num_tokens)
    }

    /// Of all runs of chunks that begin as `tokens` do the one that is worth most, among equals the
    /// longest. No run is worth more than it has tokens.
    ///
    /// Chunks that continue the same one may begin alike and differ in length: the one that matches
    /// further may lead nowhere, while behind a shorter one the conversation goes on, or a model
    /// can.
    pub(super) fn best_prefix(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        worth: impl Fn(&Prefix) -> usize,
    ) -> Prefix {
        let mut best = ((0, 0), Prefix::default());
        let consider = |best: &mut ((usize, usize), Prefix), run: &[(&Entry, usize)]| {
            let num_tokens = run.iter().map(|(_, matched)| matched).sum();
            if (num_tokens, num_tokens) > best.0 {
                let part = |&(entry, num_tokens): &(&Entry, usize)| PrefixPart {
                    record: entry.record.clone(),
                    num_tokens,
                };
                let prefix = Prefix { parts: run.iter().map(part).collect(), num_tokens };
                let worth = (worth(&prefix), num_tokens);
                if worth > best.0 {
                    *best = (worth, prefix);
                }
            }
        };
        let (mut parent, mut num_tokens) = (root_key(namespace), 0);
        let mut run: Vec<(&Entry, usize)> = Vec::new();
        // Chunks that continue the run's first ones, with how much of them matches; the last is
        // taken first.
        let mut pending: Vec<(usize, &Entry, usize)> = Vec::new();
        let is_whole = |entry: &Entry, matched: usize| entry.record.token_ids.len() == matched;
        loop {
            let rest = &tokens[num_tokens..];
            let children = self.children_beginning_with(&parent, rest.first().copied());
            let matches =
                children.map(|entry| (entry, super::common_prefix(&entry.record.token_ids, rest)));
            let mut next: Vec<(&Entry, usize)> =
                matches.filter(|(_, matched)| *matched > 0).collect();
            // Those that match in part end the run: the others are more likely the best, and spare
            // a look at them.
            next.sort_by_key(|&(entry, matched)| (is_whole(entry, matched), matched));
            if next.is_empty() {
                consider(&mut best, &run);
            }
            pending.extend(next.into_iter().map(|(entry, matched)| (run.len(), entry, matched)));
            loop {
                let Some((depth, entry, matched)) = pending.pop() else { return best.1 };
                run.truncate(depth);
                run.push((entry, matched));
                if is_whole(entry, matched) {
                    parent.clone_from(&entry.record.key);
                    num_tokens = entry.record.start + matched;
                    break;
                }
                consider(&mut best, &run);
            }
        }
    }

    /// The chunks that `tokens` still need, after those already there: cut at every boundary, where
    /// whose words they are changes, and at 256 tokens. What comes after the last boundary is the
    /// answer. Behind each of `places`, ascending, a model with these needs is to be able to go on,
    /// which those already there may not allow.
    pub(super) fn plan(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        boundaries: &[(usize, ChunkKind)],
        (needs, places): (Needs, &[usize]),
    ) -> Vec<PlannedChunk> {
        let there = self.best_prefix(namespace, tokens, |prefix| prefix.num_open(needs, places));
        let mut start = there.num_open(needs, places);
        // A chunk is never rewritten: one that matches in part, or hides a place, gets a sibling
        // that repeats its tokens.
        let mut parent_key = there
            .parts
            .into_iter()
            .map(|part| part.record)
            .find(|record| record.stop() == start)
            .map(|record| record.key);
        let mut planned = Vec::new();
        while start < tokens.len() {
            let next = boundaries.iter().find(|(boundary, _)| *boundary > start);
            let (boundary, kind) = next.copied().unwrap_or((tokens.len(), ChunkKind::Assistant));
            let mut stop = boundary.min(start + MAX_CHUNK_TOKENS).min(tokens.len());
            let parent = parent_key.clone().unwrap_or_else(|| root_key(namespace));
            let mut key = chunk_key(&parent, &tokens[start..stop]);
            // The sibling of a chunk that hides a place must end elsewhere.
            while self.contains(&key) && stop - start > 1 {
                stop -= 1;
                key = chunk_key(&parent, &tokens[start..stop]);
            }
            planned.push(PlannedChunk {
                key: key.clone(),
                parent_key,
                kind,
                start,
                token_ids: tokens[start..stop].to_vec(),
            });
            parent_key = Some(key);
            start = stop;
        }
        planned
    }

    /// The time to note for a use at `now_ms` of the wall clock. It is later than that of every
    /// earlier use, so that eviction keeps its order when the wall clock is set back.
    pub(super) fn next_use_ms(&mut self, now_ms: i64) -> i64 {
        self.last_use_ms = now_ms.max(self.last_use_ms.saturating_add(1));
        self.last_use_ms
    }

    /// Notes that chunks were read.
    pub(super) fn touch(&mut self, keys: &[String], at_ms: i64) {
        for key in keys {
            let Some(entry) = self.entries.get_mut(key) else { continue };
            let before = rank(&entry.record);
            entry.record.last_used_at_ms = at_ms;
            entry.record.hits += 1;
            let after = rank(&entry.record);
            for set in [&mut self.leaves[entry.record.kind as usize], &mut self.in_memory] {
                if set.remove(&before) {
                    set.insert(after.clone());
                }
            }
        }
    }

    /// The chunks from the first of a conversation to `key`.
    pub(super) fn path(&self, key: &str) -> Vec<&Entry> {
        let mut path = Vec::new();
        let mut next = Some(key);
        while let Some(entry) = next.and_then(|key| self.entries.get(key)) {
            path.push(entry);
            next = entry.record.parent_key.as_deref();
        }
        path.reverse();
        path
    }

    pub(super) fn parent_of(&self, record: &ChunkRecord) -> String {
        record.parent_key.clone().unwrap_or_else(|| root_key(&record.namespace))
    }

    pub(super) fn children_of(&self, parent: &str) -> impl Iterator<Item = &Entry> {
        self.children.get(parent).into_iter().flatten().filter_map(|(_, key)| self.entries.get(key))
    }

    fn children_beginning_with(
        &self,
        parent: &str,
        token: Option<u32>,
    ) -> impl Iterator<Item = &Entry> {
        let children =
            self.children.get(parent).map(|children| children.range((token, String::new())..));
        let beginning =
            children.into_iter().flatten().take_while(move |(first, _)| *first == token);
        beginning.filter_map(|(_, key)| self.entries.get(key))
    }
}

/// The parent key of a namespace's first chunks.
fn root_key(namespace: &Namespace) -> String {
    let Namespace { model, kv_format, provenance } = namespace;
    hash(b"cairn prompt cache 2", format!("{model}\n{kv_format}\n{provenance}").as_bytes())
}

/// The key of a chunk: everything that its keys and values depend on is in the parent's key or the
/// token ids.
fn chunk_key(parent: &str, token_ids: &[u32]) -> String {
    let ids: Vec<u8> = token_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    hash(parent.as_bytes(), &ids)
}

/// The key that a record must have.
pub(super) fn key_of(record: &ChunkRecord) -> String {
    let parent = record.parent_key.clone().unwrap_or_else(|| root_key(&record.namespace));
    chunk_key(&parent, &record.token_ids)
}

fn hash(first: &[u8], second: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(first.len() as u64).to_le_bytes());
    hasher.update(first);
    hasher.update(second);
    // 128 bits: keys name files and rows, and nobody gains from a collision, which the token ids in
    // the record would show.
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
