//! The saved context of conversations, as their rows show it.

use std::collections::{HashMap, HashSet};

use cairn_engine::Engine;
use cairn_prompt_cache::{Owner, RefUsage};
use cairn_store::{ApiKeyRow, Conversation, Store};

use crate::cache::owners::{conversation_owner, folder_owner, is_of_key, named_owner};
use crate::convert::{self, tokens};
use crate::wire::{CacheTier, ConversationCache};

const MAX_SHARED_WITH: usize = 5;

/// The saved context of every conversation, by id. `conversations` are those in the list.
pub(crate) async fn of_conversations(
    engine: &Engine,
    store: &Store,
    conversations: &[Conversation],
) -> HashMap<String, ConversationCache> {
    let Some(handle) = engine.cache() else { return HashMap::new() };
    let ref_usages = handle.ref_usages();
    let named = store.named_caches().await.unwrap_or_default();
    let keys = store.api_keys().await.unwrap_or_default();
    let titles =
        conversations.iter().map(|row| (conversation_owner(&row.id), title(row.title.clone())));
    let folders = store.folders().await.unwrap_or_default();
    let names: HashMap<Owner, String> = titles
        .chain(named.into_iter().map(|named| (named_owner(&named.row.id), named.row.name)))
        .chain(folders.into_iter().map(|folder| (folder_owner(&folder.id), folder.name)))
        .collect();
    let broken_off = store.broken_off_answers().await.unwrap_or_default();
    let ends_broken_off: HashSet<&str> = conversations
        .iter()
        .filter(|row| row.leaf_message_id.as_ref().is_some_and(|leaf| broken_off.contains(leaf)))
        .map(|row| row.id.as_str())
        .collect();
    let of_conversation = |ref_usage: &RefUsage| {
        let Owner::Conversation(id) = ref_usage.cache_ref.owner() else { return None };
        let mut shared_with = Vec::new();
        for owner in &ref_usage.shared_with {
            let name = names.get(owner).cloned().or_else(|| key_name(&keys, owner));
            add_name(&mut shared_with, owner, name);
        }
        let is_broken_off = ends_broken_off.contains(id.as_str());
        Some((id.clone(), conversation_cache(ref_usage, shared_with, is_broken_off)?))
    };
    ref_usages.iter().filter_map(of_conversation).collect()
}

/// The saved context of one conversation. Called at each of its changes, so it looks only at the
/// owners that share chunks with it.
pub(crate) async fn of_conversation(
    engine: &Engine,
    store: &Store,
    row: &Conversation,
) -> Option<ConversationCache> {
    let ref_usage = engine.cache()?.ref_usage(&conversation_owner(&row.id))?;
    let is_key = |owner: &Owner| matches!(owner, Owner::Api(_));
    // Read once: a key may have thousands of parts.
    let keys = match ref_usage.shared_with.iter().any(is_key) {
        true => store.api_keys().await.unwrap_or_default(),
        false => Vec::new(),
    };
    let mut shared_with = Vec::new();
    for owner in &ref_usage.shared_with {
        if shared_with.len() < MAX_SHARED_WITH {
            add_name(&mut shared_with, owner, name(store, &keys, owner).await);
        }
    }
    let is_broken_off = match &row.leaf_message_id {
        Some(leaf) => store.broken_off_answers().await.unwrap_or_default().contains(leaf),
        None => false,
    };
    conversation_cache(&ref_usage, shared_with, is_broken_off)
}

/// Adds the name of an owner; that of a key once, which all of its parts have.
fn add_name(names: &mut Vec<String>, owner: &Owner, name: Option<String>) {
    let is_key = matches!(owner, Owner::Api(_));
    if names.len() < MAX_SHARED_WITH {
        names.extend(name.filter(|name| !(is_key && names.contains(name))));
    }
}

/// `is_broken_off`: Cairn was killed while the last answer was being written, so its end is not
/// saved.
fn conversation_cache(
    ref_usage: &RefUsage,
    shared_with: Vec<String>,
    is_broken_off: bool,
) -> Option<ConversationCache> {
    let cache_ref = &ref_usage.cache_ref;
    if cache_ref.num_tokens == 0 && cache_ref.loss.is_none() {
        return None;
    }
    let loss = cache_ref.loss.as_ref().filter(|loss| loss.num_tokens > cache_ref.num_tokens);
    Some(ConversationCache {
        cached_tokens: tokens(cache_ref.num_tokens),
        cached_bytes: ref_usage.num_bytes,
        own_bytes: ref_usage.num_own_bytes,
        tier: tier(ref_usage.is_in_memory),
        is_pinned: cache_ref.is_pinned,
        model: cache_ref.model_name.clone(),
        fingerprint: cache_ref.namespace.model.to_string(),
        is_whole: cache_ref.num_tokens > 0 && loss.is_none() && !is_broken_off,
        shared_with,
        loss: loss.map(|loss| {
            let num_tokens = loss.num_tokens - cache_ref.num_tokens;
            format!("{num_tokens} tokens: {}", convert::loss_reason(&loss.reason))
        }),
    })
}

/// The name of a reference's owner; none if it is deleted.
async fn name(store: &Store, keys: &[ApiKeyRow], owner: &Owner) -> Option<String> {
    match owner {
        Owner::Conversation(id) => store.conversation_title(id).await.ok()?.map(title),
        Owner::Named(id) => store.listed_named_cache(id).await.ok().map(|row| row.name),
        Owner::Folder(id) => {
            let folders = store.folders().await.ok()?;
            folders.into_iter().find(|folder| folder.id == *id).map(|folder| folder.name)
        }
        Owner::Api(_) => key_name(keys, owner),
    }
}

/// The name of the key that an owner is, or is a part of.
fn key_name(keys: &[ApiKeyRow], owner: &Owner) -> Option<String> {
    keys.iter().find(|key| is_of_key(owner, &key.id)).map(|key| key.name.clone())
}

/// A conversation's title as the list shows it.
fn title(title: String) -> String {
    if title.is_empty() { "New chat".to_owned() } else { title }
}

/// The tier of context that is in memory, or only on disk.
pub(crate) fn tier(is_in_memory: bool) -> CacheTier {
    if is_in_memory { CacheTier::Memory } else { CacheTier::Disk }
}
