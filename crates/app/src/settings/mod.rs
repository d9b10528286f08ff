//! The settings, as one table: `table.rs` has a row for each, from which the struct, the checks,
//! the TypeScript twin and the rows of the settings dialog follow.
//!
//! ```text
//! table.rs ─► Settings, TABLE ─► wire.ts, ui/src/settings/table.ts (`cargo xtask bindings`)
//!
//! request ► chat ► persona ► model ► app ► generation_config.json ► default
//!     the first that sets a value wins: resolve() in overrides.rs
//! ```
//!
//! Only what a person has set is saved: for all chats under one key of the settings table, for a
//! model and for a chat in their rows.

pub(crate) mod commands;
mod generation_config;
mod overrides;
mod row;
mod settings_macro;
mod table;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_store::{Store, StoreError};

use crate::platform;
use overrides::{SettingOverrides, resolve};
pub use row::{SettingKind, SettingRow, SettingScope, SettingSection};
use table::Machine;
pub use table::{Settings, TABLE};

const KEY: &str = "settings";

/// The settings that hold for all chats. It owns what a person has set for them; models and chats
/// own theirs.
#[derive(Debug)]
pub(crate) struct AppSettings {
    defaults: Settings,
    overrides: Mutex<SettingOverrides>,
    /// Locked while a value of any scope is read, changed and saved.
    saving: tokio::sync::Mutex<()>,
}

impl AppSettings {
    /// Reads the settings from the database. Where that fails the defaults hold, because the
    /// program must start. `disk_bytes` is what [`Machine`] has under this name.
    pub(crate) async fn load(store: &Store, disk_bytes: u64) -> AppSettings {
        let saved = store.setting(KEY).await.unwrap_or_else(|error| {
            tracing::warn!("the saved settings cannot be read: {error}");
            None
        });
        let machine = Machine { disk_bytes, memory_bytes: platform::memory_bytes() };
        AppSettings {
            defaults: Settings::defaults(&machine),
            overrides: Mutex::new(SettingOverrides::parse(SettingScope::App, saved.as_deref())),
            saving: tokio::sync::Mutex::default(),
        }
    }

    /// What holds where neither a model nor a chat says otherwise.
    pub(crate) fn current(&self) -> Settings {
        resolve(&self.defaults, &[self.overrides()]).settings
    }

    fn defaults(&self) -> &Settings {
        &self.defaults
    }

    fn overrides(&self) -> SettingOverrides {
        self.guard().clone()
    }

    async fn save(&self, store: &Store, overrides: SettingOverrides) -> Result<(), StoreError> {
        let json = overrides.to_json();
        store.set_setting(KEY, json.as_deref().unwrap_or("{}")).await?;
        *self.guard() = overrides;
        Ok(())
    }

    fn guard(&self) -> MutexGuard<'_, SettingOverrides> {
        self.overrides.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
