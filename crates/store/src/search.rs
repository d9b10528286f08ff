//! Conversations that have a text in their title or in one of their messages.

use crate::{Store, StoreError};

impl Store {
    /// The ids of the conversations that are not deleted, have messages, and have `text` in their title
    /// or in a message of any branch; the one with the newest turn first. An empty text finds all. Only
    /// letters of the English alphabet are found in either case. Every message is read.
    pub async fn search_conversations(&self, text: &str) -> Result<Vec<String>, StoreError> {
        sqlx::query_scalar(
            "select id from conversations
             where deleted_at_ms is null and leaf_message_id is not null and (
                 title like ?1 escape '\\' or exists (
                     select 1 from messages where conversation_id = conversations.id and deletion_id is null and text like ?1 escape '\\'))
             order by activity_seq desc",
        )
        .bind(containing(text))
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }
}

/// The pattern of texts that contain `text`, in which a backslash takes its meaning from what follows.
fn containing(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
    format!("%{escaped}%")
}
