//! Versions of a model: whether the hub has a newer one, and the older ones that can go.
//!
//! A newer version is downloaded beside the one that is used, which stays in use until the newer one
//! has passed its check. Older ones go only when a person says so, half a minute later or when the app
//! closes, and never one that is loaded.

use std::path::PathBuf;
use std::sync::Arc;

use cairn_hub::{DownloadError, DownloadedCommit, DownloadedModel, Hub, OldRevisions, Revision};
use cairn_store::ModelOrigin;
use tokio::task::JoinSet;

use super::download_queue::is_unfinished;
use super::{checking, list};
use crate::app::App;
use crate::clock::now_ms;
use crate::convert;
use crate::undo::MODEL_UNDO_LIMIT;
use crate::wire::{self, Failure, FailureCode, FailureKind, ModelUpdate};

/// The models of which the hub has a newer version, and why it is not known of all. Models that the hub
/// does not have, or does not show, have none.
pub(crate) async fn updates(app: &App) -> (Vec<ModelUpdate>, Option<Failure>) {
    let (hub, downloaded) = match asked(app).await {
        Ok(asked) => asked,
        Err(failure) => return (Vec::new(), Some(failure)),
    };
    // The hub counts its connections, so only a few are asked for at a time.
    let mut asked: JoinSet<Result<Option<ModelUpdate>, Failure>> = JoinSet::new();
    for model in downloaded {
        let hub = hub.with_cache(model.cache.clone());
        asked.spawn_on(async move { newer(&hub, &model).await }, &app.runtime);
    }
    let (mut updates, mut failure): (Vec<ModelUpdate>, _) = (Vec::new(), None);
    while let Some(answer) = asked.join_next().await {
        match answer.unwrap_or_else(|_| Err(fault())) {
            Ok(update) => updates.extend(update),
            Err(why) => failure = Some(why),
        }
    }
    updates.sort_by(|a, b| a.name.cmp(&b.name));
    (updates, failure)
}

/// The hub of now, and the models that it may be asked about: no hub learns the name of a model that
/// came from another. What other programs downloaded came from the environment's hub, or so they say.
async fn asked(app: &App) -> Result<(Hub, Vec<DownloadedCommit>), Failure> {
    let hub = app.hub.hub()?.for_a_person();
    let folders = app.model_folders.clone();
    let mut downloaded = app.blocking(move || folders.downloaded()).await.ok_or_else(fault)?;
    let (origins, asked) = (app.store.model_origins().await?, hub.origin());
    let is_of_environment = app.hub.is_of_environment(&asked);
    downloaded.retain(|model| {
        let cache = convert::path(&model.cache);
        let is_it = |row: &&ModelOrigin| row.repo == model.repo.as_str() && row.cache == cache;
        match origins.iter().find(is_it) {
            Some(row) => row.origin == asked,
            None => is_of_environment,
        }
    });
    Ok((hub, downloaded))
}

async fn newer(hub: &Hub, model: &DownloadedCommit) -> Result<Option<ModelUpdate>, Failure> {
    let ask = async || -> Result<Option<ModelUpdate>, DownloadError> {
        let main = Revision::default();
        if hub.model_page(&model.repo, &main).await?.commit == model.commit {
            return Ok(None);
        }
        let plan = hub.plan(&model.repo, &main).await?;
        Ok(Some(ModelUpdate { name: model.repo.to_string(), bytes: plan.bytes_missing }))
    };
    ask().await.or_else(|error| {
        tracing::info!("whether {} has a newer version is not known: {error}", model.repo);
        let failure = Failure::from(error);
        match failure.code {
            // The hub has answered: it offers no newer version.
            FailureCode::NotFound | FailureCode::Gated => Ok(None),
            FailureCode::Unauthorized | FailureCode::NeedsToken => Ok(None),
            _ => Err(failure),
        }
    })
}

/// Records the hub that a model came from: only that one is asked for newer versions of it.
pub(super) async fn record_origin(app: &App, model: &DownloadedModel) {
    let (cache, repo) = (convert::path(&model.cache), model.repo.to_string());
    let row = ModelOrigin { cache, repo, origin: model.origin.clone() };
    if let Err(error) = app.store.save_model_origin(&row).await {
        tracing::warn!("it is not recorded where {} came from: {error}", row.repo);
    }
}

/// Lets a version that was downloaded take the place of the one before, if it can be used.
pub(crate) async fn put_to_use(
    app: &Arc<App>,
    name: &str,
    model: DownloadedModel,
) -> Result<(), Failure> {
    let asked = model.clone();
    if !app.blocking(move || asked.is_in_use()).await.ok_or_else(fault)? {
        let (folders, path) = (app.model_folders.clone(), convert::path(&model.folder));
        let looked = app.blocking(move || folders.resolve(&path)).await;
        looked.ok_or_else(fault)??;
        checking::require_usable(app, name, &model.folder).await?;
        let (main, newer) = (Revision::default(), model.clone());
        app.blocking(move || newer.put_to_use(&main)).await.ok_or_else(fault)??;
    }
    let Some(parent) = model.folder.parent() else { return Ok(()) };
    let (parent, path) = (format!("{}/", convert::path(parent)), convert::path(&model.folder));
    Ok(app.store.move_model(name, &parent, &path).await?)
}

fn fault() -> Failure {
    Failure::fault("A fault in Cairn prevented it from looking at the versions of the model.")
}

/// The older versions of a model; none while their removal can be undone.
pub(crate) async fn old(app: &App, name: &str) -> Result<wire::OldRevisions, Failure> {
    let is_removed = app.removed_revisions.all().contains_key(name);
    let found = find(app, name).await?;
    let (count, bytes) = match is_removed {
        true => (0, 0),
        false => (found.commits.len() + found.num_begun, found.bytes),
    };
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    Ok(wire::OldRevisions { name: name.to_owned(), count, bytes })
}

async fn find(app: &App, name: &str) -> Result<OldRevisions, Failure> {
    let (folders, wanted, kept) = (app.model_folders.clone(), name.to_owned(), loaded(app));
    let found = app.blocking(move || folders.old_revisions(&wanted, &kept)).await;
    Ok(found.ok_or_else(fault)??)
}

/// The folders of the models in memory.
fn loaded(app: &App) -> Vec<PathBuf> {
    let status = app.engine.status();
    let status = status.borrow();
    status.models.iter().map(|model| model.folder.clone()).collect()
}

/// Takes the older versions of a model out of sight.
pub(crate) async fn remove(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    refuse_while_downloading(app, name).await?;
    let found = find(app, name).await?;
    let removed_at_ms = now_ms();
    app.removed_revisions.all().insert(name.to_owned(), (removed_at_ms, found));
    app.spawn(remove_later(app.clone(), name.to_owned(), removed_at_ms));
    Ok(())
}

/// A download may need what an older version has, and nothing names it until it is done.
async fn refuse_while_downloading(app: &App, name: &str) -> Result<(), Failure> {
    match is_unfinished(&app.store, name).await {
        true => Err(Failure::invalid(format!(
            "{name} is being downloaded: remove its older versions after that."
        ))
        .of_kind(FailureKind::Downloading { model: name.to_owned() })),
        false => Ok(()),
    }
}

/// Brings the older versions of a model back.
pub(crate) fn restore(app: &App, name: &str) -> Result<(), Failure> {
    match app.removed_revisions.all().remove(name) {
        Some(_) => Ok(()),
        None => {
            let message = format!("The older versions of {name} can no longer be brought back.");
            Err(Failure::new(FailureCode::NotFound, message)
                .of_kind(FailureKind::VersionsDeleted { model: name.to_owned() }))
        }
    }
}

/// Removes what was taken out of sight at this time, unless it is brought back before. If the app
/// closes first, closing removes it.
async fn remove_later(app: Arc<App>, name: String, removed_at_ms: i64) {
    if !app.is_open_after(MODEL_UNDO_LIMIT).await {
        return;
    }
    if remove_now(&app, &name, removed_at_ms).await {
        list::emit(&app).await;
    }
}

/// Removes all that was taken out of sight. Called when the app closes.
pub(crate) async fn remove_all(app: &App) {
    let removed: Vec<(String, i64)> = {
        let all = app.removed_revisions.all();
        all.iter().map(|(name, (at_ms, _))| (name.clone(), *at_ms)).collect()
    };
    for (name, removed_at_ms) in removed {
        remove_now(app, &name, removed_at_ms).await;
    }
}

/// Removes what was taken out of sight at this time. Returns whether it was not brought back before.
/// Older versions that cannot be removed are there again, with a sentence that says why.
async fn remove_now(app: &App, name: &str, removed_at_ms: i64) -> bool {
    // No model is chosen and loaded meanwhile.
    let _loading = app.loading.lock().await;
    let Some(revisions) = app.removed_revisions.take(name, removed_at_ms) else { return false };
    let removed = async {
        refuse_while_downloading(app, name).await?;
        let (folders, kept) = (app.model_folders.clone(), loaded(app));
        let removed = app.blocking(move || folders.remove_old_revisions(&revisions, &kept)).await;
        Ok::<(), Failure>(removed.ok_or_else(fault)??)
    };
    if let Err(failure) = removed.await {
        tracing::warn!("the older versions of {name} were not removed: {}", failure.message);
        app.emit_failure(failure);
    }
    true
}
