//! Stores the work of requests that have ended.

use std::sync::Arc;

use cairn_engine::RequestWork;
use cairn_store::{Store, StoreError, Work};

use crate::app::App;
use crate::clock::now_ms;

/// More than this many requests are not kept in memory while the database cannot be written.
const MAX_PENDING: usize = 10_000;

/// Stores the work of each request soon after its end, until the app closes.
pub(crate) async fn record(app: Arc<App>) {
    loop {
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = app.work.added() => write_pending(&app).await,
        }
    }
}

/// Stores the work of all requests that have ended by now. Work that cannot be stored is tried
/// again with the next.
pub(crate) async fn write_pending(app: &App) {
    let _writing = app.recording.lock().await;
    let (mut private, mut all) = (Vec::new(), Vec::new());
    for work in app.work.take() {
        let conversation = work.work_for.conversation.as_deref();
        let is_private = match conversation {
            Some(id) => app.is_private(id).await,
            None => false,
        };
        if is_private { private.push(work) } else { all.push(work) }
    }
    let stores = [Some((&app.store, all)), app.private.get().map(|store| (store, private))];
    for (store, mut work) in stores.into_iter().flatten() {
        if let Err(error) = write(store, &work).await {
            tracing::warn!("the work of {} requests is not stored yet: {error}", work.len());
            work.truncate(MAX_PENDING);
            app.work.put_back(work);
        }
    }
}

async fn write(store: &Store, work: &[RequestWork]) -> Result<(), StoreError> {
    if work.is_empty() {
        return Ok(());
    }
    let at_ms = now_ms();
    let rows: Vec<Work> = work.iter().map(|work| row(work, at_ms)).collect();
    store.add_work(&rows, at_ms).await
}

fn row(work: &RequestWork, at_ms: i64) -> Work {
    let RequestWork { work_for, cached_from, .. } = work;
    Work {
        at_ms,
        kind: work_for.kind.name().to_owned(),
        model: work.model.clone(),
        conversation_id: work_for.conversation.clone(),
        message_id: work_for.message.clone(),
        num_read_tokens: work.num_read_tokens,
        num_in_memory_tokens: cached_from.num_in_memory as u64,
        num_restored_tokens: cached_from.num_restored as u64,
        num_shared_tokens: cached_from.num_shared as u64,
        num_written_tokens: work.num_written_tokens,
        first_token_ms: work.first_token_ms,
    }
}
