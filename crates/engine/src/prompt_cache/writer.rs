//! The thread that writes and removes chunk files, so that no request waits for the disk.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirEntry, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;

use cairn_lm::cache::chunk_state::CacheLayout;
use cairn_prompt_cache::{CacheChange, Chunk, ChunkKey, ChunkRecord, LossReason};
use tokio::sync::oneshot;

use super::chunk_file::{self, ChunkError, FileName, file_name, is_hex, prove};
use super::state::SharedCacheState;
use super::unix_time::now_ms;
use super::write_job::{Repaired, WriteJob};
use crate::EngineError;
use crate::guard::panic_message;

/// The handle to the thread.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: std_mpsc::Sender<WriteJob>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts the thread. With a `cleanup_lock` it first adopts chunk files without a record and
    /// removes Cairn's unfinished files, also in `old_folders`.
    pub(super) fn start(
        state: SharedCacheState,
        (jobs, receiver): (std_mpsc::Sender<WriteJob>, std_mpsc::Receiver<WriteJob>),
        cleanup_lock: Option<File>,
        old_folders: Vec<PathBuf>,
    ) -> Self {
        let thread = WriterThread { state };
        let thread = std::thread::Builder::new()
            .name("cairn-writer".to_owned())
            .spawn(move || {
                thread.begin(cleanup_lock, &old_folders);
                thread.run(&receiver);
            })
            .expect("the system starts a thread");
        Writer { jobs, thread }
    }

    pub(super) fn write(&self, key: ChunkKey, bytes: u64, layout: Arc<CacheLayout>) {
        let _ = self.jobs.send(WriteJob::Write { key, bytes, layout });
    }

    pub(super) fn enforce_budgets(&self) {
        let _ = self.jobs.send(WriteJob::EnforceBudgets);
    }

    pub(super) fn flush(&self, reply: oneshot::Sender<Result<(), EngineError>>) {
        let _ = self.jobs.send(WriteJob::Flush(reply));
    }

    /// Writes what is queued, then ends the thread.
    pub(super) fn close(self) {
        let _ = self.jobs.send(WriteJob::Close);
        let _ = self.thread.join();
    }
}

struct WriterThread {
    state: SharedCacheState,
}

impl WriterThread {
    /// Reconciles rows and files, as far as this program may: only with the cleanup lock.
    fn begin(&self, cleanup_lock: Option<File>, old_folders: &[PathBuf]) {
        if let Some(lock) = cleanup_lock {
            let (_, proofs) = self.drop_bad_rows(other_length);
            let folder = self.state.lock().folder.clone();
            remove_own_files(&folder, |name, _| *name == FileName::Temporary);
            for folder in old_folders {
                remove_own_files(folder, |name, path| match name {
                    FileName::Chunk => chunk_file::is_own(path),
                    FileName::Temporary => true,
                    FileName::Foreign => false,
                });
                let _ = fs::remove_file(folder.join(".lock"));
                // Succeeds only if the folder is empty.
                let _ = fs::remove_dir(folder);
            }
            self.adopt_files(proofs);
            // Not only closed: a child process that is just being started may hold a copy.
            let _ = lock.unlock();
        }
        self.resolve_refs();
    }

    /// Lets references stand at chunks that have got their records back; the others have lost
    /// theirs.
    fn resolve_refs(&self) {
        let mut state = self.state.lock();
        let changes = state.index.resolve_refs(now_ms());
        state.apply(changes);
    }

    fn run(self, jobs: &std_mpsc::Receiver<WriteJob>) {
        self.enforce_budgets();
        while let Ok(job) = jobs.recv() {
            if matches!(job, WriteJob::Close) {
                return;
            }
            // A panic ends one job, not the thread: the engine's thread waits for its successors.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.do_job(job))) {
                let message = panic_message(panic.as_ref());
                tracing::error!(%message, "the prompt cache's writer hit a bug");
                self.state.lock().problem = Some(format!("the writer hit a bug: {message}"));
            }
        }
    }

    fn do_job(&self, job: WriteJob) {
        self.remove_doomed();
        match job {
            WriteJob::Write { key, bytes, layout } => self.write_and_report(&key, bytes, &layout),
            WriteJob::RemoveFiles | WriteJob::Close => {}
            WriteJob::EnforceBudgets => self.enforce_budgets(),
            WriteJob::Flush(reply) => drop(reply.send(Ok(()))),
            WriteJob::Repair(reply) => drop(reply.send(self.repair())),
        }
    }

    /// Reads every chunk file. A record that its file contradicts goes first; then the file is one
    /// without a record.
    fn repair(&self) -> Repaired {
        let (num_checked, proofs) = self.drop_bad_rows(contradiction);
        let repaired = Repaired { num_checked, ..self.adopt_files(proofs) };
        self.resolve_refs();
        self.enforce_budgets();
        repaired
    }

    fn write_and_report(&self, key: &ChunkKey, bytes: u64, layout: &CacheLayout) {
        let written = catch_unwind(AssertUnwindSafe(|| self.write(key, layout)));
        let written = written.unwrap_or_else(|panic| {
            Err(format!("writing it hit a bug: {}", panic_message(panic.as_ref())))
        });
        let mut state = self.state.lock();
        if let Err(problem) = written {
            // The chunk stays in memory, and is tried again with its next descendant.
            tracing::warn!(%problem, "a chunk of the prompt cache could not be written");
            state.problem = Some(problem);
        }
        state.end_pending(key, bytes);
        state.enforce_memory_budget();
        drop(state);
        self.state.notify_written();
        self.state.publish();
    }

    /// Writes a chunk, and before it those ancestors that could not be written earlier. Fails with
    /// a reason.
    fn write(&self, key: &ChunkKey, layout: &CacheLayout) -> Result<(), String> {
        let unwritten: Vec<ChunkKey> = {
            let state = self.state.lock();
            let path = state.index.path(key);
            path.into_iter().filter(|chunk| !chunk.is_on_disk()).map(Chunk::key).collect()
        };
        for key in unwritten {
            match self.write_one(&key, layout)? {
                true => self.state.lock().problem = None,
                false => break,
            }
        }
        Ok(())
    }

    /// Writes one chunk; false if it was removed meanwhile. Fails with a reason, also if there is
    /// no room for it.
    fn write_one(&self, key: &ChunkKey, layout: &CacheLayout) -> Result<bool, String> {
        let (record, contents, path, coding) = {
            let state = self.state.lock();
            let chunk = state.index.get(key).filter(|chunk| !chunk.is_on_disk());
            let Some(record) = chunk.map(Chunk::record) else { return Ok(false) };
            let Some(contents) = state.contents.get(key) else { return Ok(false) };
            if record.parent.is_some_and(|parent| !state.index.is_on_disk(&parent)) {
                return Ok(false);
            }
            let path = chunk_file::path(&state.folder, &record.namespace.model, key);
            (record.clone(), Arc::clone(contents), path, state.coding)
        };
        let file = contents.to_file(&record, layout, coding).map_err(|error| error.to_string())?;
        self.make_room(file.num_bytes(), &record)?;
        let file =
            file.write(&path).map_err(|error| format!("the disk could not be written: {error}"))?;
        let mut state = self.state.lock();
        if !state.written(key, file) {
            // Removed while it was being written.
            drop(fs::remove_file(&path));
        }
        Ok(true)
    }

    /// Makes room before the file is written, so that the budget holds at every moment.
    fn make_room(&self, bytes: u64, record: &ChunkRecord) -> Result<(), String> {
        {
            let mut state = self.state.lock();
            let made = state.index.make_room_on_disk(bytes, record.parent.as_ref(), now_ms());
            state.apply(made.map_err(|error| error.to_string())?);
        }
        self.remove_doomed();
        Ok(())
    }

    fn enforce_budgets(&self) {
        self.state.lock().enforce_budgets();
        self.remove_doomed();
        self.state.publish();
    }

    /// Removes the files of chunks that were removed from the index, then emits the events: a row
    /// must exist for as long as its file may.
    fn remove_doomed(&self) {
        // Other threads may add to the list meanwhile; only this one takes from it.
        let (folder, num_groups, doomed) = {
            let state = self.state.lock();
            (state.folder.clone(), state.doomed.len(), state.doomed_paths())
        };
        for path in doomed {
            // A folder that is a symbolic link leads to files that are not Cairn's.
            if path.parent().is_some_and(|model| is_own_folder(model) && model.starts_with(&folder))
            {
                let _ = fs::remove_file(path);
            }
        }
        self.state.lock().emit_removed(num_groups);
    }

    /// Emits the removal of rows that contradict themselves, or their files as far as `check` tells,
    /// or have no parent. Their files are then checked like any other file without a record. Returns
    /// how many rows `check` has seen, and what it has read.
    fn drop_bad_rows(
        &self,
        check: impl Fn(&Path, &ChunkRecord) -> Option<Proof>,
    ) -> (usize, HashMap<PathBuf, Proof>) {
        let (folder, written): (PathBuf, Vec<ChunkRecord>) = {
            let state = self.state.lock();
            let records = state.index.chunks().map(Chunk::record);
            let written = records.filter(|record| record.file.is_some()).cloned();
            (state.folder.clone(), written.collect())
        };
        let (mut contradicted, mut proofs) = (Vec::new(), HashMap::new());
        for record in &written {
            let path = chunk_file::path(&folder, &record.namespace.model, &record.key);
            if let Some(proof) = check(&path, record) {
                contradicted.push(record.key);
                proofs.insert(path, proof);
            }
        }
        let mut state = self.state.lock();
        let mut bad = std::mem::take(&mut state.rejected);
        for key in contradicted {
            let taken_out = state.index.take_out(&key, now_ms());
            taken_out.iter().for_each(|record| drop(state.contents.remove(&record.key)));
            bad.extend(taken_out.into_iter().filter(|record| record.file.is_some()));
        }
        if !bad.is_empty() {
            // Only the rows: their files are looked at next.
            state.emit(CacheChange::Removed { chunks: bad, reason: LossReason::RecordDamaged });
        }
        (written.len(), proofs)
    }

    /// Checks the chunk files that have no record: a crash between file and row leaves one such
    /// file, a lost database leaves all. Valid files get their records back; other files of Cairn's
    /// are removed, and files of other programs are not touched. What the system cannot read now
    /// waits for the next time, with the chunks that continue it. Files in `proofs` have been read.
    fn adopt_files(&self, mut proofs: HashMap<PathBuf, Proof>) -> Repaired {
        let folder = self.state.lock().folder.clone();
        let mut repaired = Repaired::default();
        let (mut valid, mut unread) = (Vec::new(), HashSet::new());
        for model in own_folders(&folder) {
            // With a part of the files, chunks would seem to have no parent.
            let Ok(files) = all_entries(&model) else { continue };
            for file in files {
                let path = file.path();
                match file_name(&file.file_name().to_string_lossy()) {
                    FileName::Chunk if self.is_known(&path) => {}
                    FileName::Chunk => match proofs.remove(&path).unwrap_or_else(|| prove(&path)) {
                        Ok(record) => valid.push((path, record)),
                        Err(ChunkError::Read(error)) => {
                            tracing::warn!(%error, "a chunk file without a record is left as it is");
                            unread.extend(key_of(&path));
                        }
                        Err(_) if chunk_file::is_own(&path) => {
                            repaired.num_removed += usize::from(fs::remove_file(&path).is_ok());
                        }
                        Err(_) => repaired.num_foreign += 1,
                    },
                    FileName::Temporary => {}
                    FileName::Foreign => repaired.num_foreign += 1,
                }
            }
            // Succeeds only if the folder is empty.
            let _ = fs::remove_dir(&model);
        }
        // Parents come before their children.
        valid.sort_by_key(|(_, record)| record.start);
        for (path, record) in valid {
            let (key, parent) = (record.key, record.parent);
            if self.adopt(record) {
                repaired.num_adopted += 1;
            } else if parent.is_some_and(|parent| unread.contains(&parent)) {
                unread.insert(key);
            } else {
                repaired.num_removed += usize::from(fs::remove_file(&path).is_ok());
            }
        }
        if repaired != Repaired::default() {
            tracing::info!(
                "chunk files without a record: {} adopted, {} removed, {} of other programs not touched",
                repaired.num_adopted,
                repaired.num_removed,
                repaired.num_foreign
            );
        }
        repaired
    }

    fn is_known(&self, path: &Path) -> bool {
        let Some(key) = key_of(path) else { return false };
        let state = self.state.lock();
        let is_of = |chunk: &Chunk| {
            chunk_file::path(&state.folder, &chunk.record().namespace.model, &key) == path
        };
        state.is_doomed(&key) || state.index.get(&key).is_some_and(is_of)
    }

    /// Adds a chunk from its valid file; false if its parent is missing.
    fn adopt(&self, record: ChunkRecord) -> bool {
        let mut state = self.state.lock();
        // Another thread may have computed the chunk meanwhile.
        let is_adopted = state.index.adopt(record.clone());
        if is_adopted {
            state.emit(CacheChange::Written(record.clone()));
        }
        is_adopted || state.index.contains(&record.key)
    }
}

/// What a file without a record has proved: the record of its chunk, or nothing.
type Proof = Result<ChunkRecord, ChunkError>;

/// What the file at `path` proves if it has another length than its `record` says, and is sound: the
/// disk budget counts what records say. A file that is damaged or missing is found when it is read.
fn other_length(path: &Path, record: &ChunkRecord) -> Option<Proof> {
    let file = fs::symlink_metadata(path).ok()?;
    (file.len() != record.num_file_bytes()).then(|| prove(path)).filter(Result::is_ok)
}

/// What the file at `path` proves if it is missing, or damaged, or sound but another one than its
/// `record` says. A file that the system cannot read now contradicts nothing.
fn contradiction(path: &Path, record: &ChunkRecord) -> Option<Proof> {
    match prove(path) {
        Ok(found) if found.file == record.file => None,
        Err(error) if !error.is_lasting() => None,
        proof => Some(proof),
    }
}

/// The key of the chunk that a file is named after.
fn key_of(path: &Path) -> Option<ChunkKey> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// The entries of a folder, unless one of them cannot be read.
fn all_entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    fs::read_dir(folder)?.collect()
}

/// The entries of a folder; none where it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// The model folders in a prompt-cache folder.
fn own_folders(folder: &Path) -> Vec<PathBuf> {
    let is_of_model = |entry: &DirEntry| entry.file_name().to_str().is_some_and(is_hex);
    entries(folder)
        .filter(is_of_model)
        .map(|entry| entry.path())
        .filter(|path| is_own_folder(path))
        .collect()
}

fn is_own_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Removes the regular files for which `is_useless` holds from the model folders in a prompt-cache
/// folder.
fn remove_own_files(folder: &Path, is_useless: impl Fn(&FileName, &Path) -> bool) {
    for model in own_folders(folder) {
        for file in entries(&model) {
            let name = file_name(&file.file_name().to_string_lossy());
            let is_regular = file.file_type().is_ok_and(|kind| kind.is_file());
            if is_regular && is_useless(&name, &file.path()) {
                let _ = fs::remove_file(file.path());
            }
        }
        let _ = fs::remove_dir(&model);
    }
}
