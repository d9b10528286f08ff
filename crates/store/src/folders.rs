//! The folders table: folders of conversations, and where in the list a conversation stands.

use crate::deletion::{Deletable, first, json_ids};
use crate::error::{no_conversation, no_folder};
use crate::new_id;
use crate::{Store, StoreError};

/// A folder of conversations.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Folder {
    /// UUID v7.
    pub id: String,
    /// What it is called; two may be called the same.
    pub name: String,
    /// What every conversation that is begun in it begins with; empty when there is none.
    pub system_prompt: String,
    /// The model of conversations that are begun in it; none: the one that is loaded.
    pub model: Option<String>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl Store {
    /// The folders that are not deleted, in the order in which they were made.
    pub async fn folders(&self) -> Result<Vec<Folder>, StoreError> {
        sqlx::query_as(
            "select id, name, system_prompt, model, created_at_ms from folders
             where deleted_at_ms is null order by created_at_ms, id",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// Makes an empty folder.
    pub async fn create_folder(&self, name: &str, now_ms: i64) -> Result<Folder, StoreError> {
        let folder = Folder {
            id: new_id().to_string(),
            name: name.to_owned(),
            system_prompt: String::new(),
            model: None,
            created_at_ms: now_ms,
        };
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into folders (id, name, system_prompt, created_at_ms) values (?, ?, '', ?)",
        )
        .bind(&folder.id)
        .bind(name)
        .bind(now_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        Ok(folder)
    }

    /// Sets the name, the system prompt and the model of a folder.
    pub async fn change_folder(
        &self,
        id: &str,
        name: &str,
        system_prompt: &str,
        model: Option<&str>,
    ) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update folders set name = ?, system_prompt = ?, model = ?
             where id = ? and deleted_at_ms is null",
        );
        let change = change.bind(name).bind(system_prompt).bind(model).bind(id);
        self.change_row(change, || no_folder(id)).await
    }

    /// Removes a folder; its conversations stay, and return into it if [`Store::restore_folder`]
    /// brings it back before this program closes the database.
    pub async fn delete_folder(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.delete_rows(Deletable::Folders, &[id], now_ms).await
    }

    /// Undoes [`Store::delete_folder`].
    pub async fn restore_folder(&self, id: &str) -> Result<(), StoreError> {
        self.restore_rows(Deletable::Folders, &[id]).await
    }

    /// Puts conversations into a folder, or into none. Their system prompts stay. Passes over those that
    /// do not exist; fails if none does.
    pub async fn move_conversations(
        &self,
        ids: &[impl AsRef<str>],
        folder_id: Option<&str>,
    ) -> Result<(), StoreError> {
        if let Some(folder) = folder_id
            && !self.folders().await?.iter().any(|known| known.id == folder)
        {
            return Err(no_folder(folder));
        }
        let change = sqlx::query(
            "update conversations set folder_id = ? where id in (select value from json_each(?))",
        );
        let change = change.bind(folder_id).bind(json_ids(ids));
        self.change_row(change, || no_conversation(first(ids))).await
    }

    /// Lets a conversation stand above the others, or takes that back.
    pub async fn set_conversation_pinned(
        &self,
        id: &str,
        is_pinned: bool,
    ) -> Result<(), StoreError> {
        let change = sqlx::query("update conversations set is_pinned = ? where id = ?")
            .bind(is_pinned)
            .bind(id);
        self.change_row(change, || no_conversation(id)).await
    }

    /// Takes conversations out of the list, where they are still found, or brings them back. Passes over
    /// those that do not exist; fails if none does.
    pub async fn set_conversations_archived(
        &self,
        ids: &[impl AsRef<str>],
        archived_at_ms: Option<i64>,
    ) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update conversations set archived_at_ms = ?
             where id in (select value from json_each(?))",
        );
        let change = change.bind(archived_at_ms).bind(json_ids(ids));
        self.change_row(change, || no_conversation(first(ids))).await
    }
}
