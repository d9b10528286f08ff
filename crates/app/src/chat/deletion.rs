//! Purges deleted conversations: when a deletion can no longer be undone, their rows are removed, and
//! the saved context that no other conversation uses.

use std::sync::Arc;
use std::time::Duration;

use cairn_store::StoreError;

use crate::app::App;
use crate::cache::follow;
use crate::cache::owners::conversation_owner;

/// No turn begins while conversations are purged, so there are pauses between so many.
const MAX_PURGED_AT_ONCE: usize = 50;

/// Purges conversations that were deleted at `deleted_at_ms` after `undo_limit`, unless they are
/// restored before. If the app closes first, closing purges them.
pub(crate) async fn purge_later(
    app: Arc<App>,
    ids: Vec<String>,
    deleted_at_ms: i64,
    undo_limit: Duration,
) {
    if !app.is_open_after(undo_limit).await {
        return;
    }
    for some in ids.chunks(MAX_PURGED_AT_ONCE) {
        // Locked so that no answer of them begins meanwhile.
        let _turn = app.turns.lock().await;
        if let Err(error) = purge(&app, some, deleted_at_ms).await {
            tracing::warn!("deleted conversations stay until the next start: {error}");
        }
    }
}

async fn purge(app: &App, ids: &[String], deleted_at_ms: i64) -> Result<(), StoreError> {
    // Those that are not among the purged were restored, or deleted again, which has a task of its own.
    let mut purged = app.store.purge_conversations(ids, deleted_at_ms).await?;
    if let Some(private) = app.private.get() {
        purged.extend(private.purge_conversations(ids, deleted_at_ms).await?);
    }
    if let Some(cache) = app.engine.cache() {
        let owners = purged.iter().map(|id| conversation_owner(id)).collect();
        follow::release(app, cache, owners).await;
    }
    Ok(())
}

/// Purges all deleted conversations. Called when the app closes, while the engine still runs.
pub(crate) async fn purge_all(app: &App) {
    if let Err(error) = app.store.purge_deleted().await {
        tracing::warn!("deleted conversations stay until the next start: {error}");
        return;
    }
    follow::release_purged(app).await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::DataFolder;
    use crate::options::Options;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_deletion_that_was_not_undone_in_time_is_final() {
        let home = tempfile::tempdir().unwrap();
        let options = Options::new(DataFolder::new(home.path()));
        let app = App::open(options).await.unwrap();
        let store = app.store.clone();
        let id = store.create_conversation(1).await.unwrap().id;
        store.delete_conversations(&[&id], 5).await.unwrap();
        store.restore_conversations(&[&id]).await.unwrap();
        purge_later(app.clone(), vec![id.clone()], 5, Duration::ZERO).await;
        assert!(store.conversation(&id).await.unwrap().is_some(), "it was restored");
        store.delete_conversations(&[&id], 6).await.unwrap();
        purge_later(app.clone(), vec![id.clone()], 6, Duration::ZERO).await;
        assert!(store.conversation(&id).await.unwrap().is_none());
        app.close().await;
    }
}
