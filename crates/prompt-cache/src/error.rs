use crate::ChunkKey;

/// A text, a record or a chunk that the prompt cache cannot take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptCacheError {
    /// A text that stands for no value of a type.
    #[error("{text:?} is no {what}")]
    UnknownText {
        /// The text.
        text: String,
        /// What it should have been.
        what: &'static str,
    },
    /// A record that cannot be true.
    #[error("the record of chunk {key} contradicts itself: {what}")]
    BadRecord {
        /// The key that it names.
        key: ChunkKey,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No eviction makes room for a chunk.
    #[error(
        "the disk limit leaves no room for it beside pinned chats and starting points: raise it in the settings"
    )]
    NoRoom,
}

impl PromptCacheError {
    pub(crate) fn unknown(text: &str, what: &'static str) -> Self {
        PromptCacheError::UnknownText { text: text.to_owned(), what }
    }
}
