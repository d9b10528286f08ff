//! Chats as files: taken out as JSON with everything, as Markdown or as OpenAI's messages, and taken in
//! from Cairn, ChatGPT, Open WebUI, ShareGPT and lists of messages. `docs/chat-files.md` describes them.
//!
//! ```text
//! export    writes conversations to a file, one after the other
//! import    reads a file, and saves each conversation in a transaction of its own
//! read      the values of a file, one at a time: a file of any size takes the memory of one chat
//! own       Cairn's own form
//! foreign   the forms of other programs
//! branches  messages that name their parent, as a tree of questions and answers
//! ```

mod branches;
mod export;
mod foreign;
mod import;
mod own;
mod read;

use crate::data_folder::DataFolder;
use crate::error::OpenError;
use crate::wire::Failure;
use cairn_store::Store;
use serde_json::Value;

/// The conversations of a data folder that this process need not own: for programs that take chats out
/// and in, also while an app has the folder open.
#[derive(Debug)]
pub struct OfflineChats {
    store: Store,
}

/// A conversation in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedChat {
    /// Its id.
    pub id: String,
    /// Its title, which may be empty.
    pub title: String,
    /// When its last turn began, in milliseconds since the Unix epoch.
    pub updated_at_ms: i64,
}

/// By what a chat is known that has no id in its file.
fn content_hash(value: &Value) -> String {
    let mut hasher = blake3::Hasher::new();
    // A hasher takes all that is written, and a value always serializes.
    let _ = serde_json::to_writer(&mut hasher, value);
    hasher.finalize().to_hex().to_string()
}

impl OfflineChats {
    /// Opens the database of a data folder, and creates what is missing. Takes no lock: other
    /// programs may have the folder open.
    pub async fn open(data_folder: DataFolder) -> Result<Self, OpenError> {
        data_folder.create()?;
        Ok(OfflineChats { store: Store::open(&data_folder.database()).await? })
    }

    /// Closes the database.
    pub async fn close(self) {
        if let Err(error) = self.store.close().await {
            tracing::warn!("{error}");
        }
    }

    /// The conversations that have a message, the one with the newest turn first.
    pub async fn list(&self) -> Result<Vec<ListedChat>, Failure> {
        let rows = self.store.conversations().await?;
        let listed = rows.into_iter().filter(|row| row.leaf_message_id.is_some());
        let listed = listed.map(|row| ListedChat {
            id: row.id,
            title: row.title,
            updated_at_ms: row.updated_at_ms,
        });
        Ok(listed.collect())
    }
}
