//! The thread that writes chunk files, evicts old ones and sweeps leftovers, so that no answer
//! waits for the disk.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;

use cairn_lm::cache::chunk_state::CacheLayout;
use tokio::sync::oneshot;

use super::chunk_file;
use super::eviction::{DISK_BUDGET, NO_ROOM};
use super::now_ms;
use super::state::SharedCacheState;
use crate::EngineError;
use crate::records::CacheEvent;

enum WriteJob {
    /// Write a chunk that waits on the cache state.
    File {
        key: String,
        bytes: u64,
        layout: Arc<CacheLayout>,
    },
    /// Keep to budgets that have changed.
    EnforceBudgets,
    Flush(oneshot::Sender<Result<(), EngineError>>),
}

/// The handle to the thread.
pub(super) struct Writer {
    orders: std_mpsc::Sender<WriteJob>,
    thread: JoinHandle<()>,
}

impl Writer {
    pub(super) fn start(state: SharedCacheState, cleanup_lock: Option<File>) -> Self {
        let (orders, receiver) = std_mpsc::channel();
        let thread = WriterThread { state };
        let thread = std::thread::Builder::new()
            .name("cairn-filing".to_owned())
            .spawn(move || {
                if let Some(lock) = cleanup_lock {
                    thread.state.lock().discard_orphans();
                    thread.remove_leftovers();
                    drop(lock);
                }
                thread.run(&receiver);
            })
            .expect("the system starts a thread");
        Writer { orders, thread }
    }

    pub(super) fn file(&self, key: String, bytes: u64, layout: Arc<CacheLayout>) {
        let _ = self.orders.send(WriteJob::File { key, bytes, layout });
    }

    pub(super) fn enforce_budgets(&self) {
        let _ = self.orders.send(WriteJob::EnforceBudgets);
    }

    pub(super) fn flush(&self, reply: oneshot::Sender<Result<(), EngineError>>) {
        let _ = self.orders.send(WriteJob::Flush(reply));
    }

    /// Writes what is queued, then ends the thread.
    pub(super) fn close(self) {
        drop(self.orders);
        let _ = self.thread.join();
    }
}

struct WriterThread {
    state: SharedCacheState,
}

impl WriterThread {
    fn run(self, orders: &std_mpsc::Receiver<WriteJob>) {
        self.enforce_budgets();
        while let Ok(order) = orders.recv() {
            match order {
                WriteJob::File { key, bytes, layout } => {
                    let written = self.file(&key, &layout);
                    let mut state = self.state.lock();
                    if let Err(problem) = written {
                        // The chunk stays in memory, and is tried again with the next that
                        // continues it.
                        tracing::warn!(%problem, "a prompt cache could not be stored");
                        state.problem = Some(problem);
                    }
                    state.end_pending(&key, bytes);
                    state.enforce_memory_budget();
                    drop(state);
                    self.state.ring();
                    self.state.publish();
                }
                WriteJob::EnforceBudgets => self.enforce_budgets(),
                WriteJob::Flush(reply) => {
                    let _ = reply.send(Ok(()));
                }
            }
        }
    }

    /// Writes a chunk, and before it what it continues and could not be written earlier. Fails in
    /// words.
    fn file(&self, key: &str, layout: &CacheLayout) -> Result<(), String> {
        let mut unwritten: Vec<String> = {
            let state = self.state.lock();
            let path = state.index.path(key);
            path.iter()
                .filter(|entry| !entry.is_on_disk)
                .map(|entry| entry.record.key.clone())
                .collect()
        };
        unwritten.reverse();
        while let Some(key) = unwritten.pop() {
            match self.write_one(&key, layout)? {
                true => self.state.lock().problem = None,
                false => break,
            }
        }
        Ok(())
    }

    /// Writes one chunk; false where it has gone. Fails in words, also where there is no room for
    /// it.
    fn write_one(&self, key: &str, layout: &CacheLayout) -> Result<bool, String> {
        let (record, contents, path) = {
            let state = self.state.lock();
            let Some(entry) = state.index.get(key).filter(|entry| !entry.is_on_disk) else {
                return Ok(false);
            };
            let Some(contents) = state.contents.get(key) else { return Ok(false) };
            if entry
                .record
                .parent_key
                .as_ref()
                .is_some_and(|parent| !state.index.is_on_disk(parent))
            {
                return Ok(false);
            }
            let path = chunk_file::path(&state.folder, &entry.record.namespace.fingerprint, key);
            (entry.record.clone(), Arc::clone(contents), path)
        };
        let header = contents.header(&record, layout).map_err(|error| error.to_string())?;
        let bytes = header.len() as u64 + contents.num_bytes();
        {
            // Room is made before the file is there, so that the budget holds at every moment.
            let mut state = self.state.lock();
            match state.index.make_room_on_disk(bytes, record.parent_key.as_deref(), now_ms()) {
                Some(removed) => state.discard(removed, DISK_BUDGET),
                None => return Err(NO_ROOM.to_owned()),
            }
        }
        let file_hash = contents
            .write(&path, &header)
            .map_err(|error| format!("the disk could not be written: {error}"))?;
        let mut state = self.state.lock();
        match state.index.written(key, bytes, file_hash) {
            Some(record) => {
                state.emit(CacheEvent::Written(record));
                state.emit_refs();
            }
            // Removed while it was being written.
            None => drop(fs::remove_file(&path)),
        }
        Ok(true)
    }

    fn enforce_budgets(&self) {
        self.state.lock().enforce_budgets();
        self.state.publish();
    }

    /// Removes files that no record names: a crash between file and row leaves one, a crash while
    /// writing a temporary one.
    fn remove_leftovers(&self) {
        let (folder, known) = {
            let state = self.state.lock();
            let path = |record: &crate::ChunkRecord| {
                chunk_file::path(&state.folder, &record.namespace.fingerprint, &record.key)
            };
            let known: HashSet<PathBuf> = state.index.records().map(path).collect();
            (state.folder.clone(), known)
        };
        let Ok(models) = fs::read_dir(&folder) else { return };
        for model in models.flatten() {
            let Ok(files) = fs::read_dir(model.path()) else { continue };
            for file in files.flatten().map(|file| file.path()) {
                if !known.contains(&file) {
                    let _ = fs::remove_file(&file);
                }
            }
            // Succeeds only where nothing is left.
            let _ = fs::remove_dir(model.path());
        }
    }
}
