//! Downloads of models: the queue, its rows in the database, and what interfaces see of it.
//!
//! A row is written before the queue changes, so that after a crash the queue is as the person left
//! it. What has come of a model is for the shared cache to say.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cairn_hub::{
    DownloadError, DownloadId, DownloadRequest, DownloadState, Downloads, FileState, Hub,
    QueuedDownload, Rate,
};
use cairn_store::{DownloadRow, Store};

use super::catalog;
use crate::app::App;
use crate::wire::{self, Event, Failure, FailureCode};

/// While bytes come, the list is sent this often.
const EVENT_INTERVAL: Duration = Duration::from_millis(250);
/// The branch that is downloaded.
pub(super) const MAIN: &str = "main";

/// The queue of downloads, and how fast each is.
#[derive(Debug)]
pub(crate) struct ModelDownloads {
    /// Or why nothing can be downloaded.
    queue: Result<Downloads, Failure>,
    rates: Mutex<HashMap<DownloadId, Rate>>,
}

impl ModelDownloads {
    /// The queue as the last run left it.
    pub(crate) async fn load(hub: Result<Hub, Failure>, store: &Store) -> ModelDownloads {
        let queue = hub.map(Downloads::new);
        if let Ok(queue) = &queue {
            let rows = store.downloads().await.unwrap_or_else(|error| {
                tracing::warn!("the downloads of the last run do not go on: {error}");
                Vec::new()
            });
            for DownloadRow { repo, is_paused } in rows {
                // A name that no hub has was not written by this program.
                let Ok(request) = request(&repo) else { continue };
                match is_paused {
                    true => queue.add_paused(request),
                    false => queue.add(request),
                };
            }
        }
        ModelDownloads { queue, rates: Mutex::default() }
    }

    fn queue(&self) -> Result<&Downloads, Failure> {
        self.queue.as_ref().map_err(Failure::clone)
    }

    /// Uses this hub from now on.
    pub(crate) fn set_hub(&self, hub: Hub) {
        if let Ok(queue) = &self.queue {
            queue.set_hub(hub);
        }
    }

    /// Stops every download. Their rows stay as they are, so that those that ran go on at the next
    /// start.
    pub(crate) fn stop(&self) {
        let Ok(queue) = &self.queue else { return };
        for download in queue.list() {
            queue.pause(download.id);
        }
    }

    /// All downloads, as interfaces see them.
    pub(crate) fn list(&self) -> Vec<wire::Download> {
        let Ok(queue) = &self.queue else { return Vec::new() };
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
        let all = self.queue.as_ref().ok()?.list();
        all.into_iter().find(|download| download.request.repo.as_str() == name)
    }
}

/// The newest version of a model.
fn request(name: &str) -> Result<DownloadRequest, DownloadError> {
    Ok(DownloadRequest { repo: name.parse()?, revision: MAIN.parse()? })
}

/// Adds a download, or lets one that was paused or failed go on.
pub(crate) async fn start(app: &Arc<App>, name: &str) -> Result<(), Failure> {
    let queue = app.downloads.queue()?;
    let request = request(name)?;
    // Who downloads a model that was just deleted wants it back.
    if app.catalog.show(name) {
        catalog::emit(app).await;
    }
    app.store.save_download(name, false).await?;
    queue.add(request);
    Ok(())
}

/// Stops a download; what has come stays.
pub(crate) async fn pause(app: &App, name: &str) -> Result<(), Failure> {
    let queue = app.downloads.queue()?;
    let Some(download) = app.downloads.find(name) else { return Err(unknown(name)) };
    if !matches!(download.state, DownloadState::Done(_)) {
        app.store.save_download(name, true).await?;
    }
    queue.pause(download.id);
    Ok(())
}

/// Takes a download from the list; what has come of an unfinished one is removed.
pub(crate) async fn cancel(app: &App, name: &str) -> Result<(), Failure> {
    let queue = app.downloads.queue()?;
    let Some(download) = app.downloads.find(name) else { return Err(unknown(name)) };
    app.store.forget_download(name).await?;
    queue.cancel(download.id).await;
    Ok(())
}

/// Looks for the hub now instead of later.
pub(crate) fn retry(app: &App) -> Result<(), Failure> {
    app.downloads.queue()?.look_again();
    Ok(())
}

fn unknown(name: &str) -> Failure {
    Failure::new(FailureCode::NotFound, format!("{name} is not being downloaded."))
}

/// Sends the list whenever it has changed, and sees to models that are done, until the app closes.
pub(crate) async fn follow(app: Arc<App>) {
    let Ok(queue) = app.downloads.queue() else { return };
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
        if list != sent {
            app.emit(Event::Downloads { downloads: list.clone() });
            sent = list;
        }
        let is_done = |download: &&wire::Download| download.state == wire::DownloadState::Done;
        let now_done: Vec<String> =
            sent.iter().filter(is_done).map(|download| download.name.clone()).collect();
        for name in now_done.iter().filter(|name| !done.contains(*name)) {
            finish(&app, name).await;
        }
        done = now_done;
    }
}

/// Forgets the row of a download that is done, and lists its model.
async fn finish(app: &Arc<App>, name: &str) {
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
