//! Changes of the list of conversations: deletes, restores, archives and moves any number of them, each in
//! one transaction and with one event.

use std::collections::HashSet;
use std::sync::Arc;

use cairn_store::{Store, StoreError};

use super::deletion;
use super::running::stop_answers;
use crate::app::App;
use crate::cache::saved;
use crate::chat::listed;
use crate::clock::now_ms;
use crate::convert;
use crate::documents::commands as documents;
use crate::models::of_chats;
use crate::undo::UNDO_LIMIT;
use crate::wire::{
    ChatModel, Command, Conversation, DocumentsOf, Event, Failure, FailureKind, Reply,
};

pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::DeleteConversations { ids } => delete(app, ids).await,
        Command::RestoreConversations { ids } => {
            let restored = set_deleted(app, &ids, None).await?;
            emit(app, &restored).await
        }
        Command::ArchiveConversations { ids, is_archived } => {
            refuse_any_private(app, &ids).await?;
            let at_ms = is_archived.then(now_ms);
            app.store.set_conversations_archived(&ids, at_ms).await?;
            emit(app, &ids).await
        }
        Command::MoveConversations { ids, folder_id } => {
            refuse_any_private(app, &ids).await?;
            app.store.move_conversations(&ids, folder_id.as_deref()).await?;
            for id in &without_messages(app, &ids).await? {
                documents::moved(app, id).await;
            }
            emit(app, &ids).await
        }
        _ => Err(Failure::invalid("This command is run elsewhere.")),
    }
}

/// The private conversations, and after them all others.
pub(crate) async fn all(app: &App) -> Result<Vec<Conversation>, Failure> {
    let mut all = Vec::new();
    if let Some(private) = app.private.get() {
        for row in private.conversations().await? {
            all.push(listed::described(app, row).await);
        }
    }
    let rows = app.store.conversations().await?;
    let mut caches = saved::of_conversations(&app.engine, &app.store, &rows).await;
    let models = of_chats::of_rows(app, &rows).await;
    let convert = |(row, model): (cairn_store::Conversation, ChatModel)| {
        let (is_streaming, cache) = (app.answers.is_streaming(&row.id), caches.remove(&row.id));
        convert::conversation(row, model, is_streaming, cache)
    };
    all.extend(rows.into_iter().zip(models).map(convert));
    Ok(all)
}

async fn delete(app: &Arc<App>, ids: Vec<String>) -> Result<Reply, Failure> {
    let _turn = app.turns.lock().await;
    for id in &ids {
        app.readings.forget(Some(&DocumentsOf::conversation(id)));
    }
    let answers: Vec<_> = ids.iter().flat_map(|id| app.answers.of(id)).collect();
    stop_answers(&answers).await;
    let now_ms = now_ms();
    let ids = set_deleted(app, &ids, Some(now_ms)).await?;
    app.spawn(deletion::purge_later(app.clone(), ids.clone(), now_ms, UNDO_LIMIT));
    app.emit(Event::ConversationsDeleted { ids });
    Ok(Reply::Done)
}

/// Deletes conversations, or restores them without a time; returns those that a store has changed. Fails if
/// none has, or the disk: the store in memory comes after it.
async fn set_deleted(
    app: &App,
    ids: &[String],
    deleted_at_ms: Option<i64>,
) -> Result<Vec<String>, Failure> {
    let (mut changed, mut missing) = (Vec::new(), None);
    for (store, ids) in by_store(app, ids).await {
        let done = match deleted_at_ms {
            Some(at_ms) => store.delete_conversations(&ids, at_ms).await,
            None => store.restore_conversations(&ids).await,
        };
        match done {
            Ok(()) => changed.extend(ids.into_iter().cloned()),
            Err(error @ StoreError::NoConversation { .. }) => missing = Some(error),
            Err(error) if changed.is_empty() => return Err(error.into()),
            Err(error) => tracing::warn!("private conversations are not changed: {error}"),
        }
    }
    match missing {
        Some(error) if changed.is_empty() => Err(error.into()),
        _ => Ok(changed),
    }
}

/// Conversations by the store that has their rows, the one on disk first: private ones are only in memory.
async fn by_store<'a>(app: &'a App, ids: &'a [String]) -> Vec<(&'a Store, Vec<&'a String>)> {
    let Some(private_store) = app.private.get() else {
        return vec![(&app.store, ids.iter().collect())];
    };
    let (mut private, mut others) = (Vec::new(), Vec::new());
    for id in ids {
        match app.is_private(id).await {
            true => private.push(id),
            false => others.push(id),
        }
    }
    let mut all: Vec<(&Store, _)> = vec![(&app.store, others), (private_store, private)];
    all.retain(|(_, ids)| !ids.is_empty());
    all
}

async fn refuse_any_private(app: &App, ids: &[String]) -> Result<(), Failure> {
    for id in ids {
        refuse_private(app, id).await?;
    }
    Ok(())
}

/// Those in which nothing was sent: only these begin with other documents in another folder.
async fn without_messages(app: &App, ids: &[String]) -> Result<Vec<String>, Failure> {
    let wanted: HashSet<&String> = ids.iter().collect();
    let rows = app.store.conversations().await?.into_iter();
    let is_empty = |row: &cairn_store::Conversation| row.leaf_message_id.is_none();
    Ok(rows.filter(|row| wanted.contains(&row.id) && is_empty(row)).map(|row| row.id).collect())
}

/// Sends changed rows: the change itself has succeeded.
async fn emit(app: &App, ids: &[String]) -> Result<Reply, Failure> {
    if let [id] = ids {
        listed::emit(app, id).await;
        return Ok(Reply::Done);
    }
    let wanted: HashSet<&String> = ids.iter().collect();
    match all(app).await {
        Ok(mut conversations) => {
            conversations.retain(|row| wanted.contains(&row.id));
            app.emit(Event::Conversations { conversations });
        }
        Err(error) => tracing::debug!("changed conversations are not sent: {}", error.message),
    }
    Ok(Reply::Done)
}

/// Refuses a conversation that exists only in memory.
pub(crate) async fn refuse_private(app: &App, id: &str) -> Result<(), Failure> {
    match app.is_private(id).await {
        true => Err(Failure::invalid("Nothing of a private chat is saved.")
            .of_kind(FailureKind::PrivateChat)),
        false => Ok(()),
    }
}
