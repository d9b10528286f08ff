//! The list of models on this machine: where they are, what their files say, and why one cannot be
//! loaded.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::MutexGuard;

use super::names::found;
use super::{catalog, checking, of_chats, proposal};
use crate::app::App;
use crate::settings::Settings;
use crate::wire::{Event, Failure, Model};

/// While many models are checked, the list is sent again after this time.
const EVENT_INTERVAL: Duration = Duration::from_millis(500);

/// The models on this machine, with those that are unknown still marked as being checked. Folders
/// that cannot be read are skipped.
pub(crate) async fn all(app: &Arc<App>) -> Vec<Model> {
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
        model.is_set_aside = app.crashes.is_model_set_aside(&model.name);
        model.is_being_measured = app.measurements.has(&model.name);
        model
    };
    let mut models: Vec<Model> = shown.map(describe).collect();
    if let Some(proposed) = proposal::proposed(app, &models).await {
        models[proposed].is_proposed = true;
    }
    models
}

/// Sends the list as it is now.
pub(crate) async fn emit(app: &Arc<App>) {
    let sending = app.catalog.sending.lock().await;
    let models = all(app).await;
    send(app, models, &sending).await;
}

/// Sends the list as it is now, unless it was sent already, and returns it.
pub(crate) async fn emit_if_changed(app: &Arc<App>) -> Vec<Model> {
    let sending = app.catalog.sending.lock().await;
    let models = all(app).await;
    if !app.catalog.is_sent(&models) {
        send(app, models.clone(), &sending).await;
    }
    models
}

/// Sends a list of all models, and which model answers each chat where another one may do so now. The
/// list was made under this lock: a list that was made before never follows one that was made after it.
async fn send(app: &App, models: Vec<Model>, _sending: &MutexGuard<'_, ()>) {
    let is_another_choice = app.catalog.remember_sent(&models);
    app.emit(Event::Models { models });
    if is_another_choice {
        of_chats::emit_all(app).await;
    }
}

/// Sends the list as it is now, and returns it; what is unknown is checked by the caller.
async fn emit_rows(app: &App) -> Vec<Model> {
    let sending = app.catalog.sending.lock().await;
    let models = rows(app).await;
    send(app, models.clone(), &sending).await;
    models
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
        let models = emit_rows(app).await;
        let unknown: Vec<&Model> = models.iter().filter(|model| model.is_being_checked).collect();
        if unknown.is_empty() {
            return;
        }
        for model in unknown {
            if app.closing.is_cancelled() {
                return;
            }
            checking::check_now(app, Path::new(&model.path)).await;
            if sent_at.elapsed() >= EVENT_INTERVAL {
                sent_at = Instant::now();
                emit_rows(app).await;
            }
        }
    }
}

/// Forgets what was learned of a model's files, and opens them again.
pub(crate) async fn check_again(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    let folder = found(app).await.into_iter().find(|folder| folder.name == name);
    let identity = folder.and_then(|folder| folder.identity);
    if let Some(identity) = identity {
        app.catalog.forget(&identity);
        app.store.forget_model_check(&catalog::key(&identity)).await?;
    }
    emit(app).await;
    Ok(())
}
