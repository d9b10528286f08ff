//! Search over all chats, and opening one at a message.

use std::sync::Arc;
use std::time::Duration;

use cairn_store::DocumentIndexer;

use crate::app::App;
use crate::chat::branches;
use crate::clock::now_ms;
use crate::convert;
use crate::wire::{Command, Failure, Reply};

/// More than a person looks through.
const MAX_FOUND: usize = 30;
/// Between two parts of older messages, so that indexing takes a part of the disk's time only.
const PAUSE: Duration = Duration::from_millis(20);
/// Before the next try where a part could not be saved.
const RETRY: Duration = Duration::from_secs(60);

pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::SearchMessages { text } => {
            let found = app.store.search_messages(&text, MAX_FOUND, now_ms()).await?;
            let found = found.into_iter().map(convert::found).collect();
            Ok(Reply::FoundMessages { found, indexed_share: app.store.indexed_share().await? })
        }
        Command::ShowMessage { conversation_id, message_id } => {
            branches::show(app, &conversation_id, &message_id).await?;
            let (conversation, messages) = branches::conversation(app, &conversation_id).await?;
            Ok(Reply::Conversation { conversation, messages })
        }
        _ => Err(Failure::invalid("This command is run elsewhere.")),
    }
}

/// Indexes the messages of an earlier version for search, until that is done or the app closes.
pub(crate) async fn index_older(app: Arc<App>) {
    loop {
        let pause = match app.store.index_older().await {
            Ok(share) if share >= 1.0 => return,
            Ok(_) => PAUSE,
            Err(error) => {
                tracing::warn!("older chats are not indexed for search yet: {error}");
                RETRY
            }
        };
        if !app.is_open_after(pause).await {
            return;
        }
    }
}

/// Indexes documents for search as they come, until the app closes.
pub(crate) async fn index_documents(app: Arc<App>) {
    let mut indexer = DocumentIndexer::new(&app.store);
    loop {
        let next = indexer.index_part().await;
        let pause = async {
            match next {
                Ok(true) => tokio::time::sleep(PAUSE).await,
                Ok(false) => app.store.documents_added().await,
                Err(error) => {
                    tracing::warn!("documents are not indexed for search yet: {error}");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        tokio::select! {
            () = app.closing.cancelled() => return,
            () = pause => {}
        }
    }
}
