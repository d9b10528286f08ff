//! The database file: opening it, its connections, its transactions.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteQueryResult, SqliteSynchronous,
};
use sqlx::{Connection, Sqlite, Transaction};
use tokio::sync::Notify;

use crate::displaced::{OpenFile, Renewal};
use crate::ended_runs::finish_ended_runs;
use crate::other_writers::OtherWriters;
use crate::run::{self, Run};
use crate::{StoreError, backup, chunks, displaced, table_roots};

pub(crate) static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_READERS: u32 = 4;

/// The open database. Share it behind an `Arc`; every method may be called from any task.
///
/// - All writes go through one connection, so they never wait for each other inside SQLite; readers
///   see the last commit.
/// - A method that returned `Ok` has synced its rows to the disk. One that failed, or whose future
///   was dropped, has either written everything or nothing.
/// - After [`StoreError::Full`] the store goes on working, as soon as there is room.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    pub(crate) writer: SqlitePool,
    pub(crate) readers: SqlitePool,
    pub(crate) run: Run,
    pub(crate) other_writers: OtherWriters,
    pub(crate) open_file: OpenFile,
    /// Says that documents were added, which are not indexed for search yet.
    pub(crate) new_documents: Notify,
    /// The conversation of the newest answer that opening the file found interrupted.
    interrupted: Mutex<Option<String>>,
}

impl Store {
    /// Opens the database at `path`, creates it and its folder where they are missing, and migrates
    /// it to this version.
    ///
    /// Also finishes what programs that have ended left open: the answers they were writing become
    /// interrupted, and the conversations and named prompt caches they deleted are purged. The
    /// caller purges what these had in the prompt cache: see [`Store::purged_owners`].
    pub async fn open(path: &Path) -> Result<Store, StoreError> {
        let folder = run::folder_of(path);
        // Programs open the file one after the other, so that no two migrate it at once and none
        // takes a run that is just beginning for an ended one.
        let opening = run::wait_to_open(path).await?;

        displaced::settle_copy(path).await;
        run::make_private(path);
        let other_writers = OtherWriters::default();
        let open_file = OpenFile::new(Renewal::default());
        let renewed_at = open_file.renewed_at.clone();
        let num_connections = Arc::clone(&other_writers.num_connections);
        let writer = connect_writer(path, num_connections, renewed_at.clone())
            .await
            .map_err(|error| StoreError::from_sqlx(path, error))?;
        let (run, interrupted) = match prepare(path, &folder, &writer, &other_writers).await {
            Ok(prepared) => prepared,
            Err(error) => {
                // Waits until the connection has ended, so that no write-ahead log stays beside a
                // file that is refused.
                writer.close().await;
                return Err(error);
            }
        };
        drop(opening);
        open_file.note(path);
        // If the file is gone, a connection that replaces the first must not create an empty one.
        writer.set_connect_options(writer_options(path));

        let readers = pool_options()
            .max_connections(MAX_READERS)
            .before_acquire(move |_, connection| {
                let is_current = renewed_at.allows(connection.age);
                Box::pin(async move { Ok(is_current) })
            })
            .connect_lazy_with(reader_options(path));
        Ok(Store {
            path: path.to_owned(),
            writer,
            readers,
            run,
            other_writers,
            open_file,
            new_documents: Notify::new(),
            interrupted: Mutex::new(interrupted),
        })
    }

    /// A new database in memory, which exists as long as this value does. Nothing of it is ever
    /// written to a file.
    pub async fn in_memory() -> Result<Store, StoreError> {
        let path = PathBuf::from(":memory:");
        let options = SqliteConnectOptions::new()
            .in_memory(true)
            .foreign_keys(true)
            // Sorting would otherwise go through files.
            .pragma("temp_store", "memory");
        // The database belongs to its one connection, so the pool must never close that. Were it
        // tested before each call, a call that is dropped during the test would take it along.
        let pool = pool_options()
            .min_connections(1)
            .max_connections(1)
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .map_err(|error| StoreError::from_sqlx(&path, error))?;
        MIGRATIONS.run(&pool).await.map_err(|error| StoreError::from_migrate(&path, error))?;
        Ok(Store {
            path,
            writer: pool.clone(),
            readers: pool,
            run: Run::in_memory(),
            other_writers: OtherWriters::default(),
            open_file: OpenFile::default(),
            new_documents: Notify::new(),
            interrupted: Mutex::default(),
        })
    }

    /// Writes the log back into the file and closes the database. Later calls fail with
    /// [`StoreError::Closed`]; closing again does nothing.
    pub async fn close(&self) -> Result<(), StoreError> {
        if self.writer.is_closed() {
            return Ok(());
        }
        self.save_before_closing().await;
        self.readers.close().await;
        // If this fails, nothing is lost: the log stays beside the file, and the next program reads
        // it.
        let checkpoint = self.empty_log().await;
        self.writer.close().await;
        self.run.end();
        checkpoint.map_err(|error| self.failed(error))
    }

    /// Writes the log back into the file, as far as other programs that read it allow.
    pub(crate) async fn empty_log(&self) -> Result<(), sqlx::Error> {
        sqlx::query("pragma wal_checkpoint(truncate)").execute(&self.writer).await.map(|_| ())
    }

    /// The database file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The conversation of the newest answer that opening the file found interrupted: told once, for
    /// the first page that is shown.
    pub fn take_interrupted(&self) -> Option<String> {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Begins a transaction that may write. It takes the write lock at once, so that a later
    /// statement cannot fail to get it.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.writer.begin_with("begin immediate").await.map_err(|error| self.failed(error))
    }

    pub(crate) async fn commit(&self, tx: Transaction<'static, Sqlite>) -> Result<(), StoreError> {
        tx.commit().await.map_err(|error| self.failed(error))
    }

    /// Runs a statement that changes one row, in a transaction of its own. Fails with `missing` if
    /// there is no such row.
    pub(crate) async fn change_row(
        &self,
        change: Query<'_, Sqlite, SqliteArguments>,
        missing: impl FnOnce() -> StoreError,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let done = change.execute(&mut *tx).await;
        self.changed_a_row(done, missing)?;
        self.commit(tx).await
    }

    /// Fails with `missing` if a statement changed no row.
    pub(crate) fn changed_a_row(
        &self,
        done: Result<SqliteQueryResult, sqlx::Error>,
        missing: impl FnOnce() -> StoreError,
    ) -> Result<(), StoreError> {
        match done.map_err(|error| self.failed(error))?.rows_affected() {
            0 => Err(missing()),
            _ => Ok(()),
        }
    }

    /// Turns a failure of SQLite into an error for this file, and notes damage for the next start.
    pub(crate) fn failed(&self, error: sqlx::Error) -> StoreError {
        let error = StoreError::from_sqlx(&self.path, error);
        if matches!(error, StoreError::Corrupt { .. }) {
            run::mark_suspect(&run::folder_of(&self.path));
        }
        error
    }
}

fn connect_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        // On macOS a plain fsync leaves data in the drive's own cache; elsewhere these two have no
        // effect.
        .pragma("fullfsync", "on")
        .pragma("checkpoint_fullfsync", "on")
        // What is deleted is overwritten: a deleted chat's text must not stay in the file.
        .pragma("secure_delete", "on")
}

/// The options of the connection that writes, to a file that is there.
pub(crate) fn writer_options(path: &Path) -> SqliteConnectOptions {
    connect_options(path).journal_mode(SqliteJournalMode::Wal)
}

/// The options of the connections that only read.
pub(crate) fn reader_options(path: &Path) -> SqliteConnectOptions {
    connect_options(path).pragma("query_only", "on")
}

fn pool_options() -> SqlitePoolOptions {
    SqlitePoolOptions::new().max_lifetime(None).idle_timeout(None)
}

/// Opens the connection for all writes, and creates the file where it is missing. Adds one to
/// `num_connections` now, and each time that the connection is replaced.
async fn connect_writer(
    path: &Path,
    num_connections: Arc<AtomicU64>,
    renewed_at: Renewal,
) -> Result<SqlitePool, sqlx::Error> {
    let options = writer_options(path).create_if_missing(true);
    pool_options()
        .max_connections(1)
        .after_connect(move |_, _| {
            num_connections.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        })
        // SQLite ends a transaction by itself when the disk is full, and sqlx then counts it as
        // open forever. Such a connection is replaced.
        .before_acquire(move |connection, state| {
            let is_current = renewed_at.allows(state.age);
            Box::pin(async move { Ok(is_current && !connection.is_in_transaction()) })
        })
        .connect_with(options)
        .await
}

/// Migrates the file to this version and begins a run on it. Returns the conversation of the newest
/// answer that was interrupted, too.
async fn prepare(
    path: &Path,
    folder: &Path,
    writer: &SqlitePool,
    other_writers: &OtherWriters,
) -> Result<(Run, Option<String>), StoreError> {
    let version = version(path, writer).await?;
    if 0 < version && version < known_version() {
        backup::back_up(path, version, writer).await?;
    }
    MIGRATIONS.run(writer).await.map_err(|error| StoreError::from_migrate(path, error))?;
    let noted = table_roots::note(path, writer, known_version()).await;
    noted.map_err(|error| StoreError::from_sqlx(path, error))?;
    let run = Run::begin(folder).map_err(|error| StoreError::from_io(path, error))?;
    let interrupted = finish_ended_runs(folder, writer)
        .await
        .map_err(|error| StoreError::from_sqlx(path, error))?;
    chunks::remove_nameless(writer).await.map_err(|error| StoreError::from_sqlx(path, error))?;
    other_writers.have_written(writer).await.map_err(|error| StoreError::from_sqlx(path, error))?;
    run::remove_ended(folder);
    backup::remove_unfinished(path);
    Ok((run, interrupted))
}

/// The version of the file's tables; 0 for a new file. A version that this program does not know is
/// refused, before anything is written to the file.
async fn version(path: &Path, writer: &SqlitePool) -> Result<i64, StoreError> {
    let failed = |error| StoreError::from_sqlx(path, error);
    let tables: i64 =
        sqlx::query_scalar("select count(*) from sqlite_schema where name = '_sqlx_migrations'")
            .fetch_one(writer)
            .await
            .map_err(failed)?;
    if tables == 0 {
        return Ok(0);
    }
    let found: i64 = sqlx::query_scalar("select coalesce(max(version), 0) from _sqlx_migrations")
        .fetch_one(writer)
        .await
        .map_err(failed)?;
    let known = known_version();
    if found > known {
        Err(StoreError::Newer { path: path.to_owned(), found, known })
    } else {
        Ok(found)
    }
}

/// The version to which this program migrates a file.
pub(crate) fn known_version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}
