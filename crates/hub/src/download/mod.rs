//! Downloads a model into the shared cache.

mod attempt;
mod file;
mod plan;
mod progress;
mod queue;
mod rate;

use std::ffi::OsStr;
use std::path::PathBuf;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::cache_layout::{RepoFolder, main_snapshot};
use crate::hub_api::{Commit, DownloadError, Hub, MAX_CONNECTIONS, RepoId, Revision};

pub use plan::{DownloadPlan, is_model_file};
pub use progress::{DownloadProgress, FileProgress, FileState};
pub use queue::{DownloadId, DownloadRequest, DownloadState, Downloads, QueuedDownload};
pub use rate::Rate;

use file::{FileDownload, LOCK_POLL, joined};
use progress::Reporter;

/// How often to look whether a dropped download has let go of its files.
const MAX_POLLS: usize = 25;

/// A model that is whole and verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadedModel {
    /// Its name.
    pub repo: RepoId,
    /// The commit of its files.
    pub commit: Commit,
    /// The shared cache that it is in.
    pub cache: PathBuf,
    /// The folder with its files.
    pub folder: PathBuf,
    /// Scheme, host and port of the hub that it came from.
    pub origin: String,
    /// Their length.
    pub bytes: u64,
    /// Their number.
    pub num_files: usize,
}

impl DownloadedModel {
    /// Whether the model's name stands for this commit on this machine. Blocks.
    pub fn is_in_use(&self) -> bool {
        main_snapshot(&RepoFolder::new(&self.cache, &self.repo).path()).as_ref()
            == Some(&self.folder)
    }

    /// Lets a branch or tag name this commit from now on. Blocks.
    pub fn put_to_use(&self, revision: &Revision) -> Result<(), DownloadError> {
        let folder = RepoFolder::new(&self.cache, &self.repo);
        let written = folder.write_ref(revision, &self.commit);
        written.map_err(|error| DownloadError::cache(&folder.path(), &error))
    }
}

async fn put_to_use(model: &DownloadedModel, revision: &Revision) -> Result<(), DownloadError> {
    let (model, revision) = (model.clone(), revision.clone());
    let path = model.cache.clone();
    let written = spawn_blocking(move || Ok(model.put_to_use(&revision))).await;
    joined(written).map_err(|error| DownloadError::cache(&path, &error))?
}

impl Hub {
    /// Fetches what is missing of a plan, verifies all of it, and makes the model visible.
    ///
    /// Dropping the future ends the download. Whatever ends it, partial files stay, and the next
    /// download of the same content continues from them.
    pub async fn download(
        &self,
        plan: &DownloadPlan,
        progress: &watch::Sender<DownloadProgress>,
    ) -> Result<DownloadedModel, DownloadError> {
        let model = self.fetch(plan, progress).await?;
        put_to_use(&model, &plan.revision).await?;
        Ok(model)
    }

    /// As [`Hub::download`], but where the model is here at another commit, its name stands for that
    /// one until [`DownloadedModel::put_to_use`].
    pub(crate) async fn download_beside(
        &self,
        plan: &DownloadPlan,
        progress: &watch::Sender<DownloadProgress>,
    ) -> Result<DownloadedModel, DownloadError> {
        let has_other = self.keep_in_use(plan).await?;
        let model = self.fetch(plan, progress).await?;
        if !has_other {
            put_to_use(&model, &plan.revision).await?;
        }
        Ok(model)
    }

    /// Whether the model's name stands for another commit than that of the plan. Asked before
    /// anything is linked: an only snapshot is used without a ref, and would not be beside a second
    /// one. So its ref is written now, and the answer is the same after a stop.
    async fn keep_in_use(&self, plan: &DownloadPlan) -> Result<bool, DownloadError> {
        let folder = RepoFolder::new(self.cache(), &plan.repo);
        let (path, commit) = (folder.path(), plan.commit.clone());
        let kept = spawn_blocking(move || {
            let Some(used) = main_snapshot(&folder.path()) else { return Ok(false) };
            let used = used.file_name().and_then(OsStr::to_str).and_then(Commit::parse);
            if used.as_ref() == Some(&commit) {
                return Ok(false);
            }
            let main = Revision::default();
            if let Some(used) = used.filter(|_| !folder.has_ref(&main)) {
                folder.write_ref(&main, &used)?;
            }
            Ok(true)
        });
        joined(kept.await).map_err(|error| DownloadError::cache(&path, &error))
    }

    /// Fetches and verifies everything and links the snapshot, which no branch names yet.
    async fn fetch(
        &self,
        plan: &DownloadPlan,
        progress: &watch::Sender<DownloadProgress>,
    ) -> Result<DownloadedModel, DownloadError> {
        progress.send_replace(DownloadProgress::begin(plan));
        let folder = RepoFolder::new(self.cache(), &plan.repo);
        let missing = plan.files.iter().map(|file| file.bytes - folder.bytes_here(file)).sum();
        // Before anything is made: what is refused leaves nothing behind.
        plan::check_space(self.cache(), missing, self.limits().reserve_bytes)?;
        folder.create().map_err(|error| DownloadError::cache(&folder.path(), &error))?;

        let mut downloads = Vec::new();
        for (index, file) in plan.files.iter().enumerate() {
            let reporter = Reporter { progress, index };
            downloads.push(FileDownload { hub: self, plan, folder: &folder, file, reporter }.run());
        }
        stream::iter(downloads).buffer_unordered(MAX_CONNECTIONS).try_collect::<()>().await?;
        let snapshot = self.publish(plan, folder).await?;
        Ok(DownloadedModel {
            repo: plan.repo.clone(),
            cache: self.cache().to_owned(),
            commit: plan.commit.clone(),
            folder: snapshot,
            origin: self.origin(),
            bytes: plan.bytes,
            num_files: plan.files.len(),
        })
    }

    /// Removes what unfinished downloads of a model have left, except what a running one holds. Waits
    /// a little for one that was just dropped to let go.
    pub async fn discard_partials(&self, repo: &RepoId) {
        for _ in 0..MAX_POLLS {
            let folder = RepoFolder::new(self.cache(), repo);
            let num_held = spawn_blocking(move || folder.remove_partials()).await;
            if num_held.unwrap_or(0) == 0 {
                return;
            }
            tokio::time::sleep(LOCK_POLL).await;
        }
    }

    /// Links the verified files.
    async fn publish(
        &self,
        plan: &DownloadPlan,
        folder: RepoFolder,
    ) -> Result<PathBuf, DownloadError> {
        let plan = plan.clone();
        let path = folder.path();
        let published = spawn_blocking(move || {
            let snapshot = folder.link_snapshot(&plan.commit, &plan.files)?;
            folder.remove_partials();
            Ok(snapshot)
        });
        joined(published.await).map_err(|error| DownloadError::cache(&path, &error))
    }
}
