//! One file: from its entry in the list to its blob.
//!
//! ```text
//! lock ─▶ check what is there ─▶ attempt ⇄ wait ─▶ hash right ─▶ commit
//! ```

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_formats::free_disk_bytes;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::attempt::{Attempt, AttemptEnd};
use super::progress::{FileState, Reporter};
use super::{DownloadPlan, RepoFolder};
use crate::cache_layout::{BlobLock, Partial, blob_is_right};
use crate::hub_api::{DownloadError, Failure, Hub, RepoFile, Retries};

/// How often to look whether another download of the same blob has ended.
pub(super) const LOCK_POLL: Duration = Duration::from_millis(200);
/// A try that gained this much, or a 64th of a short file, was worth it.
const WORTHWHILE_BYTES: u64 = 1 << 20;

/// One file's download. Dropping its future ends it; the partial file stays.
pub(super) struct FileDownload<'a> {
    pub hub: &'a Hub,
    pub plan: &'a DownloadPlan,
    pub folder: &'a RepoFolder,
    pub file: &'a RepoFile,
    pub reporter: Reporter<'a>,
}

impl FileDownload<'_> {
    /// Returns when the blob is verified and in place.
    pub async fn run(self) -> Result<(), DownloadError> {
        let mut retries = Retries::new(self.hub.limits().clone());
        loop {
            let lock = self.lock().await?;
            if self.is_here_already().await? {
                break;
            }
            let partial = self.open_partial(lock).await?;
            let partial = self.fetch(partial, &mut retries).await?;
            match self.commit(partial).await {
                Ok(()) => break,
                // Another program has taken the partial file away.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let path = self.folder.partial(&self.file.hash);
                    let failure = Failure::may_pass(DownloadError::cache(&path, &error));
                    tokio::time::sleep(retries.wait(failure)?).await;
                }
                Err(error) => return Err(self.disk_error(&error)),
            }
        }
        self.reporter.report(FileState::Done, self.file.bytes);
        Ok(())
    }

    /// Tries until the partial file is whole and right. A wrong one is fetched once more from zero:
    /// its beginning may be from another day.
    async fn fetch(
        &self,
        mut partial: Partial,
        retries: &mut Retries,
    ) -> Result<Partial, DownloadError> {
        let (mut was_damaged, mut etag) = (false, None);
        loop {
            let before = partial.length();
            if before < self.file.bytes {
                let FileDownload { hub, plan, file, reporter, .. } = *self;
                let attempt = Attempt { hub, plan, file, reporter, etag };
                let end;
                AttemptEnd { partial, etag, end } =
                    attempt.run(partial).await.map_err(|error| self.disk_error(&error))?;
                let gained = partial.length().saturating_sub(before);
                if gained > 0 && gained >= WORTHWHILE_BYTES.min(self.file.bytes / 64) {
                    retries.gained();
                }
                if let Err(failure) = end {
                    let wait = retries.wait(failure)?;
                    self.reporter.report(FileState::Waiting, partial.length());
                    tokio::time::sleep(wait).await;
                    continue;
                }
            }
            if partial.is_right() {
                return Ok(partial);
            }
            partial.clear().map_err(|error| self.disk_error(&error))?;
            if was_damaged {
                return Err(self.corrupt());
            }
            (was_damaged, etag) = (true, None);
        }
    }

    async fn lock(&self) -> Result<BlobLock, DownloadError> {
        loop {
            match self.folder.try_lock(&self.file.hash) {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => self.reporter.state(FileState::Locked),
                Err(error) => {
                    return Err(DownloadError::cache(&self.folder.path(), &error));
                }
            }
            tokio::time::sleep(LOCK_POLL).await;
        }
    }

    async fn is_here_already(&self) -> Result<bool, DownloadError> {
        let (blob, file) = (self.folder.blob(&self.file.hash), self.file.clone());
        self.check(move |on_bytes| blob_is_right(&blob, &file, on_bytes)).await
    }

    async fn open_partial(&self, lock: BlobLock) -> Result<Partial, DownloadError> {
        let (folder, file) = (self.folder.clone(), self.file.clone());
        self.check(move |on_bytes| Partial::open(&folder, &file, lock, on_bytes)).await
    }

    /// Runs what hashes a file beside the other files' work; it stops when this future is dropped.
    async fn check<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn FnMut(u64) -> io::Result<()>) -> io::Result<T> + Send + 'static,
    ) -> Result<T, DownloadError> {
        let is_dropped = Arc::new(AtomicBool::new(false));
        let _guard = SetOnDrop(is_dropped.clone());
        let (hashed, mut watched) = watch::channel(0_u64);
        let work = spawn_blocking(move || {
            work(&mut |bytes| {
                hashed.send_replace(bytes);
                match is_dropped.load(Ordering::Relaxed) {
                    true => Err(ErrorKind::Interrupted.into()),
                    false => Ok(()),
                }
            })
        });
        while watched.changed().await.is_ok() {
            let bytes = *watched.borrow_and_update();
            self.reporter.report(FileState::Checking, bytes);
        }
        joined(work.await).map_err(|error| self.disk_error(&error))
    }

    async fn commit(&self, partial: Partial) -> io::Result<()> {
        joined(spawn_blocking(move || partial.commit()).await)
    }

    fn corrupt(&self) -> DownloadError {
        let (repo, file) = (self.plan.repo.clone(), self.file.path.clone());
        DownloadError::Corrupt { repo, file }
    }

    /// The error for a disk that cannot be read or written.
    fn disk_error(&self, error: &io::Error) -> DownloadError {
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            let folder: PathBuf = self.hub.cache().to_owned();
            let here = self.folder.bytes_here(self.file);
            let needed = self.file.bytes.saturating_sub(here);
            let available = free_disk_bytes(&folder).unwrap_or(0).min(needed);
            return DownloadError::NoSpace { folder, needed, available };
        }
        DownloadError::cache(&self.folder.partial(&self.file.hash), error)
    }
}

/// Tells work on another thread that nobody waits for it.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The result of work on another thread; a runtime that shuts down has cancelled it.
pub(super) fn joined<T>(result: Result<io::Result<T>, tokio::task::JoinError>) -> io::Result<T> {
    result.unwrap_or_else(|error| Err(io::Error::other(error)))
}
