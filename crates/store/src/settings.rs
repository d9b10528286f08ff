//! The settings table: JSON texts by key, which the caller interprets.

use crate::{Store, StoreError};

impl Store {
    /// The value stored under a key, as it was given to [`Store::set_setting`].
    pub async fn setting(&self, key: &str) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar("select value from settings where key = ?")
            .bind(key)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Stores a JSON text under a key, replacing the one before.
    pub async fn set_setting(&self, key: &str, value: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("insert into settings (key, value) values (?, ?) on conflict (key) do update set value = excluded.value")
            .bind(key)
            .bind(value)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}
