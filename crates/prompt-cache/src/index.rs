//! All chunks, and what refers to them.

mod eviction;
mod miss;
mod plan;
mod refs;
mod search;

#[cfg(test)]
mod check;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod sequences;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::{CacheChange, CacheRef, ChunkFile, ChunkKey, ChunkRecord, LossReason, RefName, Tokens};

pub use eviction::MemoryChanges;
pub use miss::Lookup;
pub use plan::PlannedChunk;
pub use refs::RefUsage;
pub use search::{RestoreNeeds, RestorePlan};

/// All chunks as a trie over tokens, with the references into it and the order of eviction.
///
/// Each method that changes it returns what changed, for the caller to act on files, rows and
/// watchers. Between two calls:
///
/// - A chunk is on disk, in memory, or both.
/// - A chunk's parent is there, ends where the chunk starts, has the same namespace, and is on disk
///   if the chunk is.
/// - A reference's target is there, or it has none; its number of tokens is where the target ends.
/// - Each owner has at most one reference that is not stale. A stale reference has a target and is
///   not pinned.
/// - The bytes on disk and in memory are the sums over the chunks.
/// - A chunk on disk whose keys and values a resident conversation holds has no contents in memory.
/// - After a call that makes room, a budget holds unless pinned or pending chunks prevent it.
///
/// Two more things hold inside: `leaves` are the chunks without children, and `refs_through` names
/// for each chunk the references to it or to a descendant.
#[derive(Debug)]
pub struct ChunkIndex {
    chunks: HashMap<ChunkKey, Chunk>,
    /// Children by their parent's key; those without a parent by their namespace's root key.
    children: HashMap<ChunkKey, Children>,
    /// By kind.
    leaves: [BTreeSet<Rank>; 3],
    /// The chunks whose contents are in memory.
    in_memory: BTreeSet<Rank>,
    refs: BTreeMap<RefName, CacheRef>,
    /// Maintained beside `refs`, so that a look at one of ten thousand references does not walk
    /// all.
    refs_through: HashMap<ChunkKey, BTreeSet<Arc<RefName>>>,
    /// References that have changed and are not reported yet.
    changed_refs: BTreeSet<RefName>,
    /// References that were removed and not set again. Their rows go later: whoever reads the rows in
    /// between finds them. No other process makes references of these names.
    removed_refs: HashSet<RefName>,
    /// References whose chunk was missing at the start, until
    /// [`ChunkIndex::resolve_refs`].
    unresolved_refs: BTreeMap<RefName, CacheRef>,
    disk_bytes: u64,
    memory_bytes: u64,
    /// The chunks whose keys and values a resident conversation holds.
    resident: HashSet<ChunkKey>,
    /// Bytes that others use of the memory budget.
    resident_bytes: u64,
    budgets: Budgets,
    /// The latest time that [`ChunkIndex::next_use_ms`] returned or a record has.
    last_use_ms: i64,
}

/// The most bytes that chunks may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// In files.
    pub disk_bytes: u64,
    /// In memory, together with what else [`ChunkIndex::set_resident_bytes`] says.
    pub memory_bytes: u64,
}

/// A chunk in the index.
#[derive(Debug, Clone)]
pub struct Chunk {
    record: ChunkRecord,
    /// Bytes of its contents in memory; none where they are not in memory.
    memory_bytes: Option<u64>,
    /// Whether it waits to be written, so that its contents must stay in memory.
    is_pending: bool,
}

impl Chunk {
    /// Its record.
    pub fn record(&self) -> &ChunkRecord {
        &self.record
    }

    /// Its key.
    pub fn key(&self) -> ChunkKey {
        self.record.key
    }

    /// Whether it has a file.
    pub fn is_on_disk(&self) -> bool {
        self.record.file.is_some()
    }

    /// Whether its contents are in memory.
    pub fn is_in_memory(&self) -> bool {
        self.memory_bytes.is_some()
    }

    /// The length of its file, or of its contents while there is no file.
    pub fn num_bytes(&self) -> u64 {
        self.record.file.as_ref().map_or(self.memory_bytes.unwrap_or(0), |file| file.num_bytes)
    }

    fn rank(&self) -> Rank {
        (self.record.last_used_at_ms, Reverse(self.record.start), self.record.key)
    }
}

/// The order of eviction: the least recently used first, among equals the deepest, because more
/// conversations share beginnings.
type Rank = (i64, Reverse<usize>, ChunkKey);

/// The chunks that continue one chunk. Sorted by all of their tokens: ten thousand conversations may
/// continue one system prompt, and a template begins each of their questions alike.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Children {
    known: BTreeMap<Arc<[u32]>, ChunkKey>,
    /// By their number of tokens.
    opaque: BTreeMap<usize, ChunkKey>,
}

impl Children {
    fn insert(&mut self, record: &ChunkRecord) {
        match &record.tokens {
            Tokens::Known(ids) => self.known.insert(Arc::clone(ids), record.key),
            Tokens::Opaque { count } => self.opaque.insert(*count, record.key),
        };
    }

    fn remove(&mut self, record: &ChunkRecord) {
        match &record.tokens {
            Tokens::Known(ids) => self.known.remove(ids),
            Tokens::Opaque { count } => self.opaque.remove(count),
        };
    }

    fn is_empty(&self) -> bool {
        self.known.is_empty() && self.opaque.is_empty()
    }

    fn keys(&self) -> impl Iterator<Item = &ChunkKey> {
        self.known.values().chain(self.opaque.values())
    }
}

impl ChunkIndex {
    /// Builds the index from rows. Returns besides the records that it cannot take: those that
    /// contradict themselves, and those whose parents are missing. Their files may be intact. The
    /// references to them wait for [`ChunkIndex::resolve_refs`].
    pub fn new(
        budgets: Budgets,
        records: Vec<ChunkRecord>,
        refs: Vec<CacheRef>,
    ) -> (Self, Vec<ChunkRecord>) {
        let mut index = ChunkIndex {
            chunks: HashMap::with_capacity(records.len()),
            children: HashMap::with_capacity(records.len()),
            leaves: Default::default(),
            in_memory: BTreeSet::new(),
            refs: BTreeMap::new(),
            refs_through: HashMap::new(),
            changed_refs: BTreeSet::new(),
            removed_refs: HashSet::new(),
            unresolved_refs: BTreeMap::new(),
            disk_bytes: 0,
            memory_bytes: 0,
            resident: HashSet::new(),
            resident_bytes: 0,
            budgets,
            last_use_ms: 0,
        };
        let rejected = index.fill(records);
        for cache_ref in refs {
            if cache_ref.target.is_none_or(|key| index.contains(&key)) {
                // Without a missing target no time is noted.
                index.put_stored_ref(cache_ref, 0);
            } else {
                index.unresolved_refs.insert(cache_ref.name.clone(), cache_ref);
            }
        }
        (index, rejected)
    }

    /// Adds all records at once, which is faster than one by one.
    fn fill(&mut self, records: Vec<ChunkRecord>) -> Vec<ChunkRecord> {
        let mut rejected = Vec::new();
        for record in records {
            if record.file.is_none() || record.contradiction().is_some() {
                rejected.push(record);
                continue;
            }
            self.children.entry(record.parent_or_root()).or_default().insert(&record);
            let chunk = Chunk { memory_bytes: None, is_pending: false, record };
            self.chunks.insert(chunk.key(), chunk);
        }
        let orphans = self.take_orphans();
        for chunk in self.chunks.values() {
            self.disk_bytes += chunk.num_bytes();
            self.last_use_ms = self.last_use_ms.max(chunk.record.last_used_at_ms);
            if !self.children.contains_key(&chunk.key()) {
                self.leaves[chunk.record.kind as usize].insert(chunk.rank());
            }
        }
        rejected.extend(orphans);
        rejected
    }

    /// Takes out the chunks that no chain of parents in their namespace connects to a prompt's first
    /// token. Only a root's key depends on the namespace: a row further on may name another one, and
    /// so another folder.
    fn take_orphans(&mut self) -> Vec<ChunkRecord> {
        let mut reached: HashSet<ChunkKey> = HashSet::with_capacity(self.chunks.len());
        let mut pending: Vec<&Chunk> = self.roots().collect();
        while let Some(parent) = pending.pop() {
            let children = self.children_of(&parent.key());
            pending.extend(children.filter(|child| continues(&parent.record, &child.record)));
            reached.insert(parent.key());
        }
        if reached.len() == self.chunks.len() {
            return Vec::new();
        }
        let unreached = self.chunks.extract_if(|key, _| !reached.contains(key));
        let orphans: Vec<ChunkRecord> = unreached.map(|(_, chunk)| chunk.record).collect();
        for record in &orphans {
            self.remove_child(record);
        }
        orphans
    }

    /// Removes a chunk from its parent's children; returns whether none is left.
    fn remove_child(&mut self, record: &ChunkRecord) -> bool {
        let parent = record.parent_or_root();
        let Some(siblings) = self.children.get_mut(&parent) else { return false };
        siblings.remove(record);
        let is_last = siblings.is_empty();
        if is_last {
            self.children.remove(&parent);
        }
        is_last
    }

    /// The chunk of this key.
    pub fn get(&self, key: &ChunkKey) -> Option<&Chunk> {
        self.chunks.get(key)
    }

    /// Whether there is a chunk of this key.
    pub fn contains(&self, key: &ChunkKey) -> bool {
        self.chunks.contains_key(key)
    }

    /// Whether the chunk of this key has a file.
    pub fn is_on_disk(&self, key: &ChunkKey) -> bool {
        self.chunks.get(key).is_some_and(Chunk::is_on_disk)
    }

    /// All chunks, in no order.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.values()
    }

    /// How many chunks there are.
    pub fn num_chunks(&self) -> usize {
        self.chunks.len()
    }

    /// The chunks that begin a prompt, in no order.
    pub fn roots(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.values().filter(|chunk| chunk.record.parent.is_none())
    }

    /// The chunks that continue the one of this key.
    pub fn children_of(&self, key: &ChunkKey) -> impl Iterator<Item = &Chunk> + use<'_> {
        let children = self.children.get(key).into_iter().flat_map(Children::keys);
        children.filter_map(|key| self.chunks.get(key))
    }

    /// The chunks from a prompt's first token to the chunk of this key.
    pub fn path(&self, key: &ChunkKey) -> Vec<&Chunk> {
        let mut path = Vec::new();
        let mut next = Some(*key);
        while let Some(chunk) = next.and_then(|key| self.chunks.get(&key)) {
            path.push(chunk);
            next = chunk.record.parent;
        }
        path.reverse();
        path
    }

    /// Bytes of all files.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// Bytes that count against the memory budget.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes + self.resident_bytes
    }

    /// Bytes of the contents in memory.
    pub fn contents_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Whether the keys and values of a chunk are in memory: as contents, or in a resident
    /// conversation.
    pub fn is_in_memory(&self, key: &ChunkKey) -> bool {
        self.resident.contains(key) || self.get(key).is_some_and(Chunk::is_in_memory)
    }

    /// The budgets.
    pub fn budgets(&self) -> Budgets {
        self.budgets
    }

    /// Changes the budgets. They hold after [`ChunkIndex::enforce_disk_budget`] and
    /// [`ChunkIndex::enforce_memory_budget`].
    pub fn set_budgets(&mut self, budgets: Budgets) {
        self.budgets = budgets;
    }

    /// Says how many bytes of the memory budget others use.
    pub fn set_resident_bytes(&mut self, bytes: u64) {
        self.resident_bytes = bytes;
    }

    /// Adds a chunk that was just computed, with this many bytes of contents in memory. False if it
    /// is there already, or if its parent has been evicted since the plan was made: then nothing
    /// could reach it.
    pub fn insert(&mut self, record: ChunkRecord, memory_bytes: u64) -> bool {
        let record = ChunkRecord { file: None, ..record };
        let has_parent = record.parent.is_none_or(|parent| self.contains(&parent));
        if self.contains(&record.key) || !has_parent {
            return false;
        }
        self.add(Chunk { record, memory_bytes: Some(memory_bytes), is_pending: false });
        true
    }

    /// Adds a chunk from a row or file that another process wrote. False if it is there already,
    /// contradicts itself, or continues nothing that is on disk.
    pub fn adopt(&mut self, record: ChunkRecord) -> bool {
        let parent = record.parent.map(|parent| self.get(&parent));
        let has_parent = parent.is_none_or(|parent| {
            parent.is_some_and(|parent| parent.is_on_disk() && continues(&parent.record, &record))
        });
        let is_sound = record.file.is_some() && record.contradiction().is_none();
        if self.contains(&record.key) || !has_parent || !is_sound {
            return false;
        }
        self.add(Chunk { record, memory_bytes: None, is_pending: false });
        true
    }

    fn add(&mut self, chunk: Chunk) {
        if let Some(parent) = chunk.record.parent.and_then(|parent| self.chunks.get(&parent)) {
            self.leaves[parent.record.kind as usize].remove(&parent.rank());
        }
        self.children.entry(chunk.record.parent_or_root()).or_default().insert(&chunk.record);
        self.leaves[chunk.record.kind as usize].insert(chunk.rank());
        if let Some(bytes) = chunk.memory_bytes {
            self.memory_bytes += bytes;
            self.in_memory.insert(chunk.rank());
        }
        self.disk_bytes += chunk.record.num_file_bytes();
        self.chunks.insert(chunk.key(), chunk);
    }

    /// Marks a chunk as waiting to be written, or as no longer waiting.
    pub fn set_pending(&mut self, key: &ChunkKey, is_pending: bool) {
        if let Some(chunk) = self.chunks.get_mut(key) {
            chunk.is_pending = is_pending;
        }
    }

    /// Records that a chunk was written; its contents leave memory if a resident conversation holds
    /// them too. No change if it has been removed meanwhile: then its file must go.
    pub fn written(&mut self, key: &ChunkKey, file: ChunkFile) -> Vec<CacheChange> {
        let Some(chunk) = self.chunks.get_mut(key) else { return Vec::new() };
        chunk.is_pending = false;
        if chunk.record.file.is_none() {
            self.disk_bytes += file.num_bytes;
            chunk.record.file = Some(file);
        }
        let mut changes = vec![CacheChange::Written(chunk.record.clone())];
        if self.resident.contains(key) {
            self.drop_contents(key);
        }
        self.mark_refs_at(key);
        changes.extend(self.take_changed_refs());
        changes
    }

    /// The time to record for a use at `now_ms` of the wall clock. It is later than that of every
    /// earlier use, so that the order of eviction holds when the wall clock is set back.
    pub fn next_use_ms(&mut self, now_ms: i64) -> i64 {
        self.last_use_ms = now_ms.max(self.last_use_ms.saturating_add(1));
        self.last_use_ms
    }

    /// Records that a prompt continued from chunks.
    pub fn used(&mut self, keys: Vec<ChunkKey>, now_ms: i64) -> CacheChange {
        let at_ms = self.next_use_ms(now_ms);
        for key in &keys {
            self.set_last_use(key, at_ms, 1);
        }
        CacheChange::Used { keys, at_ms }
    }

    /// Records that another process used a chunk.
    pub fn used_by_another(&mut self, key: &ChunkKey, at_ms: i64) {
        if self.get(key).is_some_and(|chunk| chunk.record.last_used_at_ms < at_ms) {
            self.set_last_use(key, at_ms, 1);
        }
    }

    fn set_last_use(&mut self, key: &ChunkKey, at_ms: i64, num_hits: u64) {
        let Some(chunk) = self.chunks.get_mut(key) else { return };
        let before = chunk.rank();
        chunk.record.last_used_at_ms = at_ms;
        chunk.record.hits = chunk.record.hits.saturating_add(num_hits);
        for ranks in [&mut self.leaves[chunk.record.kind as usize], &mut self.in_memory] {
            if ranks.remove(&before) {
                ranks.insert(chunk.rank());
            }
        }
    }

    /// What a call changed: the chunks that it removed, and the references.
    fn changes(&mut self, removed: Vec<ChunkRecord>, reason: LossReason) -> Vec<CacheChange> {
        let removed =
            (!removed.is_empty()).then_some(CacheChange::Removed { chunks: removed, reason });
        removed.into_iter().chain(self.take_changed_refs()).collect()
    }
}

/// Whether a chunk may be the child of another.
fn continues(parent: &ChunkRecord, child: &ChunkRecord) -> bool {
    child.start == parent.stop() && child.namespace == parent.namespace
}
