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
//! cairn.saving.db                           the copy until it is complete, or the next start
//! ```

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Sqlite};

use crate::backup::{beside, sync_folder, timestamp};
use crate::recovery::with_log;
use crate::store::{known_version, reader_options, writer_options};
use crate::{Store, StoreError, run, table_roots};

/// Marks the copy until it is complete.
const PARTIAL: &str = "saving";
/// Tables without which a copy is not complete.
const EXPECTED_TABLES: &str = "select count(*) = 3 from sqlite_schema
     where type = 'table' and name in ('_sqlx_migrations', 'conversations', 'messages')";

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

impl FileId {
    fn new(found: &Metadata) -> FileId {
        FileId { device: found.dev(), inode: found.ino() }
    }
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

    /// Notes the log if none is noted: SQLite creates it when it first opens the file.
    fn note_log(&self) {
        let mut state = self.state();
        if state.file.is_some() && state.log.is_none() {
            state.log = file_id(&with_log(&state.path)).ok().flatten();
        }
    }

    fn has_lost_log(&self) -> bool {
        self.note_log();
        let state = self.state();
        state.log.is_some() && file_id(&with_log(&state.path)).is_ok_and(|found| found != state.log)
    }

    fn path(&self) -> PathBuf {
        self.state().path.clone()
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
    /// `free_bytes` are free on the disk; `None` if that is unknown. Nothing is written if the copy
    /// may need more: SQLite would fill the disk before it fails.
    ///
    /// Fails with [`StoreError::Full`] or [`StoreError::NotWritable`] if no copy can be written. The
    /// store then works as before, and the same call may work later.
    pub async fn save_displaced(&self, free_bytes: Option<u64>) -> Result<SavedCopy, StoreError> {
        // Nothing is written between the copy and the first change of the copy.
        let mut writer = self.writer.acquire().await.map_err(|error| self.failed(error))?;
        self.check_room(&mut writer, free_bytes).await?;
        let saved = self.write_copy(&mut writer).await?;
        self.reopen(writer, &saved.path).await;
        // If this fails, the next start writes that file, and the database itself is not affected.
        let _ = table_roots::note(&saved.path, &self.writer, known_version()).await;
        Ok(saved)
    }

    /// Fails with [`StoreError::Full`] if a copy may need more than the free bytes.
    async fn check_room(
        &self,
        writer: &mut PoolConnection<Sqlite>,
        free_bytes: Option<u64>,
    ) -> Result<(), StoreError> {
        let size = "select page_count * page_size from pragma_page_count, pragma_page_size";
        let size = sqlx::query_scalar(size).fetch_one(&mut **writer).await;
        let num_bytes: i64 = size.map_err(|error| self.failed(error))?;
        if free_bytes.is_some_and(|free_bytes| free_bytes < num_bytes.unsigned_abs()) {
            return Err(StoreError::Full { path: self.path().to_owned() });
        }
        Ok(())
    }

    /// Continues with new connections to the file at a path. Nothing has been written since the old
    /// ones had the same content.
    async fn reopen(&self, writer: PoolConnection<Sqlite>, path: &Path) {
        self.writer.set_connect_options(writer_options(path));
        self.readers.set_connect_options(reader_options(path));
        self.open_file.renewed_at.begin();
        // Before anything that can fail or wait: a copy that is not noted looks like someone else's
        // file.
        self.open_file.note(path);
        // If this fails, the lock is missing until the next start.
        let _ = self.run.renew();
        // While one old connection to a file is open, SQLite shares its state with new ones to it.
        while let Some(reader) = self.readers.try_acquire() {
            let _ = reader.close().await;
        }
        // If its file has moved, SQLite leaves the log of the new one alone.
        let _ = writer.close().await;
        // If it cannot be opened, the next change says why.
        drop(self.writer.acquire().await);
        self.open_file.note_log();
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

    /// Writes the log into the database if the log's file was deleted, and continues with a new
    /// log: SQLite would continue with the deleted one, and a kill would lose it. While another
    /// program has the database open, which may use either log, each call only writes the log.
    ///
    /// Fails if the database cannot be written, and with [`StoreError::Busy`] if someone reads the
    /// log. The same call may work later.
    pub async fn keep_log(&self) -> Result<(), StoreError> {
        if !self.open_file.has_lost_log() || self.open_file.is_gone() {
            return Ok(());
        }
        let mut writer = self.writer.acquire().await.map_err(|error| self.failed(error))?;
        let emptied = sqlx::query_scalar("pragma wal_checkpoint(truncate)");
        let is_busy: bool =
            emptied.fetch_one(&mut *writer).await.map_err(|error| self.failed(error))?;
        if is_busy {
            return Err(StoreError::Busy { path: self.path().to_owned() });
        }
        // The file may have gone meanwhile, and someone else's must not be opened.
        if !self.run.has_company() && !self.open_file.is_gone() {
            let path = self.open_file.path();
            self.reopen(writer, &path).await;
        }
        Ok(())
    }

    /// Saves a copy if the file is gone when the store closes.
    pub(crate) async fn save_before_closing(&self) {
        if self.open_file.is_gone() {
            // No one is left to be told, and there is no later time for it.
            let _ = self.save_displaced(None).await;
        }
    }
}

/// Gives the copy of a program that was killed before it could rename it a name, if it is complete:
/// the database's, or another one if something is there. Removes any other. Called with the opening
/// lock held, and before the database is created.
pub(crate) async fn settle_copy(path: &Path) {
    let partial = beside(path, PARTIAL);
    let Ok(found) = fs::symlink_metadata(&partial) else { return };
    // Another program may be writing it.
    if !found.is_file() || run::is_any_alive(&run::folder_of(path)) {
        return;
    }
    // A copy that is the database already has only kept its first name.
    let is_placed = file_id(path).is_ok_and(|placed| placed == Some(FileId::new(&found)));
    let complete = if is_placed { Ok(None) } else { completed_at(&partial).await };
    // What cannot be checked or renamed stays until the next start.
    let _ = match complete {
        Ok(Some(now)) => place(&partial, path, &now).map(drop),
        Ok(None) => remove(&partial),
        Err(_) => Ok(()),
    };
}

/// The current time, if a copy is a complete database. Fails if the system cannot read it.
async fn completed_at(copy: &Path) -> Result<Option<String>, StoreError> {
    let check = async {
        let options = SqliteConnectOptions::new().filename(copy).read_only(true);
        let mut connection = options.connect().await?;
        let found = async {
            let has_tables: bool =
                sqlx::query_scalar(EXPECTED_TABLES).fetch_one(&mut connection).await?;
            let check = "pragma integrity_check(1)";
            let check: String = sqlx::query_scalar(check).fetch_one(&mut connection).await?;
            Ok((has_tables && check == "ok").then_some(timestamp(&mut connection).await?))
        };
        let found = found.await;
        let _ = connection.close().await;
        found
    };
    match check.await.map_err(|error: sqlx::Error| StoreError::from_sqlx(copy, error)) {
        Err(StoreError::Corrupt { .. }) => Ok(None),
        checked => checked,
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
        Ok(found) => Ok(Some(FileId::new(&found))),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(error),
        },
    }
}
