//! Owners of references in the prompt cache.

use cairn_prompt_cache::Owner;

use crate::wire::CacheSource;

/// The owner's id of programs with the token of `cairn serve`; the ids of keys are UUIDs.
pub(crate) const API_TOKEN: &str = "token";

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

/// Whether an owner is this key, or a part of it.
pub(crate) fn is_of_key(owner: &Owner, key_id: &str) -> bool {
    key_of(owner) == Some(key_id)
}

/// The id of the key that an owner is, or is a part of; none for owners of another kind.
pub(crate) fn key_of(owner: &Owner) -> Option<&str> {
    let Owner::Api(id) = owner else { return None };
    id.split('/').next()
}

/// What people read for a key without a name: the token of `cairn serve`, or a key that was revoked.
pub(crate) fn unnamed(key_id: &str) -> &'static str {
    if key_id == API_TOKEN { "the token of `cairn serve`" } else { "a revoked key" }
}
