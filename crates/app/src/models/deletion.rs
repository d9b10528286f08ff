//! Deletes models: a model is hidden at once, and its files go when the deletion can no longer be
//! undone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::loaded::loaded_name;
use super::{list, loading};
use crate::app::App;
use crate::clock::now_ms;
use crate::convert;
use crate::undo::MODEL_UNDO_LIMIT;
use crate::wire::{Failure, FailureCode, FailureKind, ModelDeletion};

/// What deleting the model of this name would delete.
pub(crate) async fn preview(app: &App, name: &str) -> Result<ModelDeletion, Failure> {
    let deletion = found(app, name).await?;
    Ok(ModelDeletion {
        name: deletion.name,
        bytes: deletion.bytes,
        is_shared: deletion.is_shared,
        num_revisions: u32::try_from(deletion.num_revisions).unwrap_or(u32::MAX),
    })
}

async fn found(app: &App, name: &str) -> Result<cairn_hub::ModelDeletion, Failure> {
    let (folders, wanted) = (app.model_folders.clone(), name.to_owned());
    match app.blocking(move || folders.deletion(&wanted)).await {
        Some(found) => Ok(found?),
        None => Err(Failure::fault(format!(
            "A fault in Cairn prevented it from finding the model {name}."
        ))),
    }
}

/// Hides a model, and removes it from memory if it is loaded.
pub(crate) async fn delete(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    // Fails for one that is not there or that Cairn only reads.
    found(app, name).await?;
    if loaded_name(app).as_deref() == Some(name) {
        loading::unload(app).await?;
    } else {
        // A chat may have it in memory beside the loaded one.
        app.engine.unload_unused(name, Instant::now());
    }
    let deleted_at_ms = now_ms();
    app.catalog.hide(name, deleted_at_ms);
    app.spawn(delete_later(app.clone(), name.to_owned(), deleted_at_ms, MODEL_UNDO_LIMIT));
    list::emit(app).await;
    Ok(())
}

/// Shows a deleted model again.
pub(crate) async fn restore(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    if !app.catalog.show(name) {
        let message = format!("{name} can no longer be brought back: its files are deleted.");
        return Err(Failure::new(FailureCode::NotFound, message)
            .of_kind(FailureKind::ModelDeleted { model: name.to_owned() }));
    }
    list::emit(app).await;
    Ok(())
}

/// Deletes the files of a model that was deleted at this time, unless it is restored before. If the
/// app closes first, closing deletes them.
async fn delete_later(app: Arc<App>, name: String, deleted_at_ms: i64, undo_limit: Duration) {
    if !app.is_open_after(undo_limit).await {
        return;
    }
    if app.catalog.is_hidden_since(&name, deleted_at_ms) {
        delete_now(&app, &name).await;
        list::emit(&app).await;
    }
}

/// Deletes the files of all hidden models. Called when the app closes.
pub(crate) async fn delete_all_hidden(app: &App) {
    for name in app.catalog.all_hidden() {
        delete_now(app, &name).await;
    }
}

/// A model that cannot be deleted appears again, with a sentence that says why.
async fn delete_now(app: &App, name: &str) {
    let (folders, wanted) = (app.model_folders.clone(), name.to_owned());
    let deleted = app
        .blocking(move || {
            let found = folders.deletion(&wanted)?;
            folders.delete(&found).map(|()| found)
        })
        .await;
    match deleted {
        Some(Ok(deletion)) => forget_origin(app, &deletion).await,
        Some(Err(error)) => {
            tracing::warn!("a model was not deleted: {error}");
            app.emit_failure(error.into());
        }
        None => {}
    }
    app.catalog.show(name);
}

/// What another program downloads to the same folder later comes from where that program says.
async fn forget_origin(app: &App, deletion: &cairn_hub::ModelDeletion) {
    let Some(cache) = deletion.folder.parent().filter(|_| deletion.is_shared) else { return };
    if let Err(error) = app.store.forget_model_origin(&convert::path(cache), &deletion.name).await {
        tracing::warn!("it stays recorded where {} came from: {error}", deletion.name);
    }
}
