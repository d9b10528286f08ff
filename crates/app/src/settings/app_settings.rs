//! What a person has set for all chats and for models.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_store::{Store, StoreError};
use serde_json::Value;

use super::overrides::{SettingOverrides, resolve};
use super::row::SettingScope;
use super::table::{Machine, Settings};
use crate::platform;
use crate::wire::Failure;

const KEY: &str = "settings";

/// The settings that hold for all chats and those of models. It owns what a person has set for them;
/// chats own theirs.
#[derive(Debug)]
pub(crate) struct AppSettings {
    defaults: Settings,
    overrides: Mutex<SettingOverrides>,
    /// By the model's name.
    models: Mutex<BTreeMap<String, SettingOverrides>>,
    /// Locked while a value of any scope is read, changed and saved.
    pub(super) saving: tokio::sync::Mutex<()>,
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
            models: Mutex::new(load_models(store).await),
            saving: tokio::sync::Mutex::default(),
        }
    }

    /// What holds where neither a model nor a chat says otherwise.
    pub(crate) fn current(&self) -> Settings {
        resolve(&self.defaults, &[self.overrides()]).settings
    }

    /// What holds for a model, apart from what its publisher recommends.
    pub(crate) fn of_model(&self, name: &str) -> Settings {
        resolve(&self.defaults, &[self.overrides(), self.overrides_of_model(name)]).settings
    }

    /// The model with this alias.
    pub(crate) fn model_with_alias(&self, alias: &str) -> Option<String> {
        self.models_where(|settings| !alias.is_empty() && settings.alias == alias)
            .into_iter()
            .next()
    }

    /// The names of pinned models.
    pub(crate) fn pinned_models(&self) -> Vec<String> {
        self.models_where(|settings| settings.is_pinned)
    }

    fn models_where(&self, is_wanted: impl Fn(&Settings) -> bool) -> Vec<String> {
        let all = self.models().clone();
        let own = |overrides| resolve(&self.defaults, &[overrides]).settings;
        let wanted = all.into_iter().filter(|(_, overrides)| is_wanted(&own(overrides.clone())));
        wanted.map(|(name, _)| name).collect()
    }

    pub(super) fn defaults(&self) -> &Settings {
        &self.defaults
    }

    pub(super) fn overrides(&self) -> SettingOverrides {
        self.guard().clone()
    }

    pub(super) async fn save(
        &self,
        store: &Store,
        overrides: SettingOverrides,
    ) -> Result<(), StoreError> {
        let json = overrides.to_json();
        store.set_setting(KEY, json.as_deref().unwrap_or("{}")).await?;
        *self.guard() = overrides;
        Ok(())
    }

    /// What a person has set for a model.
    pub(super) fn overrides_of_model(&self, name: &str) -> SettingOverrides {
        let nothing = || SettingOverrides::none(SettingScope::Model);
        self.models().get(name).cloned().unwrap_or_else(nothing)
    }

    pub(super) async fn save_model(
        &self,
        store: &Store,
        name: &str,
        overrides: SettingOverrides,
    ) -> Result<(), StoreError> {
        store.set_model_settings(name, overrides.to_json().as_deref()).await?;
        self.models().insert(name.to_owned(), overrides);
        Ok(())
    }

    /// Sets a value of a model that needs no check, and does nothing that follows from it.
    pub(crate) async fn set_of_model(
        &self,
        store: &Store,
        name: &str,
        key: &str,
        value: Value,
    ) -> Result<(), Failure> {
        let _saving = self.saving.lock().await;
        let mut overrides = self.overrides_of_model(name);
        overrides.set(key, value)?;
        Ok(self.save_model(store, name, overrides).await?)
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, SettingOverrides>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(&self) -> MutexGuard<'_, SettingOverrides> {
        self.overrides.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was set for models. Where it cannot be read the defaults hold.
async fn load_models(store: &Store) -> BTreeMap<String, SettingOverrides> {
    let saved = store.model_settings().await.unwrap_or_else(|error| {
        tracing::warn!("the saved settings of models cannot be read: {error}");
        Vec::new()
    });
    let parse = |(name, json): (String, String)| {
        (name, SettingOverrides::parse(SettingScope::Model, Some(&json)))
    };
    saved.into_iter().map(parse).collect()
}
