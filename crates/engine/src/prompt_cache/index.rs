//! Which chunks exist, which chunk each continues, and which of them a prompt can reuse: pure
//! policy, no files.
//!
//! `eviction` decides which chunks go, `refs` records who refers to which; both extend the same
//! index.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::chunk_file::{MAX_CHUNK_BYTES, is_hex};
use crate::records::{CacheRef, ChunkKind, ChunkRecord, Namespace};

/// The most tokens of one chunk.
pub(super) const MAX_CHUNK_TOKENS: usize = 256;
/// Far longer than any context.
const MAX_POSITION: usize = 1 << 40;
/// The hexadecimal digits of a BLAKE3 hash.
const HASH_DIGITS: usize = 64;

/// All chunks, as a forest by parent.
///
/// - Every chunk is on disk, in memory, or both.
/// - A chunk's parent is in the index as long as the chunk is, and on disk if the chunk is.
/// - `leaves` are the chunks without children, by kind; `in_memory` are those whose contents are in
///   memory.
/// - A reference's chunk is in the index, or the reference has none.
/// - `owners_of` names, for each referenced chunk, the owners of the references to it or to a
///   descendant.
#[derive(Debug)]
pub(super) struct ChunkIndex {
    pub(super) entries: HashMap<String, Entry>,
    /// Children by parent key; a namespace's roots are under its root key. Sorted by their first
    /// token, because ten thousand conversations may continue one system prompt.
    pub(super) children: HashMap<String, BTreeSet<Child>>,
    pub(super) leaves: [BTreeSet<Rank>; 3],
    pub(super) in_memory: BTreeSet<Rank>,
    pub(super) refs: BTreeMap<String, CacheRef>,
    /// Maintained beside `refs`, so that a look at one of ten thousand references does not walk
    /// all.
    pub(super) owners_of: HashMap<String, BTreeSet<Arc<str>>>,
    /// Owners of references that have changed since [`ChunkIndex::take_changed_refs`].
    pub(super) changed_refs: BTreeSet<String>,
    /// The chunk files.
    pub(super) disk: Tier,
    /// The chunk contents in memory.
    pub(super) memory: Tier,
    /// Chunks among the caller's rows whose parent is missing.
    pub(super) orphans: Vec<ChunkRecord>,
    /// References among the caller's rows whose chunk is missing, by owner.
    pub(super) unresolved_refs: BTreeMap<String, CacheRef>,
    /// Bytes that resident conversations take of the memory budget.
    pub(super) resident_bytes: u64,
    /// The latest time that [`ChunkIndex::next_use_ms`] returned or a record has.
    last_use_ms: i64,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: ChunkRecord,
    pub(super) is_on_disk: bool,
    /// Bytes of its contents in memory; none where they are not in memory.
    pub(super) memory_bytes: Option<u64>,
    /// Whether it is queued for the writer, so that its contents must stay in memory.
    pub(super) is_pending: bool,
}

/// The bytes that a storage tier uses, and may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tier {
    pub(super) bytes: u64,
    pub(super) budget: u64,
}

/// A chunk among the children of another: its first token and its key.
pub(super) type Child = (Option<u32>, String);

pub(super) fn child(record: &ChunkRecord) -> Child {
    (record.token_ids.first().copied(), record.key.clone())
}

/// The order of eviction: the least recently used first, among equals the deepest, because more
/// conversations share beginnings.
pub(super) type Rank = (i64, Reverse<usize>, String);

pub(super) fn rank(record: &ChunkRecord) -> Rank {
    (record.last_used_at_ms, Reverse(record.start), record.key.clone())
}

/// The longest stored beginning of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    /// The chunks in order; the last may match only with its first tokens.
    pub(super) parts: Vec<PrefixPart>,
    /// Their tokens together.
    pub(super) num_tokens: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PrefixPart {
    pub(super) record: ChunkRecord,
    pub(super) num_tokens: usize,
}

/// What must be stored for a model's caches to be restored at a position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// The width of the widest sliding window; none where every layer attends to all tokens.
    pub(super) window: Option<usize>,
    /// Recurrent states at exactly that position.
    pub(super) state: bool,
}

impl Prefix {
    /// The last of the chunks that match whole.
    pub(super) fn last_whole(&self) -> Option<&ChunkRecord> {
        self.parts.iter().rfind(|part| part.is_whole()).map(|part| &part.record)
    }

    /// The number of tokens in the leading whole chunks that can be extended so that each of
    /// `positions` is restorable. A chunk stands in the way if a position is inside it, or if it
    /// lacks the state or window that the position needs.
    fn num_extendable(&self, needs: Needs, positions: &[usize]) -> usize {
        let whole: Vec<&ChunkRecord> =
            self.parts.iter().filter(|part| part.is_whole()).map(|part| &part.record).collect();
        let mut usable = whole.len();
        for &position in positions {
            let blocks = |record: &ChunkRecord| {
                position < record.stop()
                    || (position == record.stop() && needs.state && !record.has_state)
            };
            // The first token of the window that ends at the position.
            let from = position - needs.window.unwrap_or_default().min(position);
            let lacks_window = |record: &ChunkRecord| {
                record.stop() > from && record.held_from > record.start.max(from)
            };
            let mut before = whole.iter().take_while(|record| record.start < position);
            usable = before
                .position(|record| blocks(record) || lacks_window(record))
                .map_or(usable, |blocking| usable.min(blocking));
        }
        whole[..usable].last().map_or(0, |record| record.stop())
    }

    /// The most tokens, at most `limit`, after which caches with these needs can be restored.
    pub(super) fn num_restorable(&self, needs: Needs, limit: usize) -> usize {
        let mut position = self.num_tokens.min(limit);
        'positions: while position > 0 {
            if needs.state {
                let last_state = self
                    .parts
                    .iter()
                    .filter(|part| part.record.has_state && part.is_whole())
                    .map(|part| part.record.stop());
                let Some(state) = last_state.filter(|&stop| stop <= position).max() else {
                    return 0;
                };
                position = state;
            }
            let Some(window) = needs.window else { return position };
            let from = position.saturating_sub(window);
            for part in self.parts.iter().rev() {
                let record = &part.record;
                let is_used = record.start < position && record.stop() > from;
                if is_used && record.held_from > record.start.max(from) {
                    // The tokens missing here are missing for every position down to the chunk's
                    // start.
                    position = record.start;
                    continue 'positions;
                }
            }
            return position;
        }
        0
    }
}

impl PrefixPart {
    fn is_whole(&self) -> bool {
        self.num_tokens == self.record.token_ids.len()
    }
}

/// A chunk to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedChunk {
    pub(super) key: String,
    pub(super) parent_key: Option<String>,
    pub(super) kind: ChunkKind,
    pub(super) start: usize,
    pub(super) token_ids: Vec<u32>,
}

impl ChunkIndex {
    /// Builds the index from rows. Chunks whose parent is missing become [`ChunkIndex::orphans`].
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
        // As `insert` does, but faster for ten thousand rows: the leaves are collected at the end.
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

    /// Restores the references whose chunks were missing at the start: some of those chunks may
    /// have been rebuilt from their files since, the others are lost.
    pub(super) fn resolve_refs(&mut self) {
        for (owner, cache_ref) in std::mem::take(&mut self.unresolved_refs) {
            if !self.refs.contains_key(&owner) {
                self.restore_ref(cache_ref);
                // It may have been pinned meanwhile.
                self.changed_refs.insert(owner);
            }
        }
    }

    /// Whether a chunk that is on disk may be inserted: it is a root, or it follows a parent that
    /// is on disk too.
    pub(super) fn has_parent_on_disk(&self, record: &ChunkRecord) -> bool {
        match &record.parent_key {
            None => is_root(record),
            Some(parent) => self
                .get(parent)
                .is_some_and(|parent| parent.is_on_disk && follows(record, &parent.record)),
        }
    }

    /// Moves the chunks that no chain of parents connects to a prompt's first token to `orphans`.
    fn take_orphans(&mut self) {
        let records = self.entries.values().map(|entry| &entry.record);
        let roots = records.filter(|record| is_root(record));
        let mut reached: HashSet<String> = HashSet::with_capacity(self.entries.len());
        let mut pending: Vec<&ChunkRecord> = roots.collect();
        while let Some(parent) = pending.pop() {
            let children = self.children_of(&parent.key).map(|child| &child.record);
            pending.extend(children.filter(|child| follows(child, parent)));
            reached.insert(parent.key.clone());
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

    /// Takes out a chunk whose record is wrong, and those that continue it. The references to them
    /// wait until the files have been looked at ([`ChunkIndex::resolve_refs`]).
    pub(super) fn take_out(&mut self, key: &str, at_ms: i64) -> Vec<ChunkRecord> {
        let owners: Vec<Arc<str>> = self.owners_of(key).cloned().collect();
        for owner in owners {
            let cache_ref = self.refs.get(&*owner).cloned();
            self.unlink(&owner);
            self.unresolved_refs.extend(cache_ref.map(|found| (found.owner.clone(), found)));
        }
        self.remove_with_descendants(key, "", at_ms)
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

    /// The bytes that count against the memory budget.
    pub(super) fn bytes_in_memory(&self) -> u64 {
        self.memory.bytes + self.resident_bytes
    }

    /// All chunks, in no order.
    pub(super) fn records(&self) -> impl Iterator<Item = &ChunkRecord> {
        self.entries.values().map(|entry| &entry.record)
    }

    /// Adds a root, or a chunk whose parent is in the index. With `memory_bytes` its contents are
    /// in memory and not yet written, otherwise it is on disk.
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

    /// Marks a chunk as queued for the writer, or no longer queued.
    pub(super) fn set_pending(&mut self, key: &str, is_pending: bool) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_pending = is_pending;
        }
    }

    /// Marks a chunk as written to a file of `bytes`, and returns its record; none if the chunk has
    /// been removed meanwhile.
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

    /// The longest path of chunks that matches a beginning of `tokens`; the last may match in part.
    #[cfg(test)]
    pub(super) fn longest_prefix(&self, namespace: &Namespace, tokens: &[u32]) -> Prefix {
        self.best_prefix(namespace, tokens, |prefix| prefix.num_tokens)
    }

    /// The path of chunks that lets the most of `tokens` be restored with these needs, and how
    /// many.
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

    /// Of all paths of chunks that match a beginning of `tokens`, the one with the highest worth,
    /// among equals the longest. The worth of a path must not exceed its number of tokens.
    ///
    /// Siblings may begin alike and differ in length. The one that matches further may have no
    /// children, while the conversation continues after a shorter one, or only there can its caches
    /// be restored.
    pub(super) fn best_prefix(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        worth: impl Fn(&Prefix) -> usize,
    ) -> Prefix {
        let mut best = ((0, 0), Prefix::default());
        let consider = |best: &mut ((usize, usize), Prefix), path: &[(&Entry, usize)]| {
            let num_tokens = path.iter().map(|(_, matched)| matched).sum();
            if (num_tokens, num_tokens) > best.0 {
                let part = |&(entry, num_tokens): &(&Entry, usize)| PrefixPart {
                    record: entry.record.clone(),
                    num_tokens,
                };
                let prefix = Prefix { parts: path.iter().map(part).collect(), num_tokens };
                let worth = (worth(&prefix), num_tokens);
                if worth > best.0 {
                    *best = (worth, prefix);
                }
            }
        };
        let (mut parent, mut num_tokens) = (root_key(namespace), 0);
        let mut path: Vec<(&Entry, usize)> = Vec::new();
        // Alternatives still to be followed: the depth at which each joins the path, the chunk, and
        // how many of its tokens match. A stack: the last is followed first.
        let mut pending: Vec<(usize, &Entry, usize)> = Vec::new();
        let is_whole = |entry: &Entry, matched: usize| entry.record.token_ids.len() == matched;
        loop {
            let rest = &tokens[num_tokens..];
            let children = self.children_beginning_with(&parent, rest.first().copied());
            let matches =
                children.map(|entry| (entry, super::common_prefix(&entry.record.token_ids, rest)));
            let mut next: Vec<(&Entry, usize)> =
                matches.filter(|(_, matched)| *matched > 0).collect();
            // Follow whole matches first: a partial match ends the path, and a longer path spares
            // its comparison.
            next.sort_by_key(|&(entry, matched)| (is_whole(entry, matched), matched));
            if next.is_empty() {
                consider(&mut best, &path);
            }
            pending.extend(next.into_iter().map(|(entry, matched)| (path.len(), entry, matched)));
            loop {
                let Some((depth, entry, matched)) = pending.pop() else { return best.1 };
                path.truncate(depth);
                path.push((entry, matched));
                if is_whole(entry, matched) {
                    parent.clone_from(&entry.record.key);
                    num_tokens = entry.record.start + matched;
                    break;
                }
                consider(&mut best, &path);
            }
        }
    }

    /// Plans the chunks that `tokens` still need after those already stored. They are cut at every
    /// boundary between messages, and at 256 tokens; the tokens after the last boundary are the
    /// answer's. Each of `positions` (ascending) must be restorable with these needs afterwards,
    /// which the chunks already stored may not allow.
    pub(super) fn plan(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        boundaries: &[(usize, ChunkKind)],
        (needs, positions): (Needs, &[usize]),
    ) -> Vec<PlannedChunk> {
        let stored =
            self.best_prefix(namespace, tokens, |prefix| prefix.num_extendable(needs, positions));
        let mut start = stored.num_extendable(needs, positions);
        // A chunk is never rewritten: one that matches in part, or blocks a position, gets a
        // sibling that repeats its tokens.
        let mut parent_key = stored
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
            // A sibling with the same tokens would have the same key, so it must be shorter.
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

    /// The time to record for a use at `now_ms` of the wall clock. It is later than that of every
    /// earlier use, so that the order of eviction holds when the wall clock is set back.
    pub(super) fn next_use_ms(&mut self, now_ms: i64) -> i64 {
        self.last_use_ms = now_ms.max(self.last_use_ms.saturating_add(1));
        self.last_use_ms
    }

    /// Records that chunks were used.
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

    /// The chunks from the root to `key`.
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

/// Whether a record is that of a prompt's first chunk.
fn is_root(record: &ChunkRecord) -> bool {
    record.parent_key.is_none() && record.start == 0
}

/// Whether `child`, which names `parent` as its parent, begins where that ends. No key covers the
/// position, and only a root's key covers the namespace, so a wrong record may name others.
fn follows(child: &ChunkRecord, parent: &ChunkRecord) -> bool {
    child.start == parent.stop() && child.namespace == parent.namespace
}

/// The parent key of a namespace's first chunks.
fn root_key(namespace: &Namespace) -> String {
    let Namespace { model, kv_format, provenance } = namespace;
    hash(b"cairn prompt cache 2", format!("{model}\n{kv_format}\n{provenance}").as_bytes())
}

/// The key of a chunk: it covers all that its keys and values depend on, through the parent's key
/// and the token ids.
fn chunk_key(parent: &str, token_ids: &[u32]) -> String {
    let ids: Vec<u8> = token_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    hash(parent.as_bytes(), &ids)
}

impl ChunkRecord {
    /// The key that it must have, from its parent or namespace and its tokens. The cache refuses
    /// records with another.
    pub fn expected_key(&self) -> String {
        let parent = self.parent_key.clone().unwrap_or_else(|| root_key(&self.namespace));
        chunk_key(&parent, &self.token_ids)
    }
}

/// Whether the record of a chunk on disk can be true: a damaged row or file may name any value.
pub(super) fn is_valid(record: &ChunkRecord) -> bool {
    let num_tokens = record.token_ids.len();
    (1..=MAX_CHUNK_TOKENS).contains(&num_tokens)
        && record.start < MAX_POSITION
        && (record.start..=record.stop()).contains(&record.held_from)
        && record.bytes <= MAX_CHUNK_BYTES
        && record.file_hash.len() == HASH_DIGITS
        && is_hex(&record.file_hash)
        && is_hex(&record.namespace.model)
        && is_hex(&record.key)
        && record.expected_key() == record.key
}

fn hash(first: &[u8], second: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(first.len() as u64).to_le_bytes());
    hasher.update(first);
    hasher.update(second);
    // 128 bits suffice: keys name files and rows, nobody gains from a collision, and the token ids
    // in the record would reveal one.
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
