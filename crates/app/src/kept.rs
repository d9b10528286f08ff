//! What is kept of conversations, as their rows show it.

use std::collections::HashMap;

use cairn_engine::{Engine, Holding};
use cairn_store::{Conversation, Store};

use crate::convert::tokens;
use crate::owners::{conversation_owner, named_owner};
use crate::wire::{CacheTier, ConversationCache};

const MAX_SHARED_WITH: usize = 5;

/// What is kept of every conversation, by its id. `conversations` are those in the list.
pub(crate) async fn of_conversations(
    engine: &Engine,
    store: &Store,
    conversations: &[Conversation],
) -> HashMap<String, ConversationCache> {
    let Some(window) = engine.cache() else { return HashMap::new() };
    let holdings = window.holdings();
    let named = store.named_caches().await.unwrap_or_default();
    let titles =
        conversations.iter().map(|row| (conversation_owner(&row.id), title(row.title.clone())));
    let names: HashMap<String, String> = titles
        .chain(named.into_iter().map(|named| (named_owner(&named.row.id), named.row.name)))
        .collect();
    let of_conversation = |holding: &Holding| {
        let id = holding.anchor.owner.strip_prefix("conversation/")?;
        let shared_with = holding
            .shared_with
            .iter()
            .filter_map(|owner| names.get(owner).cloned())
            .take(MAX_SHARED_WITH);
        Some((id.to_owned(), conversation_cache(holding, shared_with.collect())?))
    };
    holdings.iter().filter_map(of_conversation).collect()
}

/// What is kept of one conversation. Asked at each of its changes, so it looks at no others than
/// those that it names.
pub(crate) async fn of_conversation(
    engine: &Engine,
    store: &Store,
    id: &str,
) -> Option<ConversationCache> {
    let holding = engine.cache()?.holding(&conversation_owner(id))?;
    let mut shared_with = Vec::new();
    for owner in &holding.shared_with {
        if shared_with.len() < MAX_SHARED_WITH {
            shared_with.extend(name(store, owner).await);
        }
    }
    conversation_cache(&holding, shared_with)
}

fn conversation_cache(holding: &Holding, shared_with: Vec<String>) -> Option<ConversationCache> {
    let anchor = &holding.anchor;
    if anchor.num_tokens == 0 && anchor.lost.is_none() {
        return None;
    }
    let lost = anchor.lost.as_ref().filter(|lost| lost.num_tokens > anchor.num_tokens);
    Some(ConversationCache {
        kept_tokens: tokens(anchor.num_tokens),
        kept_bytes: holding.bytes,
        own_bytes: holding.own_bytes,
        tier: tier(holding.is_in_memory),
        is_pinned: anchor.is_pinned,
        model: anchor.model.clone(),
        fingerprint: anchor.space.fingerprint.clone(),
        is_whole: anchor.num_tokens > 0 && lost.is_none(),
        shared_with,
        lost: lost
            .map(|lost| format!("{} tokens: {}", lost.num_tokens - anchor.num_tokens, lost.reason)),
    })
}

/// What the owner of an anchor is called; none where it is deleted.
async fn name(store: &Store, owner: &str) -> Option<String> {
    if let Some(id) = owner.strip_prefix("conversation/") {
        return store.conversation_title(id).await.ok()?.map(title);
    }
    store.listed_named_cache(owner.strip_prefix("named/")?).await.ok().map(|row| row.name)
}

/// A conversation's title as the list shows it.
fn title(title: String) -> String {
    if title.is_empty() { "New chat".to_owned() } else { title }
}

/// The tier of what is in memory, or only on disk.
pub(crate) fn tier(is_in_memory: bool) -> CacheTier {
    if is_in_memory { CacheTier::Memory } else { CacheTier::Disk }
}
