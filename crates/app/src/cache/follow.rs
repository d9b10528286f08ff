//! Background tasks for changes of the saved context that no command makes: by eviction, by other
//! programs and at the start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cairn_engine::CacheHandle;
use cairn_prompt_cache::{Owner, RefName};
use cairn_store::StoreError;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::app::App;
use crate::cache::commands::{emit_named_caches, keep_pinned};
use crate::cache::owners::named_owner;
use crate::chat::listed;
use crate::wire::Event;

/// Changes within this time are reported together.
const TOGETHER: Duration = Duration::from_millis(50);
/// The interval at which changes by other programs are looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// The least interval between two reports.
const CHANGE_INTERVAL: Duration = Duration::from_millis(950);

/// Emits changes of the saved context, at most once a second, until the engine has shut down.
/// `moves` receives the name of each reference that has changed, and none for other changes.
pub(crate) async fn emit_changes(app: Arc<App>, mut moves: UnboundedReceiver<Option<RefName>>) {
    while let Some(first) = moves.recv().await {
        // A burst of changes is reported once, and soon.
        if !app.is_open_after(TOGETHER).await {
            return;
        }
        let mut names: BTreeSet<RefName> = first.into_iter().collect();
        while let Ok(next) = moves.try_recv() {
            names.extend(next);
        }
        // Stale references are not shown, so their changes are not reported.
        let owners: BTreeSet<Owner> =
            names.into_iter().filter(|name| !name.is_stale()).map(|name| name.owner).collect();
        for owner in &owners {
            if let Owner::Conversation(id) = owner {
                keep_pinned(&app, id).await;
                listed::emit(&app, id).await;
            }
        }
        if owners.iter().any(|owner| matches!(owner, Owner::Named(_))) {
            emit_named_caches(&app).await;
        }
        app.emit(Event::CacheChanged);
        if !app.is_open_after(CHANGE_INTERVAL).await {
            return;
        }
    }
}

/// Adopts the changes that other programs, such as `cairn cache import`, make to the prompt cache,
/// until the app closes.
pub(crate) async fn follow_other_programs(app: Arc<App>) {
    let Some(handle) = app.engine.cache() else { return };
    let mut is_behind = false;
    while app.is_open_after(LOOK_INTERVAL).await {
        // The store reports each change once, so rows that cannot be read now are read in a later
        // round.
        is_behind |= app.store.changes_by_others().await.unwrap_or(false);
        if !is_behind {
            continue;
        }
        if adopt_rows(&app, handle).await.is_ok() {
            is_behind = false;
            emit_named_caches(&app).await;
            app.emit(Event::CacheChanged);
            app.emit(Event::ConversationsChanged);
        }
    }
}

/// Makes the prompt cache agree with the rows.
async fn adopt_rows(app: &App, handle: &CacheHandle) -> Result<(), StoreError> {
    let _naming = app.naming.lock().await;
    // References first: their chunks were written before them.
    let cache_refs = app.store.cache_refs().await?;
    let (chunks, named) = tokio::try_join!(app.store.chunks(), app.store.named_caches())?;
    // A deleted starting point can be restored as long as its reference has a row.
    let with_row = cache_refs.iter().map(|row| row.owner().clone());
    let existing: BTreeSet<Owner> =
        with_row.chain(named.into_iter().map(|named| named_owner(&named.row.id))).collect();
    handle.adopt(chunks, cache_refs);
    let owners = handle.ref_usages().into_iter().map(|ref_usage| ref_usage.cache_ref.name.owner);
    let gone = owners.filter(|owner| matches!(owner, Owner::Named(_)) && !existing.contains(owner));
    release(app, handle, gone.collect()).await;
    Ok(())
}

/// Removes the chunks that only purged conversations and starting points referred to.
pub(crate) async fn release_purged(app: &App) {
    let Some(handle) = app.engine.cache() else { return };
    let owners = app.store.purged_owners().await.unwrap_or_default();
    release(app, handle, owners).await;
}

/// Releases the references of these owners. That may remove thousands of files, so it runs on a
/// thread for blocking work.
pub(crate) async fn release(app: &App, handle: &CacheHandle, owners: Vec<Owner>) {
    let handle = handle.clone();
    let release_all = move || {
        for owner in owners {
            handle.release(&owner);
        }
    };
    app.blocking(release_all).await;
}
