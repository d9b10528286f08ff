//! Which programs have the database open: a lock file for each, because only the system knows
//! reliably that a process is gone.
//!
//! A program that dies leaves its file behind, but never its lock. The functions here block for
//! moments at most, except [`wait_to_open`].

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::StoreError;

const OPENING: &str = "opening";
const SUSPECT: &str = "suspect";

/// This program's hold on the database, from opening to closing it. Owned by the store.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: String,
    path: PathBuf,
    lock: Mutex<Option<File>>,
}

/// The folder of lock files that belongs to a database.
pub(crate) fn folder_of(database: &Path) -> PathBuf {
    let mut folder = OsString::from(database);
    folder.push("-runs");
    PathBuf::from(folder)
}

/// Waits until no other program is opening the database; they do so one after the other, for as
/// long as the file returned is held. Makes the folders that are missing.
pub(crate) async fn wait_to_open(database: &Path) -> Result<File, StoreError> {
    let folder = folder_of(database);
    let waiting = move || fs::create_dir_all(&folder).and_then(|()| lock_opening(&folder));
    let opening =
        tokio::task::spawn_blocking(waiting).await.unwrap_or_else(|error| Err(error.into()));
    opening.map_err(|error| StoreError::from_io(database, error))
}

fn lock_opening(folder: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(folder.join(OPENING))?;
    file.lock()?;
    Ok(file)
}

impl Run {
    /// Begins a run. Called with the opening lock held, so that [`sweep`] elsewhere cannot see the
    /// file before it is locked.
    pub(crate) fn begin(folder: &Path) -> io::Result<Run> {
        let id = Uuid::now_v7().to_string();
        let path = folder.join(&id);
        let file = File::create_new(&path)?;
        file.lock()?;
        Ok(Run { id, path, lock: Mutex::new(Some(file)) })
    }

    /// A run on a database that only this process can see.
    pub(crate) fn in_memory() -> Run {
        Run { id: Uuid::now_v7().to_string(), path: PathBuf::new(), lock: Mutex::default() }
    }

    /// Gives the run up; what it left unfinished is for the next program to tidy.
    pub(crate) fn end(&self) {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = lock.take() {
            // A file that cannot be removed is swept later: a dead run is one without a lock.
            let _ = fs::remove_file(&self.path);
            drop(file);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the program of this run still has the database open. In doubt it has: a row left alone
/// can be tidied later.
pub(crate) fn is_alive(folder: &Path, id: &str) -> bool {
    // Only names that a run can have are looked up, whatever the database says.
    if Uuid::parse_str(id).is_err() {
        return false;
    }
    match File::open(folder.join(id)) {
        Ok(file) => file.try_lock().is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Whether any program has the database open. Called with the opening lock held.
pub(crate) fn is_any_alive(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(|id| is_alive(folder, id)))
}

/// Notes that damage was met in the database, so that it is checked whole when it is opened next.
pub(crate) fn suspect(folder: &Path) {
    // Without it a small file is checked all the same.
    let _ = File::create(folder.join(SUSPECT));
}

/// Whether damage was met since the last check.
pub(crate) fn is_suspect(folder: &Path) -> bool {
    folder.join(SUSPECT).exists()
}

/// Forgets that damage was met.
pub(crate) fn clear_suspicion(folder: &Path) {
    // One that stays costs another check.
    let _ = fs::remove_file(folder.join(SUSPECT));
}

/// Removes the files of runs that are gone. Called with the opening lock held.
pub(crate) fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let id = entry.file_name();
        let is_dead_run =
            id.to_str().is_some_and(|id| Uuid::parse_str(id).is_ok() && !is_alive(folder, id));
        if is_dead_run {
            // Left-over files are harmless; the next program tries again.
            let _ = fs::remove_file(entry.path());
        }
    }
}
