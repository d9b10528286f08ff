//! Chooses the model to load, loads it, unloads it; one caller loads at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_engine::{EngineState, LoadedModelStatus, ModelOptions};
use serde_json::Value;

use super::loaded::{loaded_folder, loaded_name, loaded_status};
use super::locating::{NamedBy, locate, locate_as};
use super::{draft, list, proposal};
use crate::app::App;
use crate::clock::now_ms;
use crate::crashes::record::{Step, StepKind};
use crate::crashes::state::set_aside;
use crate::wire::{Event, Failure, FailureCode, FailureKind, Model, NoticeKind};

impl App {
    /// Loads a model by its name, its alias or its path, for the person who started this process. The
    /// model of a path is listed from then on, until this process ends. A
    /// page or a program can load listed models only, with
    /// [`Command::LoadModel`](crate::wire::Command::LoadModel).
    pub async fn load_model(self: &Arc<Self>, name_or_path: &str) -> Result<(), Failure> {
        let _loading = self.loading.lock().await;
        let (name, folder) = locate_as(self, name_or_path, NamedBy::NameOrPath).await?;
        // Programs find the model by its name also after it was unloaded.
        let (folders, given) = (self.model_folders.clone(), folder.clone());
        let listed = self.blocking(move || folders.give(&given)).await.flatten();
        let (name, folder) = listed.unwrap_or((name, folder));
        load_and_record(self, &name, &folder).await
    }
}

/// Loads the listed model of this name instead of the one before, and records it as the last one used.
pub(crate) async fn load_named(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    let _loading = app.loading.lock().await;
    load(app, name.to_owned()).await
}

/// Removes the loaded model from memory; one that writes goes when its answers have ended.
pub(crate) async fn unload(app: &App) -> Result<(), Failure> {
    let _loading = app.loading.lock().await;
    app.engine.unload().await?;
    Ok(())
}

/// Loads a model unless one is loaded: the preferred one, if it can be used.
pub(crate) async fn ensure_loaded(app: Arc<App>, preferred: Option<String>) -> Result<(), Failure> {
    let _loading = app.loading.lock().await;
    if loaded_name(&app).is_some() {
        return Ok(());
    }
    let Some(model) = to_load(&app, preferred).await else { return Err(none_to_load(&app).await) };
    load(&app, model.name).await
}

/// The model that [`ensure_loaded`] loads where none is: the preferred one if it can be used.
pub(crate) async fn to_load(app: &Arc<App>, preferred: Option<String>) -> Option<Model> {
    let models = list::all(app).await;
    let named = |name: &str| models.iter().find(|model| model.name == name);
    let is_usable = |name: &String| {
        named(name).is_some_and(|model| model.problem.is_none() && !model.is_set_aside)
    };
    let name = match preferred.filter(is_usable) {
        Some(name) => name,
        None => choose_now(app).await?,
    };
    named(&name).cloned()
}

/// Refuses if no model is loaded and none could be loaded.
pub(crate) async fn require_any(app: &Arc<App>) -> Result<(), Failure> {
    // A model is being loaded; if that fails, the answer reports it.
    let is_loading = app.loading.try_lock().is_err();
    if is_loading || loaded_name(app).is_some() || choose_now(app).await.is_some() {
        Ok(())
    } else {
        Err(none_to_load(app).await)
    }
}

/// Returns why no model is loaded by itself: all are set aside, or there is none.
async fn none_to_load(app: &Arc<App>) -> Failure {
    match list::all(app).await.into_iter().find(|model| model.is_set_aside) {
        Some(model) => set_aside(&model.name),
        None => no_model(),
    }
}

pub(crate) fn no_model() -> Failure {
    Failure::new(FailureCode::NoModel, "There is no model to answer with: choose one first.")
        .of_kind(FailureKind::NoModel)
}

async fn load(app: &Arc<App>, wanted: String) -> Result<(), Failure> {
    let (name, folder) = locate(app, &wanted).await?;
    load_and_record(app, &name, &folder).await
}

async fn load_and_record(app: &Arc<App>, name: &str, folder: &Path) -> Result<(), Failure> {
    load_located(app, name, folder).await?;
    record_use(app, name, folder).await;
    Ok(())
}

/// Remembers a model as the last one used. A failure only costs convenience.
async fn record_use(app: &Arc<App>, name: &str, folder: &Path) {
    let recorded = app.store.record_model_use(&folder.to_string_lossy(), name, now_ms()).await;
    match recorded {
        Err(error) => {
            tracing::warn!("the model {name} is not remembered as the last one used: {error}");
        }
        // Which one is proposed depends on it; who waits for the model does not wait for the list.
        Ok(()) => {
            let owner = app.clone();
            app.spawn(async move { list::emit(&owner).await });
        }
    }
}

/// Loads a model for a chat or a program that names it, unless it is loaded. What new chats begin with
/// stays loaded, unless that had to make room. Returns the model's name.
pub(crate) async fn ensure_loaded_beside(app: &Arc<App>, wanted: &str) -> Result<String, Failure> {
    let (name, folder) = locate(app, wanted).await?;
    ensure_located(app, name, folder).await
}

async fn ensure_located(app: &Arc<App>, name: String, folder: PathBuf) -> Result<String, Failure> {
    if !is_loaded(app, &name, &folder) {
        // In a task, so that the model before is the loaded one again also if the caller goes away.
        let loading = app.spawn(load_beside(app.clone(), name.clone(), folder));
        loading.await.map_err(|fault| {
            let message = format!("A fault in Cairn stopped {name} from being loaded: {fault}.");
            Failure::fault(message)
        })??;
    }
    Ok(name)
}

/// Loads the model of a chat beside those in use, unless it is in memory. What is loaded stays what new
/// chats begin with, unless it had to make room.
pub(crate) async fn ensure_loaded_for_chat(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    // One that was loaded from a path is not found by its name.
    if loaded_folder(app, name).is_some() {
        return Ok(());
    }
    let name = ensure_loaded_beside(app, name).await?;
    if loaded_name(app).as_deref() == Some(name.as_str())
        && let Some(folder) = loaded_folder(app, &name)
    {
        record_use(app, &name, &folder).await;
    }
    Ok(())
}

/// Sees to it that a model is loaded for a program: the one that it names, else the one of new chats.
/// Returns the model's name. A program has a key to the models, not to the disk, so it names none by
/// its path.
pub(crate) async fn ensure_answers(
    app: &Arc<App>,
    wanted: Option<&str>,
) -> Result<String, Failure> {
    match wanted {
        Some(wanted) => match locate(app, wanted).await {
            Ok((name, folder)) => ensure_located(app, name, folder).await,
            // One that was loaded from a path is not found by its name.
            Err(why) if why.code == FailureCode::NotFound => match loaded_folder(app, wanted) {
                Some(_) => Ok(wanted.to_owned()),
                None => Err(why),
            },
            Err(why) => Err(why),
        },
        None => {
            ensure_loaded(app.clone(), None).await?;
            loaded_name(app).ok_or_else(no_model)
        }
    }
}

async fn load_beside(app: Arc<App>, name: String, folder: PathBuf) -> Result<(), Failure> {
    let _loading = app.loading.lock().await;
    match is_loaded(&app, &name, &folder) {
        true => Ok(()),
        false => load_and_go_back(&app, &name, &folder).await,
    }
}

/// Loads a model and makes the one before it that of requests that name none again. Fails where the model
/// is not loaded; that the one before is not is what the engine's status says. The caller has locked
/// [`App::loading`].
async fn load_and_go_back(app: &App, name: &str, folder: &Path) -> Result<(), Failure> {
    let before = loaded_name(app).and_then(|name| Some((loaded_folder(app, &name)?, name)));
    let loaded = load_located(app, name, folder).await;
    if let Some((folder, before)) = before
        && before != name
        && is_loaded(app, &before, &folder)
    {
        // Of its files only those of its draft model are read again, unless they have changed.
        if let Err(why) = load_located(app, &before, &folder).await {
            tracing::warn!("{before} is not the model of new chats any more: {}", why.message);
        }
    }
    loaded
}

/// Loads a model anew that is in memory, after a change of what it is loaded with. Where that fails and
/// the model is still there, because it answers, its setting is again what it was loaded with.
pub(super) async fn reload(app: Arc<App>, name: String) {
    let _loading = app.loading.lock().await;
    let Some(folder) = loaded_folder(&app, &name) else { return };
    let Err(why) = load_and_go_back(&app, &name, &folder).await else { return };
    if app.closing.is_cancelled() {
        return;
    }
    let loaded = loaded_status(&app, &name);
    if let Some(LoadedModelStatus { bf16_state, .. }) = &loaded {
        put_back_bf16_state(&app, &name, *bf16_state).await;
    }
    let is_in_memory = loaded.is_some();
    let then = match is_in_memory {
        true => "so the old one holds again",
        false => "and is no longer in memory",
    };
    let text = format!("{name} was not loaded with its new setting, {then}. {}", why.message);
    app.emit_warning(text, NoticeKind::NotReloaded { model: name, is_in_memory, why });
}

/// Lets the setting be what a model in memory was loaded with. Where that cannot be saved, the next load
/// is with the new value.
async fn put_back_bf16_state(app: &App, name: &str, loaded: bool) {
    let value = if loaded { Value::Bool(true) } else { Value::Null };
    match app.settings.set_of_model(&app.store, name, "bf16_state", value).await {
        Ok(()) => app.emit(Event::Settings { settings: app.settings() }),
        Err(failure) => {
            tracing::warn!("the setting of {name} stays the new one: {}", failure.message);
        }
    }
}

fn is_loaded(app: &App, name: &str, folder: &Path) -> bool {
    loaded_folder(app, name).as_deref() == Some(folder)
}

async fn load_located(app: &App, name: &str, folder: &Path) -> Result<(), Failure> {
    app.crashes.require(name)?;
    let step = app.crashes.begin(Step::new(StepKind::Loading, name.to_owned()));
    let options =
        ModelOptions { bf16_state: app.settings.of_model(name).bf16_state, ..Default::default() };
    let loaded = app.engine.load_with(name, folder, options).await;
    drop(step);
    loaded?;
    // If a bug had ended the engine's thread, the new one knows of none.
    app.engine.set_pinned(app.settings.pinned_models());
    draft::load(app, name).await;
    Ok(())
}

/// The model that a new conversation will be with: the one that is loaded or being loaded, or the
/// one that would be.
pub(crate) async fn expected_name(app: &Arc<App>) -> Option<String> {
    let loading = match &app.engine.status().borrow().state {
        EngineState::Loading { model, .. } => Some(model.clone()),
        _ => loaded_name(app),
    };
    match loading {
        Some(name) => Some(name),
        None => choose_now(app).await,
    }
}

async fn choose_now(app: &Arc<App>) -> Option<String> {
    list::all(app).await.into_iter().find(|model| model.is_proposed).map(|model| model.name)
}

/// Loads at the start of the app what a person has used or set, or the only model. One that only seems
/// to fit is not loaded before somebody asks.
pub(crate) async fn load_at_start(app: Arc<App>) -> Result<(), Failure> {
    let models = list::all(&app).await;
    match proposal::chosen_before(&app, &models).await {
        Some(index) => ensure_loaded(app.clone(), Some(models[index].name.clone())).await,
        None => Ok(()),
    }
}
