//! The model_settings table: what a person has set for a model, by its name.

use crate::{Store, StoreError};

impl Store {
    /// The settings of all models, as they were given to [`Store::set_model_settings`].
    pub async fn model_settings(&self) -> Result<Vec<(String, String)>, StoreError> {
        sqlx::query_as("select name, overrides from model_settings order by name")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Stores the settings of the model with this name: a JSON text, or none.
    pub async fn set_model_settings(
        &self,
        name: &str,
        overrides: Option<&str>,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let statement = match overrides {
            Some(overrides) => sqlx::query(
                "insert into model_settings (name, overrides) values (?, ?)
                 on conflict (name) do update set overrides = excluded.overrides",
            )
            .bind(name)
            .bind(overrides),
            None => sqlx::query("delete from model_settings where name = ?").bind(name),
        };
        statement.execute(&mut *tx).await.map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}
