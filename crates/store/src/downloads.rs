//! The downloads table: which models are being downloaded, so that downloads go on after a restart.
//! The bytes themselves and how many there are is for the disk to say.

use crate::{Store, StoreError};

/// A download that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct DownloadRow {
    /// The model's name on the hub.
    pub repo: String,
    /// The folder of the cache that it comes to, where its partial files are.
    pub cache: Option<String>,
    /// Whether a person has paused it.
    pub is_paused: bool,
}

impl Store {
    /// The downloads that have not ended, in the order in which they were added.
    pub async fn downloads(&self) -> Result<Vec<DownloadRow>, StoreError> {
        sqlx::query_as("select repo, cache, is_paused from downloads order by id")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Adds a download at the end, or changes whether it is paused; it stays in its cache.
    pub async fn save_download(&self, download: &DownloadRow) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into downloads (repo, cache, is_paused) values (?, ?, ?)
             on conflict (repo) do update set is_paused = excluded.is_paused",
        )
        .bind(&download.repo)
        .bind(&download.cache)
        .bind(download.is_paused)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Forgets a download that is done or cancelled; does nothing where there is none.
    pub async fn forget_download(&self, repo: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("delete from downloads where repo = ?")
            .bind(repo)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}
