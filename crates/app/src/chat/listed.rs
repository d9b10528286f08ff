//! Conversations as the list of interfaces has them.

use cairn_store::StoreError;

use crate::app::App;
use crate::cache::saved;
use crate::convert;
use crate::models::of_chats;
use crate::wire::{Conversation, Event};

/// Sends a conversation's row as it is now. Fails if it is gone or cannot be read.
pub(crate) async fn refresh(app: &App, id: &str) -> Result<(), StoreError> {
    let row = app.store_of(id).await.listed_conversation(id).await?;
    let conversation = described(app, row).await;
    app.emit(Event::Conversation { conversation });
    Ok(())
}

/// Sends a conversation's row after a change, unless it is gone or cannot be read: the change
/// itself has succeeded.
pub(crate) async fn emit(app: &App, id: &str) {
    if let Err(error) = refresh(app, id).await {
        tracing::debug!(%error, "a changed conversation is not sent");
    }
}

/// A conversation's row with its saved context.
pub(crate) async fn described(app: &App, row: cairn_store::Conversation) -> Conversation {
    let cache = saved::of_conversation(&app.engine, &app.store, &row).await;
    let model = of_chats::of_row(app, &row).await;
    let (is_streaming, is_private) =
        (app.answers.is_streaming(&row.id), app.is_private(&row.id).await);
    Conversation { is_private, ..convert::conversation(row, model, is_streaming, cache) }
}
