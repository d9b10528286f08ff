//! Why saved context was not used.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// Why tokens were read again that had been read before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct CacheMiss {
    pub tokens: u32,
    pub cause: MissCause,
    /// The model that read it before; the system prompt before, where that is known; the value of
    /// `kv_bits` with which it was stored; or what the operating system said.
    pub detail: Option<String>,
    /// When it was lost.
    #[ts(type = "number | null")]
    pub at_ms: Option<i64>,
}

macro_rules! miss_causes {
    ($($(#[$doc:meta])* $cause:ident = $name:literal,)*) => {
        /// What kept saved context from being used.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
        #[serde(rename_all = "snake_case")]
        pub enum MissCause {
            $($(#[$doc])* $cause,)*
        }

        impl MissCause {
            /// All of them.
            pub const ALL: &[MissCause] = &[$(MissCause::$cause),*];

            /// The name with which answers are stored, which is that on the wire.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(MissCause::$cause => $name,)*
                }
            }

            /// The cause of this name.
            pub(crate) fn named(name: &str) -> Option<MissCause> {
                Self::ALL.iter().find(|cause| cause.name() == name).copied()
            }
        }
    };
}

miss_causes! {
    SystemPromptChanged = "system_prompt_changed",
    /// The model's chat template is another one.
    TemplateChanged = "template_changed",
    /// An earlier message was edited or deleted.
    MessageChanged = "message_changed",
    /// The chat had outgrown the context, and the oldest messages are no longer read.
    OldestForgotten = "oldest_forgotten",
    /// Another model had read it.
    OtherModel = "other_model",
    /// The files of the model have changed.
    OtherRevision = "other_revision",
    /// Keys and values were stored in another format.
    OtherKvFormat = "other_kv_format",
    /// The starting point was imported again.
    ImportedAgain = "imported_again",
    /// Evicted to stay within the disk limit.
    DiskLimit = "disk_limit",
    /// Evicted from memory while it was not on disk.
    MemoryLimit = "memory_limit",
    /// A person deleted what was saved of this conversation.
    Deleted = "deleted",
    /// A person deleted all that was not pinned.
    Cleared = "cleared",
    FileMissing = "file_missing",
    Unreadable = "unreadable",
    Damaged = "damaged",
    NotRestorable = "not_restorable",
    RemovedByAnotherProgram = "removed_by_another_program",
    /// It could not be written.
    NotWritten = "not_written",
    /// It was saved in memory only, because of a disk limit of 0.
    OnlyInMemory = "only_in_memory",
    /// Its files are of an earlier version.
    EarlierVersion = "earlier_version",
    /// Nothing says that it was ever stored.
    NotStored = "not_stored",
    /// `detail` says what.
    Other = "other",
}
