//! The list of models on this machine: where they are, what their files say, and why one cannot be
//! loaded.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cairn_engine::default_memory_limit_bytes;
use cairn_formats::gguf::{PerplexityChange, RoundedWeights};
use cairn_hub::{FilesIdentity, ModelFolder};
use cairn_store::{Store, StoreError};

use super::check::{CheckLimits, CheckVerdict, Checker};
use super::check_child::ModelVerdict;
use super::names::found;
use super::of_chats;
use crate::app::App;
use crate::clock::now_ms;
use crate::convert;
use crate::settings::Settings;
use crate::wire::{Event, Failure, FailureCode, FailureKind, Model, ModelProblem};

/// Precedes an identity in the database: another version of Cairn may open what this one cannot.
const CHECKED_BY: &str = concat!(env!("CARGO_PKG_VERSION"), ":");
/// While many models are checked, the list is sent again after this time.
const EVENT_INTERVAL: Duration = Duration::from_millis(500);

/// What is known of models by opening their files once, and which models are hidden.
#[derive(Debug)]
pub(crate) struct Catalog {
    /// None: models are listed without a check.
    checker: Option<Checker>,
    /// By the identity of a model's files, as in the database; none for a model that could not be
    /// checked, which is tried again in the next run.
    verdicts: Mutex<HashMap<String, Option<ModelVerdict>>>,
    /// Locked while a model is checked, so that one is at a time.
    checking: tokio::sync::Mutex<()>,
    /// Names of models whose deletion can still be undone, with the time of the deletion.
    hidden: Mutex<HashMap<String, i64>>,
    /// The names of the list that was sent last.
    sent: Mutex<Option<HashSet<String>>>,
}

impl Catalog {
    /// Reads the verdicts of earlier runs. Those that cannot be read are made again.
    pub(crate) async fn load(store: &Store, program: Option<PathBuf>) -> Catalog {
        let rows = store.model_checks().await.unwrap_or_else(|error| {
            tracing::warn!("the models are checked again: {error}");
            Vec::new()
        });
        let verdicts = rows.into_iter().filter_map(|(identity, verdict)| {
            let identity = identity.strip_prefix(CHECKED_BY)?.to_owned();
            Some((identity, Some(ModelVerdict::from_json(verdict.as_bytes())?)))
        });
        Catalog {
            checker: program.map(|program| Checker { program, limits: CheckLimits::default() }),
            verdicts: Mutex::new(verdicts.collect()),
            checking: tokio::sync::Mutex::default(),
            hidden: Mutex::default(),
            sent: Mutex::default(),
        }
    }

    /// The program that checks and measures models.
    pub(crate) fn program(&self) -> Option<&Path> {
        self.checker.as_ref().map(|checker| checker.program.as_path())
    }

    /// None for files that were never opened.
    fn verdict(&self, identity: &FilesIdentity) -> Option<Option<ModelVerdict>> {
        self.verdicts().get(identity.as_str()).cloned()
    }

    fn verdicts(&self) -> MutexGuard<'_, HashMap<String, Option<ModelVerdict>>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hidden(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the names of a list that is sent; whether they are others than those before.
    fn remember_sent(&self, models: &[Model]) -> bool {
        let names = Some(models.iter().map(|model| model.name.clone()).collect());
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *sent, names.clone()) != names
    }

    /// Hides a model that was deleted at this time.
    pub(crate) fn hide(&self, name: &str, deleted_at_ms: i64) {
        self.hidden().insert(name.to_owned(), deleted_at_ms);
    }

    /// Shows a hidden model again; false if it was not hidden.
    pub(crate) fn show(&self, name: &str) -> bool {
        self.hidden().remove(name).is_some()
    }

    /// Whether a model is hidden since this time.
    pub(crate) fn is_hidden_since(&self, name: &str, deleted_at_ms: i64) -> bool {
        self.hidden().get(name) == Some(&deleted_at_ms)
    }

    /// The names of all hidden models.
    pub(crate) fn all_hidden(&self) -> Vec<String> {
        self.hidden().keys().cloned().collect()
    }

    /// A model's row.
    fn describe(&self, folder: ModelFolder) -> Model {
        // Nothing can be remembered of files that cannot be identified, so they are not checked.
        let can_be_checked = self.checker.is_some() && folder.identity.is_some();
        let verdict = folder.identity.as_ref().and_then(|identity| self.verdict(identity));
        let mut model = convert::model(folder);
        if model.problem.is_some() {
            return model;
        }
        match verdict {
            Some(Some(ModelVerdict::Usable(facts))) => {
                model.facts = Some(facts.within(default_memory_limit_bytes()));
            }
            Some(Some(ModelVerdict::Problem(problem))) => model.problem = Some(problem),
            Some(None) => {}
            None => model.is_being_checked = can_be_checked,
        }
        model
    }
}

/// The models on this machine, with those that are unknown still marked as being checked. Folders
/// that cannot be read are skipped.
pub(crate) async fn list(app: &Arc<App>) -> Vec<Model> {
    let models = rows(app).await;
    if models.iter().any(|model| model.is_being_checked) {
        app.spawn(check_unknown(app.clone()));
    }
    models
}

async fn rows(app: &App) -> Vec<Model> {
    let found = found(app).await;
    let hidden = app.catalog.hidden().clone();
    let shown = found.into_iter().filter(|folder| !hidden.contains_key(&folder.name));
    let describe = |folder| {
        let mut model = app.catalog.describe(folder);
        let Settings { alias, is_pinned, .. } = app.settings.of_model(&model.name);
        model.alias = Some(alias).filter(|alias| !alias.is_empty());
        model.is_pinned = is_pinned;
        model.is_being_measured = app.measurements.has(&model.name);
        model
    };
    let mut models: Vec<Model> = shown.map(describe).collect();
    if let Some(proposed) = super::propose_now(app, &models).await {
        models[proposed].is_proposed = true;
    }
    models
}

/// Sends the list as it is now.
pub(crate) async fn emit(app: &Arc<App>) {
    send(app, list(app).await).await;
}

/// Sends a list of all models, and which model answers each chat where another one may do so now.
pub(crate) async fn send(app: &App, models: Vec<Model>) {
    let is_another_choice = app.catalog.remember_sent(&models);
    app.emit(Event::Models { models });
    if is_another_choice {
        of_chats::emit_all(app).await;
    }
}

/// Opens the files of every model of which nothing is known, one after the other.
async fn check_unknown(app: Arc<App>) {
    loop {
        // The one that is at it also finds what is new by now.
        let Ok(checking) = app.catalog.checking.try_lock() else { return };
        check_all(&app).await;
        drop(checking);
        // Whoever found a model while this one was about to end has left it to this one.
        let is_unknown = |model: &Model| model.is_being_checked;
        if app.closing.is_cancelled() || !rows(&app).await.iter().any(is_unknown) {
            return;
        }
    }
}

async fn check_all(app: &Arc<App>) {
    let mut sent_at = Instant::now();
    loop {
        let models = rows(app).await;
        send(app, models.clone()).await;
        let unknown: Vec<&Model> = models.iter().filter(|model| model.is_being_checked).collect();
        if unknown.is_empty() {
            return;
        }
        for model in unknown {
            if app.closing.is_cancelled() {
                return;
            }
            check_now(app, Path::new(&model.path)).await;
            if sent_at.elapsed() >= EVENT_INTERVAL {
                sent_at = Instant::now();
                send(app, rows(app).await).await;
            }
        }
    }
}

/// Opens a model's files in a child process and remembers what that showed; none where nothing was
/// learned.
async fn check_now(app: &App, folder: &Path) -> Option<ModelVerdict> {
    let checker = app.catalog.checker.as_ref()?;
    // Read before the check: of files that change meanwhile nothing is known.
    let identity = FilesIdentity::of(folder).ok()?;
    let verdict = match checker.check(folder).await {
        CheckVerdict::Usable(facts) => Some(ModelVerdict::Usable(facts)),
        CheckVerdict::Problem(problem) => Some(ModelVerdict::Problem(problem)),
        CheckVerdict::NotChecked(reason) => {
            tracing::warn!("{} was not checked: {reason}", folder.display());
            None
        }
    };
    remember(app, folder, &identity, verdict.clone()).await;
    verdict
}

/// Writes what was measured of a model beside its files. That changes what identifies them, and
/// nothing else that a check has found: they are not opened again.
pub(crate) async fn keep_perplexity(app: &App, folder: PathBuf, change: PerplexityChange) {
    let before = FilesIdentity::of(&folder).ok();
    let target = folder.clone();
    if let Some(Err(error)) = app.blocking(move || change.write(&target)).await {
        tracing::warn!("what rounding costs {} is not kept: {error}", folder.display());
    }
    let known = before.and_then(|identity| app.catalog.verdict(&identity)).flatten();
    let (Some(ModelVerdict::Usable(mut facts)), Ok(after)) = (known, FilesIdentity::of(&folder))
    else {
        return;
    };
    facts.rounded_weights = RoundedWeights::read(&folder).map(convert::rounded_weights);
    remember(app, &folder, &after, Some(ModelVerdict::Usable(facts))).await;
}

/// Keeps what a check of these files has shown, for the next run too.
async fn remember(
    app: &App,
    folder: &Path,
    identity: &FilesIdentity,
    verdict: Option<ModelVerdict>,
) {
    app.catalog.verdicts().insert(identity.as_str().to_owned(), verdict.clone());
    if let Some(verdict) = &verdict {
        let (identity, json) = (key(identity), verdict.to_json().to_string());
        match app.store.save_model_check(&identity, &json, now_ms()).await {
            // Cairn was quit meanwhile, which is nothing that anyone has to know.
            Ok(()) | Err(StoreError::Closed { .. }) => {}
            Err(error) => {
                tracing::warn!("{} is checked again at the next start: {error}", folder.display());
            }
        }
    }
}

/// The identity as the database has it.
fn key(identity: &FilesIdentity) -> String {
    format!("{CHECKED_BY}{identity}")
}

/// Fails unless the model in this folder was checked and can be used; an unknown one is checked now.
pub(crate) async fn require_usable(app: &App, name: &str, folder: &Path) -> Result<(), Failure> {
    let known = FilesIdentity::of(folder).ok().and_then(|found| app.catalog.verdict(&found));
    let verdict = match known {
        Some(verdict) => verdict,
        None => {
            let _checking = app.catalog.checking.lock().await;
            check_now(app, folder).await
        }
    };
    match verdict {
        Some(ModelVerdict::Problem(ModelProblem { detail, .. })) => {
            let kind = FailureKind::ModelUnusable {
                model: name.to_owned(),
                detail: convert::sentence(&detail),
            };
            let why = format!("{name} cannot be used: {detail}.");
            Err(Failure::new(FailureCode::Engine, why).of_kind(kind))
        }
        Some(ModelVerdict::Usable(_)) | None => Ok(()),
    }
}

/// Forgets what was learned of a model's files, and opens them again.
pub(crate) async fn check_again(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    let folder = found(app).await.into_iter().find(|folder| folder.name == name);
    let identity = folder.and_then(|folder| folder.identity);
    if let Some(identity) = identity {
        app.catalog.verdicts().remove(identity.as_str());
        app.store.forget_model_check(&key(&identity)).await?;
    }
    emit(app).await;
    Ok(())
}
