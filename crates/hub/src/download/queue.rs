//! Downloads one after another, which can be paused, resumed and cancelled.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::{DownloadProgress, DownloadedModel};
use crate::hub_api::{DownloadError, Hub, RepoId, Revision};

/// Models that are downloaded at a time: a small one does not wait for a large one.
const MAX_RUNNING: usize = 2;
/// How long to wait before the hub is looked for again; it doubles up to the longest.
const FIRST_OFFLINE_WAIT: Duration = Duration::from_secs(15);
const LONGEST_OFFLINE_WAIT: Duration = Duration::from_secs(300);

/// The number of a download in its queue.
pub type DownloadId = u64;

/// What is to be downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadRequest {
    /// The model.
    pub repo: RepoId,
    /// A branch, tag or commit.
    pub revision: Revision,
    /// The cache that it comes to; none: that of the hub at the time when it is added.
    pub cache: Option<PathBuf>,
}

/// A download in the queue, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedDownload {
    /// Its number.
    pub id: DownloadId,
    /// What is downloaded, and to which cache.
    pub request: DownloadRequest,
    /// What is being done.
    pub state: DownloadState,
    /// How far it is; empty before the hub was asked.
    pub progress: DownloadProgress,
}

/// What is being done with a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadState {
    /// Others come first.
    Queued,
    /// It runs.
    Running,
    /// The hub cannot be reached; it is looked for again after a while, or by
    /// [`Downloads::look_again`].
    Offline,
    /// It was paused and keeps what has come.
    Paused,
    /// The model is whole. Where it was here at another commit, that one is used until
    /// [`DownloadedModel::put_to_use`].
    Done(DownloadedModel),
    /// It failed and keeps what has come; [`Downloads::resume`] tries again.
    Failed(DownloadError),
}

/// A queue of downloads from one hub. A clone is the same queue.
///
/// It runs on the tokio runtime in which its methods are called, and ends with it; what has come
/// stays on the disk. A program that wants the queue back after a restart keeps its requests, and
/// gives them to [`Downloads::add`] or [`Downloads::add_paused`] in their order.
#[derive(Clone)]
pub struct Downloads {
    shared: Arc<Shared>,
}

struct Shared {
    /// Each start takes the hub of that time.
    hub: Mutex<Hub>,
    queue: Mutex<Queue>,
    look_again: Notify,
    /// Counts changes of states.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Queue {
    last_id: DownloadId,
    entries: Vec<Entry>,
}

struct Entry {
    id: DownloadId,
    repo: RepoId,
    revision: Revision,
    /// Where its partial files are.
    cache: PathBuf,
    state: DownloadState,
    progress: watch::Sender<DownloadProgress>,
    task: Option<JoinHandle<()>>,
    /// Counts starts and stops: what an earlier task still reports is too late.
    round: u64,
}

impl Entry {
    fn request(&self) -> DownloadRequest {
        let (repo, revision) = (self.repo.clone(), self.revision.clone());
        DownloadRequest { repo, revision, cache: Some(self.cache.clone()) }
    }
}

impl std::fmt::Debug for Downloads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.list()).finish()
    }
}

impl Downloads {
    /// An empty queue.
    pub fn new(hub: Hub) -> Downloads {
        let shared = Shared {
            hub: Mutex::new(hub),
            queue: Mutex::default(),
            look_again: Notify::new(),
            changes: watch::Sender::default(),
        };
        Downloads { shared: Arc::new(shared) }
    }

    /// From now on asks this hub: with another token, address, proxy or folder. What runs goes on as
    /// it began; what waits for the hub looks for this one at once. A download that is in the queue
    /// stays in its folder, where its partial files are.
    pub fn set_hub(&self, hub: Hub) {
        *self.shared.hub.lock().unwrap_or_else(PoisonError::into_inner) = hub;
        self.look_again();
    }

    /// Adds a download at the end and returns its number. One that is in the queue already goes on;
    /// one that is done begins anew, because the revision may be another commit now.
    pub fn add(&self, request: DownloadRequest) -> DownloadId {
        let cache = self.cache_of(&request);
        let id = self.entry_of(request);
        self.shared.change(id, |entry| match entry.state {
            DownloadState::Paused | DownloadState::Failed(_) => entry.state = DownloadState::Queued,
            DownloadState::Done(_) => {
                entry.progress.send_replace(DownloadProgress::default());
                entry.state = DownloadState::Queued;
                entry.cache = cache;
            }
            DownloadState::Queued | DownloadState::Running | DownloadState::Offline => {}
        });
        id
    }

    /// Adds a paused download at the end and returns its number. One that is in the queue already
    /// stays as it is.
    pub fn add_paused(&self, request: DownloadRequest) -> DownloadId {
        let id = self.entry_of(request);
        self.shared.changed();
        id
    }

    fn cache_of(&self, request: &DownloadRequest) -> PathBuf {
        request.cache.clone().unwrap_or_else(|| self.shared.hub().cache().to_owned())
    }

    /// The download of this request; a new one is paused.
    fn entry_of(&self, request: DownloadRequest) -> DownloadId {
        let cache = self.cache_of(&request);
        let DownloadRequest { repo, revision, .. } = request;
        let mut queue = self.shared.queue();
        let is_same = |entry: &&Entry| entry.repo == repo && entry.revision == revision;
        if let Some(entry) = queue.entries.iter().find(is_same) {
            return entry.id;
        }
        queue.last_id += 1;
        let id = queue.last_id;
        let (state, progress) = (DownloadState::Paused, watch::Sender::default());
        let entry = Entry { id, repo, revision, cache, state, progress, task: None, round: 0 };
        queue.entries.push(entry);
        id
    }

    /// Lets a paused or failed download go on; it waits for its turn. Others are left as they are.
    pub fn resume(&self, id: DownloadId) {
        self.shared.change(id, |entry| {
            if matches!(entry.state, DownloadState::Paused | DownloadState::Failed(_)) {
                entry.state = DownloadState::Queued;
            }
        });
    }

    /// Stops a download and keeps what has come. One that is done or failed stays so.
    pub fn pause(&self, id: DownloadId) {
        self.shared.change(id, |entry| {
            let is_over = matches!(entry.state, DownloadState::Done(_) | DownloadState::Failed(_));
            if !is_over {
                entry.state = DownloadState::Paused;
                entry.round += 1;
                entry.task.take().inspect(JoinHandle::abort);
            }
        });
    }

    /// Takes a download out of the queue. What has come of an unfinished one is removed, unless the
    /// queue has another download of the same model.
    pub async fn cancel(&self, id: DownloadId) {
        let (entry, is_other_left) = {
            let mut queue = self.shared.queue();
            let index = queue.entries.iter().position(|entry| entry.id == id);
            let Some(index) = index else { return };
            let entry = queue.entries.remove(index);
            let is_same =
                |other: &Entry| (&other.repo, &other.cache) == (&entry.repo, &entry.cache);
            let is_other_left = queue.entries.iter().any(is_same);
            (entry, is_other_left)
        };
        self.shared.give_turns();
        if let Some(task) = entry.task {
            task.abort();
            // It ends at its next step; only then are its files free.
            let _ = task.await;
        }
        if !is_other_left && !matches!(entry.state, DownloadState::Done(_)) {
            self.shared.hub().with_cache(entry.cache).discard_partials(&entry.repo).await;
        }
    }

    /// Looks for the hub now, for downloads that wait because it could not be reached.
    pub fn look_again(&self) {
        self.shared.look_again.notify_waiters();
    }

    /// All downloads, in the order in which they were added.
    pub fn list(&self) -> Vec<QueuedDownload> {
        let queue = self.shared.queue();
        let entries = queue.entries.iter().map(|entry| QueuedDownload {
            id: entry.id,
            request: entry.request(),
            state: entry.state.clone(),
            progress: entry.progress.borrow().clone(),
        });
        entries.collect()
    }

    /// Changes with every change of a state. While one runs, its progress is looked at by
    /// [`Downloads::list`], as often as it is shown.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hub(&self) -> Hub {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn change(self: &Arc<Shared>, id: DownloadId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.queue().entries.iter_mut().find(|entry| entry.id == id) {
            change(entry);
        }
        self.give_turns();
    }

    /// Starts those whose turn has come, in the order in which they were added, and tells of the
    /// change before. One that waits for the hub keeps its turn, so that at most two look for it.
    fn give_turns(self: &Arc<Shared>) {
        let mut queue = self.queue();
        let has_turn =
            |entry: &Entry| matches!(entry.state, DownloadState::Running | DownloadState::Offline);
        let mut num_running = queue.entries.iter().filter(|entry| has_turn(entry)).count();
        for entry in &mut queue.entries {
            if num_running < MAX_RUNNING && entry.state == DownloadState::Queued {
                entry.state = DownloadState::Running;
                entry.round += 1;
                entry.task = Some(tokio::spawn(self.clone().run(entry.id, entry.round)));
                num_running += 1;
            }
        }
        drop(queue);
        self.changed();
    }

    fn report(self: &Arc<Shared>, id: DownloadId, round: u64, state: DownloadState) {
        self.change(id, |entry| {
            if entry.round == round {
                entry.state = state;
            }
        });
    }

    /// Downloads, and waits where the hub cannot be reached.
    async fn run(self: Arc<Shared>, id: DownloadId, round: u64) {
        let mut wait = FIRST_OFFLINE_WAIT;
        loop {
            let state = match self.download(id).await {
                Ok(model) => DownloadState::Done(model),
                Err(DownloadError::Offline { .. }) => {
                    let look_again = self.look_again.notified();
                    self.report(id, round, DownloadState::Offline);
                    tokio::select! {
                        () = look_again => wait = FIRST_OFFLINE_WAIT,
                        () = tokio::time::sleep(wait) => {
                            wait = (wait * 2).min(LONGEST_OFFLINE_WAIT);
                        }
                    }
                    self.report(id, round, DownloadState::Running);
                    continue;
                }
                Err(error) => DownloadState::Failed(error),
            };
            return self.report(id, round, state);
        }
    }

    async fn download(&self, id: DownloadId) -> Result<DownloadedModel, DownloadError> {
        let hub = self.hub();
        let found = {
            let queue = self.queue();
            let entry = queue.entries.iter().find(|entry| entry.id == id);
            entry.map(|entry| {
                let hub = hub.with_cache(entry.cache.clone());
                (hub, entry.request(), entry.progress.clone())
            })
        };
        let Some((hub, request, progress)) = found else {
            // Cancelled between two steps: nobody sees this.
            let host = hub.endpoint().to_owned();
            return Err(DownloadError::Cut { host });
        };
        let plan = hub.plan(&request.repo, &request.revision).await?;
        hub.download_beside(&plan, &progress).await
    }
}
