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
    let (private, other): (Vec<_>, Vec<_>) =
        app.work.take().into_iter().partition(|work| work.work_for.is_private);
    let stores = [Some((&app.store, other)), app.private.get().map(|store| (store, private))];
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_engine::{WorkFor, WorkKind};

    use super::*;
    use crate::wire::{Command, Reply};
    use crate::{DataFolder, Options};

    #[tokio::test(flavor = "multi_thread")]
    async fn keeps_work_of_purged_private_chat_in_memory() {
        let home = tempfile::tempdir().unwrap();
        let app = App::open(Options::new(DataFolder::new(home.path()))).await.unwrap();
        let created = app.call(Command::NewPrivateConversation).await.unwrap();
        let Reply::Conversation { conversation, .. } = created else { panic!("{created:?}") };
        let private = app.private.get().unwrap();
        let id = conversation.id;
        private.delete_conversations(std::slice::from_ref(&id), 1).await.unwrap();
        private.purge_deleted().await.unwrap();
        let work_for = |is_private| WorkFor {
            message: Some("message".to_owned()),
            ..WorkFor::conversation(WorkKind::Answer, &id, is_private)
        };
        let work = |is_private| RequestWork {
            work_for: work_for(is_private),
            model: if is_private { "private" } else { "other" }.to_owned(),
            num_read_tokens: 1,
            cached_from: Default::default(),
            num_written_tokens: 1,
            first_token_ms: None,
        };
        app.work.put_back(vec![work(true), work(false)]);
        write_pending(&app).await;
        let models = async |store: &Store| -> Vec<String> {
            let sums = store.work_sums(0, i64::MAX).await.unwrap();
            sums.into_iter().map(|sums| sums.model).collect()
        };
        assert_eq!(models(&app.store).await, ["other"]);
        assert_eq!(models(private).await, ["private"]);
        app.close().await;
    }
}
