//! Tasks that run beside the commands: what is kept changes also by itself, by other programs and
//! at the start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cairn_engine::{CacheHandle, owner_of};
use cairn_store::StoreError;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::app::App;
use crate::cache::commands::emit_named_caches;
use crate::cache::owners::named_owner;
use crate::convert;
use crate::wire::Event;

/// What changes within this time is told together.
const TOGETHER: Duration = Duration::from_millis(50);
/// Between two looks at what other programs did.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Between two reports of changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(950);

/// Tells about changes of what is kept, at most once a second, until the engine has shut down.
/// `moves` are the owners of references that have moved, and nothing for other changes.
pub(crate) async fn emit_changes(app: Arc<App>, mut moves: UnboundedReceiver<Option<String>>) {
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
        owners.retain(|owner| owner_of(owner) == owner);
        for id in owners.iter().filter_map(|owner| owner.strip_prefix("conversation/")) {
            app.emit_conversation(id).await;
        }
        if owners.iter().any(|owner| owner.starts_with("named/")) {
            emit_named_caches(&app).await;
        }
        app.emit(Event::CacheChanged);
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = tokio::time::sleep(CHANGE_INTERVAL) => {}
        }
    }
}

/// Takes over what other programs, such as `cairn cache import`, do to the prompt cache, until the
/// app closes.
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
            emit_named_caches(&app).await;
            app.emit(Event::CacheChanged);
        }
    }
}

/// Takes over what the rows say.
async fn adopt_rows(app: &App, window: &CacheHandle) -> Result<(), StoreError> {
    let _naming = app.naming.lock().await;
    // References first: what they stand on was written before them.
    let cache_refs = app.store.cache_refs().await?;
    let (chunks, named) = tokio::try_join!(app.store.chunks(), app.store.named_caches())?;
    // Whoever deletes a name for good takes its reference's row along; who may still restore it leaves
    // that.
    let with_row = cache_refs.iter().map(|row| row.owner.clone());
    let held: BTreeSet<String> =
        with_row.chain(named.into_iter().map(|named| named_owner(&named.row.id))).collect();
    let chunks = chunks.into_iter().filter_map(convert::chunk_record).collect();
    window.adopt(chunks, cache_refs.into_iter().filter_map(convert::cache_ref).collect());
    let owners = window.ref_usages().into_iter().map(|ref_usage| ref_usage.cache_ref.owner);
    let gone = owners.filter(|owner| owner.starts_with("named/") && !held.contains(owner));
    release(app, window, gone.collect()).await;
    Ok(())
}

/// Removes what only purged conversations and prompt caches held.
pub(crate) async fn release_purged(app: &App) {
    let Some(window) = app.engine.cache() else { return };
    let owners = app.store.purged_owners().await.unwrap_or_default();
    release(app, window, owners).await;
}

/// Lets go of what these owners hold, which may remove thousands of files.
pub(crate) async fn release(app: &App, window: &CacheHandle, owners: Vec<String>) {
    let window = window.clone();
    let release_all = move || {
        for owner in owners {
            window.release(&owner);
        }
    };
    app.blocking(release_all).await;
}
