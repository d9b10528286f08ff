//! The model_origins table: which hub each model was downloaded from, so that no other hub is told of
//! it.

use crate::{Store, StoreError};

/// Where a model came from.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct ModelOrigin {
    /// The folder of the cache that it is in.
    pub cache: String,
    /// The model's name on the hub.
    pub repo: String,
    /// Scheme, host and port of the hub.
    pub origin: String,
}

impl Store {
    /// Every model whose hub is known.
    pub async fn model_origins(&self) -> Result<Vec<ModelOrigin>, StoreError> {
        sqlx::query_as("select cache, repo, origin from model_origins")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Records the hub that a model came from, instead of the one before.
    pub async fn save_model_origin(&self, model: &ModelOrigin) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into model_origins (cache, repo, origin) values (?, ?, ?)
             on conflict (cache, repo) do update set origin = excluded.origin",
        )
        .bind(&model.cache)
        .bind(&model.repo)
        .bind(&model.origin)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Forgets where a model came from; does nothing where that is not known.
    pub async fn forget_model_origin(&self, cache: &str, repo: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("delete from model_origins where cache = ? and repo = ?")
            .bind(cache)
            .bind(repo)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}
