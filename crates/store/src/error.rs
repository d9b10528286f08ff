//! The errors of the store, and how SQLite's result codes and the system's errors map to them.

use std::io;
use std::path::{Path, PathBuf};

use sqlx::migrate::MigrateError;

use crate::result_code::{
    BUSY, CANTOPEN, CORRUPT, FULL, IOERR_SHMSIZE, NOTADB, PERM, READONLY, primary, result_code,
};

/// An error of a store method.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is not a database, or damaged. It was not changed.
    #[error(
        "{} is damaged or not a Cairn database ({detail}); it was left as it is: close the programs \
         that use it and start the Cairn app or `cairn serve`, which recover what can be read",
        path.display()
    )]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// What SQLite found.
        detail: String,
    },
    /// A newer version of Cairn has changed the file in ways that this one does not know.
    #[error("{} was last used by a newer Cairn (database version {found}, this one knows {known}): update Cairn to open it", path.display())]
    Newer {
        /// The database file.
        path: PathBuf,
        /// The file's version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// The disk is full. What was there before is unharmed, and the same call works once there is
    /// room.
    #[error("there is no room left on the disk to write {}", path.display())]
    Full {
        /// The file or folder to be written.
        path: PathBuf,
    },
    /// The file or its folder cannot be made or written.
    #[error("{} cannot be written: check that its folder exists, belongs to you and is not read-only", path.display())]
    NotWritable {
        /// The file or folder to be written.
        path: PathBuf,
    },
    /// Another program held the file for too long.
    #[error("{} is in use by another program; try again", path.display())]
    Busy {
        /// The database file.
        path: PathBuf,
    },
    /// The store was used after [`crate::Store::close`].
    #[error("{} is already closed", path.display())]
    Closed {
        /// The database file.
        path: PathBuf,
    },
    /// The conversation does not exist, or is deleted.
    #[error("there is no conversation {id}")]
    NoConversation {
        /// The id that was given.
        id: String,
    },
    /// The message does not exist.
    #[error("there is no message {id}")]
    NoMessage {
        /// The id that was given.
        id: String,
    },
    /// The named prompt cache does not exist, or is deleted.
    #[error("there is no named prompt cache {id}")]
    NoNamedCache {
        /// The id that was given.
        id: String,
    },
    /// Another named prompt cache has this name.
    #[error("a prompt cache named {name:?} exists already: choose another name")]
    NameInUse {
        /// The name that was given.
        name: String,
    },
    /// The key of the API does not exist.
    #[error("there is no key {id}")]
    NoApiKey {
        /// The id that was given.
        id: String,
    },
    /// Another key of the API has this name.
    #[error("a key named {name:?} exists already: choose another name")]
    KeyNameInUse {
        /// The name that was given.
        name: String,
    },
    /// The job or its row does not exist, or the job is deleted.
    #[error("there is no job {id}, or no such row of it")]
    NoJob {
        /// The id that was given.
        id: String,
    },
    /// The folder does not exist, or it is deleted.
    #[error("there is no folder {id}")]
    NoFolder {
        /// The id that was given.
        id: String,
    },
    /// The preset does not exist, or it is deleted.
    #[error("there is no preset {id}")]
    NoPreset {
        /// The id that was given.
        id: String,
    },
    /// The persona does not exist, or it is deleted.
    #[error("there is no persona {id}")]
    NoPersona {
        /// The id that was given.
        id: String,
    },
    /// An answer is still streaming at the end of the conversation's branch.
    #[error("conversation {conversation_id} is still being answered")]
    AlreadyStreaming {
        /// The conversation.
        conversation_id: String,
    },
    /// The conversation has no question that could be answered again.
    #[error("conversation {conversation_id} has no message to answer")]
    NothingToAnswer {
        /// The conversation.
        conversation_id: String,
    },
    /// Only a question can be edited.
    #[error("message {message_id} is no question")]
    NotAQuestion {
        /// The message.
        message_id: String,
    },
    /// Only an answer that nothing follows can go on.
    #[error("message {message_id} is not the last answer of its conversation")]
    NotTheLastAnswer {
        /// The message.
        message_id: String,
    },
    /// The document does not exist, or it is not in the draft where it was looked for.
    #[error("there is no such document {id}")]
    NoDocument {
        /// The id that was given.
        id: String,
    },
    /// The deletion is undone already, or final.
    #[error("there is no deletion {id} of messages that could be undone")]
    NoDeletion {
        /// The id that was given.
        id: String,
    },
    /// The file could not be brought to the version of this program.
    #[error("{} could not be updated to this version of Cairn: {source}", path.display())]
    Migrate {
        /// The database file.
        path: PathBuf,
        /// What failed.
        source: MigrateError,
    },
    /// The operating system refused something that is not covered above.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// SQLite failed in a way that is not covered above.
    #[error("{}: {source}", path.display())]
    Database {
        /// The database file.
        path: PathBuf,
        /// What failed.
        source: sqlx::Error,
    },
}

/// A word in a column that no version of this program writes there.
pub(crate) fn unknown(column: &str, name: &str) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source: format!("{name:?} is unknown").into(),
    }
}

pub(crate) fn no_conversation(id: &str) -> StoreError {
    StoreError::NoConversation { id: id.to_owned() }
}

pub(crate) fn no_message(id: &str) -> StoreError {
    StoreError::NoMessage { id: id.to_owned() }
}

pub(crate) fn no_named_cache(id: &str) -> StoreError {
    StoreError::NoNamedCache { id: id.to_owned() }
}

pub(crate) fn no_job(id: &str) -> StoreError {
    StoreError::NoJob { id: id.to_owned() }
}

pub(crate) fn no_folder(id: &str) -> StoreError {
    StoreError::NoFolder { id: id.to_owned() }
}

pub(crate) fn no_preset(id: &str) -> StoreError {
    StoreError::NoPreset { id: id.to_owned() }
}

pub(crate) fn no_persona(id: &str) -> StoreError {
    StoreError::NoPersona { id: id.to_owned() }
}

pub(crate) fn no_document(id: &str) -> StoreError {
    StoreError::NoDocument { id: id.to_owned() }
}

impl StoreError {
    pub(crate) fn from_sqlx(path: &Path, source: sqlx::Error) -> StoreError {
        let path = path.to_owned();
        match &source {
            // The file has a value that no version of this program writes.
            sqlx::Error::ColumnDecode { .. } => {
                return StoreError::Corrupt { path, detail: source.to_string() };
            }
            sqlx::Error::PoolTimedOut => return StoreError::Busy { path },
            sqlx::Error::PoolClosed => return StoreError::Closed { path },
            _ => {}
        }
        match result_code(&source).map(|code| (code, primary(code))) {
            Some((IOERR_SHMSIZE, _) | (_, FULL)) => StoreError::Full { path },
            Some((_, PERM | READONLY | CANTOPEN)) => StoreError::NotWritable { path },
            Some((_, CORRUPT | NOTADB)) => {
                // SQLite's own message, without sqlx's prefix.
                let detail = source
                    .as_database_error()
                    .map_or_else(|| source.to_string(), |error| error.message().to_owned());
                StoreError::Corrupt { path, detail }
            }
            Some((_, BUSY)) => StoreError::Busy { path },
            _ => StoreError::Database { path, source },
        }
    }

    pub(crate) fn from_migrate(path: &Path, source: MigrateError) -> StoreError {
        match source {
            MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
                StoreError::from_sqlx(path, source)
            }
            source => StoreError::Migrate { path: path.to_owned(), source },
        }
    }

    pub(crate) fn from_io(path: &Path, source: io::Error) -> StoreError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
            // Creating a folder where a file exists reports `AlreadyExists`.
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotFound => StoreError::NotWritable { path },
            _ => StoreError::Io { path, source },
        }
    }
}
