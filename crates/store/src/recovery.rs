//! Recovery of a damaged database: what can be read of it goes into a new one, and the damaged file
//! is set aside, never changed or deleted.
//!
//! ```text
//! cairn.damaged-2026-03-09-141502.db         the damaged file (with -wal and -shm, where there were any)
//! cairn.recovering-2026-03-09-141502.db      the new one until it is complete
//! ```
//!
//! The new file is complete and synced before the damaged one leaves its place, so a crash or a
//! full disk at any point leaves the damaged file where it was, to be recovered again.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};

use crate::backup::{backups, beside, sync_folder, timestamp};
use crate::result_code::{
    CONSTRAINT, CORRUPT, IOERR_CORRUPTFS, IOERR_READ, IOERR_SHORT_READ, MISMATCH, NOTADB, TOOBIG,
    primary, result_code,
};
use crate::store::{MIGRATIONS, known_version};
use crate::title::title_from;
use crate::{Store, StoreError, run};

/// A file up to this size is checked whole at every start, which takes a tenth of a second; a
/// larger one only after damage was met in it.
const MAX_CHECKED_BYTES: u64 = 16 << 20;
/// Where not even an index says how many rows a table has, so many are looked for.
const UNKNOWN_NUM_ROWS: i64 = 1 << 16;
/// After so many rows of one table that cannot be read, the rest of it is given up: its root is
/// gone, and each further try fails like the last.
const MAX_FAILURES: usize = 100_000;

/// What became of a damaged database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Where the damaged file lies now.
    pub damaged: PathBuf,
    /// The backup that was read in place of the damaged file, of which nothing was readable.
    pub backup: Option<PathBuf>,
    /// Conversations that were carried over.
    pub num_conversations: i64,
    /// How many there were; none where that cannot be told any more.
    pub total_conversations: Option<i64>,
    /// Messages that were carried over.
    pub num_messages: i64,
    /// How many there were; none where that cannot be told any more.
    pub total_messages: Option<i64>,
}

impl Store {
    /// As [`Store::open`], but a damaged database is set aside and replaced by a new one with all
    /// that is still readable: rows of every table, each message that lost its predecessor attached
    /// to the one before it.
    ///
    /// Fails with [`StoreError::Corrupt`] while another program has the damaged file open, and with
    /// [`StoreError::Full`] where the disk has no room for the new one; the file is then left where
    /// it is.
    pub async fn open_or_recover(path: &Path) -> Result<(Store, Option<Recovery>), StoreError> {
        let recovery = recover(path, false).await?;
        match Store::open(path).await {
            // Met outside of what was checked.
            Err(StoreError::Corrupt { .. }) if recovery.is_none() => {
                let recovery = recover(path, true).await?;
                Ok((Store::open(path).await?, recovery))
            }
            opened => Ok((opened?, recovery)),
        }
    }
}

/// Recovers the database at `path` where it is found damaged, or `is_damaged` says so.
async fn recover(path: &Path, is_damaged: bool) -> Result<Option<Recovery>, StoreError> {
    if fs::metadata(path).map_or(0, |metadata| metadata.len()) == 0 {
        return Ok(None);
    }
    let folder = run::folder_of(path);
    // Held to the end: nobody opens the file meanwhile.
    let _opening = run::wait_to_open(path).await?;
    let damage = match is_damaged {
        true => Some("it could not be opened".to_owned()),
        false => find_damage(path, run::is_suspect(&folder)).await?,
    };
    let Some(detail) = damage else {
        run::clear_suspicion(&folder);
        return Ok(None);
    };
    if run::is_any_alive(&folder) {
        return Err(StoreError::Corrupt { path: path.to_owned(), detail });
    }
    let recovery = carry_over(path).await?;
    run::clear_suspicion(&folder);
    Ok(Some(recovery))
}

/// What SQLite finds wrong with the file; none where nothing is, or it was not looked at whole.
async fn find_damage(path: &Path, is_suspect: bool) -> Result<Option<String>, StoreError> {
    let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
    let check = async {
        let mut connection = SqliteConnectOptions::new().filename(path).connect().await?;
        let check = if is_suspect || size <= MAX_CHECKED_BYTES {
            "pragma integrity_check"
        } else {
            // Reads the first page, where another kind of file shows.
            "select 'ok' from sqlite_schema limit 1"
        };
        let found = sqlx::query_scalar(check).fetch_all(&mut connection).await;
        let closed = connection.close().await;
        found.and_then(|found| closed.map(|()| found))
    };
    match check.await.map_err(|error: sqlx::Error| StoreError::from_sqlx(path, error)) {
        // A value that no version of this program writes is no damage of the file: whoever reads it
        // says so, and the rows beside it are of use.
        Ok(found) => Ok(found
            .into_iter()
            .find(|line: &String| line != "ok" && !line.starts_with("CHECK constraint failed"))),
        Err(StoreError::Corrupt { detail, .. }) => Ok(Some(detail)),
        Err(error) => Err(error),
    }
}

/// Makes the new database and puts it in the place of the damaged one.
async fn carry_over(path: &Path) -> Result<Recovery, StoreError> {
    let mut clock = sqlx::SqliteConnection::connect("sqlite::memory:")
        .await
        .map_err(|error| StoreError::from_sqlx(path, error))?;
    let now = timestamp(&mut clock).await.map_err(|error| StoreError::from_sqlx(path, error))?;
    let new = beside(path, &format!("recovering-{now}"));
    let recovered = async {
        let mut recovery = read_into(&new, path).await?;
        // Of a file without any readable row, what stood in it some time ago is better than nothing.
        for backup in backups(path) {
            if recovery.num_rows > 0 {
                break;
            }
            recovery = Salvaged { backup: Some(backup.clone()), ..read_into(&new, &backup).await? };
        }
        File::open(&new)
            .and_then(|file| file.sync_all())
            .map_err(|error| StoreError::from_io(&new, error))?;
        let damaged =
            replace(path, &new, &now).map_err(|error| StoreError::from_io(path, error))?;
        Ok(Recovery {
            damaged,
            backup: recovery.backup,
            num_conversations: recovery.conversations.0,
            total_conversations: recovery.conversations.1,
            num_messages: recovery.messages.0,
            total_messages: recovery.messages.1,
        })
    }
    .await;
    if recovered.is_err() {
        for file in with_logs(&new) {
            let _ = fs::remove_file(file);
        }
    }
    recovered
}

/// Sets the damaged file aside under a new name and moves the new one to its place. Returns the new
/// name.
fn replace(path: &Path, new: &Path, now: &str) -> io::Result<PathBuf> {
    let aside = (0..)
        .map(|count| match count {
            0 => beside(path, &format!("damaged-{now}")),
            count => beside(path, &format!("damaged-{now}-{count}")),
        })
        .find(|aside| with_logs(aside).iter().all(|file| fs::symlink_metadata(file).is_err()))
        .unwrap_or_else(|| beside(path, "damaged"));
    // A second name for each, which fails where the name is taken: nothing is ever overwritten.
    for (file, aside) in with_logs(path).iter().zip(with_logs(&aside)) {
        match fs::hard_link(file, aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && file != path => {}
            linked => linked?,
        }
    }
    sync_folder(path);
    // The logs first: SQLite would read them into the new file.
    for log in with_logs(path).iter().filter(|file| *file != path) {
        match fs::remove_file(log) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(new, path)?;
    sync_folder(path);
    Ok(aside)
}

/// A database and the two files that SQLite keeps beside it.
fn with_logs(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut name = OsString::from(path);
        name.push(suffix);
        PathBuf::from(name)
    })
}

/// How much was read out of one file: carried over, and in all where that is known.
#[derive(Debug, Default)]
struct Salvaged {
    backup: Option<PathBuf>,
    /// Rows of any table.
    num_rows: u64,
    conversations: (i64, Option<i64>),
    messages: (i64, Option<i64>),
}

/// Makes the database `new` with all that is readable in `source`. It has the version of the
/// source: [`Store::open`] migrates it like any other file.
async fn read_into(new: &Path, source: &Path) -> Result<Salvaged, StoreError> {
    for file in with_logs(new) {
        let _ = fs::remove_file(file);
    }
    let failed = |error| StoreError::from_sqlx(new, error);
    let options = SqliteConnectOptions::new()
        .filename(new)
        .create_if_missing(true)
        // Nobody sees the file before it is complete and synced.
        .journal_mode(SqliteJournalMode::Memory)
        .synchronous(SqliteSynchronous::Off)
        // The rows come one after the other; what refers to what is put right at the end.
        .foreign_keys(false);
    // One connection, because an attached file belongs to it.
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await;
    let pool = pool.map_err(failed)?;
    let salvaged = async {
        let mut connection = pool.acquire().await.map_err(failed)?;
        let is_readable = attach(&mut connection, source).await?;
        let version = if is_readable { version(&mut connection).await } else { None };
        let known = known_version();
        if let Some(found) = version.filter(|found| *found > known) {
            return Err(StoreError::Newer { path: source.to_owned(), found, known });
        }
        // Detached, so that no migration finds a table of the source.
        detach(&mut connection).await.map_err(failed)?;
        drop(connection);
        match version {
            Some(version) => MIGRATIONS.run_to(version, &pool).await,
            None => MIGRATIONS.run(&pool).await,
        }
        .map_err(|error| StoreError::from_migrate(new, error))?;
        if !is_readable {
            return Ok(Salvaged::default());
        }
        let mut connection = pool.acquire().await.map_err(failed)?;
        attach(&mut connection, source).await?;
        let salvaged = salvage(&mut connection).await.map_err(failed)?;
        detach(&mut connection).await.map_err(failed)?;
        Ok(salvaged)
    }
    .await;
    pool.close().await;
    salvaged
}

/// Attaches the damaged file as `source`; false where not even its list of tables can be read.
async fn attach(connection: &mut SqliteConnection, source: &Path) -> Result<bool, StoreError> {
    let attached = async {
        // Tables stay readable where the definition of an index is not.
        sqlx::query("pragma writable_schema = on").execute(&mut *connection).await?;
        sqlx::query("attach ? as source")
            .bind(source.to_string_lossy())
            .execute(&mut *connection)
            .await?;
        sqlx::query("select count(*) from source.sqlite_schema").execute(connection).await
    };
    match attached.await {
        Ok(_) => Ok(true),
        Err(error) if is_damage(&error) => Ok(false),
        Err(error) => Err(StoreError::from_sqlx(source, error)),
    }
}

async fn detach(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let is_attached: bool = sqlx::query_scalar(
        "select exists (select 1 from pragma_database_list where name = 'source')",
    )
    .fetch_one(&mut *connection)
    .await?;
    if is_attached {
        sqlx::query("detach source").execute(&mut *connection).await?;
    }
    sqlx::query("pragma writable_schema = off").execute(connection).await.map(drop)
}

/// The version of the attached file's tables; none where that cannot be read.
async fn version(connection: &mut SqliteConnection) -> Option<i64> {
    sqlx::query_scalar("select max(version) from source._sqlx_migrations")
        .fetch_one(connection)
        .await
        .ok()
}

/// Copies every readable row of the attached file, and puts right what refers to rows that are
/// gone.
async fn salvage(connection: &mut SqliteConnection) -> Result<Salvaged, sqlx::Error> {
    // Without a transaction around it: SQLite ends one for good at the first page that is damaged.
    let mut salvaged = Salvaged::default();
    let tables: Vec<String> = sqlx::query_scalar(
        "select name from main.sqlite_schema
         where type = 'table' and name not like 'sqlite\\_%' escape '\\' and name <> '_sqlx_migrations'",
    )
    .fetch_all(&mut *connection)
    .await?;
    for table in &tables {
        salvaged.num_rows += Copying::begin(connection, table).await?.run(connection).await?;
    }
    restore_conversations(connection).await?;
    sqlx::raw_sql(REATTACH).execute(&mut *connection).await?;

    salvaged.conversations = num_rows(connection, "conversations").await?;
    salvaged.messages = num_rows(connection, "messages").await?;
    Ok(salvaged)
}

/// A message whose predecessor is gone follows the one before it, and a branch whose end is gone
/// ends in the newest message.
const REATTACH: &str = "
    update messages set parent_id = (
        select earlier.id from messages as earlier
        where earlier.conversation_id = messages.conversation_id and earlier.seq < messages.seq
        order by earlier.seq desc limit 1
    )
    where parent_id is not null and not exists (
        select 1 from messages as parent
        where parent.conversation_id = messages.conversation_id and parent.id = messages.parent_id
    );
    update conversations set leaf_message_id = (
        select id from messages where conversation_id = conversations.id order by seq desc limit 1
    )
    where leaf_message_id is null or not exists (
        select 1 from messages where conversation_id = conversations.id and id = leaf_message_id
    );";

/// Makes a row for each conversation of which only messages are left, named after its first
/// question.
async fn restore_conversations(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let rows = sqlx::query(
        "select conversation_id, min(created_at_ms) as created_at_ms, max(created_at_ms) as updated_at_ms,
             coalesce((select text from messages as question
                       where question.conversation_id = messages.conversation_id and role = 'user'
                       order by seq limit 1), '') as question
         from messages where conversation_id not in (select id from conversations)
         group by conversation_id order by max(seq)",
    )
    .fetch_all(&mut *connection)
    .await?;
    for row in rows {
        sqlx::query(
            "insert into conversations (id, title, system_prompt, activity_seq, created_at_ms, updated_at_ms)
             values (?, ?, '', (select coalesce(max(activity_seq), 0) + 1 from conversations), ?, ?)",
        )
        .bind(row.try_get::<String, _>("conversation_id")?)
        .bind(title_from(row.try_get("question")?))
        .bind(row.try_get::<i64, _>("created_at_ms")?)
        .bind(row.try_get::<i64, _>("updated_at_ms")?)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// How many rows a table has now, and how many it had in the source, as far as that can be read.
async fn num_rows(
    connection: &mut SqliteConnection,
    table: &str,
) -> Result<(i64, Option<i64>), sqlx::Error> {
    let mut count = async |schema: &str| -> Result<i64, sqlx::Error> {
        let count = format!("select count(*) from {schema}.{table}");
        sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut *connection).await
    };
    let found = count("main").await?;
    // The damage may have made the count of the source too small.
    let total = count("source").await.ok().map(|total| total.max(found));
    Ok((found, total))
}

/// The copying of one table, in ranges of rows that are halved until what cannot be read is alone.
struct Copying {
    insert: String,
    max_rowid: i64,
}

impl Copying {
    async fn begin(connection: &mut SqliteConnection, table: &str) -> Result<Copying, sqlx::Error> {
        // A table or column that the source does not have is left at its default.
        let columns: Vec<String> = sqlx::query_scalar(
            "select name from pragma_table_info(?1, 'main')
             where name in (select name from pragma_table_info(?1, 'source'))",
        )
        .bind(table)
        .fetch_all(&mut *connection)
        .await
        .or_else(nothing_if_damaged)?;
        let quoted: Vec<String> = columns.iter().map(|column| format!("\"{column}\"")).collect();
        let columns = quoted.join(", ");
        // Without an index, which may miss rows that the table still has.
        let insert = format!(
            "insert into main.\"{table}\" ({columns}) select {columns} from source.\"{table}\" not indexed
             where rowid between ? and ?"
        );
        let max_rowid = match columns.is_empty() {
            true => 0,
            false => max_rowid(connection, table).await?,
        };
        Ok(Copying { insert, max_rowid })
    }

    /// Returns how many rows were copied.
    async fn run(&self, connection: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
        let (mut num_copied, mut num_failures) = (0, 0);
        let mut ranges = Vec::new();
        if self.max_rowid > 0 {
            ranges.push((1, self.max_rowid));
        }
        while let Some((first, last)) = ranges.pop() {
            let copied = sqlx::query(AssertSqlSafe(self.insert.clone()))
                .bind(first)
                .bind(last)
                .execute(&mut *connection)
                .await;
            match copied {
                Ok(done) => num_copied += done.rows_affected(),
                Err(error) if !is_damage(&error) => return Err(error),
                Err(_) if first == last => {
                    num_failures += 1;
                    if num_failures == MAX_FAILURES {
                        break;
                    }
                }
                Err(_) => {
                    let middle = first + (last - first) / 2;
                    ranges.push((middle + 1, last));
                    ranges.push((first, middle));
                }
            }
        }
        Ok(num_copied)
    }
}

/// The greatest rowid of a table, asked of the table itself or else of its indexes.
async fn max_rowid(connection: &mut SqliteConnection, table: &str) -> Result<i64, sqlx::Error> {
    let indexes: Vec<String> =
        sqlx::query_scalar("select name from pragma_index_list(?, 'source')")
            .bind(table)
            .fetch_all(&mut *connection)
            .await
            .or_else(nothing_if_damaged)?;
    let ways = std::iter::once("not indexed".to_owned())
        .chain(indexes.iter().map(|index| format!("indexed by \"{index}\"")));
    for way in ways {
        let ask = format!("select coalesce(max(rowid), 0) from source.\"{table}\" {way}");
        if let Ok(found) = sqlx::query_scalar(AssertSqlSafe(ask)).fetch_one(&mut *connection).await
        {
            return Ok(found);
        }
    }
    Ok(UNKNOWN_NUM_ROWS)
}

fn nothing_if_damaged<T>(error: sqlx::Error) -> Result<Vec<T>, sqlx::Error> {
    if is_damage(&error) { Ok(Vec::new()) } else { Err(error) }
}

/// Whether an error comes from what was read, and not from the new file or the system.
fn is_damage(error: &sqlx::Error) -> bool {
    result_code(error).is_some_and(|code| {
        [IOERR_READ, IOERR_SHORT_READ, IOERR_CORRUPTFS].contains(&code)
            || [CORRUPT, TOOBIG, CONSTRAINT, MISMATCH, NOTADB].contains(&primary(code))
    })
}
