//! The presets table: named values of settings, as JSON texts that the caller interprets.

use crate::deletion::Deletable;
use crate::error::no_preset;
use crate::new_id;
use crate::{Store, StoreError};

/// Named values of settings.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Preset {
    /// UUID v7.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// A JSON object by the setting's key.
    pub setting_overrides: String,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl Store {
    /// The presets that are not deleted, in the order in which they were made.
    pub async fn presets(&self) -> Result<Vec<Preset>, StoreError> {
        sqlx::query_as(
            "select id, name, setting_overrides, created_at_ms from presets
             where deleted_at_ms is null order by created_at_ms, id",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// Makes a preset.
    pub async fn create_preset(
        &self,
        name: &str,
        setting_overrides: &str,
        now_ms: i64,
    ) -> Result<Preset, StoreError> {
        let preset = Preset {
            id: new_id().to_string(),
            name: name.to_owned(),
            setting_overrides: setting_overrides.to_owned(),
            created_at_ms: now_ms,
        };
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into presets (id, name, setting_overrides, created_at_ms) values (?, ?, ?, ?)",
        )
        .bind(&preset.id)
        .bind(name)
        .bind(setting_overrides)
        .bind(now_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        Ok(preset)
    }

    /// Sets the name of a preset.
    pub async fn rename_preset(&self, id: &str, name: &str) -> Result<(), StoreError> {
        let change =
            sqlx::query("update presets set name = ? where id = ? and deleted_at_ms is null");
        self.change_row(change.bind(name).bind(id), || no_preset(id)).await
    }

    /// Hides a preset until [`Store::restore_preset`], or until this program closes the database.
    pub async fn delete_preset(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.delete_rows(Deletable::Presets, &[id], now_ms).await
    }

    /// Undoes [`Store::delete_preset`].
    pub async fn restore_preset(&self, id: &str) -> Result<(), StoreError> {
        self.restore_rows(Deletable::Presets, &[id]).await
    }
}
