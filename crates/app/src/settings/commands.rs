//! Asking for settings and changing them: for all chats, for a model, for a chat.

use std::path::PathBuf;

use cairn_store::Store;
use serde_json::Value;

use super::{SettingOverrides, SettingScope, Settings, generation_config, resolve};
use crate::app::App;
use crate::models;
use crate::wire::{Event, Failure, FailureCode, Reply, SettingTarget};

/// What holds for a target, and where each value was set.
pub(crate) async fn get(app: &App, target: &SettingTarget) -> Result<Reply, Failure> {
    let mut layers = vec![app.settings.overrides()];
    let model = match target {
        SettingTarget::Model { name } => Some(name.clone()),
        SettingTarget::App | SettingTarget::Chat { .. } => models::loaded_name(app),
    };
    if let Some(model) = model {
        let [recommended, own] = of_model(app, &model).await?;
        layers.push(recommended);
        if !matches!(target, SettingTarget::App) {
            layers.push(own);
        }
    }
    if let SettingTarget::Chat { id } = target {
        layers.push(of_chat(app.store_of(id).await, id).await?);
    }
    Ok(Reply::Settings { resolved: resolve(app.settings.defaults(), &layers) })
}

/// What holds for the next answer in a chat.
pub(crate) async fn for_answer(
    app: &App,
    store: &Store,
    conversation_id: &str,
) -> Result<Settings, Failure> {
    let mut layers = vec![app.settings.overrides(), of_chat(store, conversation_id).await?];
    if let Some(model) = models::loaded_name(app) {
        layers.extend(of_model(app, &model).await?);
    }
    Ok(resolve(app.settings.defaults(), &layers).settings)
}

/// Sets one value, or clears it with null, and answers with what holds now.
pub(crate) async fn set(
    app: &App,
    target: SettingTarget,
    key: &str,
    value: Value,
) -> Result<Reply, Failure> {
    // Other values of the same target are saved with it, so changes come one after the other.
    let _saving = app.settings.saving.lock().await;
    match &target {
        SettingTarget::App => {
            let mut overrides = app.settings.overrides();
            overrides.set(key, value).map_err(Failure::invalid)?;
            app.settings.save(&app.store, overrides).await?;
            let Settings { cache_budget_bytes, cache_ram_budget_bytes, .. } = app.settings();
            app.engine.set_cache_budgets(cache_budget_bytes, cache_ram_budget_bytes);
        }
        SettingTarget::Model { name } => {
            let Some(folder) = app.store.model_folder(name).await? else {
                let why = format!("The model {name} was never loaded: load it, then set this.");
                return Err(Failure::new(FailureCode::NotFound, why));
            };
            let saved = app.store.model_settings(&folder).await?;
            let mut overrides = SettingOverrides::parse(SettingScope::Model, saved.as_deref());
            overrides.set(key, value).map_err(Failure::invalid)?;
            app.store.set_model_settings(&folder, overrides.to_json().as_deref()).await?;
        }
        SettingTarget::Chat { id } => {
            let store = app.store_of(id).await;
            let mut overrides = of_chat(store, id).await?;
            overrides.set(key, value).map_err(Failure::invalid)?;
            store.set_conversation_settings(id, overrides.to_json().as_deref()).await?;
        }
    }
    app.emit(Event::Settings { settings: app.settings() });
    get(app, &target).await
}

async fn of_chat(store: &Store, id: &str) -> Result<SettingOverrides, Failure> {
    let saved = store.conversation_settings(id).await?;
    Ok(SettingOverrides::parse(SettingScope::Chat, saved.as_deref()))
}

/// What a model's publisher recommends, and what a person has set for it.
async fn of_model(app: &App, name: &str) -> Result<[SettingOverrides; 2], Failure> {
    let nothing = |scope| SettingOverrides::none(scope);
    let Some(folder) = app.store.model_folder(name).await? else {
        return Ok([nothing(SettingScope::GenerationConfig), nothing(SettingScope::Model)]);
    };
    let saved = app.store.model_settings(&folder).await?;
    // Reading a file blocks.
    let recommended = app.blocking(move || generation_config::read(&PathBuf::from(folder))).await;
    Ok([
        recommended.unwrap_or_else(|| nothing(SettingScope::GenerationConfig)),
        SettingOverrides::parse(SettingScope::Model, saved.as_deref()),
    ])
}
