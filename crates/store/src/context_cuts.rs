//! The context_cuts table: messages from which on their branches are read, because what is before them
//! had outgrown the model's context.

use std::collections::HashMap;

use sqlx::SqliteConnection;

use crate::error::no_message;
use crate::{Store, StoreError};

/// What prompts have in the place of the messages before one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextCut {
    /// A text that stands for them; none: nothing does.
    pub summary: Option<String>,
}

impl Store {
    /// The cuts of a conversation, by the message that is read first.
    pub async fn context_cuts(
        &self,
        conversation_id: &str,
    ) -> Result<HashMap<String, ContextCut>, StoreError> {
        let rows: Vec<(String, Option<String>)> = sqlx::query_as(
            "select message_id, summary from context_cuts
             join messages on messages.id = context_cuts.message_id
             where messages.conversation_id = ?",
        )
        .bind(conversation_id)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))?;
        let cut = |(id, summary)| (id, ContextCut { summary });
        Ok(rows.into_iter().map(cut).collect())
    }

    /// Lets branches with a message be read from it on.
    pub async fn cut_context(
        &self,
        message_id: &str,
        cut: &ContextCut,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let change = sqlx::query(
            "insert into context_cuts (message_id, summary, created_at_ms)
             select id, ?, ? from messages where id = ?
             on conflict (message_id) do update set summary = excluded.summary",
        );
        let change = change.bind(&cut.summary).bind(now_ms).bind(message_id);
        self.change_row(change, || no_message(message_id)).await
    }

    /// Lets branches with a message be read from their beginning again, or from an earlier cut. Where
    /// there is no cut nothing changes.
    pub async fn remove_context_cut(&self, message_id: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let remove = sqlx::query("delete from context_cuts where message_id = ?").bind(message_id);
        remove.execute(&mut *tx).await.map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}

/// Saves the cut of a message that comes from elsewhere.
pub(crate) async fn insert_cut(
    tx: &mut SqliteConnection,
    message_id: &str,
    cut: &ContextCut,
    now_ms: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query("insert into context_cuts (message_id, summary, created_at_ms) values (?, ?, ?)")
        .bind(message_id)
        .bind(&cut.summary)
        .bind(now_ms)
        .execute(tx)
        .await
        .map(drop)
}
