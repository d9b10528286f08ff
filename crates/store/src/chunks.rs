//! The chunks table: the index of the prompt cache's files. A file is written before its row. A row
//! whose texts or numbers no version writes is skipped; its file proves itself like any without one.

use cairn_prompt_cache::{ChunkFile, ChunkKey, ChunkKind, ChunkRecord, Namespace};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row, SqlitePool};

use crate::cache_columns::{namespace, number};
use crate::error::unknown;
use crate::{Store, StoreError, token_ids};

/// A row; none where it says something impossible.
struct ChunkRow(Option<ChunkRecord>);

impl FromRow<'_, SqliteRow> for ChunkRow {
    fn from_row(row: &SqliteRow) -> Result<ChunkRow, sqlx::Error> {
        let key: &str = row.try_get("key")?;
        let parent: Option<&str> = row.try_get("parent_key")?;
        let namespace = namespace(row)?;
        let kind: &str = row.try_get("kind")?;
        let kind = ChunkKind::named(kind).ok_or_else(|| unknown("kind", kind))?;
        let token_ids = token_ids::from_row(row, "token_ids")?.unwrap_or_default();
        let [start, held_from, bytes, hits] =
            ["start", "held_from", "bytes", "hits"].map(|column| row.try_get::<i64, _>(column));
        let (start, held_from, bytes, hits) = (start?, held_from?, bytes?, hits?);
        let has_state = row.try_get("has_state")?;
        let file_hash: &str = row.try_get("file_hash")?;
        let created_at_ms = row.try_get("created_at_ms")?;
        let last_used_at_ms = row.try_get("last_used_at_ms")?;
        let record = || {
            let namespace = namespace?;
            Some(ChunkRecord {
                key: key.parse().ok()?,
                parent: parent.map(str::parse).transpose().ok()?,
                kind,
                start: start.try_into().ok()?,
                tokens: ChunkRecord::stored_tokens(&namespace, kind, token_ids),
                namespace,
                held_from: held_from.try_into().ok()?,
                has_state,
                file: Some(ChunkFile { num_bytes: bytes.try_into().ok()?, hash: file_hash.into() }),
                hits: hits.try_into().ok()?,
                created_at_ms,
                last_used_at_ms,
            })
        };
        Ok(ChunkRow(record()))
    }
}

impl Store {
    /// Every chunk, ordered by its start in the prompt, so that a chunk comes after its parent.
    pub async fn chunks(&self) -> Result<Vec<ChunkRecord>, StoreError> {
        let rows: Vec<ChunkRow> = sqlx::query_as("select * from chunks")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))?;
        let mut chunks: Vec<ChunkRecord> = rows.into_iter().filter_map(|row| row.0).collect();
        // Sorted here: SQLite would carry the token ids through its sorter.
        chunks.sort_unstable_by_key(|record| (record.start, record.key));
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

/// Adds the row of a chunk that has a file; without one there is nothing to say.
pub(crate) async fn insert(
    tx: &mut SqliteConnection,
    record: &ChunkRecord,
) -> Result<(), sqlx::Error> {
    let Some(file) = &record.file else { return Ok(()) };
    let Namespace { model, kv_format, provenance } = &record.namespace;
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
    .bind(record.key.to_string())
    .bind(record.parent.map(|parent| parent.to_string()))
    .bind(model.as_str())
    .bind(kv_format.to_string())
    .bind(provenance.to_string())
    .bind(record.kind.as_str())
    .bind(number(record.start))
    .bind(number(record.held_from))
    .bind(record.has_state)
    .bind(token_ids::to_blob(&record.tokens.stored_ids()))
    .bind(i64::try_from(file.num_bytes).unwrap_or(i64::MAX))
    .bind(file.hash.as_str())
    .bind(record.created_at_ms)
    .bind(record.last_used_at_ms)
    .bind(i64::try_from(record.hits).unwrap_or(i64::MAX))
    .execute(tx)
    .await;
    done.map(drop)
}

/// Removes rows whose key names no chunk: no change could, so they would stay for ever.
pub(crate) async fn remove_nameless(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    let remove =
        sqlx::query("delete from chunks where length(key) <> 32 or key glob '*[^0-9a-f]*'");
    remove.execute(pool).await.map(drop)
}

pub(crate) async fn delete(
    tx: &mut SqliteConnection,
    keys: &[ChunkKey],
) -> Result<(), sqlx::Error> {
    let delete = sqlx::query("delete from chunks where key in (select value from json_each(?))");
    delete.bind(json_list(keys)).execute(tx).await.map(drop)
}

pub(crate) async fn touch(
    tx: &mut SqliteConnection,
    keys: &[ChunkKey],
    at_ms: i64,
) -> Result<(), sqlx::Error> {
    let touch = sqlx::query(
        "update chunks set last_used_at_ms = ?, hits = hits + 1 where key in (select value from json_each(?))",
    );
    touch.bind(at_ms).bind(json_list(keys)).execute(tx).await.map(drop)
}

/// A list as one parameter: SQLite has no arrays, and one statement for all keys is one round trip.
fn json_list(keys: &[ChunkKey]) -> String {
    let keys: Vec<String> = keys.iter().map(ChunkKey::to_string).collect();
    serde_json::Value::from(keys).to_string()
}
