//! The queue of downloads, as the last run left it and as interfaces see it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cairn_hub::{
    DownloadError, DownloadId, DownloadRequest, DownloadState, Downloads, FileState, Hub,
    QueuedDownload, Rate, Revision,
};
use cairn_store::{DownloadRow, Store};
use tokio::sync::{Notify, OnceCell};

use crate::wire::{self, Failure};

/// The queue of downloads, and how fast each is. Owned by [`crate::App`].
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

    /// The queue; none until there is a hub to ask.
    pub(super) fn queue(&self) -> Option<&Downloads> {
        self.queue.get()
    }

    /// Waits for the first hub that can be asked.
    pub(super) async fn any_queue(&self) -> &Downloads {
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

    /// The download of a model.
    pub(super) fn find(&self, name: &str) -> Option<QueuedDownload> {
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

/// The newest version of a model.
pub(super) fn request(
    name: &str,
    cache: Option<PathBuf>,
) -> Result<DownloadRequest, DownloadError> {
    Ok(DownloadRequest { repo: name.parse()?, revision: Revision::default(), cache })
}

/// Whether a model is being downloaded, or was downloaded and not put to use yet.
pub(super) async fn is_unfinished(store: &Store, name: &str) -> bool {
    match store.downloads().await {
        Ok(rows) => rows.iter().any(|row| row.repo == name),
        // Then nothing may be taken from it either.
        Err(_) => true,
    }
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
