//! The prompt cache as the window and the command line see it: the tree of chunks, the references
//! to them, and the use of the budgets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use cairn_prompt_cache::{
    CacheChange, CacheRef, Chunk, ChunkIndex, ChunkKey, ChunkKind, ChunkRecord, LossReason,
    ModelFingerprint, Owner, PromptTokens, RefUsage,
};
use tokio::sync::oneshot;

use super::chunk_file::{self, FileCoding};
use super::save_permit::SavePermit;
use super::state::{CacheFigures, SharedCacheState};
use super::unix_time::now_ms;
use super::write_job::{Repaired, WriteJob};

/// A path of chunks of one kind that are each the only child of the one before, with references
/// only at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheNode {
    /// The key of its last chunk.
    pub key: ChunkKey,
    /// The node that it continues.
    pub parent_key: Option<ChunkKey>,
    /// The model's fingerprint.
    pub fingerprint: ModelFingerprint,
    /// Position of its first token.
    pub start: usize,
    /// How many tokens it has.
    pub num_tokens: usize,
    /// The ids of its tokens; none where an imported file did not name them.
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
    pub owners: Vec<Owner>,
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
    pub models: BTreeMap<ModelFingerprint, String>,
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
        let model = |cache_ref: &CacheRef| {
            (cache_ref.namespace.model.clone(), cache_ref.model_name.clone())
        };
        let budgets = index.budgets();
        CacheView {
            models: index.refs().map(model).collect(),
            disk: (index.disk_bytes(), budgets.disk_bytes),
            memory: (index.memory_bytes(), budgets.memory_bytes),
            num_chunks: index.num_chunks(),
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
    pub fn ref_usage(&self, owner: &Owner) -> Option<RefUsage> {
        self.0.lock().index.ref_usage(owner)
    }

    /// The tokens that a reference covers, as far as they are stored; zeros stand for opaque ones.
    pub fn tokens(&self, owner: &Owner) -> Vec<u32> {
        self.path(owner).into_iter().flat_map(|record| record.tokens.stored_ids()).collect()
    }

    /// The chunks that a reference covers, from the root on.
    pub fn path(&self, owner: &Owner) -> Vec<ChunkRecord> {
        let state = self.0.lock();
        let target = state.index.ref_of(owner).and_then(|cache_ref| cache_ref.target);
        let path = target.map_or(Vec::new(), |key| state.index.path(&key));
        path.into_iter().map(|chunk| chunk.record().clone()).collect()
    }

    /// Sets `owner`'s reference to the same chunk as `other`'s; false if `other` refers to no
    /// chunk.
    pub fn copy_ref(&self, other: &Owner, owner: &Owner, is_pinned: bool) -> bool {
        let mut state = self.0.lock();
        let other = state.index.ref_of(other).filter(|cache_ref| cache_ref.target.is_some());
        let Some(other) = other.cloned() else { return false };
        let name = owner.clone().into();
        let changes = state.index.set_ref(CacheRef { name, is_pinned, loss: None, ..other });
        state.apply(changes);
        true
    }

    /// Moves `owner`'s reference to what is stored of a branch of the conversation `of`, which is the
    /// owner itself or the one that it was copied from; see [`ChunkIndex::point_ref`].
    pub fn point_ref(&self, owner: &Owner, of: &Owner, tokens: &PromptTokens) {
        let mut state = self.0.lock();
        let changes = state.index.point_ref(owner, of, tokens);
        state.apply(changes);
    }

    /// Pins a reference, so that its chunks are never evicted, or unpins it.
    pub fn pin(&self, owner: &Owner, is_pinned: bool) {
        let mut state = self.0.lock();
        let changes = state.index.pin(owner, is_pinned);
        state.apply(changes);
    }

    /// Says how chunks are written from now on. Files that are there stay as they are.
    pub fn set_file_coding(&self, coding: FileCoding) {
        self.0.lock().coding = coding;
    }

    /// Removes a reference; its chunks stay until they are evicted.
    pub fn remove_ref(&self, owner: &Owner) {
        let mut state = self.0.lock();
        let changes = state.index.remove_refs_of(owner);
        state.apply(changes);
    }

    /// The permit to save what a request of `owner` computes, which has just been asked.
    pub(crate) fn permit_for(&self, owner: Option<&Owner>) -> Arc<SavePermit> {
        let permit = Arc::new(SavePermit::new(owner.cloned()));
        let mut state = self.0.lock();
        state.permits.retain(|other| other.strong_count() > 0);
        state.permits.push(Arc::downgrade(&permit));
        permit
    }

    /// Removes the chunks that only `owner` refers to, now or earlier; what waits, runs or is not saved
    /// yet for it saves nothing more. Returns the bytes of their files.
    pub fn purge(&self, owner: &Owner) -> u64 {
        self.0.lock().revoke_permits(|other| other == Some(owner));
        self.discard(|index| index.purge(owner, now_ms()))
    }

    /// Removes the chunks that only `owner` refers to, and its reference; returns their bytes.
    pub fn release(&self, owner: &Owner) -> u64 {
        let bytes = self.purge(owner);
        self.remove_ref(owner);
        bytes
    }

    /// Removes the node with this [`CacheNode::key`] and its descendants; returns their bytes, none
    /// if there is no such node.
    pub fn remove(&self, key: &ChunkKey) -> Option<u64> {
        self.0.lock().index.get(key)?;
        Some(self.discard(|index| index.remove(key, LossReason::Deleted, now_ms())))
    }

    /// Adopts the changes that another program made to the same folder: chunks and references that
    /// it added, and chunks that it removed, which have neither a row nor a file any more.
    pub fn adopt(&self, mut chunks: Vec<ChunkRecord>, refs: Vec<CacheRef>) {
        let mut state = self.0.lock();
        let known: HashSet<ChunkKey> = chunks.iter().map(|record| record.key).collect();
        let file = |record: &ChunkRecord| {
            chunk_file::path(&state.folder, &record.namespace.model, &record.key)
        };
        let is_gone = |chunk: &&Chunk| {
            chunk.is_on_disk()
                && !known.contains(&chunk.key())
                && !may_be_there(&file(chunk.record()))
        };
        let gone: Vec<ChunkKey> = state.index.chunks().filter(is_gone).map(Chunk::key).collect();
        for key in gone {
            state.forget(&key, LossReason::RemovedByAnotherProgram);
        }
        // Parents first. A chunk whose file was removed after the rows were read is skipped, and so
        // are its descendants.
        chunks.sort_by_key(|record| record.start);
        for record in chunks {
            let path = chunk_file::path(&state.folder, &record.namespace.model, &record.key);
            let is_new = !state.index.contains(&record.key) && !state.is_doomed(&record.key);
            if is_new && may_be_there(&path) {
                state.index.adopt(record);
            }
        }
        for cache_ref in refs {
            let changes = state.index.adopt_ref(cache_ref, now_ms());
            state.apply(changes);
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
            refs.iter().for_each(|cache_ref| state.index.forget_ref(&cache_ref.name));
            for record in &chunks {
                state.index.used_by_another(&record.key, record.last_used_at_ms);
            }
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

    /// Reads every chunk file: rebuilds the records of those that have none or a wrong one, and
    /// removes Cairn's own files that are damaged or have no parent, with their records. None once
    /// the engine has shut down.
    pub async fn repair(&self) -> Option<Repaired> {
        let (reply, answer) = oneshot::channel();
        if !self.0.lock().send(WriteJob::Repair(reply)) {
            return None;
        }
        answer.await.ok()
    }

    /// Removes every chunk that no pinned reference needs; what waits, runs or is not saved yet for
    /// other owners than those saves nothing more. Returns the bytes of their files.
    pub fn clear(&self) -> u64 {
        {
            let state = self.0.lock();
            let is_pinned = |owner: &Owner| state.index.is_ref_pinned(owner);
            state.revoke_permits(|owner| !owner.is_some_and(is_pinned));
        }
        self.discard(|index| index.clear(now_ms()))
    }

    /// Discards the chunks that `remove` takes from the index; returns the bytes of their files.
    fn discard(&self, remove: impl FnOnce(&mut ChunkIndex) -> Vec<CacheChange>) -> u64 {
        let mut state = self.0.lock();
        let changes = remove(&mut state.index);
        let removed = changes.iter().flat_map(|change| match change {
            CacheChange::Removed { chunks, .. } => chunks.as_slice(),
            _ => &[],
        });
        let bytes = removed.map(ChunkRecord::num_file_bytes).sum();
        state.apply(changes);
        drop(state);
        self.0.publish();
        bytes
    }
}

/// Whether there is a file, or the system cannot tell now.
fn may_be_there(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// The first `max_nodes` nodes, depth first, and the number of the others.
fn nodes(index: &ChunkIndex, max_nodes: usize) -> (Vec<CacheNode>, usize) {
    let mut refs: BTreeMap<ChunkKey, Vec<&CacheRef>> = BTreeMap::new();
    for cache_ref in index.refs() {
        if let Some(key) = cache_ref.target {
            refs.entry(key).or_default().push(cache_ref);
        }
    }
    let by_use = |chunk: &&Chunk| (chunk.record().last_used_at_ms, Reverse(chunk.key()));
    let mut roots: Vec<&Chunk> = index.roots().collect();
    roots.sort_by_key(by_use);
    // A stack: the last is visited first.
    let mut pending: Vec<(&Chunk, Option<ChunkKey>)> =
        roots.into_iter().map(|root| (root, None)).collect();
    let (mut nodes, mut num_hidden) = (Vec::new(), 0);
    while let Some((first, parent_key)) = pending.pop() {
        // Hidden nodes are not copied, because the engine's thread waits for this lock.
        let is_shown = nodes.len() < max_nodes;
        let path = only_children(index, &refs, first);
        let last = path.last().map_or(first, |last| *last);
        let mut children: Vec<&Chunk> = index.children_of(&last.key()).collect();
        children.sort_by_key(by_use);
        pending.extend(children.into_iter().map(|child| (child, Some(last.key()))));
        if is_shown {
            let refs = refs.get(&last.key()).map_or(&[][..], Vec::as_slice);
            nodes.push(node(index, &path, parent_key, refs));
        } else {
            num_hidden += 1;
        }
    }
    (nodes, num_hidden)
}

/// `first`, and the chunks after it as long as each is an only child of the same kind and no
/// reference ends before it.
fn only_children<'a>(
    index: &'a ChunkIndex,
    refs: &BTreeMap<ChunkKey, Vec<&CacheRef>>,
    first: &'a Chunk,
) -> Vec<&'a Chunk> {
    let mut path = vec![first];
    let mut last = first;
    while !refs.contains_key(&last.key()) {
        let mut children = index.children_of(&last.key());
        match (children.next(), children.next()) {
            (Some(only), None) if only.record().kind == first.record().kind => last = only,
            _ => break,
        }
        path.push(last);
    }
    path
}

/// The node of a path, with the references at its end.
fn node(
    index: &ChunkIndex,
    path: &[&Chunk],
    parent_key: Option<ChunkKey>,
    refs: &[&CacheRef],
) -> CacheNode {
    let (first, last) = (path[0].record(), path[path.len() - 1].record());
    let mut owners: Vec<Owner> = refs.iter().map(|cache_ref| cache_ref.owner().clone()).collect();
    owners.dedup();
    let token_ids = path.iter().flat_map(|chunk| chunk.record().tokens.known_ids());
    CacheNode {
        key: last.key,
        parent_key,
        fingerprint: first.namespace.model.clone(),
        start: first.start,
        num_tokens: last.stop() - first.start,
        token_ids: token_ids.copied().collect(),
        bytes: path.iter().map(|chunk| chunk.num_bytes()).sum(),
        kind: first.kind,
        is_in_memory: path.iter().all(|chunk| index.is_in_memory(&chunk.key())),
        hits: last.hits,
        last_used_at_ms: last.last_used_at_ms,
        owners,
        is_pinned: refs.iter().any(|cache_ref| cache_ref.is_pinned),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::sync::mpsc as std_mpsc;

    use cairn_prompt_cache::{ChunkFile, KvFormat, Namespace, Tokens};
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::EngineStatus;
    use crate::prompt_cache::writer::Writer;
    use crate::prompt_cache::{CacheOptions, StoredCache};

    const MODEL: &str = "0123456789abcdef0123456789abcdef";

    fn record() -> ChunkRecord {
        record_of([5, 6, 7])
    }

    fn record_of(tokens: [u32; 3]) -> ChunkRecord {
        let mut record = ChunkRecord {
            key: ChunkKey::from_bytes([0; 16]),
            parent: None,
            namespace: Namespace::computed(MODEL, KvFormat::Plain),
            kind: ChunkKind::User,
            start: 0,
            tokens: Tokens::known(tokens),
            held_from: 0,
            has_state: false,
            file: Some(ChunkFile { num_bytes: 1, hash: "0f".repeat(32).into() }),
            hits: 0,
            created_at_ms: 0,
            last_used_at_ms: 0,
        };
        record.key = record.expected_key();
        record
    }

    fn options(folder: &Path, chunks: Vec<ChunkRecord>) -> CacheOptions {
        CacheOptions {
            folder: folder.to_owned(),
            old_folders: Vec::new(),
            disk_budget_bytes: 1 << 30,
            memory_budget_bytes: 1 << 30,
            chunks,
            refs: Vec::new(),
            cleanup_lock: None,
        }
    }

    /// How many of `known` are left when another program's rows are `rows`, where the model's folder
    /// is what `make_folder` makes.
    fn num_left(
        known: Vec<ChunkRecord>,
        rows: Vec<ChunkRecord>,
        make_folder: impl Fn(&Path),
    ) -> usize {
        let folder = tempfile::tempdir().unwrap();
        make_folder(&folder.path().join(MODEL));
        let (events, _) = mpsc::unbounded_channel();
        let (status, _) = watch::channel(EngineStatus::default());
        let cache = StoredCache::open(Some(options(folder.path(), known)), events, status);
        let handle = cache.handle().unwrap();
        handle.adopt(rows, Vec::new());
        let num_left = handle.view(10).num_chunks;
        cache.0.unwrap().writer.close();
        num_left
    }

    #[test]
    fn a_file_that_cannot_be_looked_at_counts_as_there() {
        let without_file = |path: &Path| std::fs::create_dir(path).unwrap();
        // Nothing in it can be looked at, and that says nothing about what is in it.
        let unreadable = |path: &Path| std::os::unix::fs::symlink(path, path).unwrap();
        assert_eq!(num_left(vec![record()], vec![], without_file), 0);
        assert_eq!(num_left(vec![record()], vec![], unreadable), 1);
        assert_eq!(num_left(vec![], vec![record()], without_file), 0);
        assert_eq!(num_left(vec![], vec![record()], unreadable), 1);
    }

    /// Whoever clears the cache holds its lock and may be an async worker: neither waits for
    /// thousands of files. A row stays until its file is gone.
    #[test]
    fn clearing_leaves_files_and_then_their_rows_to_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let records: Vec<ChunkRecord> = (0..100).map(|token| record_of([token, 6, 7])).collect();
        let path = |record: &ChunkRecord| {
            chunk_file::path(folder.path(), &record.namespace.model, &record.key)
        };
        std::fs::create_dir(folder.path().join(MODEL)).unwrap();
        records.iter().for_each(|record| std::fs::write(path(record), b"x").unwrap());
        let num_files = || records.iter().filter(|record| path(record).exists()).count();
        let (events, mut changes) = mpsc::unbounded_channel();
        let (status, _) = watch::channel(EngineStatus::default());
        let (jobs, receiver) = std_mpsc::channel();
        let options = options(folder.path(), records.clone());
        let state = SharedCacheState::new(options, events, status, jobs.clone());

        // The writer is busy: it has not even started.
        let handle = CacheHandle::new(state.clone());
        assert_eq!(handle.clear(), 100);
        assert_eq!(handle.view(10).num_chunks, 0);
        assert_eq!(num_files(), 100);
        assert!(changes.try_recv().is_err(), "a row is removed before its file");

        Writer::start(state, (jobs, receiver), None, Vec::new()).close();
        assert_eq!(num_files(), 0);
        let removed = std::iter::from_fn(|| changes.try_recv().ok()).map(|change| match change {
            CacheChange::Removed { chunks, .. } => chunks.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(removed.sum::<usize>(), 100);
    }
}
