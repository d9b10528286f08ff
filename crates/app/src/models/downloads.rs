//! Downloads of models: the queue, its rows in the database, and what interfaces see of it.
//!
//! A row is written before the queue changes, so that after a crash the queue is as the person left
//! it. What has come of a model is for the shared cache to say.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cairn_hub::{
    DownloadError, DownloadId, DownloadRequest, DownloadState, Downloads, FileState, Hub,
    QueuedDownload, Rate,
};
use cairn_store::{DownloadRow, Store};
use tokio::sync::{Notify, OnceCell};

use super::hub_settings::shown;
use super::{catalog, revisions};
use crate::app::App;
use crate::wire::{self, Event, Failure, FailureCode, FailureKind, NoticeKind};

/// While bytes come, the list is sent this often.
const EVENT_INTERVAL: Duration = Duration::from_millis(250);
/// The branch that is downloaded.
pub(super) const MAIN: &str = "main";

/// The queue of downloads, and how fast each is.
#[derive(Debug, Default)]
pub(crate) struct ModelDownloads {
    /// Empty until there is a hub to ask.
    queue: OnceCell<Downloads>,
    /// Told when there is one.
    has_queue: Notify,
    rates: Mutex<HashMap<DownloadId, Rate>>,
}

impl ModelDownloads {
    /// The queue as the last run left it.
    pub(crate) async fn load(hub: Result<Hub, Failure>, store: &Store) -> ModelDownloads {
        let downloads = ModelDownloads::default();
        if let Ok(hub) = hub {
            downloads.use_hub(hub, store).await;
        }
        downloads
    }

    /// Uses this hub from now on. The first one begins with what the last run left.
    pub(crate) async fn use_hub(&self, hub: Hub, store: &Store) {
        let mut is_new = false;
        let queue = self.queue.get_or_init(async || {
            is_new = true;
            restored(Downloads::new(hub.clone()), store).await
        });
        let queue = queue.await;
        match is_new {
            true => self.has_queue.notify_waiters(),
            false => queue.set_hub(hub),
        }
    }

    /// Tries again what the hub refused for want of a token, or of another one.
    pub(crate) fn retry_refused(&self) {
        let Some(queue) = self.queue.get() else { return };
        for download in queue.list() {
            let is_refused = matches!(
                download.state,
                DownloadState::Failed(
                    DownloadError::Unauthorized { .. }
                        | DownloadError::Forbidden { .. }
                        | DownloadError::Gated { .. }
                )
            );
            if is_refused {
                queue.resume(download.id);
            }
        }
    }

    /// Waits for the first hub that can be asked.
    async fn any_queue(&self) -> &Downloads {
        loop {
            let told = self.has_queue.notified();
            if let Some(queue) = self.queue.get() {
                return queue;
            }
            told.await;
        }
    }

    /// Stops every download. Their rows stay as they are, so that those that ran go on at the next
    /// start.
    pub(crate) fn stop(&self) {
        let Some(queue) = self.queue.get() else { return };
        for download in queue.list() {
            queue.pause(download.id);
        }
    }

    /// All downloads, as interfaces see them.
    pub(crate) fn list(&self) -> Vec<wire::Download> {
        let Some(queue) = self.queue.get() else { return Vec::new() };
        let (now, queued) = (Instant::now(), queue.list());
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.retain(|id, _| queued.iter().any(|download| download.id == *id));
        let list = queued.into_iter().map(|download| {
            let rate = rates.entry(download.id).or_default();
            described(download, rate, now)
        });
        list.collect()
    }

    fn find(&self, name: &str) -> Option<QueuedDownload> {
        let all = self.queue.get()?.list();
        all.into_iter().find(|download| download.request.repo.as_str() == name)
    }
}

/// The queue with the downloads that the last run did not end.
async fn restored(queue: Downloads, store: &Store) -> Downloads {
    let rows = store.downloads().await.unwrap_or_else(|error| {
        tracing::warn!("the downloads of the last run do not go on: {error}");
        Vec::new()
    });
    for DownloadRow { repo, cache, is_paused } in rows {
        // A name that no hub has was not written by this program.
        let Ok(request) = request(&repo, cache.map(PathBuf::from)) else { continue };
        match is_paused {
            true => queue.add_paused(request),
            false => queue.add(request),
        };
    }
    queue
}

/// The queue, or why nothing can be downloaded.
fn queue(app: &App) -> Result<&Downloads, Failure> {
    let why = || match app.hub.hub() {
        Err(failure) => failure,
        Ok(_) => Failure::new(FailureCode::Hub, "The downloads are being set up: try again."),
    };
    app.downloads.queue.get().ok_or_else(why)
}

/// The newest version of a model.
fn request(name: &str, cache: Option<PathBuf>) -> Result<DownloadRequest, DownloadError> {
    Ok(DownloadRequest { repo: name.parse()?, revision: MAIN.parse()?, cache })
}

/// The row of a download that goes on, in the database.
fn row(request: &DownloadRequest) -> DownloadRow {
    let cache = request.cache.as_ref().map(|cache| shown(cache));
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
        catalog::emit(app).await;
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

/// Whether a model is being downloaded, or was downloaded and not put to use yet.
pub(super) async fn is_unfinished(app: &App, name: &str) -> bool {
    match app.store.downloads().await {
        Ok(rows) => rows.iter().any(|row| row.repo == name),
        // Then nothing may be taken from it either.
        Err(_) => true,
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
    catalog::emit(app).await;
}

fn described(download: QueuedDownload, rate: &mut Rate, now: Instant) -> wire::Download {
    let QueuedDownload { request, state, progress, .. } = download;
    let (bytes, total_bytes) = (progress.bytes(), progress.total());
    let is_running = matches!(state, DownloadState::Running);
    if is_running {
        rate.add(now, progress.bytes_fetched);
    } else {
        *rate = Rate::default();
    }
    let (state, failure) = match state {
        DownloadState::Queued => (wire::DownloadState::Queued, None),
        DownloadState::Running => (wire::DownloadState::Running, None),
        DownloadState::Offline => (wire::DownloadState::Offline, None),
        DownloadState::Paused => (wire::DownloadState::Paused, None),
        DownloadState::Done(_) => (wire::DownloadState::Done, None),
        DownloadState::Failed(error) => (wire::DownloadState::Failed, Some(error)),
    };
    let page = match &failure {
        Some(DownloadError::Gated { page, .. }) => Some(page.clone()),
        _ => None,
    };
    let files = progress.files.into_iter().map(|file| wire::DownloadFile {
        path: file.path,
        bytes: file.bytes,
        total_bytes: file.total,
        state: match file.state {
            FileState::Queued | FileState::Waiting => wire::DownloadFileState::Waiting,
            FileState::Locked => wire::DownloadFileState::Locked,
            FileState::Checking => wire::DownloadFileState::Checking,
            FileState::Fetching => wire::DownloadFileState::Running,
            FileState::Done => wire::DownloadFileState::Done,
        },
    });
    wire::Download {
        name: request.repo.to_string(),
        state,
        bytes,
        total_bytes,
        bytes_per_second: rate.bytes_per_second(),
        seconds_left: rate.seconds_left(total_bytes.saturating_sub(bytes)),
        files: files.collect(),
        failure: failure.map(Failure::from),
        page,
    }
}
