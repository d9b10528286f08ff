//! The commands of the saved-context page and of a conversation's row: its saved context, and the
//! starting points.

use std::collections::{BTreeSet, HashMap, HashSet};

use cairn_engine::{CacheHandle, Engine};
use cairn_prompt_cache::{CacheRef, ChunkKey, ChunkRecord, Owner};
use cairn_store::new_id;
use cairn_store::{ListedNamedCache, NamedCacheRow, Prefix, StoreError};

use crate::app::App;
use crate::cache::excerpts::{SHOWN_TOKENS, beginning, ends};
use crate::cache::owners::{conversation_owner, named_owner};
use crate::cache::prefix;
use crate::cache::saved::tier;
use crate::chat::listed;
use crate::chat::savings;
use crate::clock::now_ms;
use crate::convert::{self, tokens};
use crate::documents::reading;
use crate::models::names;
use crate::names::checked_name;
use crate::wire::{
    CacheNode, CacheOverview, DocumentsOf, Event, Failure, FailureCode, FailureKind, NamedCache,
    Reply,
};

/// The most rows of stored pieces on the page.
const MAX_NODES: usize = 500;

/// The content of the saved-context page.
pub(crate) async fn overview(app: &App) -> Result<CacheOverview, Failure> {
    let mut view = cache_handle(app)?.view(MAX_NODES);
    let named = named(app).await?;
    let deleted = app.store.deleted_owners().await?;
    let work = app.work_done();
    let num_nodes = view.nodes.len();
    let nodes = without_deleted(std::mem::take(&mut view.nodes), &deleted);
    let num_hidden_nodes = view.num_hidden_nodes + num_nodes - nodes.len();
    let texts = beginnings(&app.engine, &nodes).await;
    let nodes = nodes.into_iter().zip(texts).map(|(node, text)| {
        let model = view.models.get(&node.fingerprint).cloned().unwrap_or_default();
        cache_node(node, text, model)
    });
    Ok(CacheOverview {
        disk_bytes: view.disk.0,
        disk_budget_bytes: view.disk.1,
        memory_bytes: view.memory.0,
        memory_budget_bytes: view.memory.1,
        num_chunks: tokens(view.num_chunks),
        lookups: u32::try_from(view.figures.num_lookups).unwrap_or(u32::MAX),
        prompt_tokens: work.num_read_tokens + work.num_cached_tokens,
        cached_tokens: work.num_cached_tokens,
        nodes: nodes.collect(),
        num_hidden_nodes: tokens(num_hidden_nodes),
        named,
        problem: view.problem.map(convert::sentence),
        time_saved: savings::overview(app).await?,
    })
}

/// The nodes without those that only `deleted` owners use: until a deletion can no longer be undone
/// their chunks stay, but their text is not shown.
fn without_deleted(
    nodes: Vec<cairn_engine::CacheNode>,
    deleted: &BTreeSet<Owner>,
) -> Vec<cairn_engine::CacheNode> {
    let parents: HashMap<ChunkKey, Option<ChunkKey>> =
        nodes.iter().map(|node| (node.key, node.parent_key)).collect();
    let path =
        |key: ChunkKey| std::iter::successors(Some(key), |key| parents.get(key).copied().flatten());
    let (mut used, mut used_by_deleted) = (HashSet::new(), HashSet::new());
    for node in &nodes {
        for owner in &node.owners {
            let keys = if deleted.contains(owner) { &mut used_by_deleted } else { &mut used };
            keys.extend(path(node.key));
        }
    }
    // What continues such a node, such as an earlier answer, goes with it.
    let is_deleted = |key: ChunkKey| used_by_deleted.contains(&key) && !used.contains(&key);
    nodes.into_iter().filter(|node| !path(node.key).any(is_deleted)).collect()
}

/// The beginning of each node's text; empty for nodes of models that are not loaded, and for those
/// with unknown tokens.
async fn beginnings(engine: &Engine, nodes: &[cairn_engine::CacheNode]) -> Vec<String> {
    let loaded = engine.status().borrow().model_fingerprint.clone();
    let shown: Vec<Vec<u32>> = nodes
        .iter()
        .map(|node| match loaded.as_deref() == Some(node.fingerprint.as_str()) {
            true => node.token_ids.iter().copied().take(SHOWN_TOKENS).collect(),
            false => Vec::new(),
        })
        .collect();
    let no_texts = vec![String::new(); shown.len()];
    // The engine's thread may be loading a model, so wait for it only if there is something to
    // decode.
    if shown.iter().all(Vec::is_empty) {
        return no_texts;
    }
    engine.decode(None, shown).await.unwrap_or(no_texts)
}

/// A node of the engine's view, as the interface shows it.
fn cache_node(node: cairn_engine::CacheNode, text: String, model: String) -> CacheNode {
    let (mut conversations, mut named, mut folders) = (Vec::new(), Vec::new(), Vec::new());
    for owner in node.owners {
        match owner {
            Owner::Conversation(id) => conversations.push(id),
            Owner::Named(id) => named.push(id),
            Owner::Folder(id) => folders.push(id),
            Owner::Api(_) => {}
        }
    }
    CacheNode {
        conversations,
        named,
        folders,
        start: tokens(node.start),
        tokens: tokens(node.num_tokens),
        bytes: node.bytes,
        kind: convert::cache_kind(node.kind),
        tier: tier(node.is_in_memory),
        hits: u32::try_from(node.hits).unwrap_or(u32::MAX),
        last_used_at_ms: node.last_used_at_ms,
        text: (!text.is_empty()).then(|| beginning(&text)),
        model,
        is_pinned: node.is_pinned,
        parent_key: node.parent_key.map(|key| key.to_string()),
        key: node.key.to_string(),
    }
}

/// The starting points.
pub(crate) async fn named(app: &App) -> Result<Vec<NamedCache>, Failure> {
    let wire = |ListedNamedCache { row, has_token_ids, num_conversations }| {
        let usage = app.engine.cache().and_then(|handle| handle.ref_usage(&named_owner(&row.id)));
        let ref_usage = usage.as_ref();
        let loss = ref_usage.and_then(|ref_usage| ref_usage.cache_ref.loss.as_ref());
        let is_whole = ref_usage
            .is_some_and(|ref_usage| ref_usage.cache_ref.num_tokens as i64 >= row.num_tokens);
        NamedCache {
            num_conversations: u32::try_from(num_conversations).unwrap_or(u32::MAX),
            bytes: ref_usage.map_or(0, |ref_usage| ref_usage.num_bytes),
            tier: ref_usage.filter(|_| is_whole).map(|ref_usage| tier(ref_usage.is_in_memory)),
            // Lost chunks of known tokens are no problem: they are computed again.
            problem: (!is_whole && !has_token_ids).then(|| {
                let reason = loss.map(|loss| convert::loss_reason(&loss.reason));
                convert::sentence(reason.as_deref().unwrap_or("it is no longer saved"))
            }),
            tokens: u32::try_from(row.num_tokens).unwrap_or(0),
            id: row.id,
            name: row.name,
            model: row.model,
            fingerprint: row.namespace.model.to_string(),
            start_text: row.start_text,
            end_text: row.end_text,
            imported_from: row.imported_from,
            created_at_ms: row.created_at_ms,
            last_used_at_ms: row.last_used_at_ms,
        }
    };
    Ok(app.store.named_caches().await?.into_iter().map(wire).collect())
}

/// Emits the list of starting points, and returns the new one as the reply.
pub(crate) async fn emit_new_named_cache(app: &App, id: &str) -> Result<Reply, Failure> {
    let all = named(app).await?;
    let found = all.iter().find(|named| named.id == id).cloned();
    app.emit(Event::NamedCaches { named: all });
    Ok(Reply::Named { named: found.ok_or_else(|| StoreError::NoNamedCache { id: id.to_owned() })? })
}

/// Emits the current list of starting points.
pub(crate) async fn emit_named_caches(app: &App) {
    if let Ok(named) = named(app).await {
        app.emit(Event::NamedCaches { named });
    }
}

pub(crate) async fn pin(app: &App, id: &str, is_pinned: bool) -> Result<Reply, Failure> {
    // What is saved of it later is pinned then: see [`keep_pinned`].
    if let Some(handle) = app.engine.cache() {
        handle.pin(&conversation_owner(id), is_pinned);
    }
    listed::emit(app, id).await;
    Ok(Reply::Done)
}

/// Pins what was saved of a conversation after that was pinned.
pub(crate) async fn keep_pinned(app: &App, id: &str) {
    let is_pinned =
        app.store.conversation(id).await.ok().flatten().is_some_and(|row| row.is_pinned);
    if let Some(handle) = app.engine.cache()
        && is_pinned
        && handle.ref_usage(&conversation_owner(id)).is_some_and(|usage| !usage.cache_ref.is_pinned)
    {
        handle.pin(&conversation_owner(id), true);
    }
}

pub(crate) async fn purge(app: &App, id: &str) -> Result<Reply, Failure> {
    let refuse_while_streaming = || match app.answers.is_streaming(id) {
        true => Err(StoreError::AlreadyStreaming { conversation_id: id.to_owned() }),
        false => Ok(()),
    };
    refuse_while_streaming()?;
    // Waits for the engine's thread, so no lock may be taken before it.
    app.engine.forget_conversations().await;
    // Locked to the end, so that no answer begins between the check and the purge.
    let _turn = app.turns.lock().await;
    refuse_while_streaming()?;
    let handle = cache_handle(app)?;
    reading::stop(app, &DocumentsOf::conversation(id));
    handle.purge(&conversation_owner(id));
    // The reply means that the files are deleted, so wait for the writer.
    handle.flush().await;
    listed::emit(app, id).await;
    Ok(Reply::Done)
}

pub(crate) async fn clear(app: &App) -> Result<Reply, Failure> {
    app.engine.forget_conversations().await;
    let handle = cache_handle(app)?;
    reading::stop_all(app);
    handle.clear();
    handle.flush().await;
    Ok(Reply::Done)
}

/// Saves the context of a conversation as a starting point.
pub(crate) async fn save(app: &App, conversation_id: &str, name: &str) -> Result<Reply, Failure> {
    let name = checked_name(name)?.to_owned();
    let handle = cache_handle(app)?;
    let conversation = app.store.listed_conversation(conversation_id).await?;
    let _naming = app.naming.lock().await;
    let id = new_id().to_string();
    let owner = named_owner(&id);
    let (cache_ref, path) = refer_to(app, handle, conversation_id, &owner).await?;
    let CacheRef { namespace, model_name, .. } = cache_ref;
    let prefix = conversation.prefix.as_ref();
    let kind = prefix::ending(prefix, &path);
    let num_tokens = path.last().map_or(0, ChunkRecord::stop);
    // Without the first ids the others could not be used.
    let token_ids: Option<Vec<u32>> = (!namespace.provenance.is_opaque())
        .then(|| path.iter().flat_map(|record| record.tokens.known_ids()).copied().collect());
    let (start_text, end_text) = match &token_ids {
        Some(token_ids) => ends(&app.engine, namespace.model.as_str(), token_ids).await,
        None => Default::default(),
    };
    let row = NamedCacheRow {
        id: id.clone(),
        name,
        model: model_name,
        namespace,
        kind,
        num_tokens: num_tokens as i64,
        token_ids,
        imported_from: prefix::imported_from(app, prefix).await,
        title: conversation.title,
        start_text,
        end_text,
        created_at_ms: now_ms(),
        last_used_at_ms: now_ms(),
        deleted_at_ms: None,
    };
    if let Err(error) = app.store.create_named_cache(&row).await {
        handle.release(&owner);
        return Err(error.into());
    }
    emit_new_named_cache(app, &id).await
}

/// Adds a reference of `owner` to the saved context of a conversation. Returns it with its chunks,
/// which are all on disk.
async fn refer_to(
    app: &App,
    handle: &CacheHandle,
    conversation_id: &str,
    owner: &Owner,
) -> Result<(CacheRef, Vec<ChunkRecord>), Failure> {
    // The reference comes first: the conversation may continue meanwhile, and its chunks may be
    // evicted.
    let conversation_ref = conversation_owner(conversation_id);
    let mut is_referenced = handle.copy_ref(&conversation_ref, owner, true);
    // The chunks of the last answer may still wait to be written, or to be saved at all: an answer
    // is given before its cache is.
    app.engine.flush_cache().await;
    is_referenced |= handle.copy_ref(&conversation_ref, owner, true);
    let path = handle.path(owner);
    let Some(ref_usage) = handle.ref_usage(owner).filter(|_| is_referenced) else {
        return Err(Failure::invalid(
            "Nothing of this conversation is saved yet: ask something first.",
        )
        .of_kind(FailureKind::NothingSaved));
    };
    // A chunk without a file is only in memory.
    if path.iter().any(|record| record.file.is_none()) {
        handle.release(owner);
        return Err(Failure::new(
            FailureCode::Storage,
            format!("This would only last until Cairn closes: {}.", why_in_memory_only(handle)),
        )
        .of_kind(FailureKind::OnlyInMemory {
            detail: problem_of_disk(handle).map(convert::sentence),
        }));
    }
    Ok((ref_usage.cache_ref, path))
}

fn why_in_memory_only(handle: &CacheHandle) -> String {
    if handle.view(0).disk.1 == 0 {
        return "the disk limit for saved context is 0, as it is by default on a nearly full disk; \
                raise it in Settings, under Storage"
            .to_owned();
    }
    problem_of_disk(handle).unwrap_or_default()
}

/// Why chunks could not be written; none where the disk limit is 0.
fn problem_of_disk(handle: &CacheHandle) -> Option<String> {
    let why = || "it could not be written to the disk".to_owned();
    (handle.view(0).disk.1 > 0).then(|| handle.problem().unwrap_or_else(why))
}

pub(crate) async fn rename(app: &App, id: &str, name: &str) -> Result<Reply, Failure> {
    app.store.rename_named_cache(id, checked_name(name)?).await?;
    emit_named_caches(app).await;
    Ok(Reply::Done)
}

pub(crate) async fn delete(app: &App, id: &str) -> Result<Reply, Failure> {
    app.store.delete_named_cache(id, now_ms()).await?;
    // Its chunks are removed once it can no longer be restored.
    emit_named_caches(app).await;
    Ok(Reply::Done)
}

pub(crate) async fn restore(app: &App, id: &str) -> Result<Reply, Failure> {
    app.store.restore_named_cache(id).await?;
    emit_named_caches(app).await;
    Ok(Reply::Done)
}

/// Starts a conversation from a starting point. The model that has read it answers, if it is here: no other
/// can continue it without reading it again, and most cannot at all.
pub(crate) async fn begin_from(app: &App, named_id: &str) -> Result<Reply, Failure> {
    let row = app.store.listed_named_cache(named_id).await?;
    // If it was saved while another model was loaded, its texts are known only now.
    let (start_text, end_text) = match &row.token_ids {
        Some(token_ids) if row.start_text.is_empty() => {
            ends(&app.engine, row.namespace.model.as_str(), token_ids).await
        }
        _ => (row.start_text, row.end_text),
    };
    let reader = reader_here(app, row.namespace.model.as_str(), &row.model).await;
    let prefix = Prefix {
        named_id: row.id,
        name: row.name,
        kind: row.kind,
        kv_format: row.namespace.kv_format,
        provenance: row.namespace.provenance,
        num_tokens: row.num_tokens,
        token_ids: row.token_ids,
        start_text,
        end_text,
        is_imported: row.imported_from.is_some(),
    };
    let mut conversation = app.store.create_conversation_from(now_ms(), &prefix, "").await?;
    if reader.is_some() {
        app.store.set_conversation_model(&conversation.id, reader.as_deref()).await?;
        conversation.model = reader;
    }
    app.store.touch_named_cache(named_id, now_ms()).await?;
    if let Some(handle) = app.engine.cache() {
        handle.copy_ref(&named_owner(named_id), &conversation_owner(&conversation.id), false);
    }
    let conversation = listed::described(app, conversation).await;
    app.emit(Event::Conversation { conversation: conversation.clone() });
    emit_named_caches(app).await;
    Ok(Reply::Conversation { conversation, messages: Vec::new() })
}

/// The name of the model that has read a starting point, if it is here. In memory it may have another than
/// then.
async fn reader_here(app: &App, fingerprint: &str, name: &str) -> Option<String> {
    let in_memory = {
        let status = app.engine.status();
        let models = &status.borrow().models;
        models.iter().find(|model| model.fingerprint == fingerprint).map(|model| model.name.clone())
    };
    match in_memory {
        None if names::has(app, name).await => Some(name.to_owned()),
        known => known,
    }
}

/// The engine's prompt cache, or the failure that says why this run has none.
pub(crate) fn cache_handle(app: &App) -> Result<&CacheHandle, Failure> {
    app.engine.cache().ok_or_else(|| {
        let reason = app.cache_problem.as_deref().unwrap_or("the engine has no folder for it");
        Failure::new(
            FailureCode::Storage,
            format!(
                "No context is saved in this run: {reason}. Context that was saved before stays."
            ),
        )
        .of_kind(FailureKind::CacheOff { detail: convert::sentence(reason) })
    })
}
