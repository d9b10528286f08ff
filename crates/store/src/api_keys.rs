//! The api_keys table: keys for programs that use the API, each by a name. What is stored of a key
//! is its hash.

use crate::{Store, StoreError};

/// A key for a program.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct ApiKeyRow {
    /// UUID v7.
    pub id: String,
    /// Unique among the keys.
    pub name: String,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// As `created_at_ms`; none for a key that was never used.
    pub last_used_at_ms: Option<i64>,
}

impl Store {
    /// The keys, in the order in which they were made.
    pub async fn api_keys(&self) -> Result<Vec<ApiKeyRow>, StoreError> {
        sqlx::query_as(
            "select id, name, created_at_ms, last_used_at_ms from api_keys
             order by created_at_ms, id",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// The key with this hash, if there is one.
    pub async fn api_key_with_hash(&self, hash: &str) -> Result<Option<ApiKeyRow>, StoreError> {
        sqlx::query_as(
            "select id, name, created_at_ms, last_used_at_ms from api_keys where hash = ?",
        )
        .bind(hash)
        .fetch_optional(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// Adds a key that has this hash; [`StoreError::KeyNameInUse`] if another has its name.
    pub async fn create_api_key(&self, key: &ApiKeyRow, hash: &str) -> Result<(), StoreError> {
        let insert = sqlx::query(
            "insert into api_keys (id, name, hash, created_at_ms, last_used_at_ms)
             values (?, ?, ?, ?, ?) on conflict (name) do nothing",
        )
        .bind(&key.id)
        .bind(&key.name)
        .bind(hash)
        .bind(key.created_at_ms)
        .bind(key.last_used_at_ms);
        self.change_row(insert, || StoreError::KeyNameInUse { name: key.name.clone() }).await
    }

    /// Notes when a key was used; does nothing where there is none.
    pub async fn touch_api_key(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("update api_keys set last_used_at_ms = ? where id = ?")
            .bind(now_ms)
            .bind(id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Removes a key; [`StoreError::NoApiKey`] if there is none.
    pub async fn delete_api_key(&self, id: &str) -> Result<(), StoreError> {
        let delete = sqlx::query("delete from api_keys where id = ?").bind(id);
        self.change_row(delete, || StoreError::NoApiKey { id: id.to_owned() }).await
    }
}
