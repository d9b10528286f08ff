//! Recovery of a damaged database: the rows that can be read are copied into a new one. The damaged
//! file is renamed, never changed or deleted.
//!
//! ```text
//! cairn.damaged-2026-03-09-141502.db     the damaged file (with -wal and -shm, where they existed)
//! cairn.recovering.db                    the new file until it is complete
//! cairn.db-runs/tables.json              where the tables begin, from before the damage
//! ```
//!
//! A lost page takes only the rows on it: also a page of the list of tables, the file's header, or a
//! page that leads to others. SQLite copies what it finds; other rows are read from the pages
//! themselves, without it.
//!
//! The new file is complete and synced before the damaged one is renamed. After a crash or with a
//! full disk the damaged file has its old name, and the next start recovers it again.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};

use crate::backup::{RECOVERING, backups, beside, sync_folder, timestamp};
use crate::garbled_texts::repair_texts;
use crate::lost_rows::DamagedFile;
use crate::result_code::{
    CONSTRAINT, CORRUPT, ERROR, IOERR_CORRUPTFS, IOERR_READ, IOERR_SHORT_READ, MISMATCH, NOTADB,
    TOOBIG, primary, result_code,
};
use crate::store::{MIGRATIONS, known_version};
use crate::table_roots::TableRoots;
use crate::title::title_from;
use crate::{Store, StoreError, run};

/// A file up to this size is checked whole at every start, which takes a tenth of a second; a
/// larger one only after damage was found in it.
const MAX_CHECKED_BYTES: u64 = 16 << 20;
/// After this many unreadable rows of a table SQLite is not asked for the rest of it: a page that leads
/// to them is damaged, and each further attempt would fail too. The pages themselves are read later.
const MAX_FAILURES: usize = 1_000;

/// The result of a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The new path of the damaged file.
    pub damaged: PathBuf,
    /// The backup that was copied instead, where the damaged file had no readable row.
    pub backup: Option<PathBuf>,
    /// Conversations that were copied.
    pub num_conversations: i64,
    /// Conversations that the damaged file had; none where that is unknown.
    pub total_conversations: Option<i64>,
    /// Messages that were copied.
    pub num_messages: i64,
    /// Messages that the damaged file had; none where that is unknown.
    pub total_messages: Option<i64>,
}

impl Store {
    /// As [`Store::open`], but a damaged database is renamed and replaced by a new one with every
    /// row that can still be read. A message whose parent is lost follows the message before it.
    ///
    /// Fails with [`StoreError::Corrupt`] while another program has the damaged file open, and with
    /// [`StoreError::Full`] where the disk has no room for the new one. The damaged file then stays
    /// where it is.
    pub async fn open_or_recover(path: &Path) -> Result<(Store, Option<Recovery>), StoreError> {
        let recovery = recover(path, false).await?;
        match Store::open(path).await {
            // The damage is where the check did not look.
            Err(StoreError::Corrupt { .. }) if recovery.is_none() => {
                let recovery = recover(path, true).await?;
                Ok((Store::open(path).await?, recovery))
            }
            opened => Ok((opened?, recovery)),
        }
    }
}

/// Recovers the database at `path` if a check finds it damaged, or without a check if `is_damaged`.
async fn recover(path: &Path, is_damaged: bool) -> Result<Option<Recovery>, StoreError> {
    if fs::metadata(path).map_or(0, |metadata| metadata.len()) == 0 {
        return Ok(None);
    }
    let folder = run::folder_of(path);
    // No other program opens the file until this returns.
    let _opening = run::wait_to_open(path).await?;
    let damage = if is_damaged {
        Some("it could not be opened".to_owned())
    } else {
        find_damage(path, run::is_suspect(&folder)).await?
    };
    let Some(detail) = damage else {
        if run::is_suspect(&folder) {
            repair(path).await.map_err(|error| StoreError::from_sqlx(path, error))?;
        }
        run::clear_suspicion(&folder);
        return Ok(None);
    };
    if run::is_any_alive(&folder) {
        return Err(StoreError::Corrupt { path: path.to_owned(), detail });
    }
    let recovery = rebuild(path).await?;
    run::clear_suspicion(&folder);
    Ok(Some(recovery))
}

/// The damage that SQLite finds in the file; none where it finds none. A large file is checked whole
/// only if it is suspect.
async fn find_damage(path: &Path, is_suspect: bool) -> Result<Option<String>, StoreError> {
    let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
    let check = async {
        let mut connection = SqliteConnectOptions::new().filename(path).connect().await?;
        let check = if is_suspect || size <= MAX_CHECKED_BYTES {
            "pragma integrity_check"
        } else {
            // Reads the first page, by which a file of another kind is recognized.
            "select 'ok' from sqlite_schema limit 1"
        };
        let found = sqlx::query_scalar(check).fetch_all(&mut connection).await;
        let closed = connection.close().await;
        found.and_then(|found| closed.map(|()| found))
    };
    match check.await.map_err(|error: sqlx::Error| from_check(path, error)) {
        // A value that no version of this program writes is not damage of the file: reading that row
        // fails, and the rows beside it are of use.
        Ok(found) => Ok(found
            .into_iter()
            .find(|line: &String| line != "ok" && !line.starts_with("CHECK constraint failed"))),
        Err(StoreError::Corrupt { detail, .. }) => Ok(Some(detail)),
        Err(error) => Err(error),
    }
}

/// Repairs texts of a file that is sound otherwise.
async fn repair(path: &Path) -> Result<(), sqlx::Error> {
    let mut connection = SqliteConnectOptions::new().filename(path).connect().await?;
    let repaired = repair_texts(&mut connection).await;
    let closed = connection.close().await;
    repaired.and(closed)
}

/// An error of the check. SQLite has no code of its own for a header that asks for what it does not know.
fn from_check(path: &Path, error: sqlx::Error) -> StoreError {
    match error.as_database_error() {
        Some(found) if is_error(&error) => {
            StoreError::Corrupt { path: path.to_owned(), detail: found.message().to_owned() }
        }
        _ => StoreError::from_sqlx(path, error),
    }
}

/// Copies the readable rows into a new database and replaces the damaged one by it.
async fn rebuild(path: &Path) -> Result<Recovery, StoreError> {
    let mut clock = sqlx::SqliteConnection::connect("sqlite::memory:")
        .await
        .map_err(|error| StoreError::from_sqlx(path, error))?;
    let now = timestamp(&mut clock).await.map_err(|error| StoreError::from_sqlx(path, error))?;
    let new = beside(path, RECOVERING);
    let recovered = async {
        let damaged = DamagedFile::open(path, TableRoots::load(path));
        let mut recovery = copy_readable(&new, path, damaged).await?;
        // If no row is readable, an old copy is better than an empty database.
        for backup in backups(path) {
            if recovery.is_worth_having() {
                break;
            }
            let damaged = DamagedFile::open(&backup, None);
            let backed_up = copy_readable(&new, &backup, damaged).await?;
            recovery = Salvaged { backup: Some(backup.clone()), ..backed_up };
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

/// Renames the damaged file, and the new one to its name. Returns the damaged file's new path.
fn replace(path: &Path, new: &Path, now: &str) -> io::Result<PathBuf> {
    let damaged = (0..)
        .map(|count| match count {
            0 => beside(path, &format!("damaged-{now}")),
            count => beside(path, &format!("damaged-{now}-{count}")),
        })
        .find(|damaged| with_logs(damaged).iter().all(|file| fs::symlink_metadata(file).is_err()))
        .unwrap_or_else(|| beside(path, "damaged"));
    // Unlike renaming, linking fails where the name is taken, so that no file is overwritten.
    for (file, link) in with_logs(path).iter().zip(with_logs(&damaged)) {
        match fs::hard_link(file, link) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && file != path => {}
            linked => linked?,
        }
    }
    sync_folder(path);
    // The logs are removed first: SQLite would apply them to the new file.
    for log in with_logs(path).iter().filter(|file| *file != path) {
        match fs::remove_file(log) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(new, path)?;
    sync_folder(path);
    Ok(damaged)
}

/// The write-ahead log of a database.
pub(crate) fn with_log(path: &Path) -> PathBuf {
    let [_, log, _] = with_logs(path);
    log
}

/// A database and the two files that SQLite keeps beside it.
fn with_logs(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut name = OsString::from(path);
        name.push(suffix);
        PathBuf::from(name)
    })
}

/// The rows that were copied from one file.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    backup: Option<PathBuf>,
    /// Whether the list of tables was readable.
    is_listed: bool,
    /// Rows of any table.
    num_rows: u64,
    /// How many were copied, and how many the file had, where that is known.
    pub(crate) conversations: (i64, Option<i64>),
    /// As `conversations`.
    messages: (i64, Option<i64>),
}

impl Salvaged {
    /// Without the list of tables, some rows of other tables may be all that is left of a file.
    fn is_worth_having(&self) -> bool {
        self.messages.0 > 0 || self.conversations.0 > 0 || (self.is_listed && self.num_rows > 0)
    }
}

/// Creates the database `new` with every row that can be read in `source`. Its tables have the
/// version of the source: [`Store::open`] migrates it like any other file. `damaged` is the source
/// once more, for rows that SQLite does not find; it was opened before any connection to it.
pub(crate) async fn copy_readable(
    new: &Path,
    source: &Path,
    damaged: Option<DamagedFile>,
) -> Result<Salvaged, StoreError> {
    for file in with_logs(new) {
        let _ = fs::remove_file(file);
    }
    run::make_private(new);
    let failed = |error| StoreError::from_sqlx(new, error);
    let options = SqliteConnectOptions::new()
        .filename(new)
        .create_if_missing(true)
        // No other program opens the file before it is complete and synced.
        .journal_mode(SqliteJournalMode::Memory)
        .synchronous(SqliteSynchronous::Off)
        // A row may be copied before the row that it refers to; references are repaired at the end.
        .foreign_keys(false);
    // One connection, because a file is attached to a connection.
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await;
    let pool = pool.map_err(failed)?;
    let salvaged = copy_through(&pool, new, source, damaged).await;
    pool.close().await;
    salvaged
}

async fn copy_through(
    pool: &SqlitePool,
    new: &Path,
    source: &Path,
    damaged: Option<DamagedFile>,
) -> Result<Salvaged, StoreError> {
    let failed = |error| StoreError::from_sqlx(new, error);
    let mut connection = pool.acquire().await.map_err(failed)?;
    let is_listed = attach(&mut connection, source).await?;
    let version = if is_listed { version(&mut connection).await } else { None };
    let version = version.or(damaged.as_ref().and_then(|damaged| damaged.version));
    let known = known_version();
    if let Some(found) = version.filter(|found| *found > known) {
        return Err(StoreError::Newer { path: source.to_owned(), found, known });
    }
    // Detached, so that no migration finds a table of the source.
    detach(&mut connection).await.map_err(failed)?;
    drop(connection);
    match version {
        Some(version) => MIGRATIONS.run_to(version, pool).await,
        None => MIGRATIONS.run(pool).await,
    }
    .map_err(|error| StoreError::from_migrate(new, error))?;
    let mut connection = pool.acquire().await.map_err(failed)?;
    if is_listed {
        attach(&mut connection, source).await?;
    }
    let salvaged = salvage(&mut connection, is_listed, damaged.as_ref()).await.map_err(failed)?;
    detach(&mut connection).await.map_err(failed)?;
    Ok(Salvaged { is_listed, ..salvaged })
}

/// Attaches the damaged file as `source`; false where not even its list of tables can be read.
async fn attach(connection: &mut SqliteConnection, source: &Path) -> Result<bool, StoreError> {
    let attached = async {
        // With it, tables stay readable where the definition of an index is damaged.
        sqlx::query("pragma writable_schema = on").execute(&mut *connection).await?;
        sqlx::query("attach ? as source")
            .bind(source.to_string_lossy())
            .execute(&mut *connection)
            .await?;
        sqlx::query("select count(*) from source.sqlite_schema").execute(connection).await
    };
    match attached.await {
        Ok(_) => Ok(true),
        // A damaged header asks for what SQLite does not know, or for another encoding of texts.
        Err(error) if is_damage(&error) || is_error(&error) => Ok(false),
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

/// Copies every readable row, of the attached file if its tables are listed, and repairs references to
/// lost rows.
async fn salvage(
    connection: &mut SqliteConnection,
    is_listed: bool,
    damaged: Option<&DamagedFile>,
) -> Result<Salvaged, sqlx::Error> {
    // Not in one transaction: SQLite would roll it back at the first damaged page.
    let mut salvaged = Salvaged::default();
    // What search is made of is made again; documents are noted for that as they are copied.
    let tables: Vec<String> = sqlx::query_scalar(
        "select name from main.sqlite_schema
         where type = 'table' and name not like 'sqlite\\_%' escape '\\'
             and name <> '_sqlx_migrations' and name not like 'message\\_search%' escape '\\'
             and name not like 'document\\_search%' escape '\\'
             and name not in ('search_progress', 'document_passages', 'documents_to_index')",
    )
    .fetch_all(&mut *connection)
    .await?;
    let is_searched: bool = sqlx::query_scalar(
        "select exists (select 1 from main.sqlite_schema where name = 'search_progress')",
    )
    .fetch_one(&mut *connection)
    .await?;
    if is_searched {
        sqlx::raw_sql(LEAVE_UNINDEXED).execute(&mut *connection).await?;
    }
    if is_listed {
        for table in &tables {
            salvaged.num_rows += TableCopy::of(connection, table).await?.run(connection).await?;
        }
    }
    if let Some(damaged) = damaged {
        salvaged.num_rows += damaged.copy_missing(connection, &tables).await?;
    }
    repair_texts(connection).await?;
    if is_searched {
        sqlx::raw_sql(INDEX_LATER).execute(&mut *connection).await?;
    }
    restore_conversations(connection).await?;
    sqlx::raw_sql(REATTACH).execute(&mut *connection).await?;
    if tables.iter().any(|table| table == "message_deletions") {
        sqlx::raw_sql(UNHIDE).execute(&mut *connection).await?;
    }
    if tables.iter().any(|table| table == "job_rows") {
        let lost = "delete from job_rows where job_id not in (select id from jobs)";
        sqlx::query(lost).execute(&mut *connection).await?;
    }

    if tables.iter().any(|table| table == "message_documents") {
        sqlx::raw_sql(UNLINK_DOCUMENTS).execute(&mut *connection).await?;
    }

    if tables.iter().any(|table| table == "folder_documents") {
        sqlx::raw_sql(RESTORE_FOLDERS).execute(&mut *connection).await?;
    }

    if tables.iter().any(|table| table == "folders") {
        let lost = "update conversations set folder_id = null
             where folder_id not in (select id from folders)";
        sqlx::query(lost).execute(&mut *connection).await?;
    }

    if tables.iter().any(|table| table == "folder_documents") {
        sqlx::raw_sql(UNLINK_FOLDER_DOCUMENTS).execute(&mut *connection).await?;
    }

    for (table, forget) in FORGET_OF_LOST {
        if tables.iter().any(|known| known == table) {
            sqlx::raw_sql(forget).execute(&mut *connection).await?;
        }
    }

    salvaged.conversations = num_rows(connection, "conversations").await?;
    salvaged.messages = num_rows(connection, "messages").await?;
    Ok(salvaged)
}

/// Documents whose message is lost are in the draft again: their text can still be read there.
const UNLINK_DOCUMENTS: &str = "
    update documents set state = 'draft' where state = 'sent' and not exists (
        select 1 from message_documents join messages on messages.id = message_id
        where document_id = documents.id
    );
    delete from message_documents where message_id not in (select id from messages)
        or document_id not in (select id from documents);
    delete from documents where conversation_id not in (select id from conversations);";

/// A folder that is lost is there again if it has files, which nobody else may have.
const RESTORE_FOLDERS: &str = "
    insert into folders (id, name, system_prompt, created_at_ms)
    select folder_id, 'Recovered folder', '', min(created_at_ms) from folder_documents
    where folder_id is not null and folder_id not in (select id from folders) group by folder_id;";

/// What conversations that are lost have begun with is not theirs any more.
const UNLINK_FOLDER_DOCUMENTS: &str = "
    delete from conversation_documents where conversation_id not in (select id from conversations)
        or document_id not in (select id from folder_documents);";

/// No message that is copied is indexed for search.
const LEAVE_UNINDEXED: &str = "update search_progress set indexed_from = 9223372036854775807, began_from = 9223372036854775807;";

/// All messages that were copied are indexed later, as those of an earlier version are.
const INDEX_LATER: &str = "
    update search_progress set indexed_from = (select coalesce(max(seq), 0) + 1 from messages);
    update search_progress set began_from = indexed_from;";

/// A message whose parent is lost follows the message before it, and a branch whose end is lost ends
/// in the newest message.
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

/// What belongs to a lost row is of no use, by the table that has it: earlier versions lack some.
const FORGET_OF_LOST: [(&str, &str); 4] = [
    ("context_cuts", "delete from context_cuts where message_id not in (select id from messages)"),
    (
        "conversation_personas",
        "delete from conversation_personas
         where conversation_id not in (select id from conversations)
             or persona_id not in (select id from personas)",
    ),
    (
        "conversation_branches",
        "delete from conversation_branches
         where conversation_id not in (select id from conversations)",
    ),
    (
        "broken_off_answers",
        "delete from broken_off_answers where message_seq not in (select seq from messages)",
    ),
];

/// A message whose deletion is lost is there again, and a branch does not end in a message that is
/// deleted.
const UNHIDE: &str = "
    update messages set deletion_id = null
    where deletion_id is not null and deletion_id not in (select id from message_deletions);
    update conversations set leaf_message_id = (
        select id from messages where conversation_id = conversations.id and deletion_id is null
        order by seq desc limit 1
    )
    where leaf_message_id not in (select id from messages where deletion_id is null);";

/// Inserts a row for each conversation that has only messages left, named after its first question.
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

/// How many rows a table has, and how many it has in the source, where that can be read.
async fn num_rows(
    connection: &mut SqliteConnection,
    table: &str,
) -> Result<(i64, Option<i64>), sqlx::Error> {
    let mut count = async |schema: &str| -> Result<i64, sqlx::Error> {
        let count = format!("select count(*) from {schema}.{table}");
        sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut *connection).await
    };
    let found = count("main").await?;
    // Because of the damage, the count of the source may be too small.
    let total = count("source").await.ok().map(|total| total.max(found));
    Ok((found, total))
}

/// Copies one table, in ranges of rows. A range that cannot be read is halved until only the
/// unreadable rows are left out.
struct TableCopy {
    insert: String,
    max_rowid: i64,
}

impl TableCopy {
    async fn of(connection: &mut SqliteConnection, table: &str) -> Result<TableCopy, sqlx::Error> {
        // Columns that the source does not have get their defaults.
        let columns: Vec<String> = sqlx::query_scalar(
            "select name from pragma_table_info(?1, 'main')
             where name in (select name from pragma_table_info(?1, 'source'))",
        )
        .bind(table)
        .fetch_all(&mut *connection)
        .await
        .or_else(nothing_if_damaged)?;
        let quoted: Vec<String> = columns.iter().map(|column| format!("\"{column}\"")).collect();
        // With the row's number, which shows which rows were not copied. If a column is the number,
        // it is there twice, which SQLite allows.
        let columns =
            if quoted.is_empty() { String::new() } else { format!("rowid, {}", quoted.join(", ")) };
        // Not through an index, which may lack rows that the table still has.
        let insert = format!(
            "insert into main.\"{table}\" ({columns}) select {columns} from source.\"{table}\" not indexed
             where rowid between ? and ?"
        );
        let max_rowid = if columns.is_empty() { 0 } else { max_rowid(connection, table).await? };
        Ok(TableCopy { insert, max_rowid })
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

/// The largest rowid of a table, according to the table itself or else to one of its indexes; 0 if
/// neither can be read.
async fn max_rowid(connection: &mut SqliteConnection, table: &str) -> Result<i64, sqlx::Error> {
    let indexes: Vec<String> =
        sqlx::query_scalar("select name from pragma_index_list(?, 'source')")
            .bind(table)
            .fetch_all(&mut *connection)
            .await
            .or_else(nothing_if_damaged)?;
    let sources = std::iter::once("not indexed".to_owned())
        .chain(indexes.iter().map(|index| format!("indexed by \"{index}\"")));
    for source in sources {
        let query = format!("select coalesce(max(rowid), 0) from source.\"{table}\" {source}");
        let found = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut *connection).await;
        if let Ok(found) = found {
            return Ok(found);
        }
    }
    Ok(0)
}

fn nothing_if_damaged<T>(error: sqlx::Error) -> Result<Vec<T>, sqlx::Error> {
    if is_damage(&error) { Ok(Vec::new()) } else { Err(error) }
}

/// Whether SQLite refuses a statement without a more exact reason.
fn is_error(error: &sqlx::Error) -> bool {
    result_code(error) == Some(ERROR)
}

/// Whether an error comes from damage of the file that is read, and not from the new file or the
/// system.
fn is_damage(error: &sqlx::Error) -> bool {
    result_code(error).is_some_and(|code| {
        [IOERR_READ, IOERR_SHORT_READ, IOERR_CORRUPTFS].contains(&code)
            || [CORRUPT, TOOBIG, CONSTRAINT, MISMATCH, NOTADB].contains(&primary(code))
    })
}
