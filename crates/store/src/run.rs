//! Which programs have the database open: a lock file for each, because only the operating system
//! knows reliably that a process has ended.
//!
//! A program that is killed leaves its file behind, but never its lock. Of these functions only
//! [`wait_to_open`] may block for longer than a moment.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::StoreError;
use crate::new_id;

const OPENING: &str = "opening";
const SUSPECT: &str = "suspect";

/// The time from when this program opens the database until it closes it. Owned by the store.
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

/// Waits until no other program is opening the database, and prevents others from opening it until
/// the returned file is dropped. Creates the folders that are missing.
pub(crate) async fn wait_to_open(database: &Path) -> Result<File, StoreError> {
    let folder = folder_of(database);
    let waiting = move || fs::create_dir_all(&folder).and_then(|()| lock_opening(&folder));
    let opening =
        tokio::task::spawn_blocking(waiting).await.unwrap_or_else(|error| Err(error.into()));
    opening.map_err(|error| StoreError::from_io(database, error))
}

/// Creates an empty file that only its owner may read, unless one is there: SQLite leaves the mode of
/// a new database to the system, and gives the files beside one the mode that it has. If the file
/// cannot be created, SQLite fails next and says why.
pub(crate) fn make_private(database: &Path) {
    let _ = File::options().write(true).create_new(true).mode(0o600).open(database);
}

fn lock_opening(folder: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(folder.join(OPENING))?;
    file.lock()?;
    Ok(file)
}

impl Run {
    /// Begins a run. Called with the opening lock held, so that [`remove_ended`] of another program
    /// cannot see the file before it is locked.
    pub(crate) fn begin(folder: &Path) -> io::Result<Run> {
        let id = new_id().to_string();
        let path = folder.join(&id);
        let file = File::create_new(&path)?;
        file.lock()?;
        Ok(Run { id, path, lock: Mutex::new(Some(file)) })
    }

    /// A run on a database that only this process can see.
    pub(crate) fn in_memory() -> Run {
        Run { id: new_id().to_string(), path: PathBuf::new(), lock: Mutex::default() }
    }

    /// Locks the file again if it was deleted, so that other programs still see this run.
    pub(crate) fn renew(&self) -> io::Result<()> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.is_none() || self.path.exists() {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = File::create_new(&self.path)?;
        file.lock()?;
        *lock = Some(file);
        Ok(())
    }

    /// Whether another program has the database open.
    pub(crate) fn has_company(&self) -> bool {
        let Some(folder) = self.path.parent() else { return false };
        lock_files(folder).any(|id| id != self.id && is_alive(folder, &id))
    }

    /// Ends the run; the next program finishes what it left open.
    pub(crate) fn end(&self) {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = lock.take() {
            // If this fails, a later program removes the file: an ended run is one without a lock.
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

/// Whether the program of this run still has the database open. In doubt it has, because its rows
/// can be finished later.
pub(crate) fn is_alive(folder: &Path, id: &str) -> bool {
    // A damaged row may name any path; only the ids of runs are looked up.
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
    lock_files(folder).any(|id| is_alive(folder, &id))
}

/// The names of the files in a folder of lock files.
fn lock_files(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Notes that damage was found in the database, so that all of it is checked when it is opened next.
pub(crate) fn mark_suspect(folder: &Path) {
    // Small files are checked even if this fails.
    let _ = File::create(folder.join(SUSPECT));
}

/// Whether damage was found since the last check.
pub(crate) fn is_suspect(folder: &Path) -> bool {
    folder.join(SUSPECT).exists()
}

/// Removes the note of [`mark_suspect`].
pub(crate) fn clear_suspicion(folder: &Path) {
    // If this fails, the database is checked once more.
    let _ = fs::remove_file(folder.join(SUSPECT));
}

/// Removes the files of runs that have ended. Called with the opening lock held.
pub(crate) fn remove_ended(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let id = entry.file_name();
        let has_ended =
            id.to_str().is_some_and(|id| Uuid::parse_str(id).is_ok() && !is_alive(folder, id));
        if has_ended {
            // A file that stays is harmless; the next program tries again.
            let _ = fs::remove_file(entry.path());
        }
    }
}
