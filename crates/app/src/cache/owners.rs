//! Owners of references in the prompt cache.

use cairn_prompt_cache::Owner;

use crate::wire::CacheSource;

/// The owner of a conversation's reference.
pub(crate) fn conversation_owner(id: &str) -> Owner {
    Owner::Conversation(id.to_owned())
}

/// The owner of a starting point's reference.
pub(crate) fn named_owner(id: &str) -> Owner {
    Owner::Named(id.to_owned())
}

/// The owner of the reference of what the chats of a folder begin with.
pub(crate) fn folder_owner(id: &str) -> Owner {
    Owner::Folder(id.to_owned())
}

/// The owner of a source's reference.
pub(crate) fn owner(source: &CacheSource) -> Owner {
    match source {
        CacheSource::Conversation { id } => conversation_owner(id),
        CacheSource::Named { id } => named_owner(id),
    }
}
