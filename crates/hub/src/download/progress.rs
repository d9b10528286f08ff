//! How far a download is, as plain data.

use tokio::sync::watch;

use super::DownloadPlan;

/// How far a download is. [`Rate`](crate::Rate) says how fast and
/// how long from several of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DownloadProgress {
    /// Each file, in the plan's order.
    pub files: Vec<FileProgress>,
    /// Bytes that came over the network since the download began; a resumed beginning is not
    /// among them.
    pub bytes_fetched: u64,
}

/// How far one file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProgress {
    /// Its path in the repository.
    pub path: String,
    /// Bytes that are on the disk. All of them only when the file is verified and in place.
    pub bytes: u64,
    /// Its length.
    pub total: u64,
    /// What is being done.
    pub state: FileState,
}

/// What is being done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    /// Its turn has not come.
    Queued,
    /// Another program or download is making the same file.
    Locked,
    /// What is there already is being hashed; the bytes count what was hashed.
    Checking,
    /// Bytes are coming.
    Fetching,
    /// The last try failed; the next one follows after a while.
    Waiting,
    /// Verified and in place.
    Done,
}

impl DownloadProgress {
    /// Bytes on the disk, of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Bytes of all files.
    pub fn total(&self) -> u64 {
        self.files.iter().map(|file| file.total).sum()
    }

    pub(super) fn begin(plan: &DownloadPlan) -> DownloadProgress {
        let files = plan.files.iter().map(|file| FileProgress {
            path: file.path.clone(),
            bytes: 0,
            total: file.bytes,
            state: FileState::Queued,
        });
        DownloadProgress { files: files.collect(), bytes_fetched: 0 }
    }
}

/// Reports one file's part.
#[derive(Clone, Copy)]
pub(super) struct Reporter<'a> {
    pub progress: &'a watch::Sender<DownloadProgress>,
    pub index: usize,
}

impl Reporter<'_> {
    /// Sets state and bytes. A file that is not verified is never shown as whole.
    pub fn report(&self, state: FileState, bytes: u64) {
        self.change(|file| {
            file.state = state;
            file.bytes = if state == FileState::Done {
                file.total
            } else {
                bytes.min(file.total.saturating_sub(1))
            };
        });
    }

    pub fn state(&self, state: FileState) {
        self.change(|file| file.state = state);
    }

    pub fn fetched(&self, num_bytes: u64, length: u64) {
        self.progress.send_modify(|progress| progress.bytes_fetched += num_bytes);
        self.report(FileState::Fetching, length);
    }

    fn change(&self, change: impl FnOnce(&mut FileProgress)) {
        self.progress.send_modify(|progress| {
            if let Some(file) = progress.files.get_mut(self.index) {
                change(file);
            }
        });
    }
}
