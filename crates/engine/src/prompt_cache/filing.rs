//! The thread that writes chunk files, evicts old ones and sweeps leftovers, so that no answer
//! waits for the disk.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;

use cairn_lm::cache::span::CacheLayout;
use tokio::sync::oneshot;

use super::chunk_file;
use super::eviction::{DISK_BUDGET, NO_ROOM};
use super::now_ms;
use super::shelf::SharedShelf;
use crate::EngineError;
use crate::records::CacheEvent;

enum Order {
    /// Write a chunk that waits on the shelf.
    File {
        key: String,
        bytes: u64,
        layout: Arc<CacheLayout>,
    },
    /// Keep to budgets that have changed.
    KeepToBudgets,
    Flush(oneshot::Sender<Result<(), EngineError>>),
}

/// The handle to the thread.
pub(super) struct Filing {
    orders: std_mpsc::Sender<Order>,
    thread: JoinHandle<()>,
}

impl Filing {
    pub(super) fn start(shelf: SharedShelf, sweep_lock: Option<File>) -> Self {
        let (orders, receiver) = std_mpsc::channel();
        let clerk = Clerk { shelf };
        let thread = std::thread::Builder::new()
            .name("cairn-filing".to_owned())
            .spawn(move || {
                if let Some(lock) = sweep_lock {
                    clerk.shelf.lock().discard_cut_off();
                    clerk.sweep();
                    drop(lock);
                }
                clerk.run(&receiver);
            })
            .expect("the system starts a thread");
        Filing { orders, thread }
    }

    pub(super) fn file(&self, key: String, bytes: u64, layout: Arc<CacheLayout>) {
        let _ = self.orders.send(Order::File { key, bytes, layout });
    }

    pub(super) fn keep_to_budgets(&self) {
        let _ = self.orders.send(Order::KeepToBudgets);
    }

    pub(super) fn flush(&self, reply: oneshot::Sender<Result<(), EngineError>>) {
        let _ = self.orders.send(Order::Flush(reply));
    }

    /// Writes what is queued, then ends the thread.
    pub(super) fn close(self) {
        drop(self.orders);
        let _ = self.thread.join();
    }
}

struct Clerk {
    shelf: SharedShelf,
}

impl Clerk {
    fn run(self, orders: &std_mpsc::Receiver<Order>) {
        self.keep_to_budgets();
        while let Ok(order) = orders.recv() {
            match order {
                Order::File { key, bytes, layout } => {
                    let filed = self.file(&key, &layout);
                    let mut shelf = self.shelf.lock();
                    if let Err(problem) = filed {
                        // The chunk stays in memory, and is tried again with the next that
                        // continues it.
                        tracing::warn!(%problem, "a prompt cache could not be stored");
                        shelf.problem = Some(problem);
                    }
                    shelf.end_pending(&key, bytes);
                    shelf.keep_to_memory_budget();
                    drop(shelf);
                    self.shelf.ring();
                    self.shelf.publish();
                }
                Order::KeepToBudgets => self.keep_to_budgets(),
                Order::Flush(reply) => {
                    let _ = reply.send(Ok(()));
                }
            }
        }
    }

    /// Writes a chunk, and before it what it continues and could not be written earlier. Fails in
    /// words.
    fn file(&self, key: &str, layout: &CacheLayout) -> Result<(), String> {
        let mut unwritten: Vec<String> = {
            let shelf = self.shelf.lock();
            let path = shelf.index.path(key);
            path.iter()
                .filter(|entry| !entry.is_on_disk)
                .map(|entry| entry.record.key.clone())
                .collect()
        };
        unwritten.reverse();
        while let Some(key) = unwritten.pop() {
            match self.file_one(&key, layout)? {
                true => self.shelf.lock().problem = None,
                false => break,
            }
        }
        Ok(())
    }

    /// Writes one chunk; false where it has gone. Fails in words, also where there is no room for
    /// it.
    fn file_one(&self, key: &str, layout: &CacheLayout) -> Result<bool, String> {
        let (record, contents, path) = {
            let shelf = self.shelf.lock();
            let Some(entry) = shelf.index.get(key).filter(|entry| !entry.is_on_disk) else {
                return Ok(false);
            };
            let Some(contents) = shelf.contents.get(key) else { return Ok(false) };
            if entry
                .record
                .parent_key
                .as_ref()
                .is_some_and(|parent| !shelf.index.is_on_disk(parent))
            {
                return Ok(false);
            }
            let path = chunk_file::path(&shelf.folder, &entry.record.space.fingerprint, key);
            (entry.record.clone(), Arc::clone(contents), path)
        };
        let header = contents.header(&record, layout).map_err(|error| error.to_string())?;
        let bytes = header.len() as u64 + contents.num_bytes();
        {
            // Room is made before the file is there, so that the budget holds at every moment.
            let mut shelf = self.shelf.lock();
            match shelf.index.make_room_on_disk(bytes, record.parent_key.as_deref(), now_ms()) {
                Some(removed) => shelf.discard(removed, DISK_BUDGET),
                None => return Err(NO_ROOM.to_owned()),
            }
        }
        let file_hash = contents
            .write(&path, &header)
            .map_err(|error| format!("the disk could not be written: {error}"))?;
        let mut shelf = self.shelf.lock();
        match shelf.index.filed(key, bytes, file_hash) {
            Some(record) => {
                shelf.tell(CacheEvent::Filed(record));
                shelf.tell_anchors();
            }
            // Removed while it was being written.
            None => drop(fs::remove_file(&path)),
        }
        Ok(true)
    }

    fn keep_to_budgets(&self) {
        self.shelf.lock().keep_to_budgets();
        self.shelf.publish();
    }

    /// Removes files that no record names: a crash between file and row leaves one, a crash while
    /// writing a temporary one.
    fn sweep(&self) {
        let (folder, known) = {
            let shelf = self.shelf.lock();
            let path = |record: &crate::ChunkRecord| {
                chunk_file::path(&shelf.folder, &record.space.fingerprint, &record.key)
            };
            let known: HashSet<PathBuf> = shelf.index.records().map(path).collect();
            (shelf.folder.clone(), known)
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
