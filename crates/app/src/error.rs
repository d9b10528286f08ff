//! The errors of opening the app. Each says in one sentence what to do. What fails later is a
//! [`crate::wire::Failure`].

use std::io;
use std::path::PathBuf;

use cairn_store::StoreError;

/// An error of [`crate::App::open`].
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the data folder open.
    #[error("Cairn is already running with the data folder {}: use that one, or set CAIRN_HOME to another folder", folder.display())]
    AlreadyRunning {
        /// The data folder.
        folder: PathBuf,
    },
    /// The platform names no folder for application data.
    #[error(
        "the folder for application data is unknown: set CAIRN_HOME to the folder that Cairn may use"
    )]
    NoHome,
    /// The data folder or something in it cannot be created or written.
    #[error("Cairn cannot write {} ({source}): make it writable for you, or set CAIRN_HOME to another folder", path.display())]
    NotWritable {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}
