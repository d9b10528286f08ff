//! The data folder: the paths of Cairn's own files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::platform;

/// The data folder and the files in it.
///
/// ```text
/// CAIRN_HOME/
/// ├── lock               locked by the process that has the folder open
/// ├── window.sock        where a second launch asks for its window; left there when it ends
/// ├── running.json       what that process is doing; left only if it dies
/// ├── cairn.db           conversations, settings, the index of the prompt cache
/// ├── cairn.backup-*.db  the database before its last three migrations
/// ├── cairn.damaged-*.db a damaged database that was replaced
/// ├── cairn.saved-*.db   chats that were saved when another file took the place of cairn.db
/// ├── prompt-cache-v2/   the files of the prompt cache
/// ├── models/            imported models
/// ├── hub-token          the hub's access token, where the system has no keychain
/// ├── transfers/         files while they are uploaded or downloaded
/// └── logs/              cairn.log, and up to four older ones
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFolder {
    home: PathBuf,
}

impl DataFolder {
    /// The data folder at a given path.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        DataFolder { home: home.into() }
    }

    /// The data folder at `CAIRN_HOME`, or else in the platform's folder for application data.
    pub fn from_environment() -> Result<Self, OpenError> {
        let default = directories::ProjectDirs::from("", "", "Cairn")
            .map(|folders| folders.data_dir().to_owned());
        Self::choose(std::env::var_os("CAIRN_HOME"), default)
    }

    fn choose(variable: Option<OsString>, default: Option<PathBuf>) -> Result<Self, OpenError> {
        // Shells write an unset variable as an empty one; as a path it would scatter files over the
        // working folder.
        let home = variable
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
            .or(default)
            .ok_or(OpenError::NoHome)?;
        // The working folder may change while the program runs, the data folder must not.
        std::path::absolute(&home)
            .map(DataFolder::new)
            .map_err(|source| OpenError::NotWritable { path: home, source })
    }

    /// Creates the missing folders, readable by their owner only.
    pub fn create(&self) -> Result<(), OpenError> {
        for folder in
            [self.home(), &self.models(), &self.logs(), &self.prompt_cache(), &self.transfers()]
        {
            platform::create_private_folder(folder)
                .map_err(|source| OpenError::NotWritable { path: folder.to_owned(), source })?;
        }
        Ok(())
    }

    /// The data folder.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The database.
    pub fn database(&self) -> PathBuf {
        self.home.join("cairn.db")
    }

    /// The folder of the prompt cache; its name carries the version of the format.
    pub fn prompt_cache(&self) -> PathBuf {
        self.home.join("prompt-cache-v2")
    }

    /// The folders that earlier versions of the prompt cache's format used.
    pub(crate) fn old_prompt_caches(&self) -> Vec<PathBuf> {
        vec![self.home.join("prompt-cache-v1")]
    }

    /// The lock file of programs that add files to the prompt cache, and of the one that removes
    /// leftovers from it.
    pub fn prompt_cache_lock(&self) -> PathBuf {
        self.prompt_cache().join(".lock")
    }

    /// Imported models.
    pub fn models(&self) -> PathBuf {
        self.home.join("models")
    }

    /// Prompt-cache files while they are uploaded or downloaded, for interfaces that transfer bytes
    /// instead of paths.
    pub fn transfers(&self) -> PathBuf {
        self.home.join("transfers")
    }

    /// The hub's access token, where the system has no keychain.
    pub fn hub_token(&self) -> PathBuf {
        self.home.join("hub-token")
    }

    /// Log files.
    pub fn logs(&self) -> PathBuf {
        self.home.join("logs")
    }

    /// The socket at which a second launch asks the app that has the folder open for its window.
    pub fn window_socket(&self) -> PathBuf {
        self.home.join("window.sock")
    }

    /// The crash record: what the process that has the folder open is doing.
    pub fn running(&self) -> PathBuf {
        self.home.join("running.json")
    }

    /// The file that a process locks while it has the folder open.
    pub fn lock(&self) -> PathBuf {
        self.home.join("lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_wins_over_the_platforms_folder() {
        fn check(variable: Option<&str>, default: Option<&str>, expected: Option<&str>) {
            let data_folder =
                DataFolder::choose(variable.map(OsString::from), default.map(PathBuf::from)).ok();
            assert_eq!(
                data_folder.as_ref().map(|data_folder| data_folder.home()),
                expected.map(Path::new),
                "for {variable:?} and {default:?}"
            );
        }
        check(Some("/data/cairn"), Some("/home/ann/.local/share/cairn"), Some("/data/cairn"));
        check(Some(""), Some("/home/ann/.local/share/cairn"), Some("/home/ann/.local/share/cairn"));
        check(None, Some("/home/ann/.local/share/cairn"), Some("/home/ann/.local/share/cairn"));
        check(None, None, None);
    }
}
