//! Saves a database whose file is taken away while it is open: deleted, moved with its folder, or
//! replaced by another file.
//!
//! SQLite continues with the file it has open, so nothing fails, but after a restart all of it
//! would be gone. The store writes a complete copy and continues with that:
//!
//! ```text
//! cairn.db                                  the copy, if nothing is at the file's place
//! cairn.saved-2026-03-09-141502.db          the copy, if another file is there, which is left alone
//! cairn.removed-2026-03-09-141502.db-wal    a log that was left there; it does not belong to the copy
//! ```

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Sqlite;
use sqlx::pool::PoolConnection;

use crate::backup::{beside, sync_folder, timestamp};
use crate::recovery::with_log;
use crate::store::{known_version, reader_options, writer_options};
use crate::{Store, StoreError, run, table_roots};

/// Marks the copy until it is complete.
const PARTIAL: &str = "saving";

/// A copy with which the store continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedCopy {
    /// Where it is.
    pub path: PathBuf,
    /// The next start opens it. Otherwise another file is in its place.
    pub is_in_place: bool,
}

/// The file that the connections have open. Owned by the store.
#[derive(Debug, Default)]
pub(crate) struct OpenFile {
    state: Mutex<State>,
    /// Connections from before this moment have a file open that is gone.
    pub(crate) renewed_at: Renewal,
}

#[derive(Debug, Default)]
struct State {
    path: PathBuf,
    file: Option<FileId>,
    log: Option<FileId>,
    /// The other file that was at the path at the last look.
    other: Option<FileId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

/// When the connections of a pool became useless.
#[derive(Debug, Clone, Default)]
pub(crate) struct Renewal(Arc<Mutex<Option<Instant>>>);

impl Renewal {
    /// Whether a connection of this age may still be used.
    pub(crate) fn allows(&self, age: Duration) -> bool {
        let renewed_at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let opened_at = Instant::now().checked_sub(age);
        renewed_at.is_none_or(|renewed_at| opened_at.is_some_and(|opened| opened > renewed_at))
    }

    fn begin(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

impl OpenFile {
    pub(crate) fn new(renewed_at: Renewal) -> OpenFile {
        OpenFile { state: Mutex::default(), renewed_at }
    }

    /// Notes the files at this path, which a connection has just opened.
    pub(crate) fn note(&self, path: &Path) {
        *self.state() = State {
            path: path.to_owned(),
            file: file_id(path).ok().flatten(),
            log: file_id(&with_log(path)).ok().flatten(),
            other: None,
        };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the open file is certainly no longer at its path.
    fn is_gone(&self) -> bool {
        let state = self.state();
        state.file.is_some() && file_id(&state.path).is_ok_and(|found| found != state.file)
    }

    /// As `is_gone`. Another file at the path must have been there at the last call too: some network
    /// drives number a file differently each time.
    fn is_gone_for_good(&self) -> bool {
        let mut state = self.state();
        let Ok(found) = file_id(&state.path) else { return false };
        let other = found.filter(|_| found != state.file);
        let is_known = other.is_some() && other == state.other;
        state.other = other;
        state.file.is_some() && (found.is_none() || is_known)
    }

    fn has_lost_log(&self) -> bool {
        let state = self.state();
        state.log.is_some() && file_id(&with_log(&state.path)).is_ok_and(|found| found != state.log)
    }
}

impl Store {
    /// Whether the file of this store is no longer at its path. Another file there counts from the
    /// second call on.
    pub fn is_displaced(&self) -> bool {
        self.open_file.is_gone_for_good()
    }

    /// Writes a complete copy of a database whose file is gone, and continues with it: when this
    /// returns, every change since and from now on is in a file with a name. Creates the folder if it
    /// is gone too. Nothing at the file's place is overwritten.
    ///
    /// Fails with [`StoreError::Full`] or [`StoreError::NotWritable`] if no copy can be written. The
    /// store then works as before, and the same call may work later.
    pub async fn save_displaced(&self) -> Result<SavedCopy, StoreError> {
        // Nothing is written between the copy and the first change of the copy.
        let mut writer = self.writer.acquire().await.map_err(|error| self.failed(error))?;
        let saved = self.write_copy(&mut writer).await?;
        let path = saved.path.as_path();
        self.writer.set_connect_options(writer_options(path));
        self.readers.set_connect_options(reader_options(path));
        self.open_file.renewed_at.begin();
        // SQLite sees that its file has moved, and leaves the log of the new one alone.
        let _ = writer.close().await;
        // If this fails, the lock is missing until the next start.
        let _ = self.run.renew();
        let noted = table_roots::note(path, &self.writer, known_version()).await;
        noted.map_err(|error| self.failed(error))?;
        self.open_file.note(path);
        Ok(saved)
    }

    async fn write_copy(
        &self,
        writer: &mut PoolConnection<Sqlite>,
    ) -> Result<SavedCopy, StoreError> {
        let failed = |error: io::Error| StoreError::from_io(self.path(), error);
        let made = make_folder(self.path()).map_err(failed)?;
        let partial = beside(self.path(), PARTIAL);
        let written = async {
            let now = timestamp(&mut **writer).await.map_err(|error| self.failed(error))?;
            // An empty log needs no place. If someone reads, it stays.
            let empty = sqlx::query("pragma wal_checkpoint(truncate)");
            let _ = empty.execute(&mut **writer).await;
            remove(&partial).map_err(failed)?;
            run::make_private(&partial);
            let copy = sqlx::query("vacuum into ?").bind(partial.to_string_lossy());
            copy.execute(&mut **writer).await.map_err(|error| self.failed(error))?;
            File::open(&partial).and_then(|file| file.sync_all()).map_err(failed)?;
            place(&partial, self.path(), &now).map_err(failed)
        };
        let written = written.await;
        if written.is_err() {
            let _ = remove(&partial);
            // Only a folder that was made for the copy, and only if it is empty.
            made.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
        }
        written
    }

    /// Writes the log into the database if the log's file was deleted: SQLite would continue with
    /// the deleted file, and a kill would lose it.
    pub async fn keep_log(&self) -> Result<(), StoreError> {
        if !self.open_file.has_lost_log() || self.open_file.is_gone() {
            return Ok(());
        }
        self.empty_log().await.map_err(|error| self.failed(error))
    }

    /// Saves a copy if the file is gone when the store closes.
    pub(crate) async fn save_before_closing(&self) {
        if self.open_file.is_gone() {
            // No one is left to be told.
            let _ = self.save_displaced().await;
        }
    }
}

/// Creates the folder of a file with those above it, readable by their owner only. Returns the new ones.
fn make_folder(file: &Path) -> io::Result<Vec<PathBuf>> {
    let folders = file.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
    let mut missing: Vec<PathBuf> =
        folders.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
    missing.reverse();
    for folder in &missing {
        DirBuilder::new().mode(0o700).create(folder)?;
    }
    Ok(missing)
}

/// Gives the complete copy the database's name, or another one if something is there.
fn place(partial: &Path, path: &Path, now: &str) -> io::Result<SavedCopy> {
    if fs::symlink_metadata(path).is_err() {
        set_logs_aside(path, now)?;
        if rename_new(partial, path)? {
            return Ok(SavedCopy { path: path.to_owned(), is_in_place: true });
        }
    }
    for count in 0.. {
        let mark = if count == 0 { format!("saved-{now}") } else { format!("saved-{now}-{count}") };
        let other = beside(path, &mark);
        if rename_new(partial, &other)? {
            return Ok(SavedCopy { path: other, is_in_place: false });
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Renames a file unless the new name is taken; false if it is.
fn rename_new(file: &Path, new: &Path) -> io::Result<bool> {
    match fs::hard_link(file, new) {
        Ok(()) => fs::remove_file(file)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(_) if fs::symlink_metadata(new).is_ok() => return Ok(false),
        // Some file systems have no links.
        Err(_) => fs::rename(file, new)?,
    }
    sync_folder(new);
    Ok(true)
}

/// Moves the log of the file that is gone out of the way: SQLite would apply it to the copy.
fn set_logs_aside(path: &Path, now: &str) -> io::Result<()> {
    let log = with_log(path);
    match fs::metadata(&log) {
        Ok(found) if found.len() > 0 => {
            let mut aside = beside(path, &format!("removed-{now}")).into_os_string();
            aside.push("-wal");
            fs::rename(&log, aside)?;
        }
        Ok(_) => remove(&log)?,
        Err(_) => {}
    }
    // Without its log the index of the log says nothing.
    let mut index = path.as_os_str().to_owned();
    index.push("-shm");
    remove(Path::new(&index))
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The file at a path; none if there is none. Fails if the system does not say.
fn file_id(path: &Path) -> io::Result<Option<FileId>> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(FileId { device: found.dev(), inode: found.ino() })),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(error),
        },
    }
}
