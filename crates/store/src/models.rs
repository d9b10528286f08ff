//! The models table: which model folders were used, so that the last one is loaded after a restart.

use crate::{Store, StoreError};

impl Store {
    /// Records that the model in the folder `path` was loaded under `name`.
    pub async fn record_model_use(
        &self,
        path: &str,
        name: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into models (path, name, use_seq, last_used_at_ms)
             values (?, ?, (select coalesce(max(use_seq), 0) + 1 from models), ?)
             on conflict (path) do update set name = excluded.name, use_seq = excluded.use_seq, last_used_at_ms = excluded.last_used_at_ms",
        )
        .bind(path)
        .bind(name)
        .bind(now_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Folder and name of the model used last.
    pub async fn last_used_model(&self) -> Result<Option<(String, String)>, StoreError> {
        sqlx::query_as("select path, name from models order by use_seq desc limit 1")
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Folder of the model that was used under a name; of several the one used last.
    pub async fn model_folder(&self, name: &str) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar("select path from models where name = ? order by use_seq desc limit 1")
            .bind(name)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Records that the version of a model in the folder `path` is used from now on in place of the one
    /// used last, if both are in folders below `parent`.
    pub async fn move_model(&self, name: &str, parent: &str, path: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        // What the new folder has already is its own.
        sqlx::query(
            "update or ignore models set path = ?1 where path =
                (select path from models where name = ?2 and path <> ?1
                    and substr(path, 1, length(?3)) = ?3
                    order by use_seq desc limit 1)",
        )
        .bind(path)
        .bind(name)
        .bind(parent)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}
