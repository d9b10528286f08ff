//! The models: those on this machine, those of the hub, and which one is loaded.
//!
//! ```text
//! mod.rs        chooses the model to load, loads it, unloads it; one caller loads at a time
//! catalog       the list of models on this machine, and what opening their files has shown
//! loaded        those in memory
//! names         which models these are
//! of_chats      which of them answers a chat
//! child         processes of the app's own program, for the next two
//! child_tasks   does what such a process is asked
//! commands      the commands of the pages about models
//! check         opens a model's files in a child process; check_child is that process
//! measuring     measures in a child process what rounding costs; measure_child is that process,
//!               due_measurements what the next start goes on with
//! deletion      models that were deleted and can be brought back for a while
//! idle          unloads what nobody has used for a while
//! import        models from files and folders
//! hub           searches, cards and the access token; token_store keeps that
//! hub_settings  the hub's address, folder and proxy
//! downloads     the queue of downloads
//! revisions     newer versions of a model, and older ones
//! own_settings  what a person sets for one model: whether it suits, and what follows
//! recommended   the models to begin with
//! ```

pub(crate) mod catalog;
mod check;
mod check_child;
mod child;
mod child_tasks;
pub(crate) mod commands;
pub(crate) mod deletion;
pub(crate) mod downloads;
mod due_measurements;
pub(crate) mod hub;
pub(crate) mod hub_settings;
pub(crate) mod idle;
pub(crate) mod import;
pub(crate) mod loaded;
mod measure_child;
pub(crate) mod measuring;
pub(crate) mod names;
pub(crate) mod of_chats;
pub(crate) mod own_settings;
pub(crate) mod recommended;
pub(crate) mod revisions;
mod rounding;
pub(crate) mod token_store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_engine::{EngineState, LoadedModelStatus, ModelOptions};
use cairn_hub::{HubError, ModelFolder, ModelFolders, starter};

use self::loaded::{loaded_name, loaded_status};
use crate::app::App;
use crate::clock::now_ms;
use crate::wire::{Failure, FailureCode, FailureKind, Fit, Model, NoticeKind};

pub use check_child::{CheckedFacts, ModelVerdict};
pub use child_tasks::run_child_if_asked;

/// Loads the model of this name instead of the one before, and records it as the last one used.
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
    let name = to_load(&app, preferred).await.ok_or_else(no_model)?.name;
    load(&app, name).await
}

/// The model that [`ensure_loaded`] loads where none is: the preferred one if it can be used.
pub(crate) async fn to_load(app: &Arc<App>, preferred: Option<String>) -> Option<Model> {
    let models = catalog::list(app).await;
    let named = |name: &str| models.iter().find(|model| model.name == name);
    let is_usable = |name: &String| named(name).is_some_and(|model| model.problem.is_none());
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
        Err(no_model())
    }
}

/// Refuses a model that is not on this machine or cannot be used.
pub(crate) async fn require(app: &App, name: &str) -> Result<(), Failure> {
    locate(app, name).await.map(|_| ())
}

/// The name of a model that a chat can have: one that is in memory or can be loaded, by its name or alias.
pub(crate) async fn name_for_chat(app: &App, wanted: &str) -> Result<String, Failure> {
    // One that was loaded from a path is not found by its name.
    match folder_of(app, wanted) {
        Some(_) => Ok(wanted.to_owned()),
        None => Ok(locate(app, wanted).await?.0),
    }
}

pub(crate) fn no_model() -> Failure {
    Failure::new(FailureCode::NoModel, "There is no model to answer with: choose one first.")
        .of_kind(FailureKind::NoModel)
}

async fn load(app: &Arc<App>, wanted: String) -> Result<(), Failure> {
    let (name, folder) = locate(app, &wanted).await?;
    load_located(app, &name, &folder).await?;
    record_use(app, &name, &folder).await;
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
            app.spawn(async move { catalog::emit(&owner).await });
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
    if folder_of(app, name).is_some() {
        return Ok(());
    }
    let name = ensure_loaded_beside(app, name).await?;
    if loaded_name(app).as_deref() == Some(name.as_str())
        && let Some(folder) = folder_of(app, &name)
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
        Some(wanted) => match locate_as(app, wanted, Wanted::Name).await {
            Ok((name, folder)) => ensure_located(app, name, folder).await,
            // One that was loaded from a path is not found by its name.
            Err(why) if why.code == FailureCode::NotFound => match folder_of(app, wanted) {
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
    let before = loaded_name(app).and_then(|name| Some((folder_of(app, &name)?, name)));
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
async fn reload(app: Arc<App>, name: String) {
    let _loading = app.loading.lock().await;
    let Some(folder) = folder_of(&app, &name) else { return };
    let Err(why) = load_and_go_back(&app, &name, &folder).await else { return };
    if app.closing.is_cancelled() {
        return;
    }
    let loaded = loaded_status(&app, &name);
    if let Some(LoadedModelStatus { bf16_state, .. }) = &loaded {
        own_settings::put_back_bf16_state(&app, &name, *bf16_state).await;
    }
    let is_in_memory = loaded.is_some();
    let then = match is_in_memory {
        true => "so the old one holds again",
        false => "and is no longer in memory",
    };
    let text = format!("{name} was not loaded with its new setting, {then}. {}", why.message);
    app.emit_warning(text, NoticeKind::NotReloaded { model: name, is_in_memory, why });
}

fn is_loaded(app: &App, name: &str, folder: &Path) -> bool {
    folder_of(app, name).as_deref() == Some(folder)
}

/// Where a loaded model was loaded from.
fn folder_of(app: &App, name: &str) -> Option<PathBuf> {
    loaded_status(app, name).map(|model| model.folder)
}

/// What a model may be named by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The name or alias of a listed one.
    Name,
    /// The path of any, too.
    NameOrPath,
}

async fn locate(app: &App, wanted: &str) -> Result<(String, PathBuf), Failure> {
    locate_as(app, wanted, Wanted::NameOrPath).await
}

async fn locate_as(app: &App, wanted: &str, by: Wanted) -> Result<(String, PathBuf), Failure> {
    let folders = app.model_folders.clone();
    let named = app.settings.model_with_alias(wanted);
    let name = wanted.to_owned();
    let find = move || find(&folders, &name, named.as_deref(), by);
    let Some(found) = app.blocking(find).await else {
        return Err(Failure::fault(format!(
            "A fault in Cairn prevented it from finding the model {wanted}."
        )));
    };
    let (name, folder) = found?;
    catalog::require_usable(app, &name, &folder).await?;
    Ok((name, folder))
}

async fn load_located(app: &App, name: &str, folder: &Path) -> Result<(), Failure> {
    let options =
        ModelOptions { bf16_state: app.settings.of_model(name).bf16_state, ..Default::default() };
    app.engine.load_with(name, folder, options).await?;
    // If a bug had ended the engine's thread, the new one knows of none.
    app.engine.set_pinned(app.settings.pinned_models());
    own_settings::load_draft(app, name).await;
    Ok(())
}

/// The name and folder of a model; `named` is the model that has the wanted name as its alias.
/// Listed names come before aliases and paths: an interface must not get a folder that happens to be
/// in the working folder.
fn find(
    folders: &ModelFolders,
    wanted: &str,
    named: Option<&str>,
    by: Wanted,
) -> Result<(String, PathBuf), HubError> {
    let mut listed = folders.list();
    let index = |name: &str| listed.iter().position(|model| model.name == name);
    let index = index(wanted).or_else(|| index(named?));
    match index.map(|index| listed.swap_remove(index)) {
        Some(ModelFolder { path, problem: Some(problem), .. }) => {
            Err(HubError::Unusable { path, problem })
        }
        Some(ModelFolder { name, path, .. }) => Ok((name, path)),
        None if by == Wanted::Name => {
            Err(HubError::NotFound { wanted: wanted.to_owned(), searched: Vec::new() })
        }
        None => {
            let path = folders.resolve(wanted)?;
            let name = path
                .file_name()
                .map_or_else(|| wanted.to_owned(), |name| name.to_string_lossy().into_owned());
            Ok((name, path))
        }
    }
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
    catalog::list(app).await.into_iter().find(|model| model.is_proposed).map(|model| model.name)
}

/// Which of these models answers where none is named and none is loaded.
async fn propose_now(app: &App, models: &[Model]) -> Option<usize> {
    let last_used = app.store.last_used_model().await.unwrap_or_default();
    let last_used_path = last_used.as_ref().map(|(path, _)| path.as_str());
    propose(&app.settings().default_model, last_used_path, models)
}

/// Loads at the start of the app what a person has used or set, or the only model. One that only seems
/// to fit is not loaded before somebody asks.
pub(crate) async fn load_at_start(app: Arc<App>) -> Result<(), Failure> {
    let models = catalog::list(&app).await;
    let last_used = app.store.last_used_model().await.unwrap_or_default();
    let last_used_path = last_used.as_ref().map(|(path, _)| path.as_str());
    match known(&app.settings().default_model, last_used_path, &models) {
        Some(index) => ensure_loaded(app.clone(), Some(models[index].name.clone())).await,
        None => Ok(()),
    }
}

/// The model to load when none is named: the one of [`known`], or the one that fits best.
fn propose(default_name: &str, last_used_path: Option<&str>, models: &[Model]) -> Option<usize> {
    known(default_name, last_used_path, models).or_else(|| best_fitting(models))
}

/// The model in the settings, the last one used, the starter, or the only one.
fn known(default_name: &str, last_used_path: Option<&str>, models: &[Model]) -> Option<usize> {
    let usable = || usable(models);
    let index = |(index, _): (usize, &Model)| index;
    let by_default = || usable().find(|(_, model)| model.name == default_name);
    let last_used = || usable().find(|(_, model)| Some(model.path.as_str()) == last_used_path);
    let is_starter = |name: &str| name.rsplit('/').next() == Some(starter::MODEL_NAME);
    let starter = || usable().find(|(_, model)| is_starter(&model.name));
    let only = || if usable().count() == 1 { usable().next() } else { None };
    by_default().or_else(last_used).or_else(starter).or_else(only).map(index)
}

/// The largest one that fits well, else the largest one that just fits. Of models of which that is not
/// known, or that are too large, the smallest.
fn best_fitting(models: &[Model]) -> Option<usize> {
    let rank = |model: &Model| match model.facts.as_ref().map(|facts| facts.memory.fit) {
        Some(Fit::Well) => (3, i128::from(model.bytes)),
        Some(Fit::Tight) => (2, i128::from(model.bytes)),
        None => (1, -i128::from(model.bytes)),
        Some(Fit::TooLarge) => (0, -i128::from(model.bytes)),
    };
    // Of equal ones the first in the list.
    usable(models).rev().max_by_key(|(_, model)| rank(model)).map(|(index, _)| index)
}

fn usable(models: &[Model]) -> impl DoubleEndedIterator<Item = (usize, &Model)> {
    models.iter().enumerate().filter(|(_, model)| model.problem.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MemoryNeed, ModelFacts, ModelProblem, ModelProblemKind, ModelSource};

    fn model(name: &str) -> Model {
        Model {
            name: name.trim_start_matches('!').to_owned(),
            alias: None,
            is_pinned: false,
            path: format!("/models/{name}"),
            model_type: "llama".to_owned(),
            bytes: 1,
            source: ModelSource::Imported,
            can_delete: true,
            problem: name.starts_with('!').then(|| ModelProblem {
                kind: ModelProblemKind::Broken,
                what: None,
                detail: "config.json is not JSON".to_owned(),
            }),
            facts: None,
            is_being_checked: false,
            is_proposed: false,
            is_being_measured: false,
        }
    }

    #[test]
    fn at_the_start_the_default_the_last_used_the_starter_or_the_only_model_is_loaded() {
        fn check(
            default_name: &str,
            last_used: Option<&str>,
            names: &[&str],
            expected: Option<&str>,
        ) {
            let models: Vec<Model> = names.iter().map(|name| model(name)).collect();
            let last_used = last_used.map(|name| format!("/models/{name}"));
            let chosen = known(default_name, last_used.as_deref(), &models);
            assert_eq!(
                chosen.map(|index| models[index].name.as_str()),
                expected,
                "for {default_name:?}, {last_used:?}, {names:?}"
            );
        }
        let starter = "HuggingFaceTB/SmolLM2-135M-Instruct";
        check("", None, &[], None);
        check("", None, &["a"], Some("a"));
        check("", None, &["a", "b"], None);
        check("", None, &["a", "!b"], Some("a"));
        check("", None, &["a", starter], Some(starter));
        check("", Some("a"), &["a", starter], Some("a"));
        check("", Some("gone"), &["a", starter], Some(starter));
        check("b", Some("a"), &["a", "b"], Some("b"));
        check("gone", Some("a"), &["a", "b"], Some("a"));
        check("b", None, &["a", "!b"], Some("a"));
        check("", None, &["a", "!SmolLM2-135M-Instruct", "b"], None);
    }

    #[test]
    fn of_several_models_that_nobody_has_used_the_best_fitting_is_proposed() {
        fn check(last_used: Option<&str>, models: &[(&str, u64, Option<Fit>)], expected: &str) {
            let described = |&(name, bytes, fit): &(&str, u64, Option<Fit>)| Model {
                bytes,
                facts: fit.map(facts),
                ..model(name)
            };
            let models: Vec<Model> = models.iter().map(described).collect();
            let last_used = last_used.map(|name| format!("/models/{name}"));
            let proposed = propose("", last_used.as_deref(), &models).unwrap();
            assert_eq!(models[proposed].name, expected, "of {models:?}");
        }
        let (well, tight, large) = (Some(Fit::Well), Some(Fit::Tight), Some(Fit::TooLarge));
        check(None, &[("a", 1, well), ("b", 2, well), ("c", 3, tight), ("d", 4, large)], "b");
        check(None, &[("a", 1, tight), ("b", 2, tight), ("c", 3, large)], "b");
        check(None, &[("a", 1, None), ("b", 2, None), ("c", 1, large)], "a");
        check(None, &[("a", 3, large), ("b", 2, large)], "b");
        check(None, &[("a", 1, well), ("b", 1, well)], "a");
        check(None, &[("a", 1, well), ("!b", 2, well), ("c", 2, None)], "a");
        check(Some("a"), &[("a", 1, large), ("b", 2, well)], "a");
        assert_eq!(propose("", None, &[model("!a")]), None);
    }

    fn facts(fit: Fit) -> ModelFacts {
        ModelFacts {
            parameters: 1,
            quantization_bits: None,
            context_length: 1,
            memory: MemoryNeed {
                context_tokens: 1,
                weight_bytes: 1,
                kv_bytes: 1,
                total_bytes: 1,
                budget_bytes: 1,
                fit,
            },
            rounded_weights: None,
        }
    }
}
