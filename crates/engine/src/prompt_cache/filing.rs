//! The thread that writes chunk files, evicts old ones and sweeps leftovers, so that no answer waits for the disk.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot, watch};

use super::chunk_file::{self, ChunkError, LayerBytes};
use super::index::{ChunkIndex, PlannedChunk};
use super::{CacheEvent, ChunkRecord, lock, now_ms};
use crate::{EngineError, EngineStatus};

/// A chunk with its contents, on its way to disk.
pub(super) struct PendingChunk {
    pub(super) chunk: PlannedChunk,
    pub(super) layers: Vec<LayerBytes>,
}

enum Order {
    File(PendingChunk),
    SetBudget(u64),
    Flush(oneshot::Sender<Result<(), EngineError>>),
}

/// Chunks that may wait at once. A full queue makes the engine wait between two answers, which bounds what waiting chunks hold.
const QUEUE_LENGTH: usize = 8;

/// The handle to the thread.
pub(super) struct Filing {
    orders: std_mpsc::SyncSender<Order>,
    thread: JoinHandle<()>,
}

impl Filing {
    pub(super) fn start(
        folder: PathBuf,
        index: Arc<Mutex<ChunkIndex>>,
        events: mpsc::UnboundedSender<CacheEvent>,
        status: watch::Sender<EngineStatus>,
    ) -> Self {
        let (orders, receiver) = std_mpsc::sync_channel(QUEUE_LENGTH);
        let clerk = Clerk { folder, index, events, status };
        let thread = std::thread::Builder::new()
            .name("cairn-filing".to_owned())
            .spawn(move || clerk.run(&receiver))
            .expect("the system starts a thread");
        Filing { orders, thread }
    }

    pub(super) fn file(&self, chunk: PendingChunk) {
        let _ = self.orders.send(Order::File(chunk));
    }

    pub(super) fn set_budget(&self, bytes: u64) {
        let _ = self.orders.send(Order::SetBudget(bytes));
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
    folder: PathBuf,
    index: Arc<Mutex<ChunkIndex>>,
    events: mpsc::UnboundedSender<CacheEvent>,
    status: watch::Sender<EngineStatus>,
}

impl Clerk {
    fn run(self, orders: &std_mpsc::Receiver<Order>) {
        self.sweep();
        self.evict_surplus();
        self.publish();
        while let Ok(order) = orders.recv() {
            match order {
                Order::File(pending) => {
                    if let Err(error) = self.file(&pending) {
                        // The chunk is simply not there next time; what continues it is not filed either.
                        tracing::warn!(%error, "a prompt cache could not be stored");
                    }
                    self.publish();
                }
                Order::SetBudget(bytes) => {
                    lock(&self.index).set_budget(bytes);
                    self.evict_surplus();
                    self.publish();
                }
                Order::Flush(reply) => {
                    let _ = reply.send(Ok(()));
                }
            }
        }
    }

    fn file(&self, pending: &PendingChunk) -> Result<(), ChunkError> {
        let chunk = &pending.chunk;
        {
            let index = lock(&self.index);
            let is_orphan = chunk.parent_key.as_ref().is_some_and(|parent| !index.contains(parent));
            if index.contains(&chunk.key) || is_orphan {
                return Ok(());
            }
        }
        let bytes = chunk_file::encode(chunk, &pending.layers)?;
        // Room is made before the file is there, so that the budget holds at every moment.
        let Some(evicted) = lock(&self.index).make_room(bytes.len() as u64, chunk.parent_key.as_deref()) else {
            return Ok(());
        };
        self.delete_evicted(&evicted);
        write(&chunk_file::path(&self.folder, &chunk.fingerprint, &chunk.key), &bytes)?;
        let record = ChunkRecord {
            key: chunk.key.clone(),
            parent_key: chunk.parent_key.clone(),
            fingerprint: chunk.fingerprint.clone(),
            start: chunk.start,
            token_ids: chunk.token_ids.clone(),
            bytes: bytes.len() as u64,
            file_hash: blake3::hash(&bytes).to_hex().to_string(),
            last_used_at_ms: now_ms(),
        };
        lock(&self.index).insert(record.clone());
        let _ = self.events.send(CacheEvent::Filed(record));
        Ok(())
    }

    /// The engine's thread has published its status before the last answer's chunks are filed, and may be idle for hours then.
    fn publish(&self) {
        self.status.send_if_modified(|status| {
            let bytes = lock(&self.index).total_bytes();
            std::mem::replace(&mut status.cache_disk_bytes, bytes) != bytes
        });
    }

    fn evict_surplus(&self) {
        let evicted = lock(&self.index).make_room(0, None).unwrap_or_default();
        self.delete_evicted(&evicted);
    }

    fn delete_evicted(&self, evicted: &[ChunkRecord]) {
        if evicted.is_empty() {
            return;
        }
        for record in evicted {
            self.delete(record);
        }
        let keys = evicted.iter().map(|record| record.key.clone()).collect();
        let _ = self.events.send(CacheEvent::Removed { keys, reason: "evicted to keep to the disk budget".to_owned() });
    }

    fn delete(&self, record: &ChunkRecord) {
        let _ = fs::remove_file(chunk_file::path(&self.folder, &record.fingerprint, &record.key));
    }

    /// Removes files that no record names: a crash between file and row leaves one, a crash while writing a temporary one.
    fn sweep(&self) {
        let Ok(models) = fs::read_dir(&self.folder) else { return };
        let path = |record: &ChunkRecord| chunk_file::path(&self.folder, &record.fingerprint, &record.key);
        let known: HashSet<PathBuf> = lock(&self.index).records().map(path).collect();
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

/// Writes a file so that it is there whole or not at all: temporary name, fsync, rename, fsync of the folder.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    if !folder.exists() {
        fs::create_dir_all(folder)?;
        if let Some(parent) = folder.parent() {
            File::open(parent)?.sync_all()?;
        }
    }
    let mut file = tempfile::Builder::new().prefix(".filing-").suffix(".tmp").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}
