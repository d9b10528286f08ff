//! The model_folders table: folders of models that a person has added.

use crate::{Store, StoreError};

impl Store {
    /// The paths, sorted.
    pub async fn model_folders(&self) -> Result<Vec<String>, StoreError> {
        sqlx::query_scalar("select path from model_folders order by path")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Adds a folder; does nothing if it is there.
    pub async fn add_model_folder(&self, path: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("insert into model_folders (path) values (?) on conflict do nothing")
            .bind(path)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Forgets a folder; its files stay.
    pub async fn remove_model_folder(&self, path: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("delete from model_folders where path = ?")
            .bind(path)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}
