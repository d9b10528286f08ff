//! The cache_refs table: references of conversations and named prompt caches to positions in the
//! prompt cache.

use sqlx::sqlite::SqliteConnection;

use crate::{Store, StoreError};

/// A reference to a position in the prompt cache, and what was lost before it.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct CacheRefRow {
    /// The owner: `conversation/<id>` or `named/<id>`; for a stale reference with `#` and a suffix
    /// after it.
    pub owner: String,
    /// The fingerprint of the model that read it, in hexadecimal.
    pub fingerprint: String,
    /// How its keys and values are stored; see [`crate::ChunkRow::kv_format`].
    pub kv_format: String,
    /// Their provenance; see [`crate::ChunkRow::provenance`].
    pub provenance: String,
    /// The name of the model that read it.
    pub model: String,
    /// The key of its last chunk; none if nothing is saved.
    pub chunk_key: Option<String>,
    /// How many tokens are saved, counted from the start of the prompt.
    pub num_tokens: i64,
    /// Whether its chunks are never evicted.
    pub is_pinned: bool,
    /// How many tokens were saved before the loss.
    pub lost_tokens: i64,
    /// The reason of the loss, as a sentence.
    pub lost_reason: Option<String>,
    /// When they were lost, in milliseconds since the Unix epoch.
    pub lost_at_ms: Option<i64>,
}

impl Store {
    /// Every reference, ordered by owner.
    pub async fn cache_refs(&self) -> Result<Vec<CacheRefRow>, StoreError> {
        sqlx::query_as("select * from cache_refs order by owner")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// The conversations and named prompt caches that are purged and still have references, ordered,
    /// as `conversation/<id>` and `named/<id>`. One that is deleted but can still be restored keeps
    /// its references.
    pub async fn purged_owners(&self) -> Result<Vec<String>, StoreError> {
        sqlx::query_scalar(
            "with owners (name) as (select distinct substr(owner, 1, instr(owner || '#', '#') - 1) from cache_refs)
             select name from owners
             where (name glob 'conversation/*' and substr(name, length('conversation/') + 1) not in (select id from conversations))
                or (name glob 'named/*' and substr(name, length('named/') + 1) not in (select id from named_caches))
             order by name",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }
}

pub(crate) async fn put(
    tx: &mut SqliteConnection,
    cache_ref: &CacheRefRow,
) -> Result<(), sqlx::Error> {
    let done = sqlx::query(
        "insert or replace into cache_refs
             (owner, fingerprint, kv_format, provenance, model, chunk_key, num_tokens, is_pinned, lost_tokens, lost_reason, lost_at_ms)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&cache_ref.owner)
    .bind(&cache_ref.fingerprint)
    .bind(&cache_ref.kv_format)
    .bind(&cache_ref.provenance)
    .bind(&cache_ref.model)
    .bind(&cache_ref.chunk_key)
    .bind(cache_ref.num_tokens)
    .bind(cache_ref.is_pinned)
    .bind(cache_ref.lost_tokens)
    .bind(&cache_ref.lost_reason)
    .bind(cache_ref.lost_at_ms)
    .execute(tx)
    .await;
    done.map(drop)
}

pub(crate) async fn delete(tx: &mut SqliteConnection, owner: &str) -> Result<(), sqlx::Error> {
    sqlx::query("delete from cache_refs where owner = ?").bind(owner).execute(tx).await.map(drop)
}
