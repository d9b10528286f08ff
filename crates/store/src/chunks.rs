//! The chunks table: the index of the prompt cache's files. A file is written before its row.

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row};

use crate::error::unknown;
use crate::{Store, StoreError, token_ids};

/// The role of the message that a chunk's tokens belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkKind {
    /// The system prompt.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

impl ChunkKind {
    /// The name in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            ChunkKind::System => "system",
            ChunkKind::User => "user",
            ChunkKind::Assistant => "assistant",
        }
    }
}

/// One file of the prompt cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRow {
    /// The chunk's rolling hash, in hexadecimal.
    pub key: String,
    /// The key of the chunk that this one continues; none for the first of a prompt.
    pub parent_key: Option<String>,
    /// The fingerprint of the model that read it, in hexadecimal.
    pub fingerprint: String,
    /// How its keys and values are stored: `plain`, or for example `kv8g64`.
    pub kv_format: String,
    /// Who computed them: `computed`, `import:<hash>` or `opaque:<hash>`.
    pub provenance: String,
    /// The role of the message that its tokens belong to.
    pub kind: ChunkKind,
    /// Position of its first token in the prompt.
    pub start: i64,
    /// The first position whose keys and values sliding-window layers still had when it was saved;
    /// `start` for models without such layers.
    pub held_from: i64,
    /// Whether it also has the recurrent state at its end.
    pub has_state: bool,
    /// Its token ids.
    pub token_ids: Vec<u32>,
    /// Length of its file.
    pub bytes: i64,
    /// Hash of its file, in hexadecimal.
    pub file_hash: String,
    /// When it was written first, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// When a prompt last used it, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
    /// How many prompts have used it.
    pub hits: i64,
}

impl FromRow<'_, SqliteRow> for ChunkRow {
    fn from_row(row: &SqliteRow) -> Result<ChunkRow, sqlx::Error> {
        Ok(ChunkRow {
            key: row.try_get("key")?,
            parent_key: row.try_get("parent_key")?,
            fingerprint: row.try_get("fingerprint")?,
            kv_format: row.try_get("kv_format")?,
            provenance: row.try_get("provenance")?,
            kind: kind_named(row.try_get("kind")?)?,
            start: row.try_get("start")?,
            held_from: row.try_get("held_from")?,
            has_state: row.try_get("has_state")?,
            token_ids: token_ids::from_row(row, "token_ids")?.unwrap_or_default(),
            bytes: row.try_get("bytes")?,
            file_hash: row.try_get("file_hash")?,
            created_at_ms: row.try_get("created_at_ms")?,
            last_used_at_ms: row.try_get("last_used_at_ms")?,
            hits: row.try_get("hits")?,
        })
    }
}

fn kind_named(name: &str) -> Result<ChunkKind, sqlx::Error> {
    let kinds = [ChunkKind::System, ChunkKind::User, ChunkKind::Assistant];
    kinds.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| unknown("kind", name))
}

impl Store {
    /// Every chunk, ordered by its start in the prompt, so that a chunk comes after its parent.
    pub async fn chunks(&self) -> Result<Vec<ChunkRow>, StoreError> {
        let mut chunks: Vec<ChunkRow> = sqlx::query_as("select * from chunks")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))?;
        // Sorted here: SQLite would carry the token ids through its sorter.
        chunks.sort_unstable_by(|a, b| (a.start, &a.key).cmp(&(b.start, &b.key)));
        Ok(chunks)
    }

    /// The bytes of all chunk files.
    pub async fn total_chunk_bytes(&self) -> Result<i64, StoreError> {
        sqlx::query_scalar("select coalesce(sum(bytes), 0) from chunks")
            .fetch_one(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }
}

pub(crate) async fn insert(tx: &mut SqliteConnection, chunk: &ChunkRow) -> Result<(), sqlx::Error> {
    let done = sqlx::query(
        "insert into chunks
             (key, parent_key, fingerprint, kv_format, provenance, kind, start, held_from, has_state, token_ids, bytes, file_hash,
              created_at_ms, last_used_at_ms, hits)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         on conflict (key) do update set
             parent_key = excluded.parent_key, fingerprint = excluded.fingerprint,
             kv_format = excluded.kv_format, provenance = excluded.provenance,
             kind = excluded.kind, start = excluded.start, held_from = excluded.held_from, has_state = excluded.has_state,
             token_ids = excluded.token_ids, bytes = excluded.bytes, file_hash = excluded.file_hash,
             last_used_at_ms = excluded.last_used_at_ms",
    )
    .bind(&chunk.key)
    .bind(&chunk.parent_key)
    .bind(&chunk.fingerprint)
    .bind(&chunk.kv_format)
    .bind(&chunk.provenance)
    .bind(chunk.kind.as_str())
    .bind(chunk.start)
    .bind(chunk.held_from)
    .bind(chunk.has_state)
    .bind(token_ids::to_blob(&chunk.token_ids))
    .bind(chunk.bytes)
    .bind(&chunk.file_hash)
    .bind(chunk.created_at_ms)
    .bind(chunk.last_used_at_ms)
    .bind(chunk.hits)
    .execute(tx)
    .await;
    done.map(drop)
}

pub(crate) async fn delete(tx: &mut SqliteConnection, keys: &[String]) -> Result<(), sqlx::Error> {
    let delete = sqlx::query("delete from chunks where key in (select value from json_each(?))");
    delete.bind(json_list(keys)).execute(tx).await.map(drop)
}

pub(crate) async fn touch(
    tx: &mut SqliteConnection,
    keys: &[String],
    at_ms: i64,
) -> Result<(), sqlx::Error> {
    let touch = sqlx::query(
        "update chunks set last_used_at_ms = ?, hits = hits + 1 where key in (select value from json_each(?))",
    );
    touch.bind(at_ms).bind(json_list(keys)).execute(tx).await.map(drop)
}

/// A list as one parameter: SQLite has no arrays, and one statement for all keys is one round trip.
fn json_list(keys: &[String]) -> String {
    serde_json::Value::from(keys).to_string()
}
