//! What is kept of conversations, and the named prompt caches: the commands of the cache page and of a conversation's row.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cairn_engine::{CacheWindow, Engine, Holding};
use cairn_store::{Conversation, NamedCacheKind, NamedCacheRow, Prefix, StoreError};
use tokio::sync::mpsc::UnboundedReceiver;
use uuid::Uuid;

use crate::app::{App, now_ms};
use crate::convert::{self, tokens};
use crate::wire::{CacheNode, CacheOverview, CacheTier, ConversationCache, Event, Failure, FailureCode, NamedCache, Reply};

/// More rows than anybody scrolls through.
const MAX_NODES: usize = 500;
const MAX_SHARED_WITH: usize = 5;
const MAX_NAME_CHARS: usize = 200;
/// Tokens that are decoded to show a text's beginning or end.
const SHOWN_TOKENS: usize = 80;
const SHOWN_CHARS: usize = 240;
/// What changes within this time is told together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Between two looks at what other programs did.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Between two reports of changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(950);

/// The owner of a conversation's anchor.
pub(crate) fn conversation_owner(id: &str) -> String {
    format!("conversation/{id}")
}

/// The owner of a named prompt cache's anchor.
pub(crate) fn named_owner(id: &str) -> String {
    format!("named/{id}")
}

/// What is kept of every conversation, by its id. `conversations` are those in the list.
pub(crate) async fn of_conversations(app: &App, conversations: &[Conversation]) -> HashMap<String, ConversationCache> {
    let Some(window) = app.engine.cache() else { return HashMap::new() };
    let holdings = window.holdings();
    let named = app.store.named_caches().await.unwrap_or_default();
    let titles = conversations.iter().map(|row| (conversation_owner(&row.id), title(row.title.clone())));
    let names: HashMap<String, String> = titles.chain(named.into_iter().map(|row| (named_owner(&row.id), row.name))).collect();
    let loaded = app.engine.status().borrow().model_fingerprint.clone();
    let of_conversation = |holding: &Holding| {
        let id = holding.anchor.owner.strip_prefix("conversation/")?;
        let shared_with = holding.shared_with.iter().filter_map(|owner| names.get(owner).cloned()).take(MAX_SHARED_WITH);
        Some((id.to_owned(), conversation_cache(holding, shared_with.collect(), loaded.as_deref())?))
    };
    holdings.iter().filter_map(of_conversation).collect()
}

/// What is kept of one conversation. Asked at each of its changes, so it looks at no others than those that it names.
pub(crate) async fn of_conversation(app: &App, id: &str) -> Option<ConversationCache> {
    let holding = app.engine.cache()?.holding(&conversation_owner(id))?;
    let mut shared_with = Vec::new();
    for owner in &holding.shared_with {
        if shared_with.len() < MAX_SHARED_WITH {
            shared_with.extend(name(app, owner).await);
        }
    }
    let loaded = app.engine.status().borrow().model_fingerprint.clone();
    conversation_cache(&holding, shared_with, loaded.as_deref())
}

fn conversation_cache(holding: &Holding, shared_with: Vec<String>, loaded: Option<&str>) -> Option<ConversationCache> {
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
        resumes_instantly: anchor.num_tokens > 0 && lost.is_none() && loaded == Some(anchor.space.fingerprint.as_str()),
        shared_with,
        lost: lost.map(|lost| format!("{} tokens: {}", lost.num_tokens - anchor.num_tokens, lost.reason)),
    })
}

/// What the owner of an anchor is called; none where it is deleted.
async fn name(app: &App, owner: &str) -> Option<String> {
    if let Some(id) = owner.strip_prefix("conversation/") {
        return app.store.conversation_title(id).await.ok()?.map(title);
    }
    let named = app.store.named_cache(owner.strip_prefix("named/")?).await.ok()??;
    named.deleted_at_ms.is_none().then_some(named.name)
}

/// A conversation's title as the list shows it.
fn title(title: String) -> String {
    if title.is_empty() { "New chat".to_owned() } else { title }
}

/// The whole of it.
pub(crate) async fn overview(app: &App) -> Result<CacheOverview, Failure> {
    let window = window(app)?;
    let view = window.view(MAX_NODES);
    let status = app.engine.status().borrow().clone();
    let loaded = status.model_fingerprint;
    let named = named(app).await?;
    let shown: Vec<Vec<u32>> = view
        .nodes
        .iter()
        .map(|node| match loaded.as_ref() == Some(&node.fingerprint) && !node.is_opaque {
            true => node.token_ids.iter().copied().take(SHOWN_TOKENS).collect(),
            false => Vec::new(),
        })
        .collect();
    let texts = app.engine.decode(shown.clone()).await.unwrap_or_else(|_| vec![String::new(); shown.len()]);
    let nodes = view.nodes.into_iter().zip(texts).map(|(node, text)| {
        let owned = |kind: &str| {
            let ids = node.owners.iter().filter_map(|owner| owner.strip_prefix(kind)?.strip_prefix('/').map(str::to_owned));
            ids.collect::<Vec<_>>()
        };
        CacheNode {
            parent_key: node.parent_key.clone(),
            start: tokens(node.start),
            tokens: tokens(node.token_ids.len()),
            bytes: node.bytes,
            kind: convert::cache_kind(node.kind),
            tier: tier(node.is_in_memory),
            hits: u32::try_from(node.hits).unwrap_or(u32::MAX),
            last_used_at_ms: node.last_used_at_ms,
            text: (!text.is_empty()).then(|| beginning(&text)),
            model: view.models.get(&node.fingerprint).cloned().unwrap_or_default(),
            conversations: owned("conversation"),
            named: owned("named"),
            is_pinned: node.is_pinned,
            key: node.key,
        }
    });
    Ok(CacheOverview {
        disk_bytes: view.disk.0,
        disk_budget_bytes: view.disk.1,
        memory_bytes: view.memory.0,
        memory_budget_bytes: view.memory.1,
        num_chunks: tokens(view.num_chunks),
        lookups: u32::try_from(view.figures.num_lookups).unwrap_or(u32::MAX),
        prompt_tokens: view.figures.num_prompt_tokens,
        cached_tokens: view.figures.num_cached_tokens,
        nodes: nodes.collect(),
        num_hidden_nodes: tokens(view.num_hidden_nodes),
        named,
    })
}

/// The named prompt caches.
pub(crate) async fn named(app: &App) -> Result<Vec<NamedCache>, Failure> {
    let rows = app.store.named_caches().await?;
    let conversations = app.store.conversations().await?;
    let loaded = app.engine.status().borrow().model_fingerprint.clone();
    let wire = |row: NamedCacheRow| {
        let held = app.engine.cache().and_then(|window| window.holding(&named_owner(&row.id)));
        let holding = held.as_ref();
        let begins_with = |conversation: &&Conversation| conversation.prefix.as_ref().is_some_and(|p| p.named_id == row.id);
        let is_whole = holding.is_some_and(|holding| holding.anchor.num_tokens as i64 >= row.num_tokens);
        NamedCache {
            num_conversations: tokens(conversations.iter().filter(begins_with).count()),
            bytes: holding.map_or(0, |holding| holding.bytes),
            tier: holding.filter(|_| is_whole).map(|holding| tier(holding.is_in_memory)),
            is_for_loaded_model: loaded.as_ref() == Some(&row.fingerprint),
            problem: holding.and_then(|holding| Some(convert::sentence(&holding.anchor.lost.as_ref()?.reason))),
            tokens: u32::try_from(row.num_tokens).unwrap_or(0),
            id: row.id,
            name: row.name,
            model: row.model,
            start_text: row.start_text,
            end_text: row.end_text,
            imported_from: row.imported_from,
            created_at_ms: row.created_at_ms,
            last_used_at_ms: row.last_used_at_ms,
        }
    };
    Ok(rows.into_iter().map(wire).collect())
}

/// One of them, as it is now.
pub(crate) async fn one_named(app: &App, id: &str) -> Result<NamedCache, Failure> {
    let found = named(app).await?.into_iter().find(|named| named.id == id);
    found.ok_or_else(|| StoreError::NoNamedCache { id: id.to_owned() }.into())
}

/// Sends the list of named prompt caches as it is now.
pub(crate) async fn tell_named(app: &App) {
    if let Ok(named) = named(app).await {
        app.tell(Event::NamedCaches { named });
    }
}

pub(crate) async fn pin(app: &App, id: &str, is_pinned: bool) -> Result<Reply, Failure> {
    window(app)?.pin(&conversation_owner(id), is_pinned);
    app.tell_conversation(id).await;
    Ok(Reply::Done)
}

pub(crate) async fn purge(app: &App, id: &str) -> Result<Reply, Failure> {
    if app.answers.is_streaming(id) {
        return Err(Failure::invalid("This conversation is still being answered: wait or stop the answer first."));
    }
    app.engine.forget_conversations().await;
    window(app)?.purge(&conversation_owner(id));
    app.tell_conversation(id).await;
    Ok(Reply::Done)
}

pub(crate) async fn clear(app: &App) -> Result<Reply, Failure> {
    app.engine.forget_conversations().await;
    window(app)?.clear();
    Ok(Reply::Done)
}

/// Keeps what has been read of a conversation under a name.
pub(crate) async fn save(app: &App, conversation_id: &str, name: &str) -> Result<Reply, Failure> {
    let name = checked_name(name)?;
    let window = window(app)?;
    let row = app.store.conversation(conversation_id).await?.filter(|row| row.deleted_at_ms.is_none());
    let conversation = row.ok_or_else(|| StoreError::NoConversation { id: conversation_id.to_owned() })?;
    let owner = conversation_owner(conversation_id);
    let Some(holding) = window.holding(&owner).filter(|holding| holding.anchor.num_tokens > 0) else {
        return Err(Failure::invalid("Nothing of this conversation is kept yet: ask something first."));
    };
    let token_ids = window.tokens(&owner);
    let is_opaque = holding.anchor.space.is_opaque();
    let ends =
        if is_opaque { (String::new(), String::new()) } else { ends(&app.engine, &holding.anchor.space.fingerprint, &token_ids).await };
    let id = Uuid::now_v7().to_string();
    let row = NamedCacheRow {
        id: id.clone(),
        name,
        model: holding.anchor.model.clone(),
        fingerprint: holding.anchor.space.fingerprint.clone(),
        variant: holding.anchor.space.variant.clone(),
        kind: match window.path(&owner).last().map(|record| record.kind) {
            // Only the beginning is left of it: up to where the first question's words stand.
            Some(cairn_engine::ChunkKind::System) => NamedCacheKind::Prompt,
            _ => NamedCacheKind::Conversation,
        },
        num_tokens: token_ids.len() as i64,
        token_ids: (!is_opaque).then_some(token_ids),
        title: conversation.title,
        start_text: ends.0,
        end_text: ends.1,
        imported_from: None,
        created_at_ms: now_ms(),
        last_used_at_ms: now_ms(),
        deleted_at_ms: None,
    };
    app.store.create_named_cache(&row).await?;
    let _ = window.copy_anchor(&owner, &named_owner(&id), true);
    tell_named(app).await;
    Ok(Reply::Named { named: one_named(app, &id).await? })
}

pub(crate) async fn rename(app: &App, id: &str, name: &str) -> Result<Reply, Failure> {
    app.store.rename_named_cache(id, &checked_name(name)?).await?;
    tell_named(app).await;
    Ok(Reply::Done)
}

pub(crate) async fn delete(app: &App, id: &str) -> Result<Reply, Failure> {
    app.store.delete_named_cache(id, now_ms()).await?;
    // Its chunks go when it can no longer come back.
    tell_named(app).await;
    Ok(Reply::Done)
}

pub(crate) async fn restore(app: &App, id: &str) -> Result<Reply, Failure> {
    app.store.restore_named_cache(id).await?;
    tell_named(app).await;
    Ok(Reply::Done)
}

/// A conversation that begins with a named prompt cache.
pub(crate) async fn begin_from(app: &App, named_id: &str) -> Result<Reply, Failure> {
    let row = app.store.named_cache(named_id).await?.filter(|row| row.deleted_at_ms.is_none());
    let row = row.ok_or_else(|| StoreError::NoNamedCache { id: named_id.to_owned() })?;
    let prefix = Prefix {
        named_id: row.id,
        name: row.name,
        kind: row.kind,
        variant: row.variant,
        num_tokens: row.num_tokens,
        token_ids: row.token_ids,
        start_text: row.start_text,
        end_text: row.end_text,
        is_imported: row.imported_from.is_some(),
    };
    let conversation = app.store.create_conversation_from(now_ms(), &prefix, "").await?;
    app.store.touch_named_cache(named_id, now_ms()).await?;
    let _ = window(app)?.copy_anchor(&named_owner(named_id), &conversation_owner(&conversation.id), false);
    let cache = of_conversation(app, &conversation.id).await;
    let conversation = convert::conversation(conversation, false, cache);
    app.tell(Event::Conversation { conversation: conversation.clone() });
    tell_named(app).await;
    Ok(Reply::Conversation { conversation, messages: Vec::new() })
}

/// Tells about changes of what is kept, at most once a second, until the engine has shut down. `moves` are the owners of anchors that have
/// moved, and nothing for other changes.
pub(crate) async fn tell_changes(app: Arc<App>, mut moves: UnboundedReceiver<Option<String>>) {
    while let Some(first) = moves.recv().await {
        // What comes in a burst is told once, and soon.
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(TOGETHER) => {}
        }
        let mut owners: BTreeSet<String> = first.into_iter().collect();
        while let Ok(next) = moves.try_recv() {
            owners.extend(next);
        }
        for id in owners.iter().filter_map(|owner| owner.strip_prefix("conversation/")) {
            app.tell_conversation(id).await;
        }
        if owners.iter().any(|owner| owner.starts_with("named/")) {
            tell_named(&app).await;
        }
        app.tell(Event::CacheChanged);
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(CHANGE_INTERVAL) => {}
        }
    }
}

/// Takes over what other programs, such as `cairn cache import`, do to the prompt cache, until the app closes.
pub(crate) async fn follow_other_programs(app: Arc<App>) {
    let Some(window) = app.engine.cache() else { return };
    loop {
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        if !app.store.changes_by_others().await.unwrap_or(false) {
            continue;
        }
        if let (Ok(chunks), Ok(anchors)) = (app.store.chunks().await, app.store.anchors().await) {
            let chunks = chunks.into_iter().filter_map(convert::chunk_record).collect();
            window.adopt(chunks, anchors.into_iter().filter_map(convert::anchor).collect());
        }
        tell_named(&app).await;
        app.tell(Event::CacheChanged);
    }
}

/// Removes what only purged conversations and prompt caches held.
pub(crate) async fn purge_orphans(app: Arc<App>) {
    let Some(window) = app.engine.cache() else { return };
    for owner in app.store.orphan_anchors().await.unwrap_or_default() {
        window.purge(&owner);
        window.remove_anchor(&owner);
        if let Err(error) = app.store.delete_anchor(&owner).await {
            tracing::warn!("an anchor of something that is gone stays: {error}");
        }
    }
}

/// The beginning and the end of a text, to show; empty where the loaded model is another.
pub(crate) async fn ends(engine: &Engine, fingerprint: &str, token_ids: &[u32]) -> (String, String) {
    let is_loaded = engine.status().borrow().model_fingerprint.as_deref() == Some(fingerprint);
    if !is_loaded {
        return (String::new(), String::new());
    }
    let first = token_ids.iter().copied().take(SHOWN_TOKENS).collect();
    // What the beginning shows already is not shown twice.
    let last = token_ids[token_ids.len().saturating_sub(SHOWN_TOKENS).max(SHOWN_TOKENS.min(token_ids.len()))..].to_vec();
    let mut texts = engine.decode(vec![first, last]).await.unwrap_or_default().into_iter();
    let (first, last) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
    (beginning(&first), ending(&last))
}

/// A name as it is kept, or why it is none.
pub(crate) fn checked_name(name: &str) -> Result<String, Failure> {
    let name = name.trim();
    if name.is_empty() {
        return Err(Failure::invalid("A name cannot be empty."));
    }
    if name.chars().count() > MAX_NAME_CHARS || name.contains(char::is_control) {
        return Err(Failure::invalid(format!("A name is one line of at most {MAX_NAME_CHARS} characters.")));
    }
    Ok(name.to_owned())
}

pub(crate) fn window(app: &App) -> Result<&CacheWindow, Failure> {
    app.engine.cache().ok_or_else(|| Failure::new(FailureCode::Engine, "This engine keeps no prompt caches."))
}

fn tier(is_in_memory: bool) -> CacheTier {
    if is_in_memory { CacheTier::Memory } else { CacheTier::Disk }
}

/// The first characters, without half ones.
fn beginning(text: &str) -> String {
    text.trim_end_matches('\u{FFFD}').chars().take(SHOWN_CHARS).collect()
}

/// The last characters, without half ones.
fn ending(text: &str) -> String {
    let text = text.trim_start_matches('\u{FFFD}');
    let num_chars = text.chars().count();
    text.chars().skip(num_chars.saturating_sub(SHOWN_CHARS)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line_that_says_something() {
        fn check(name: &str, expected: Option<&str>) {
            assert_eq!(checked_name(name).ok().as_deref(), expected, "for {name:?}");
        }
        check(" My book ", Some("My book"));
        check("", None);
        check(" \t", None);
        check("a\nb", None);
        check(&"x".repeat(200), Some(&"x".repeat(200)));
        check(&"x".repeat(201), None);
    }

    #[test]
    fn texts_are_shown_without_half_characters() {
        assert_eq!(beginning("abc\u{FFFD}"), "abc");
        assert_eq!(ending("\u{FFFD}\u{FFFD}abc"), "abc");
        assert_eq!(beginning(&"é".repeat(500)).chars().count(), SHOWN_CHARS);
        assert_eq!(ending(&("x".repeat(500) + "end")).chars().rev().take(3).collect::<String>(), "dne");
    }
}
