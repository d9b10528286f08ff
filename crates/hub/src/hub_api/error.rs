//! The errors of asking the hub and of downloading.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Hub;
use super::names::{RepoId, Revision};

/// Why the hub could not be asked, or a model not be downloaded. Each sentence says what to do; none
/// contains a token or an address with its query.
///
/// What was fetched stays as partial files, from which the next download of the model continues.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DownloadError {
    /// The text is no name of a repository.
    #[error("{name:?} is not the name of a model on the hub: write OWNER/NAME, as on its page")]
    BadRepo {
        /// The text.
        name: String,
    },
    /// The text is no name of a branch, a tag or a commit.
    #[error("{revision:?} is not a revision: write a branch, a tag or a commit")]
    BadRevision {
        /// The text.
        revision: String,
    },
    /// The hub's address cannot be used.
    #[error("{endpoint:?} cannot be the hub's address: {reason}")]
    BadEndpoint {
        /// The address.
        endpoint: String,
        /// Why.
        reason: &'static str,
    },
    /// The proxy's address cannot be used. It may contain a password, so it is not repeated.
    #[error("the proxy's address cannot be used: {reason}")]
    BadProxy {
        /// Why.
        reason: &'static str,
    },
    /// The token has characters that none has. It is not repeated.
    #[error("the access token is not one line of plain characters: copy it again from the hub")]
    BadToken,
    /// Neither a variable nor the home folder says where the shared cache is.
    #[error("the folder for models is not known: set HF_HOME or HF_HUB_CACHE")]
    NoCacheFolder,
    /// TLS could not be set up.
    #[error("secure connections cannot be set up: {reason}")]
    NoTls {
        /// Why.
        reason: String,
    },
    /// The hub could not be reached.
    #[error("{host} cannot be reached ({reason}): check the connection, then try again")]
    Offline {
        /// The host that was to be reached.
        host: String,
        /// Why not.
        reason: String,
    },
    /// The connection stayed open, and too little came for too long.
    #[error("{host} stopped sending: try again to continue where it stopped")]
    Stalled {
        /// The host.
        host: String,
    },
    /// The connection was cut again and again.
    #[error("the connection to {host} was cut again and again: try again to continue")]
    Cut {
        /// The host.
        host: String,
    },
    /// The hub asks to wait for longer than a download waits by itself.
    #[error("{host} allows no more requests for now: try again in {} s", wait.as_secs())]
    RateLimited {
        /// The host.
        host: String,
        /// How long it asks to wait.
        wait: Duration,
    },
    /// The hub failed again and again.
    #[error("{host} answers with error {status}: try again later")]
    HubFailed {
        /// The host.
        host: String,
        /// The status of its last answer.
        status: u16,
    },
    /// An answer that no hub should give; nothing of it was kept.
    #[error("{host} gave an answer that cannot be right ({problem}): nothing of it was kept")]
    UnexpectedAnswer {
        /// The host.
        host: String,
        /// What is wrong.
        problem: String,
    },
    /// There is no such repository, or it is private.
    #[error("there is no model {repo} on the hub, or it is private: check the name or the token")]
    NotFound {
        /// The repository.
        repo: RepoId,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repo} has no revision {revision:?}: choose one that its page lists")]
    RevisionNotFound {
        /// The repository.
        repo: RepoId,
        /// The revision.
        revision: String,
    },
    /// A listed file is not there.
    #[error("{repo} no longer has the file {file:?}: start the download again")]
    FileGone {
        /// The repository.
        repo: RepoId,
        /// The file.
        file: String,
    },
    /// The hub wants a token, or another one.
    #[error(
        "{repo} is private, or there is no such model: {}",
        if *has_token { "the access token is not valid for it" }
        else { "set an access token (HF_TOKEN) if you may read it" }
    )]
    Unauthorized {
        /// The repository.
        repo: RepoId,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The model's licence has to be accepted on its page.
    #[error(
        "{repo} is given to those who accept its terms: accept them at {page}, and set an access token \
         (HF_TOKEN) of that account"
    )]
    Gated {
        /// The repository.
        repo: RepoId,
        /// The page on which the terms can be accepted.
        page: String,
    },
    /// The token does not allow this, or the repository is disabled.
    #[error("the hub refuses access to {repo}: check what the access token allows")]
    Forbidden {
        /// The repository.
        repo: RepoId,
    },
    /// The list of files contains what no honest repository has.
    #[error("the list of files of {repo} is refused: {problem}")]
    HostileListing {
        /// The repository.
        repo: RepoId,
        /// What is wrong.
        problem: String,
    },
    /// There is nothing that Cairn could load.
    #[error(
        "{repo} has no model*.safetensors files: Cairn reads no pickle files; look for another \
         version of the model"
    )]
    NoWeights {
        /// The repository.
        repo: RepoId,
    },
    /// The hub serves another commit or content than the list said.
    #[error("{file:?} of {repo} changed on the hub during the download: start it again")]
    ChangedOnHub {
        /// The repository.
        repo: RepoId,
        /// The file.
        file: String,
    },
    /// The content is not what its hash says, twice.
    #[error("{file:?} of {repo} arrived damaged twice and was not kept: try again later")]
    Corrupt {
        /// The repository.
        repo: RepoId,
        /// The file.
        file: String,
    },
    /// The disk has too little space.
    #[error(
        "{} are missing: the download needs {}, and {} has {} free; make space, then try again",
        gigabytes(needed.saturating_sub(*available)), gigabytes(*needed), folder.display(),
        gigabytes(*available)
    )]
    NoSpace {
        /// The folder of the cache.
        folder: PathBuf,
        /// Bytes that are needed, with a reserve.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// The cache cannot be written.
    #[error("cannot write to {}: {reason}", path.display())]
    CacheFolder {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// A little that is missing is not shown as none.
fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", (bytes as f64 / 1e9).max(0.01))
}

impl DownloadError {
    pub(crate) fn cache(path: &Path, error: &std::io::Error) -> DownloadError {
        DownloadError::CacheFolder { path: path.to_owned(), reason: error.to_string() }
    }
}

/// What a request asks for, for the error about it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub hub: &'a Hub,
    pub repo: &'a RepoId,
    pub revision: Option<&'a Revision>,
    pub file: Option<&'a str>,
}

/// Why one try failed, and whether another may help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub error: DownloadError,
    pub retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    Never,
    /// After a time that doubles with each failure in a row.
    BackOff,
    /// After the time that the server asked for.
    After(Duration),
}

impl Failure {
    pub fn is_final(error: DownloadError) -> Failure {
        Failure { error, retry: Retry::Never }
    }

    pub fn may_pass(error: DownloadError) -> Failure {
        Failure { error, retry: Retry::BackOff }
    }
}
