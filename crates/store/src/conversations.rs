//! The conversations table: what stands in the list, and where each conversation's branch ends.

use sqlx::sqlite::SqliteQueryResult;
use uuid::Uuid;

use crate::{Store, StoreError};

/// A conversation, without its messages.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Conversation {
    /// UUID v7.
    pub id: String,
    /// Empty until the first message names it.
    pub title: String,
    /// Empty when there is none.
    pub system_prompt: String,
    /// The last message of the current branch; none before the first.
    pub leaf_message_id: Option<String>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// When a turn was last begun, in milliseconds since the Unix epoch.
    pub updated_at_ms: i64,
    /// Set while the deletion can still be undone.
    pub deleted_at_ms: Option<i64>,
}

impl Store {
    /// Makes an empty conversation.
    pub async fn create_conversation(&self, now_ms: i64) -> Result<Conversation, StoreError> {
        let conversation = Conversation {
            id: Uuid::now_v7().to_string(),
            title: String::new(),
            system_prompt: String::new(),
            leaf_message_id: None,
            created_at_ms: now_ms,
            updated_at_ms: now_ms,
            deleted_at_ms: None,
        };
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into conversations (id, title, system_prompt, activity_seq, created_at_ms, updated_at_ms)
             values (?, '', '', (select coalesce(max(activity_seq), 0) + 1 from conversations), ?, ?)",
        )
        .bind(&conversation.id)
        .bind(now_ms)
        .bind(now_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        Ok(conversation)
    }

    /// The conversations that are not deleted, the one with the newest turn first.
    pub async fn conversations(&self) -> Result<Vec<Conversation>, StoreError> {
        sqlx::query_as(
            "select id, title, system_prompt, leaf_message_id, created_at_ms, updated_at_ms, deleted_at_ms
             from conversations where deleted_at_ms is null order by activity_seq desc",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// One conversation, also when it is deleted but not purged yet.
    pub async fn conversation(&self, id: &str) -> Result<Option<Conversation>, StoreError> {
        sqlx::query_as(
            "select id, title, system_prompt, leaf_message_id, created_at_ms, updated_at_ms, deleted_at_ms
             from conversations where id = ?",
        )
        .bind(id)
        .fetch_optional(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// Sets the title, verbatim. With an empty one the next turn names the conversation again.
    pub async fn rename_conversation(&self, id: &str, title: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query("update conversations set title = ? where id = ?").bind(title).bind(id).execute(&mut *tx).await;
        self.one_conversation(done, id)?;
        self.commit(tx).await
    }

    /// Sets the system prompt, verbatim.
    pub async fn set_system_prompt(&self, id: &str, system_prompt: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let done =
            sqlx::query("update conversations set system_prompt = ? where id = ?").bind(system_prompt).bind(id).execute(&mut *tx).await;
        self.one_conversation(done, id)?;
        self.commit(tx).await
    }

    /// Takes a conversation out of the list. It is purged when the file is opened after this program has closed it; until then
    /// [`Store::restore_conversation`] brings it back. Deleting it again changes nothing.
    pub async fn delete_conversation(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "update conversations set
                 deleted_at_ms = coalesce(deleted_at_ms, ?), deleted_by_run_id = coalesce(deleted_by_run_id, ?)
             where id = ?",
        )
        .bind(now_ms)
        .bind(&self.run.id)
        .bind(id)
        .execute(&mut *tx)
        .await;
        self.one_conversation(done, id)?;
        self.commit(tx).await
    }

    /// Undoes [`Store::delete_conversation`]; the conversation stands where it stood in the list.
    pub async fn restore_conversation(&self, id: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query("update conversations set deleted_at_ms = null, deleted_by_run_id = null where id = ?")
            .bind(id)
            .execute(&mut *tx)
            .await;
        self.one_conversation(done, id)?;
        self.commit(tx).await
    }

    fn one_conversation(&self, done: Result<SqliteQueryResult, sqlx::Error>, id: &str) -> Result<(), StoreError> {
        match done.map_err(|error| self.failed(error))?.rows_affected() {
            0 => Err(StoreError::NoConversation { id: id.to_owned() }),
            _ => Ok(()),
        }
    }
}
