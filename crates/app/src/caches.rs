//! What is kept of conversations, and the named prompt caches: the commands of the cache page and of a conversation's row.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cairn_engine::{Anchor, CacheWindow, Engine, Holding, whose};
use cairn_store::{Conversation, ListedNamedCache, NamedCacheRow, Prefix, StoreError};
use tokio::sync::mpsc::UnboundedReceiver;
use uuid::Uuid;

use crate::app::{App, now_ms};
use crate::convert::{self, tokens};
use crate::prefix;
use crate::wire::{CacheNode, CacheOverview, CacheSource, CacheTier, ConversationCache, Event, Failure, FailureCode, NamedCache, Reply};

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

/// The owner of the anchor.
pub(crate) fn owner(source: &CacheSource) -> String {
    match source {
        CacheSource::Conversation { id } => conversation_owner(id),
        CacheSource::Named { id } => named_owner(id),
    }
}

/// What is kept of every conversation, by its id. `conversations` are those in the list.
pub(crate) async fn of_conversations(app: &App, conversations: &[Conversation]) -> HashMap<String, ConversationCache> {
    let Some(window) = app.engine.cache() else { return HashMap::new() };
    let holdings = window.holdings();
    let named = app.store.named_caches().await.unwrap_or_default();
    let titles = conversations.iter().map(|row| (conversation_owner(&row.id), title(row.title.clone())));
    let names: HashMap<String, String> =
        titles.chain(named.into_iter().map(|named| (named_owner(&named.row.id), named.row.name))).collect();
    let of_conversation = |holding: &Holding| {
        let id = holding.anchor.owner.strip_prefix("conversation/")?;
        let shared_with = holding.shared_with.iter().filter_map(|owner| names.get(owner).cloned()).take(MAX_SHARED_WITH);
        Some((id.to_owned(), conversation_cache(holding, shared_with.collect())?))
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
        lost: lost.map(|lost| format!("{} tokens: {}", lost.num_tokens - anchor.num_tokens, lost.reason)),
    })
}

/// What the owner of an anchor is called; none where it is deleted.
async fn name(app: &App, owner: &str) -> Option<String> {
    if let Some(id) = owner.strip_prefix("conversation/") {
        return app.store.conversation_title(id).await.ok()?.map(title);
    }
    app.store.listed_named_cache(owner.strip_prefix("named/")?).await.ok().map(|row| row.name)
}

/// A conversation's title as the list shows it.
fn title(title: String) -> String {
    if title.is_empty() { "New chat".to_owned() } else { title }
}

/// The whole of it.
pub(crate) async fn overview(app: &App) -> Result<CacheOverview, Failure> {
    let window = window(app)?;
    let view = window.view(MAX_NODES);
    let loaded = app.engine.status().borrow().model_fingerprint.clone();
    let named = named(app).await?;
    let shown: Vec<Vec<u32>> = view
        .nodes
        .iter()
        .map(|node| match loaded.as_ref() == Some(&node.fingerprint) && !node.is_opaque {
            true => node.token_ids.iter().copied().take(SHOWN_TOKENS).collect(),
            false => Vec::new(),
        })
        .collect();
    let no_texts = vec![String::new(); shown.len()];
    // The engine's thread may be loading a model: it is waited for only where there is something to decode.
    let has_something = shown.iter().any(|token_ids| !token_ids.is_empty());
    let texts = if has_something { app.engine.decode(shown).await.unwrap_or(no_texts) } else { no_texts };
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
        problem: view.problem.map(convert::sentence),
    })
}

/// The named prompt caches.
pub(crate) async fn named(app: &App) -> Result<Vec<NamedCache>, Failure> {
    let wire = |ListedNamedCache { row, has_token_ids, num_conversations }| {
        let held = app.engine.cache().and_then(|window| window.holding(&named_owner(&row.id)));
        let holding = held.as_ref();
        let lost = holding.and_then(|holding| Some(holding.anchor.lost.as_ref()?.reason.as_str()));
        let is_whole = holding.is_some_and(|holding| holding.anchor.num_tokens as i64 >= row.num_tokens);
        NamedCache {
            num_conversations: u32::try_from(num_conversations).unwrap_or(u32::MAX),
            bytes: holding.map_or(0, |holding| holding.bytes),
            tier: holding.filter(|_| is_whole).map(|holding| tier(holding.is_in_memory)),
            // What is lost of tokens that are known is read again.
            problem: (!is_whole && !has_token_ids).then(|| convert::sentence(lost.unwrap_or("it is not kept any more"))),
            tokens: u32::try_from(row.num_tokens).unwrap_or(0),
            id: row.id,
            name: row.name,
            model: row.model,
            fingerprint: row.fingerprint,
            start_text: row.start_text,
            end_text: row.end_text,
            imported_from: row.imported_from,
            created_at_ms: row.created_at_ms,
            last_used_at_ms: row.last_used_at_ms,
        }
    };
    Ok(app.store.named_caches().await?.into_iter().map(wire).collect())
}

/// Tells of a new named prompt cache, and answers with it.
pub(crate) async fn tell_new(app: &App, id: &str) -> Result<Reply, Failure> {
    let all = named(app).await?;
    let found = all.iter().find(|named| named.id == id).cloned();
    app.tell(Event::NamedCaches { named: all });
    Ok(Reply::Named { named: found.ok_or_else(|| StoreError::NoNamedCache { id: id.to_owned() })? })
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
    let refuse_while_streaming = || match app.answers.is_streaming(id) {
        true => Err(StoreError::AlreadyStreaming { conversation_id: id.to_owned() }),
        false => Ok(()),
    };
    refuse_while_streaming()?;
    // Waits for whatever the engine's thread does, so nothing else may wait for it.
    app.engine.forget_conversations().await;
    // Held to the end: no answer begins between the look and what it is for.
    let _turn = app.turns.lock().await;
    refuse_while_streaming()?;
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
    let conversation = app.store.listed_conversation(conversation_id).await?;
    let _naming = app.naming.lock().await;
    let id = Uuid::now_v7().to_string();
    let owner = named_owner(&id);
    // Held before it is looked at: the conversation may go on meanwhile, and what it had may be evicted.
    let copied = window.copy_anchor(&conversation_owner(conversation_id), &owner, true);
    // The last answer may be on its way to the disk.
    app.engine.flush_cache().await;
    let path = window.path(&owner);
    let Some(holding) = copied.and(window.holding(&owner)) else {
        return Err(Failure::invalid("Nothing of this conversation is kept yet: ask something first."));
    };
    if path.iter().any(|record| record.file_hash.is_empty()) {
        window.release(&owner);
        let why = window.problem().unwrap_or_else(|| "nothing is kept on disk".to_owned());
        return Err(Failure::new(FailureCode::Storage, format!("This would only last until Cairn closes: {why}.")));
    }
    let Anchor { space, model, .. } = holding.anchor;
    let kind = prefix::ending(conversation.prefix.as_ref(), &path);
    let token_ids: Vec<u32> = path.into_iter().flat_map(|record| record.token_ids).collect();
    let is_opaque = space.is_opaque();
    let ends = if is_opaque { Default::default() } else { ends(&app.engine, &space.fingerprint, &token_ids).await };
    let row = NamedCacheRow {
        id: id.clone(),
        name,
        model,
        fingerprint: space.fingerprint,
        variant: space.variant,
        kind,
        num_tokens: token_ids.len() as i64,
        token_ids: (!is_opaque).then_some(token_ids),
        title: conversation.title,
        start_text: ends.0,
        end_text: ends.1,
        imported_from: prefix::imported_from(app, conversation.prefix.as_ref()).await,
        created_at_ms: now_ms(),
        last_used_at_ms: now_ms(),
        deleted_at_ms: None,
    };
    if let Err(error) = app.store.create_named_cache(&row).await {
        window.release(&owner);
        return Err(error.into());
    }
    tell_new(app, &id).await
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
    let row = app.store.listed_named_cache(named_id).await?;
    // Where it was saved while another model was loaded, its texts are first known now.
    let (start_text, end_text) = match &row.token_ids {
        Some(token_ids) if row.start_text.is_empty() => ends(&app.engine, &row.fingerprint, token_ids).await,
        _ => (row.start_text, row.end_text),
    };
    let prefix = Prefix {
        named_id: row.id,
        name: row.name,
        kind: row.kind,
        variant: row.variant,
        num_tokens: row.num_tokens,
        token_ids: row.token_ids,
        start_text,
        end_text,
        is_imported: row.imported_from.is_some(),
    };
    let conversation = app.store.create_conversation_from(now_ms(), &prefix, "").await?;
    app.store.touch_named_cache(named_id, now_ms()).await?;
    if let Some(window) = app.engine.cache() {
        window.copy_anchor(&named_owner(named_id), &conversation_owner(&conversation.id), false);
    }
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
        // Where they were before changes nothing of what is told about them.
        owners.retain(|owner| whose(owner) == owner);
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
    let mut is_behind = false;
    loop {
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        // Each change is told of once: where the rows cannot be read then, they are read later.
        is_behind |= app.store.changes_by_others().await.unwrap_or(false);
        if !is_behind {
            continue;
        }
        if adopt_rows(&app, window).await.is_ok() {
            is_behind = false;
            tell_named(&app).await;
            app.tell(Event::CacheChanged);
        }
    }
}

/// Takes over what the rows say.
async fn adopt_rows(app: &App, window: &CacheWindow) -> Result<(), StoreError> {
    let _naming = app.naming.lock().await;
    // Anchors first: what they stand on was written before them.
    let anchors = app.store.anchors().await?;
    let (chunks, named) = tokio::try_join!(app.store.chunks(), app.store.named_caches())?;
    // Whoever deletes a name for good takes its anchor's row along; who may still restore it leaves that.
    let with_row = anchors.iter().map(|row| row.owner.clone());
    let held: BTreeSet<String> = with_row.chain(named.into_iter().map(|named| named_owner(&named.row.id))).collect();
    let chunks = chunks.into_iter().filter_map(convert::chunk_record).collect();
    window.adopt(chunks, anchors.into_iter().filter_map(convert::anchor).collect());
    let owners = window.holdings().into_iter().map(|holding| holding.anchor.owner);
    for gone in owners.filter(|owner| owner.starts_with("named/") && !held.contains(owner)) {
        window.release(&gone);
    }
    Ok(())
}

/// Removes what only purged conversations and prompt caches held.
pub(crate) async fn purge_orphans(app: Arc<App>) {
    let Some(window) = app.engine.cache() else { return };
    for owner in app.store.orphan_anchors().await.unwrap_or_default() {
        window.release(&owner);
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
    app.engine.cache().ok_or_else(|| {
        let why = app.cache_problem.as_deref().unwrap_or("the engine keeps none");
        Failure::new(FailureCode::Storage, format!("Nothing is kept in this run: {why}. What was kept before is left alone."))
    })
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
