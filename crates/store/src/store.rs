//! The database file: opening it, its connections, its transactions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection, Sqlite, Transaction};

use crate::other_writers::OtherWriters;
use crate::run::{self, Run};
use crate::{StoreError, backup};

pub(crate) static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
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
}

impl Store {
    /// Opens the database at `path`, making it and its folder where they are missing, and brings it
    /// to this version.
    ///
    /// Also tidies up after programs that are gone: the answers they were writing become
    /// interrupted, and the conversations and named prompt caches they deleted are purged. What
    /// these held in the prompt cache is for the caller to purge: see [`Store::purged_owners`].
    pub async fn open(path: &Path) -> Result<Store, StoreError> {
        let folder = run::folder_of(path);
        // Held to the end: programs open the file one after the other, so they neither migrate at
        // once nor judge half-begun runs.
        let opening = run::wait_to_open(path).await?;

        let options = SqliteConnectOptions::new()
            .filename(path)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
            // On macOS a plain fsync leaves data in the drive's own cache; elsewhere these two
            // change nothing.
            .pragma("fullfsync", "on")
            .pragma("checkpoint_fullfsync", "on");
        let other_writers = OtherWriters::default();
        let num_connections = Arc::clone(&other_writers.num_connections);
        let pool = || SqlitePoolOptions::new().max_lifetime(None).idle_timeout(None);
        let writer = pool()
            .max_connections(1)
            // SQLite ends a transaction by itself when the disk is full, and sqlx then counts it as
            // open for ever. A connection that comes back like that is replaced.
            .after_connect(move |_, _| {
                num_connections.fetch_add(1, Ordering::Relaxed);
                Box::pin(async { Ok(()) })
            })
            .before_acquire(|connection, _| {
                Box::pin(async move { Ok(!connection.is_in_transaction()) })
            })
            .connect_with(
                options.clone().create_if_missing(true).journal_mode(SqliteJournalMode::Wal),
            )
            .await
            .map_err(|error| StoreError::from_sqlx(path, error))?;
        let run = match prepare(path, &folder, &writer, &other_writers).await {
            Ok(run) => run,
            Err(error) => {
                // Waits for the connection to end, so that nothing of ours is left beside a file
                // that is refused.
                writer.close().await;
                return Err(error);
            }
        };
        drop(opening);

        let readers = pool()
            .max_connections(MAX_READERS)
            .connect_lazy_with(options.pragma("query_only", "on"));
        Ok(Store { path: path.to_owned(), writer, readers, run, other_writers })
    }

    /// A new database that lives in memory as long as this value does. Nothing of it ever reaches
    /// a file.
    pub async fn in_memory() -> Result<Store, StoreError> {
        let path = PathBuf::from(":memory:");
        let options = SqliteConnectOptions::new()
            .in_memory(true)
            .foreign_keys(true)
            // Sorting would otherwise go through files.
            .pragma("temp_store", "memory");
        // The database belongs to its one connection, which therefore never ends before the store.
        let pool = SqlitePoolOptions::new()
            .min_connections(1)
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
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
        })
    }

    /// Writes the log back into the file and closes it. Later calls fail with
    /// [`StoreError::Closed`]; closing again does nothing.
    pub async fn close(&self) -> Result<(), StoreError> {
        if self.writer.is_closed() {
            return Ok(());
        }
        self.readers.close().await;
        // Without it nothing is lost: the log stays beside the file and the next program reads it.
        // So the file is closed in any case.
        let checkpoint = sqlx::query("pragma wal_checkpoint(truncate)").execute(&self.writer).await;
        self.writer.close().await;
        self.run.end();
        checkpoint.map(|_| ()).map_err(|error| self.failed(error))
    }

    /// The database file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a transaction that may write; it takes the write lock at once, so it cannot fail for
    /// that later.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.writer.begin_with("begin immediate").await.map_err(|error| self.failed(error))
    }

    pub(crate) async fn commit(&self, tx: Transaction<'static, Sqlite>) -> Result<(), StoreError> {
        tx.commit().await.map_err(|error| self.failed(error))
    }

    /// What a failure of SQLite means for this file.
    pub(crate) fn failed(&self, error: sqlx::Error) -> StoreError {
        let error = StoreError::from_sqlx(&self.path, error);
        if matches!(error, StoreError::Corrupt { .. }) {
            run::suspect(&run::folder_of(&self.path));
        }
        error
    }
}

/// Brings the file to this version and begins a run on it.
async fn prepare(
    path: &Path,
    folder: &Path,
    writer: &SqlitePool,
    other_writers: &OtherWriters,
) -> Result<Run, StoreError> {
    let version = version(path, writer).await?;
    if 0 < version && version < known_version() {
        backup::back_up(path, version, writer).await?;
    }
    MIGRATIONS.run(writer).await.map_err(|error| StoreError::from_migrate(path, error))?;
    let run = Run::begin(folder).map_err(|error| StoreError::from_io(path, error))?;
    tidy(folder, writer).await.map_err(|error| StoreError::from_sqlx(path, error))?;
    other_writers.look(writer).await.map_err(|error| StoreError::from_sqlx(path, error))?;
    run::sweep(folder);
    backup::sweep_unfinished(path);
    Ok(run)
}

/// The version of the file's tables; 0 for a new file. One that this program does not know is
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

/// The version to which this program brings a file.
pub(crate) fn known_version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Finishes what programs that are gone left open.
async fn tidy(folder: &Path, writer: &SqlitePool) -> Result<(), sqlx::Error> {
    let mut tx = writer.begin_with("begin immediate").await?;
    let runs: BTreeSet<String> = sqlx::query_scalar(
        "select run_id from messages where run_id is not null
         union select deleted_by_run_id from conversations where deleted_by_run_id is not null
         union select deleted_by_run_id from named_caches where deleted_by_run_id is not null",
    )
    .fetch_all(&mut *tx)
    .await?
    .into_iter()
    .collect();
    for run in runs.iter().filter(|run| !run::is_alive(folder, run)) {
        sqlx::query("update messages set status = 'interrupted', run_id = null where run_id = ?")
            .bind(run)
            .execute(&mut *tx)
            .await?;
        sqlx::query("delete from conversations where deleted_by_run_id = ?")
            .bind(run)
            .execute(&mut *tx)
            .await?;
        sqlx::query("delete from named_caches where deleted_by_run_id = ?")
            .bind(run)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await
}
