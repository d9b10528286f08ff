//! What is kept, in memory and on disk: the index and the contents that it speaks of. Shared by the
//! engine's thread, which takes from it and adds to it, the writer thread, which writes, and
//! whoever looks in.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc as std_mpsc};

use tokio::sync::{mpsc, watch};

use super::chunk_file::{self, ChunkContents, MAX_CHUNK_BYTES, is_hex};
use super::index::{ChunkIndex, MAX_CHUNK_TOKENS, key_of};
use super::now_ms;
use super::restore::Source;
use super::writer::WriteJob;
use crate::EngineStatus;
use crate::records::{CacheEvent, CacheOptions, ChunkRecord};

/// The index, the contents in memory, and how well it all serves.
///
/// - `contents` are there exactly for the chunks that the index says are in memory.
/// - A file leaves the budget when its chunk leaves the index; the writer removes such files before it
///   writes another, so that the budget holds on the disk too.
#[derive(Debug)]
pub(super) struct CacheState {
    pub(super) folder: PathBuf,
    pub(super) index: ChunkIndex,
    pub(super) contents: HashMap<String, Arc<ChunkContents>>,
    /// Bytes of chunks that wait to be written.
    pub(super) pending_bytes: u64,
    /// Chunks that are gone from the index and whose files are yet to be removed.
    pub(super) doomed: Vec<Doomed>,
    /// Rows that contradict themselves. Their files may be sound.
    pub(super) invalid: Vec<ChunkRecord>,
    /// Why chunks could not be written lately.
    pub(super) problem: Option<String>,
    /// Owners of conversations that are not to stay in place, for the engine's thread.
    pub(super) purged: Vec<String>,
    pub(super) figures: CacheFigures,
    /// None once the engine has shut down: whoever writes rows waits for the end of the events.
    events: Option<mpsc::UnboundedSender<CacheEvent>>,
    jobs: std_mpsc::Sender<WriteJob>,
}

/// Files that are to be removed together, and why.
#[derive(Debug)]
pub(super) struct Doomed {
    pub(super) files: Vec<ChunkRecord>,
    pub(super) reason: String,
}

/// Whether a row can be true: a damaged database may hold any value.
pub(super) fn is_valid(record: &ChunkRecord) -> bool {
    let num_tokens = record.token_ids.len();
    (1..=MAX_CHUNK_TOKENS).contains(&num_tokens)
        && record.start < MAX_POSITION
        && (record.start..=record.stop()).contains(&record.held_from)
        && record.bytes <= MAX_CHUNK_BYTES
        && is_hex(&record.namespace.model)
        && is_hex(&record.key)
        && key_of(record) == record.key
}

/// No context is as long.
const MAX_POSITION: usize = 1 << 40;

/// How well the prompt cache has served since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheFigures {
    /// Prompts that were looked up.
    pub num_lookups: u64,
    /// Their tokens.
    pub num_prompt_tokens: u64,
    /// Those that did not have to be computed.
    pub num_cached_tokens: u64,
}

/// The cache state with whoever waits for it or looks at it.
#[derive(Debug, Clone)]
pub(super) struct SharedCacheState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<CacheState>,
    /// Rings when something has been written.
    written: Condvar,
    /// Where everybody sees how much there is.
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

    /// Waits until at most `bytes` wait to be written.
    pub(super) fn wait_until_pending_is_at_most(&self, bytes: u64) {
        let state = self.0.written.wait_while(self.lock(), |state| state.pending_bytes > bytes);
        drop(state.unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    /// Publishes how much there is: the engine's thread does with every answer, but others change
    /// it while that one is idle.
    pub(super) fn publish(&self) {
        self.0.status.send_if_modified(|status| {
            // Asked while no one else can publish, so that an older figure never replaces a newer
            // one.
            let (disk, memory) = self.lock().bytes();
            let before = (
                std::mem::replace(&mut status.cache_disk_bytes, disk),
                std::mem::replace(&mut status.cache_memory_bytes, memory),
            );
            before != (disk, memory)
        });
    }

    /// Wakes whoever waits for the writer.
    pub(super) fn notify_written(&self) {
        self.0.written.notify_all();
    }
}

impl CacheState {
    /// Asks the writer; false where it has ended.
    pub(super) fn send(&self, job: WriteJob) -> bool {
        self.jobs.send(job).is_ok()
    }

    pub(super) fn emit(&mut self, event: CacheEvent) {
        if let Some(events) = &self.events {
            let _ = events.send(event);
        }
    }

    /// Tells nothing any more.
    pub(super) fn end_events(&mut self) {
        self.events = None;
    }

    /// Tells which references have changed.
    pub(super) fn emit_refs(&mut self) {
        for event in self.index.take_changed_refs() {
            self.emit(event);
        }
    }

    /// Notes that chunks were used now.
    pub(super) fn touch(&mut self, keys: Vec<String>) {
        let at_ms = self.index.next_use_ms(now_ms());
        self.index.touch(&keys, at_ms);
        self.emit(CacheEvent::Touched { keys, at_ms });
    }

    /// A chunk to restore from.
    pub(super) fn source(&self, record: ChunkRecord) -> Source {
        Source { contents: self.contents.get(&record.key).cloned(), record }
    }

    /// Adds a chunk whose contents are in memory and wait to be written, unless nothing is.
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

    /// Ends the waiting of a chunk, whether it was written or not.
    pub(super) fn end_pending(&mut self, key: &str, bytes: u64) {
        self.index.set_pending(key, false);
        self.pending_bytes -= bytes;
    }

    /// Gives up what the index has just removed: the contents at once, the files on the writer's
    /// thread, so that nothing else waits while thousands of them go.
    pub(super) fn discard(&mut self, removed: Vec<ChunkRecord>, reason: &str) {
        let mut files = Vec::new();
        for record in removed {
            self.contents.remove(&record.key);
            // What was never on disk has neither file nor row.
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

    /// The files that are to be removed.
    pub(super) fn doomed_paths(&self) -> Vec<PathBuf> {
        let files = self.doomed.iter().flat_map(|doomed| &doomed.files);
        // A chunk that was computed again meanwhile is written after this.
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

    /// Bytes on disk, and in memory beside the conversation that ran last.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.index.disk.bytes, self.index.bytes_in_memory())
    }

    /// Keeps to both budgets, as far as what is pinned or waits to be written allows.
    pub(super) fn enforce_budgets(&mut self) {
        self.enforce_memory_budget();
        let removed = self.index.enforce_disk_budget(now_ms());
        self.discard(removed, super::eviction::DISK_BUDGET);
        self.emit_refs();
    }

    /// Keeps to the memory budget, as far as what waits to be written allows.
    pub(super) fn enforce_memory_budget(&mut self) {
        let (dropped, removed) = self.index.make_room_in_memory(now_ms());
        for key in dropped {
            self.contents.remove(&key);
        }
        self.discard(removed, super::eviction::MEMORY_BUDGET);
    }

    /// Gives up contents in memory that are on disk too.
    pub(super) fn demote(&mut self) {
        for key in self.index.demote() {
            self.contents.remove(&key);
        }
    }

    /// Forgets a chunk that cannot be used, and what continues it.
    pub(super) fn forget(&mut self, key: &str, reason: &str) {
        let removed = self.index.remove_with_descendants(key, reason, now_ms());
        self.discard(removed, reason);
    }
}
