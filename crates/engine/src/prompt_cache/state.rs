//! The state of the prompt cache: the index, and the chunk contents in memory. Shared by the
//! engine's thread, which looks up and adds chunks, the writer thread, and [`super::view`].

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak, mpsc as std_mpsc};

use cairn_prompt_cache::{
    Budgets, CacheChange, Chunk, ChunkFile, ChunkIndex, ChunkKey, ChunkRecord, LossReason,
    MemoryChanges, Owner,
};
use tokio::sync::{mpsc, watch};

use super::chunk_file::{self, ChunkContents, FileCoding};
use super::options::CacheOptions;
use super::restore::Source;
use super::save_permit::SavePermit;
use super::unix_time::now_ms;
use super::write_job::WriteJob;
use crate::EngineStatus;

/// The index, the contents in memory, and the figures of use.
///
/// - `contents` has an entry exactly for the chunks that the index says are in memory.
/// - The bytes of a file leave the budget when its chunk leaves the index. The writer removes such
///   files before it writes another, so that the budget holds on the disk too.
#[derive(Debug)]
pub(super) struct CacheState {
    pub(super) folder: PathBuf,
    /// How chunks are written from now on.
    pub(super) coding: FileCoding,
    pub(super) index: ChunkIndex,
    pub(super) contents: HashMap<ChunkKey, Arc<ChunkContents>>,
    /// Bytes of chunks that wait to be written.
    pub(super) pending_bytes: u64,
    /// Chunks that were removed from the index and whose files are not removed yet.
    pub(super) doomed: Vec<Doomed>,
    /// Rows that the index rejected. Their files may be intact.
    pub(super) rejected: Vec<ChunkRecord>,
    /// The reason why recent chunks could not be written, if any.
    pub(super) problem: Option<String>,
    /// The permits that purges may revoke.
    pub(super) permits: Vec<Weak<SavePermit>>,
    pub(super) figures: CacheFigures,
    /// None once the engine has shut down, because the receiver waits for the end of the events.
    events: Option<mpsc::UnboundedSender<CacheChange>>,
    jobs: std_mpsc::Sender<WriteJob>,
}

/// Files to remove together, with the reason.
#[derive(Debug)]
pub(super) struct Doomed {
    pub(super) files: Vec<ChunkRecord>,
    pub(super) reason: LossReason,
}

/// Counters of the prompt cache's use since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheFigures {
    /// Prompts that were looked up.
    pub num_lookups: u64,
    /// Chunks that were copied into caches. Prompts that begin alike and come together share one
    /// copy.
    pub num_restored_chunks: u64,
}

/// The cache state behind its lock, with the channels that report its changes.
#[derive(Debug, Clone)]
pub(super) struct SharedCacheState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<CacheState>,
    /// Notified when the writer has finished a chunk.
    written: Condvar,
    /// Publishes the bytes on disk and in memory.
    status: watch::Sender<EngineStatus>,
}

impl SharedCacheState {
    pub(super) fn new(
        options: CacheOptions,
        events: mpsc::UnboundedSender<CacheChange>,
        status: watch::Sender<EngineStatus>,
        jobs: std_mpsc::Sender<WriteJob>,
    ) -> Self {
        let budgets = Budgets {
            disk_bytes: options.disk_budget_bytes,
            memory_bytes: options.memory_budget_bytes,
        };
        let (index, rejected) = ChunkIndex::new(budgets, options.chunks, options.refs);
        let state = CacheState {
            folder: options.folder,
            coding: FileCoding::default(),
            index,
            contents: HashMap::new(),
            pending_bytes: 0,
            doomed: Vec::new(),
            rejected,
            problem: None,
            permits: Vec::new(),
            figures: CacheFigures::default(),
            events: Some(events),
            jobs,
        };
        SharedCacheState(Arc::new(Shared {
            state: Mutex::new(state),
            written: Condvar::new(),
            status,
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CacheState> {
        // A panic while the lock was held leaves at worst a stale entry, which reads as a miss.
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Blocks until at most `bytes` wait to be written.
    pub(super) fn wait_until_pending_is_at_most(&self, bytes: u64) {
        let state = self.0.written.wait_while(self.lock(), |state| state.pending_bytes > bytes);
        drop(state.unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    /// Publishes the bytes on disk and in memory. The engine's thread does so with every answer,
    /// but other threads change them while it is idle.
    pub(super) fn publish(&self) {
        self.0.status.send_if_modified(|status| {
            // Read while no other thread can publish, so that an older figure never replaces a
            // newer one.
            let (disk, memory) = self.lock().bytes();
            let before = (
                std::mem::replace(&mut status.cache_disk_bytes, disk),
                std::mem::replace(&mut status.cache_memory_bytes, memory),
            );
            before != (disk, memory)
        });
    }

    /// Wakes the threads that wait for the writer.
    pub(super) fn notify_written(&self) {
        self.0.written.notify_all();
    }
}

impl CacheState {
    /// Sends a job to the writer; false if it has ended.
    pub(super) fn send(&self, job: WriteJob) -> bool {
        self.jobs.send(job).is_ok()
    }

    pub(super) fn emit(&mut self, change: CacheChange) {
        if let Some(events) = &self.events {
            let _ = events.send(change);
        }
    }

    /// Acts on what the index changed: drops the contents of removed chunks, leaves their files to
    /// the writer's thread, so that no other thread waits while thousands are removed, and emits
    /// the rest.
    pub(super) fn apply(&mut self, changes: Vec<CacheChange>) {
        for change in changes {
            match change {
                CacheChange::Removed { chunks, reason } => self.discard(chunks, reason),
                change => self.emit(change),
            }
        }
    }

    fn discard(&mut self, removed: Vec<ChunkRecord>, reason: LossReason) {
        for record in &removed {
            self.contents.remove(&record.key);
        }
        // A chunk that was never on disk has neither a file nor a row.
        let files: Vec<ChunkRecord> =
            removed.into_iter().filter(|record| record.file.is_some()).collect();
        if !files.is_empty() {
            self.doomed.push(Doomed { files, reason });
            let _ = self.jobs.send(WriteJob::RemoveFiles);
        }
    }

    /// Revokes the permits of the owners for whom `is_purged` holds.
    pub(super) fn revoke_permits(&self, is_purged: impl Fn(Option<&Owner>) -> bool) {
        let permits = self.permits.iter().filter_map(Weak::upgrade);
        permits.filter(|permit| is_purged(permit.owner())).for_each(|permit| permit.revoke());
    }

    /// Closes the channel of events.
    pub(super) fn end_events(&mut self) {
        self.events = None;
    }

    /// Records that chunks were used now.
    pub(super) fn used(&mut self, keys: Vec<ChunkKey>) {
        let change = self.index.used(keys, now_ms());
        self.emit(change);
    }

    /// A chunk to restore from, with its contents if they are in memory.
    pub(super) fn source(&self, record: ChunkRecord) -> Source {
        Source { contents: self.contents.get(&record.key).cloned(), record }
    }

    /// Adds a chunk with its contents; `is_pending` says that they wait to be written.
    pub(super) fn add(
        &mut self,
        record: ChunkRecord,
        contents: Arc<ChunkContents>,
        is_pending: bool,
    ) {
        let (key, bytes) = (record.key, contents.num_bytes());
        if !self.index.insert(record, bytes) {
            return;
        }
        self.contents.insert(key, contents);
        if is_pending {
            self.index.set_pending(&key, true);
            self.pending_bytes += bytes;
        }
    }

    /// Marks a chunk as no longer pending, whether it was written or not.
    pub(super) fn end_pending(&mut self, key: &ChunkKey, bytes: u64) {
        self.index.set_pending(key, false);
        self.pending_bytes -= bytes;
    }

    /// The paths of all doomed files.
    pub(super) fn doomed_paths(&self) -> Vec<PathBuf> {
        let files = self.doomed.iter().flat_map(|doomed| &doomed.files);
        // A chunk that was computed again meanwhile is written after these are removed.
        files
            .map(|record| chunk_file::path(&self.folder, &record.namespace.model, &record.key))
            .collect()
    }

    /// Reports the first `num_groups` of `doomed`, whose files have been removed.
    pub(super) fn emit_removed(&mut self, num_groups: usize) {
        let removed: Vec<Doomed> = self.doomed.drain(..num_groups).collect();
        for Doomed { files, reason } in removed {
            self.emit(CacheChange::Removed { chunks: files, reason });
        }
    }

    /// Whether the file of a chunk is about to be removed.
    pub(super) fn is_doomed(&self, key: &ChunkKey) -> bool {
        self.doomed.iter().flat_map(|doomed| &doomed.files).any(|record| record.key == *key)
    }

    /// Bytes on disk, and bytes in memory without the conversation that ran last.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.index.disk_bytes(), self.index.memory_bytes())
    }

    /// Evicts until both budgets hold, as far as pinned and pending chunks allow.
    pub(super) fn enforce_budgets(&mut self) {
        self.enforce_memory_budget();
        let changes = self.index.enforce_disk_budget(now_ms());
        self.apply(changes);
    }

    /// Evicts until the memory budget holds, as far as pending chunks allow.
    pub(super) fn enforce_memory_budget(&mut self) {
        let MemoryChanges { dropped, changes } = self.index.enforce_memory_budget(now_ms());
        for key in dropped {
            self.contents.remove(&key);
        }
        self.apply(changes);
    }

    /// Says which chunks' keys and values resident conversations hold. Their contents leave memory,
    /// or do so when they have been written.
    pub(super) fn set_resident(&mut self, resident: HashSet<ChunkKey>) {
        for key in self.index.set_resident(resident) {
            self.contents.remove(&key);
        }
    }

    /// Records that a chunk was written; false if it has been removed meanwhile.
    pub(super) fn written(&mut self, key: &ChunkKey, file: ChunkFile) -> bool {
        let changes = self.index.written(key, file);
        let is_known = !changes.is_empty();
        self.apply(changes);
        if !self.index.get(key).is_some_and(Chunk::is_in_memory) {
            self.contents.remove(key);
        }
        is_known
    }

    /// Drops the contents of chunks that are on disk too.
    pub(super) fn demote(&mut self) {
        for key in self.index.demote() {
            self.contents.remove(&key);
        }
    }

    /// Removes a chunk that cannot be used, and its descendants.
    pub(super) fn forget(&mut self, key: &ChunkKey, reason: LossReason) {
        let changes = self.index.remove(key, reason, now_ms());
        self.apply(changes);
    }
}
