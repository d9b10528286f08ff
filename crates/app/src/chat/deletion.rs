//! Purges deleted conversations: when a deletion can no longer be undone, their rows are removed, and
//! the saved context that no other conversation uses.

use std::sync::Arc;
use std::time::Duration;

use crate::app::App;
use crate::cache::follow;
use crate::cache::owners::conversation_owner;

/// How long a deletion can be undone. Interfaces offer that for some seconds.
pub(crate) const UNDO_LIMIT: Duration = Duration::from_secs(600);

/// Purges a conversation that was deleted at `deleted_at_ms` after `undo_limit`, unless it is
/// restored before. If the app closes first, closing purges it.
pub(crate) async fn purge_later(
    app: Arc<App>,
    id: String,
    deleted_at_ms: i64,
    undo_limit: Duration,
) {
    tokio::select! {
        () = app.closing.cancelled() => return,
        () = tokio::time::sleep(undo_limit) => {}
    }
    // Locked so that no answer of it begins meanwhile.
    let _turn = app.turns.lock().await;
    match app.store_of(&id).await.purge_conversation(&id, deleted_at_ms).await {
        Ok(true) => {}
        // Restored, or deleted again, which has a task of its own.
        Ok(false) => return,
        Err(error) => {
            tracing::warn!("a deleted conversation stays until the next start: {error}");
            return;
        }
    }
    if let Some(cache) = app.engine.cache() {
        follow::release(&app, cache, vec![conversation_owner(&id)]).await;
    }
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
    use crate::app::Options;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_deletion_that_was_not_undone_in_time_is_final() {
        let home = tempfile::tempdir().unwrap();
        let options = Options::new(DataFolder::new(home.path()));
        let app = App::open(options).await.unwrap();
        let store = app.store.clone();
        let id = store.create_conversation(1).await.unwrap().id;
        store.delete_conversation(&id, 5).await.unwrap();
        store.restore_conversation(&id).await.unwrap();
        purge_later(app.clone(), id.clone(), 5, Duration::ZERO).await;
        assert!(store.conversation(&id).await.unwrap().is_some(), "it was restored");
        store.delete_conversation(&id, 6).await.unwrap();
        purge_later(app.clone(), id.clone(), 6, Duration::ZERO).await;
        assert!(store.conversation(&id).await.unwrap().is_none());
        app.close().await;
    }
}
