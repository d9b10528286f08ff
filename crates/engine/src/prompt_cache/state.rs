//! The state of the prompt cache: the index, and the chunk contents in memory. Shared by the
//! engine's thread, which looks up and adds chunks, the writer thread, and [`super::view`].

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc as std_mpsc};

use tokio::sync::{mpsc, watch};

use super::chunk_file::{self, ChunkContents};
use super::index::{ChunkIndex, is_valid};
use super::now_ms;
use super::restore::Source;
use super::writer::WriteJob;
use crate::EngineStatus;
use crate::records::{CacheEvent, CacheOptions, ChunkRecord};

/// The index, the contents in memory, and the figures of use.
///
/// - `contents` has an entry exactly for the chunks that the index says are in memory.
/// - The bytes of a file leave the budget when its chunk leaves the index. The writer removes such
///   files before it writes another, so that the budget holds on the disk too.
#[derive(Debug)]
pub(super) struct CacheState {
    pub(super) folder: PathBuf,
    pub(super) index: ChunkIndex,
    pub(super) contents: HashMap<String, Arc<ChunkContents>>,
    /// Bytes of chunks that wait to be written.
    pub(super) pending_bytes: u64,
    /// Chunks that were removed from the index and whose files are not removed yet.
    pub(super) doomed: Vec<Doomed>,
    /// Rows that contradict themselves. Their files may be intact.
    pub(super) invalid: Vec<ChunkRecord>,
    /// The reason why recent chunks could not be written, if any.
    pub(super) problem: Option<String>,
    /// Owners that were purged, whose resident conversations the engine's thread has yet to drop.
    pub(super) purged: Vec<String>,
    pub(super) figures: CacheFigures,
    /// None once the engine has shut down, because the receiver waits for the end of the events.
    events: Option<mpsc::UnboundedSender<CacheEvent>>,
    jobs: std_mpsc::Sender<WriteJob>,
}

/// Files to remove together, with the reason.
#[derive(Debug)]
pub(super) struct Doomed {
    pub(super) files: Vec<ChunkRecord>,
    pub(super) reason: String,
}

/// Counters of the prompt cache's use since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheFigures {
    /// Prompts that were looked up.
    pub num_lookups: u64,
    /// The tokens of these prompts.
    pub num_prompt_tokens: u64,
    /// Tokens of these prompts that did not have to be computed.
    pub num_cached_tokens: u64,
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
        events: mpsc::UnboundedSender<CacheEvent>,
        status: watch::Sender<EngineStatus>,
        jobs: std_mpsc::Sender<WriteJob>,
    ) -> Self {
        let (chunks, invalid) = options.chunks.into_iter().partition(is_valid);
        let (disk_budget, memory_budget) = (options.disk_budget_bytes, options.memory_budget_bytes);
        let state = CacheState {
            folder: options.folder,
            index: ChunkIndex::new(disk_budget, memory_budget, chunks, options.refs),
            contents: HashMap::new(),
            pending_bytes: 0,
            doomed: Vec::new(),
            invalid,
            problem: None,
            purged: Vec::new(),
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

    pub(super) fn emit(&mut self, event: CacheEvent) {
        if let Some(events) = &self.events {
            let _ = events.send(event);
        }
    }

    /// Closes the channel of events.
    pub(super) fn end_events(&mut self) {
        self.events = None;
    }

    /// Sends an event for each reference that has changed.
    pub(super) fn emit_refs(&mut self) {
        for event in self.index.take_changed_refs() {
            self.emit(event);
        }
    }

    /// Records that chunks were used now.
    pub(super) fn touch(&mut self, keys: Vec<String>) {
        let at_ms = self.index.next_use_ms(now_ms());
        self.index.touch(&keys, at_ms);
        self.emit(CacheEvent::Touched { keys, at_ms });
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
        let (key, bytes) = (record.key.clone(), contents.num_bytes());
        self.index.insert(record, Some(bytes));
        self.contents.insert(key.clone(), contents);
        if is_pending {
            self.index.set_pending(&key, true);
            self.pending_bytes += bytes;
        }
    }

    /// Marks a chunk as no longer pending, whether it was written or not.
    pub(super) fn end_pending(&mut self, key: &str, bytes: u64) {
        self.index.set_pending(key, false);
        self.pending_bytes -= bytes;
    }

    /// Drops the contents of chunks that were just removed from the index, and leaves their files
    /// to the writer's thread, so that no other thread waits while thousands are removed.
    pub(super) fn discard(&mut self, removed: Vec<ChunkRecord>, reason: &str) {
        let mut files = Vec::new();
        for record in removed {
            self.contents.remove(&record.key);
            // A chunk that was never on disk has neither a file nor a row.
            if !record.file_hash.is_empty() {
                files.push(record);
            }
        }
        if !files.is_empty() {
            self.doomed.push(Doomed { files, reason: reason.to_owned() });
            let _ = self.jobs.send(WriteJob::RemoveFiles);
        }
        self.emit_refs();
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
            let keys = files.into_iter().map(|record| record.key).collect();
            self.emit(CacheEvent::Removed { keys, reason });
        }
    }

    /// Whether the file of a chunk is about to be removed.
    pub(super) fn is_doomed(&self, key: &str) -> bool {
        self.doomed.iter().flat_map(|doomed| &doomed.files).any(|record| record.key == key)
    }

    /// Bytes on disk, and bytes in memory without the conversation that ran last.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.index.disk.bytes, self.index.bytes_in_memory())
    }

    /// Evicts until both budgets hold, as far as pinned and pending chunks allow.
    pub(super) fn enforce_budgets(&mut self) {
        self.enforce_memory_budget();
        let removed = self.index.enforce_disk_budget(now_ms());
        self.discard(removed, super::eviction::DISK_BUDGET);
        self.emit_refs();
    }

    /// Evicts until the memory budget holds, as far as pending chunks allow.
    pub(super) fn enforce_memory_budget(&mut self) {
        let (dropped, removed) = self.index.make_room_in_memory(now_ms());
        for key in dropped {
            self.contents.remove(&key);
        }
        self.discard(removed, super::eviction::MEMORY_BUDGET);
    }

    /// Drops the contents of chunks that are on disk too.
    pub(super) fn demote(&mut self) {
        for key in self.index.demote() {
            self.contents.remove(&key);
        }
    }

    /// Removes a chunk that cannot be used, and its descendants.
    pub(super) fn forget(&mut self, key: &str, reason: &str) {
        let removed = self.index.remove_with_descendants(key, reason, now_ms());
        self.discard(removed, reason);
    }
}
