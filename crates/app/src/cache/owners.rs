//! The names of owners of references in the prompt cache.

use crate::wire::CacheSource;

/// The owner of a conversation's reference.
pub(crate) fn conversation_owner(id: &str) -> String {
    format!("conversation/{id}")
}

/// The owner of a named prompt cache's reference.
pub(crate) fn named_owner(id: &str) -> String {
    format!("named/{id}")
}

/// The owner of a source's reference.
pub(crate) fn owner(source: &CacheSource) -> String {
    match source {
        CacheSource::Conversation { id } => conversation_owner(id),
        CacheSource::Named { id } => named_owner(id),
    }
}
