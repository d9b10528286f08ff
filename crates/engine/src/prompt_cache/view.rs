//! The prompt cache as the window and the command line see it: the tree of chunks, the references
//! to them, and the use of the budgets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use tokio::sync::oneshot;

use super::chunk_file;
use super::eviction::{CLEARED, PURGED};
use super::index::{ChunkIndex, Entry, is_valid};
use super::now_ms;
use super::refs::{RefUsage, owner_of};
use super::state::{CacheFigures, SharedCacheState};
use super::writer::{Repaired, WriteJob};
use crate::records::{CacheRef, ChunkKind, ChunkRecord};

/// A path of chunks of one kind that are each the only child of the one before, with references
/// only at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheNode {
    /// The key of its last chunk.
    pub key: String,
    /// The node that it continues.
    pub parent_key: Option<String>,
    /// The model's fingerprint.
    pub fingerprint: String,
    /// Whether its token ids are unknown: the imported file did not name them.
    pub is_opaque: bool,
    /// Position of its first token.
    pub start: usize,
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// Bytes of its chunks.
    pub bytes: u64,
    /// The role of the message that its tokens belong to.
    pub kind: ChunkKind,
    /// Whether the contents of all its chunks are in memory.
    pub is_in_memory: bool,
    /// How often a prompt continued from its last chunk.
    pub hits: u64,
    /// When that was last, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
    /// Owners of the references at its end.
    pub owners: Vec<String>,
    /// Whether one of them is pinned.
    pub is_pinned: bool,
}

/// The whole prompt cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheView {
    /// Bytes on disk, and their budget.
    pub disk: (u64, u64),
    /// Bytes in memory without the conversation that ran last, and their budget.
    pub memory: (u64, u64),
    /// How many chunks there are.
    pub num_chunks: usize,
    /// Depth first; among siblings the one used last comes first.
    pub nodes: Vec<CacheNode>,
    /// The number of nodes beyond the limit, which are left out.
    pub num_hidden_nodes: usize,
    /// The names of the models that computed the chunks, by fingerprint.
    pub models: BTreeMap<String, String>,
    /// Counters of its use.
    pub figures: CacheFigures,
    /// The reason why recent chunks could not be written, if any.
    pub problem: Option<String>,
}

/// A handle for other threads, to look at the prompt cache and to pin, purge or remove parts of it
/// without waiting for the engine's thread.
#[derive(Debug, Clone)]
pub struct CacheHandle(SharedCacheState);

impl CacheHandle {
    pub(super) fn new(state: SharedCacheState) -> Self {
        CacheHandle(state)
    }

    /// The whole prompt cache, as at most `max_nodes` nodes.
    pub fn view(&self, max_nodes: usize) -> CacheView {
        let state = self.0.lock();
        let index = &state.index;
        let (nodes, num_hidden_nodes) = nodes(index, max_nodes);
        let model =
            |cache_ref: &CacheRef| (cache_ref.namespace.model.clone(), cache_ref.model.clone());
        CacheView {
            models: index.refs.values().map(model).collect(),
            disk: (index.disk.bytes, index.disk.budget),
            memory: (index.bytes_in_memory(), index.memory.budget),
            num_chunks: index.entries.len(),
            nodes,
            num_hidden_nodes,
            figures: state.figures,
            problem: state.problem.clone(),
        }
    }

    /// The reason why recent chunks could not be written, if any.
    pub fn problem(&self) -> Option<String> {
        self.0.lock().problem.clone()
    }

    /// The usage of every reference.
    pub fn ref_usages(&self) -> Vec<RefUsage> {
        self.0.lock().index.ref_usages()
    }

    /// The usage of one owner's reference; the cost does not grow with the number of references.
    pub fn ref_usage(&self, owner: &str) -> Option<RefUsage> {
        self.0.lock().index.ref_usage(owner)
    }

    /// The tokens that a reference covers, as far as they are stored.
    pub fn tokens(&self, owner: &str) -> Vec<u32> {
        self.path(owner).into_iter().flat_map(|record| record.token_ids).collect()
    }

    /// The chunks that a reference covers, from the root on.
    pub fn path(&self, owner: &str) -> Vec<ChunkRecord> {
        let state = self.0.lock();
        let key = state.index.refs.get(owner).and_then(|cache_ref| cache_ref.chunk_key.clone());
        key.map_or(Vec::new(), |key| {
            state.index.path(&key).into_iter().map(|entry| entry.record.clone()).collect()
        })
    }

    /// Sets `owner`'s reference to the same chunk as `other`'s; false if `other` refers to no
    /// chunk.
    pub fn copy_ref(&self, other: &str, owner: &str, is_pinned: bool) -> bool {
        let mut state = self.0.lock();
        let Some(cache_ref) =
            state.index.refs.get(other).filter(|cache_ref| cache_ref.chunk_key.is_some())
        else {
            return false;
        };
        let cache_ref =
            CacheRef { owner: owner.to_owned(), is_pinned, loss: None, ..cache_ref.clone() };
        state.index.set_ref(cache_ref);
        state.emit_refs();
        true
    }

    /// Pins a reference, so that its chunks are never evicted, or unpins it.
    pub fn pin(&self, owner: &str, is_pinned: bool) {
        let mut state = self.0.lock();
        state.index.pin(owner, is_pinned);
        state.emit_refs();
    }

    /// Removes a reference; its chunks stay until they are evicted.
    pub fn remove_ref(&self, owner: &str) {
        let mut state = self.0.lock();
        state
            .index
            .stale_refs_of(owner)
            .iter()
            .map(String::as_str)
            .chain([owner])
            .for_each(|owner| state.index.remove_ref(owner));
        state.emit_refs();
    }

    /// Removes the chunks that only `owner` refers to, now or earlier, with their files; returns
    /// their bytes.
    pub fn purge(&self, owner: &str) -> u64 {
        self.0.lock().purged.push(owner.to_owned());
        self.discard(PURGED, |index| index.purge(owner, now_ms()))
    }

    /// Removes the chunks that only `owner` refers to, and its reference; returns their bytes.
    pub fn release(&self, owner: &str) -> u64 {
        let bytes = self.purge(owner);
        self.remove_ref(owner);
        bytes
    }

    /// Removes the node with this [`CacheNode::key`] and its descendants; returns their bytes, none
    /// if there is no such node.
    pub fn remove(&self, key: &str) -> Option<u64> {
        self.0.lock().index.get(key)?;
        Some(self.discard(PURGED, |index| index.remove_with_descendants(key, PURGED, now_ms())))
    }

    /// Adopts the changes that another program made to the same folder: chunks and references that
    /// it added, and chunks that it removed, which have neither a row nor a file any more.
    pub fn adopt(&self, mut chunks: Vec<ChunkRecord>, refs: Vec<CacheRef>) {
        let mut state = self.0.lock();
        let known: HashSet<&str> = chunks.iter().map(|record| record.key.as_str()).collect();
        let is_gone = |record: &&ChunkRecord| {
            let path = || chunk_file::path(&state.folder, &record.namespace.model, &record.key);
            state.index.is_on_disk(&record.key)
                && !known.contains(record.key.as_str())
                && !path().exists()
        };
        let gone: Vec<String> =
            state.index.records().filter(is_gone).map(|record| record.key.clone()).collect();
        for key in gone {
            state.forget(&key, "removed by another program");
        }
        // Parents first. A chunk whose file was removed after the rows were read is skipped, and so
        // are its descendants.
        chunks.retain(|record| !state.index.contains(&record.key) && is_valid(record));
        chunks.sort_by_key(|record| record.start);
        for record in chunks {
            let path = || chunk_file::path(&state.folder, &record.namespace.model, &record.key);
            if !state.is_doomed(&record.key)
                && state.index.has_parent_on_disk(&record)
                && path().exists()
            {
                state.index.insert(record, None);
            }
        }
        for cache_ref in refs {
            if !state.index.refs.contains_key(&cache_ref.owner) {
                state.index.restore_ref(cache_ref);
            }
        }
        state.enforce_budgets();
        drop(state);
        self.0.publish();
    }

    /// As [`CacheHandle::adopt`], for a program that only reads: references, pins and times of use
    /// become those of the rows.
    pub fn adopt_all(&self, chunks: Vec<ChunkRecord>, refs: Vec<CacheRef>) {
        {
            let mut state = self.0.lock();
            refs.iter().for_each(|cache_ref| {
                state.index.unlink(&cache_ref.owner);
            });
            let is_newer = |record: &&ChunkRecord| {
                state
                    .index
                    .get(&record.key)
                    .is_some_and(|entry| entry.record.last_used_at_ms < record.last_used_at_ms)
            };
            let used: Vec<(String, i64)> = chunks
                .iter()
                .filter(is_newer)
                .map(|record| (record.key.clone(), record.last_used_at_ms))
                .collect();
            used.into_iter().for_each(|(key, at_ms)| state.index.touch(&[key], at_ms));
        }
        self.adopt(chunks, refs);
    }

    /// Waits until all queued chunks are written and all queued files are removed.
    pub async fn flush(&self) {
        let (reply, answer) = oneshot::channel();
        if self.0.lock().send(WriteJob::Flush(reply)) {
            let _ = answer.await;
        }
    }

    /// Rebuilds the records of chunk files that have none, and removes Cairn's own files that are
    /// damaged or have no parent. None once the engine has shut down.
    pub async fn repair(&self) -> Option<Repaired> {
        let (reply, answer) = oneshot::channel();
        if !self.0.lock().send(WriteJob::Repair(reply)) {
            return None;
        }
        answer.await.ok()
    }

    /// Removes every chunk that no pinned reference needs; returns their bytes.
    pub fn clear(&self) -> u64 {
        self.discard(CLEARED, |index| index.clear(now_ms()))
    }

    /// Discards the chunks that `remove` takes from the index; returns their bytes.
    fn discard(
        &self,
        reason: &str,
        remove: impl FnOnce(&mut ChunkIndex) -> Vec<ChunkRecord>,
    ) -> u64 {
        let mut state = self.0.lock();
        let removed = remove(&mut state.index);
        let bytes = removed.iter().map(|record| record.bytes).sum();
        state.discard(removed, reason);
        state.emit_refs();
        drop(state);
        self.0.publish();
        bytes
    }
}

/// The first `max_nodes` nodes, depth first, and the number of the others.
fn nodes(index: &ChunkIndex, max_nodes: usize) -> (Vec<CacheNode>, usize) {
    let mut refs_at: RefsByChunk<'_> = BTreeMap::new();
    for cache_ref in index.refs.values() {
        if let Some(key) = &cache_ref.chunk_key {
            refs_at.entry(key).or_default().push(cache_ref);
        }
    }
    let mut roots: Vec<&Entry> =
        index.entries.values().filter(|entry| entry.record.parent_key.is_none()).collect();
    roots.sort_by_key(by_use);
    // A stack: the last is visited first.
    let mut pending: Vec<(&Entry, Option<String>)> =
        roots.into_iter().map(|root| (root, None)).collect();
    let (mut nodes, mut num_hidden) = (Vec::new(), 0);
    while let Some((first, parent_key)) = pending.pop() {
        // Hidden nodes are not copied, because the engine's thread waits for this lock.
        let is_hidden = nodes.len() >= max_nodes;
        let (node, children) = node(index, &refs_at, first, parent_key, is_hidden);
        pending.extend(children.into_iter().map(|child| (child, Some(node.key.clone()))));
        match is_hidden {
            true => num_hidden += 1,
            false => nodes.push(node),
        }
    }
    (nodes, num_hidden)
}

/// References by the key of their chunk.
type RefsByChunk<'a> = BTreeMap<&'a str, Vec<&'a CacheRef>>;

/// The node that begins with the chunk `first`, and the chunks that continue it, the one used last
/// at the end. A hidden node lacks its tokens.
fn node<'a>(
    index: &'a ChunkIndex,
    refs_at: &RefsByChunk<'_>,
    first: &'a Entry,
    parent_key: Option<String>,
    is_hidden: bool,
) -> (CacheNode, Vec<&'a Entry>) {
    let mut node = CacheNode {
        key: first.record.key.clone(),
        parent_key,
        fingerprint: first.record.namespace.model.clone(),
        is_opaque: first.record.namespace.is_opaque(),
        start: first.record.start,
        token_ids: Vec::new(),
        bytes: 0,
        kind: first.record.kind,
        is_in_memory: true,
        hits: 0,
        last_used_at_ms: 0,
        owners: Vec::new(),
        is_pinned: false,
    };
    let mut entry = first;
    let mut children: Vec<&Entry>;
    loop {
        let record = &entry.record;
        if !is_hidden {
            node.token_ids.extend(&record.token_ids);
        }
        node.bytes += record.bytes;
        node.is_in_memory &= entry.memory_bytes.is_some();
        children = index.children_of(&record.key).collect();
        match children.as_slice() {
            [only]
                if only.record.kind == node.kind && !refs_at.contains_key(record.key.as_str()) =>
            {
                entry = only
            }
            _ => break,
        }
    }
    children.sort_by_key(by_use);
    let last = &entry.record;
    let refs = refs_at.get(last.key.as_str()).into_iter().flatten();
    node.key.clone_from(&last.key);
    (node.hits, node.last_used_at_ms) = (last.hits, last.last_used_at_ms);
    node.is_pinned = refs.clone().any(|cache_ref| cache_ref.is_pinned);
    node.owners = refs.map(|cache_ref| owner_of(&cache_ref.owner).to_owned()).collect();
    node.owners.dedup();
    (node, children)
}

/// Orders chunks by their last use, and those used at once by their keys.
fn by_use(entry: &&Entry) -> (i64, Reverse<String>) {
    (entry.record.last_used_at_ms, Reverse(entry.record.key.clone()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::path::Path;
    use std::sync::mpsc as std_mpsc;

    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::EngineStatus;
    use crate::records::{CacheOptions, KvFormat, Namespace};

    const MODEL: &str = "0123456789abcdef0123456789abcdef";

    fn handle(folder: &Path) -> CacheHandle {
        let options = CacheOptions {
            folder: folder.to_owned(),
            old_folders: Vec::new(),
            disk_budget_bytes: u64::MAX,
            memory_budget_bytes: 0,
            chunks: Vec::new(),
            refs: Vec::new(),
            cleanup_lock: None,
        };
        let (events, status) = (mpsc::unbounded_channel().0, watch::Sender::default());
        let _: &watch::Sender<EngineStatus> = &status;
        CacheHandle::new(SharedCacheState::new(options, events, status, std_mpsc::channel().0))
    }

    /// A row with a key that fits it, and a file of its name.
    fn row(
        folder: &Path,
        parent: Option<&ChunkRecord>,
        change: impl Fn(&mut ChunkRecord),
    ) -> ChunkRecord {
        let start = parent.map_or(0, ChunkRecord::stop);
        let mut row = ChunkRecord {
            key: String::new(),
            parent_key: parent.map(|parent| parent.key.clone()),
            namespace: Namespace::computed(MODEL, KvFormat::Plain),
            kind: ChunkKind::User,
            start,
            token_ids: vec![5, 6, 7],
            held_from: start,
            has_state: false,
            bytes: 100,
            file_hash: "0".repeat(64),
            hits: 0,
            last_used_at_ms: 0,
        };
        change(&mut row);
        row.key = row.expected_key();
        let path = chunk_file::path(folder, &row.namespace.model, &row.key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        row
    }

    #[test]
    fn rows_of_other_programs_are_adopted_only_where_they_continue_a_chunk_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let root = row(folder.path(), None, |_| {});
        let child = row(folder.path(), Some(&root), |_| {});
        let check = |rows: &[&ChunkRecord], expected: &[&ChunkRecord], case: &str| {
            let handle = handle(folder.path());
            handle.adopt(rows.iter().copied().cloned().collect(), Vec::new());
            let state = handle.0.lock();
            let mut found: Vec<&ChunkRecord> = state.index.records().collect();
            found.sort_by_key(|record| record.start);
            assert_eq!(found, expected, "{case}");
        };
        check(&[&child, &root], &[&root, &child], "in any order");
        check(&[&child], &[], "without its parent");
        let late_root = row(folder.path(), None, |row| (row.start, row.held_from) = (2, 2));
        check(&[&late_root], &[], "a root after the first token");
        for start in [2, 4] {
            let shifted = |row: &mut ChunkRecord| (row.start, row.held_from) = (start, start);
            let shifted = row(folder.path(), Some(&root), shifted);
            check(&[&root, &shifted], &[&root], "not where its parent ends");
        }
        let quantized = KvFormat::Quantized { bits: 8, group_size: 64 };
        let other = row(folder.path(), Some(&root), |row| row.namespace.kv_format = quantized);
        check(&[&root, &other], &[&root], "in another namespace than its parent");
    }
}
