//! Downloads of models: begins, stops and ends them, with their rows in the database.
//!
//! A row is written before the queue changes, so that after a crash the queue is as the person left
//! it. What has come of a model is for the shared cache to say.

use std::sync::Arc;
use std::time::Duration;

use cairn_hub::{DownloadRequest, DownloadState, Downloads};
use cairn_store::DownloadRow;

use super::download_queue::request;
use super::{list, revisions};
use crate::app::App;
use crate::convert;
use crate::wire::{self, Event, Failure, FailureCode, FailureKind, NoticeKind};

/// While bytes come, the list is sent this often.
const EVENT_INTERVAL: Duration = Duration::from_millis(250);

/// The queue, or why nothing can be downloaded.
fn queue(app: &App) -> Result<&Downloads, Failure> {
    let why = || match app.hub.hub() {
        Err(failure) => failure,
        Ok(_) => Failure::new(FailureCode::Hub, "The downloads are being set up: try again."),
    };
    app.downloads.queue().ok_or_else(why)
}

/// The row of a download that goes on, in the database.
fn row(request: &DownloadRequest) -> DownloadRow {
    let cache = request.cache.as_ref().map(|cache| convert::path(cache));
    DownloadRow { repo: request.repo.to_string(), cache, is_paused: false }
}

/// Adds a download, or lets one that was paused or failed go on.
pub(crate) async fn start(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    let queue = queue(app)?;
    let (folders, wanted) = (app.model_folders.clone(), name.to_owned());
    // The rest of a model, or its newer version, comes to where the model is.
    let cache = app.blocking(move || folders.cache_of(&wanted)).await.flatten();
    let cache = cache.or_else(|| app.hub.hub().ok().map(|hub| hub.cache().to_owned()));
    let request = request(name, cache)?;
    // Who downloads a model that was just deleted wants it back.
    if app.catalog.show(name) {
        list::emit(app).await;
    }
    app.store.save_download(&row(&request)).await?;
    queue.add(request);
    Ok(())
}

/// Stops a download; what has come stays.
pub(crate) async fn pause(app: &App, name: &str) -> Result<(), Failure> {
    let queue = queue(app)?;
    let Some(download) = app.downloads.find(name) else { return Err(unknown(name)) };
    if !matches!(download.state, DownloadState::Done(_)) {
        let paused = DownloadRow { is_paused: true, ..row(&download.request) };
        app.store.save_download(&paused).await?;
    }
    queue.pause(download.id);
    Ok(())
}

/// Takes a download from the list; what has come of an unfinished one is removed.
pub(crate) async fn cancel(app: &App, name: &str) -> Result<(), Failure> {
    let queue = queue(app)?;
    let Some(download) = app.downloads.find(name) else { return Err(unknown(name)) };
    app.store.forget_download(name).await?;
    queue.cancel(download.id).await;
    Ok(())
}

/// Looks for the hub now instead of later.
pub(crate) fn retry(app: &App) -> Result<(), Failure> {
    queue(app)?.look_again();
    Ok(())
}

fn unknown(name: &str) -> Failure {
    Failure::new(FailureCode::NotFound, format!("{name} is not being downloaded."))
        .of_kind(FailureKind::NotDownloading { model: name.to_owned() })
}

/// Sends the list whenever it has changed, and sees to models that are done, until the app closes.
pub(crate) async fn follow(app: Arc<App>) {
    let queue = tokio::select! {
        () = app.closing.cancelled() => return,
        queue = app.downloads.any_queue() => queue,
    };
    let mut changes = queue.changes();
    let (mut sent, mut done) = (app.downloads.list(), Vec::new());
    loop {
        let is_running = sent.iter().any(|download| download.state == wire::DownloadState::Running);
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(EVENT_INTERVAL), if is_running => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
        let list = app.downloads.list();
        let is_done = |download: &&wire::Download| download.state == wire::DownloadState::Done;
        let now_done: Vec<String> =
            list.iter().filter(is_done).map(|download| download.name.clone()).collect();
        // Before anyone is told: what is called done is in use, and does not go on at the next start.
        for name in now_done.iter().filter(|name| !done.contains(*name)) {
            finish(&app, name).await;
        }
        if list != sent {
            app.emit(Event::Downloads { downloads: list.clone() });
            sent = list;
        }
        done = now_done;
    }
}

/// Puts a download that is done to use, forgets its row, and lists its model.
async fn finish(app: &Arc<App>, name: &str) {
    if let Some(DownloadState::Done(model)) = app.downloads.find(name).map(|found| found.state) {
        revisions::record_origin(app, &model).await;
        if let Err(why) = revisions::put_to_use(app, name, model).await {
            let text = format!("The newer version of {name} is not used: {}", why.message);
            app.emit_warning(text, NoticeKind::UpdateUnused { model: name.to_owned(), why });
        }
    }
    // If this fails, the next start finds the model whole and is done at once.
    if let Err(error) = app.store.forget_download(name).await {
        tracing::warn!("{name} is downloaded again at the next start: {error}");
    }
    list::emit(app).await;
}
