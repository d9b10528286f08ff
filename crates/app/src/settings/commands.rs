//! Asking for settings and changing them: for all chats, for a model, for a persona, for a chat.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_store::Store;
use serde_json::Value;

use super::{SettingOverrides, SettingScope, Settings, generation_config, resolve};
use crate::api::switch;
use crate::app::App;
use crate::chat::model;
use crate::models::loaded::loaded_name;
use crate::models::{hub_settings, list, locating, own_settings, thinking};
use crate::personas;
use crate::wire::{Event, Failure, Reply, ResolvedSettings, SettingTarget};

/// What holds for a target, and where each value was set.
pub(crate) async fn get(app: &App, target: &SettingTarget) -> Result<Reply, Failure> {
    let mut layers = vec![app.settings.overrides()];
    let model = match target {
        SettingTarget::Model { name } => Some(name.clone()),
        SettingTarget::Persona { id } => {
            app.store.persona(id).await?.model.or_else(|| loaded_name(app))
        }
        SettingTarget::Chat { id } => model::name_or_loaded(app, id).await?,
        SettingTarget::App => loaded_name(app),
    };
    let mut choices = None;
    if let Some(model) = model {
        let [recommended, own] = of_model(app, &model).await?;
        if !matches!(target, SettingTarget::App) {
            choices = thinking::choices(app, &model).await;
        }
        layers.push(recommended);
        if !matches!(target, SettingTarget::App) {
            layers.push(own);
        }
    }
    if let SettingTarget::Chat { id } = target {
        layers.extend(of_chat_and_persona(app.store_of(id).await, id).await?);
    }
    if let SettingTarget::Persona { id } = target {
        layers.push(of_persona(app, id).await?);
    }
    let resolved = resolve(app.settings.defaults(), &layers);
    let resolved = Box::new(ResolvedSettings { thinking: choices, ..resolved });
    Ok(Reply::Settings { resolved })
}

/// What holds for the next answer in a chat, of a model of this name.
pub(crate) async fn for_answer(
    app: &App,
    store: &Store,
    conversation_id: &str,
    model: Option<&str>,
) -> Result<Settings, Failure> {
    let mut layers = vec![app.settings.overrides()];
    layers.extend(of_chat_and_persona(store, conversation_id).await?);
    if let Some(model) = model {
        layers.extend(of_model(app, model).await?);
    }
    Ok(resolve(app.settings.defaults(), &layers).settings)
}

/// What holds for an answer of a model that belongs to no chat.
pub(crate) async fn of_loaded(app: &App, model: &str) -> Result<Settings, Failure> {
    let [recommended, own] = of_model(app, model).await?;
    let layers = [app.settings.overrides(), recommended, own];
    Ok(resolve(app.settings.defaults(), &layers).settings)
}

/// Sets one value, or clears it with null, and answers with what holds now.
pub(crate) async fn set(
    app: &Arc<App>,
    target: SettingTarget,
    key: &str,
    value: Value,
) -> Result<Reply, Failure> {
    check(app, &target, key, &value).await?;
    // Other values of the same target are saved with it, so changes come one after the other.
    let _saving = app.settings.saving.lock().await;
    match &target {
        SettingTarget::App => {
            let mut overrides = app.settings.overrides();
            overrides.set(key, value).map_err(Failure::from)?;
            app.settings.save(&app.store, overrides).await?;
            hub_settings::apply(app, key).await;
            if switch::is_about_server(key) {
                switch::follow_setting(app);
            }
            let settings = app.settings();
            app.engine.set_wired_memory(settings.wires_memory);
            app.follow_compression(&settings);
            if key == "default_model" {
                let owner = app.clone();
                app.spawn(async move { list::emit(&owner).await });
            }
            app.follow_cache_budgets(&settings);
        }
        SettingTarget::Model { name } => {
            let mut overrides = app.settings.overrides_of_model(name);
            overrides.set(key, value.clone()).map_err(Failure::from)?;
            own_settings::check_alias(app, name, key, &value).await?;
            app.settings.save_model(&app.store, name, overrides).await?;
            own_settings::apply(app, name, key);
        }
        SettingTarget::Persona { id } => {
            let mut overrides = of_persona(app, id).await?;
            overrides.set(key, value).map_err(Failure::from)?;
            app.store.set_persona_settings(id, overrides.to_json().as_deref()).await?;
            personas::emit(app).await;
        }
        SettingTarget::Chat { id } => {
            let store = app.store_of(id).await;
            let mut overrides = of_chat(store, id).await?;
            overrides.set(key, value).map_err(Failure::from)?;
            store.set_conversation_settings(id, overrides.to_json().as_deref()).await?;
        }
    }
    app.emit(Event::Settings { settings: app.settings() });
    get(app, &target).await
}

/// What takes its time, before other settings have to wait for this one: opening a model's files, a
/// folder's disk. It depends on no other setting.
async fn check(app: &App, target: &SettingTarget, key: &str, value: &Value) -> Result<(), Failure> {
    match target {
        SettingTarget::App => {
            let mut overrides = app.settings.overrides();
            overrides.set(key, value.clone()).map_err(Failure::from)?;
            let wanted = resolve(app.settings.defaults(), &[overrides]).settings;
            hub_settings::check(app, key, &wanted).await
        }
        SettingTarget::Model { name } => {
            let mut overrides = app.settings.overrides_of_model(name);
            overrides.set(key, value.clone()).map_err(Failure::from)?;
            own_settings::check(app, name, key, value).await
        }
        SettingTarget::Persona { .. } | SettingTarget::Chat { .. } => Ok(()),
    }
}

/// Replaces the parameters that a chat sets by these values, as a preset has them, and answers with what
/// holds now.
pub(crate) async fn set_parameters(
    app: &Arc<App>,
    conversation_id: &str,
    values: BTreeMap<String, Value>,
) -> Result<Reply, Failure> {
    let _saving = app.settings.saving.lock().await;
    let store = app.store_of(conversation_id).await;
    let mut overrides = of_chat(store, conversation_id).await?;
    overrides.replace_parameters(values).map_err(Failure::from)?;
    store.set_conversation_settings(conversation_id, overrides.to_json().as_deref()).await?;
    app.emit(Event::Settings { settings: app.settings() });
    get(app, &SettingTarget::Chat { id: conversation_id.to_owned() }).await
}

/// What a chat sets, and the persona that it was begun with.
async fn of_chat_and_persona(store: &Store, id: &str) -> Result<[SettingOverrides; 2], Failure> {
    let persona = store.settings_of_conversations_persona(id).await?;
    let persona = SettingOverrides::parse(SettingScope::Persona, persona.as_deref());
    Ok([persona, of_chat(store, id).await?])
}

async fn of_persona(app: &App, id: &str) -> Result<SettingOverrides, Failure> {
    let saved = app.store.persona(id).await?.setting_overrides;
    Ok(SettingOverrides::parse(SettingScope::Persona, saved.as_deref()))
}

async fn of_chat(store: &Store, id: &str) -> Result<SettingOverrides, Failure> {
    let saved = store.conversation_settings(id).await?;
    Ok(SettingOverrides::parse(SettingScope::Chat, saved.as_deref()))
}

/// What a model's publisher recommends, and what a person has set for it.
async fn of_model(app: &App, name: &str) -> Result<[SettingOverrides; 2], Failure> {
    let nothing = || SettingOverrides::none(SettingScope::GenerationConfig);
    let recommended = match locating::folder_of(app, name).await {
        // Reading a file blocks.
        Ok(folder) => app.blocking(move || generation_config::read(&folder)).await,
        // A model that is gone recommends nothing.
        Err(_) => None,
    };
    Ok([recommended.unwrap_or_else(nothing), app.settings.overrides_of_model(name)])
}
