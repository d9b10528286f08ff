//! The folder_documents table: files that the conversations of a folder begin with, as text. A
//! conversation begins with those that its folder has when its first question is asked, and keeps them.

use sqlx::Row;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, FromRow};

use crate::documents::read_new_document;
use crate::error::{no_document, no_folder};
use crate::new_id;
use crate::{Document, NewDocument, Store, StoreError};

/// The columns of a [`Document`].
const COLUMNS: &str = "id, name, kind, num_bytes, num_tokens, counted_by, created_at_ms";

/// The documents that the conversation `?1` begins with. One without a message, which has not begun,
/// has those of its folder; one that begins with a named prompt cache has none.
const BEGINNING: &str = "from folder_documents where case
        when exists (select 1 from messages where conversation_id = ?1)
        then id in (select document_id from conversation_documents where conversation_id = ?1)
        else removed_by_run_id is null and folder_id = (
            select folders.id from conversations join folders on folders.id = folder_id
            where conversations.id = ?1 and prefix_named_id is null and folders.deleted_at_ms is null)
    end order by seq";

impl Store {
    /// Adds documents to a folder, behind those that are there.
    pub async fn add_folder_documents(
        &self,
        folder_id: &str,
        documents: &[NewDocument],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let is_there: bool = sqlx::query_scalar(
            "select exists (select 1 from folders where id = ? and deleted_at_ms is null)",
        )
        .bind(folder_id)
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        if !is_there {
            return Err(no_folder(folder_id));
        }
        for document in documents {
            insert(&mut tx, Some(folder_id), document, now_ms)
                .await
                .map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await?;
        self.new_documents.notify_one();
        Ok(())
    }

    /// The documents of a folder, in the order in which they were added.
    pub async fn folder_documents(&self, folder_id: &str) -> Result<Vec<Document>, StoreError> {
        let select = format!(
            "select {COLUMNS} from folder_documents
             where folder_id = ? and removed_by_run_id is null order by seq"
        );
        let rows = sqlx::query_as(AssertSqlSafe(select)).bind(folder_id);
        rows.fetch_all(&self.readers).await.map_err(|error| self.failed(error))
    }

    /// As [`Store::folder_documents`], with their texts.
    pub async fn folder_texts(
        &self,
        folder_id: &str,
    ) -> Result<Vec<(Document, String)>, StoreError> {
        let select = format!(
            "select {COLUMNS}, text from folder_documents
             where folder_id = ? and removed_by_run_id is null order by seq"
        );
        self.texts(select, folder_id).await
    }

    /// Takes a document out of its folder, until [`Store::restore_folder_document`] or until this
    /// program has closed the database. Conversations that have begun with it keep it.
    pub async fn remove_folder_document(
        &self,
        folder_id: &str,
        id: &str,
    ) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update folder_documents set removed_by_run_id = ?
             where id = ? and folder_id = ? and removed_by_run_id is null",
        );
        let change = change.bind(&self.run.id).bind(id).bind(folder_id);
        self.change_row(change, || no_document(id)).await
    }

    /// Undoes [`Store::remove_folder_document`].
    pub async fn restore_folder_document(
        &self,
        folder_id: &str,
        id: &str,
    ) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update folder_documents set removed_by_run_id = null
             where id = ? and folder_id = ? and removed_by_run_id is not null",
        );
        self.change_row(change.bind(id).bind(folder_id), || no_document(id)).await
    }

    /// One document that a folder or a conversation has at its beginning, and its text.
    pub async fn folder_document(&self, id: &str) -> Result<(Document, String), StoreError> {
        let select = format!("select {COLUMNS}, text from folder_documents where id = ?");
        let row = sqlx::query(AssertSqlSafe(select)).bind(id).fetch_optional(&self.readers).await;
        let row = row.map_err(|error| self.failed(error))?.ok_or_else(|| no_document(id))?;
        let read = || Ok((Document::from_row(&row)?, row.try_get("text")?));
        read().map_err(|error| self.failed(error))
    }

    /// Saves how many tokens a document of a folder has for a model.
    pub async fn set_folder_document_tokens(
        &self,
        id: &str,
        num_tokens: i64,
        model: &str,
    ) -> Result<(), StoreError> {
        let change =
            sqlx::query("update folder_documents set num_tokens = ?, counted_by = ? where id = ?");
        self.change_row(change.bind(num_tokens).bind(model).bind(id), || no_document(id)).await
    }

    /// The documents that a conversation begins with: those of its folder, as they were when its first
    /// question was asked.
    pub async fn beginning_documents(
        &self,
        conversation_id: &str,
    ) -> Result<Vec<Document>, StoreError> {
        let rows = sqlx::query_as(AssertSqlSafe(format!("select {COLUMNS} {BEGINNING}")));
        let rows = rows.bind(conversation_id).fetch_all(&self.readers).await;
        rows.map_err(|error| self.failed(error))
    }

    /// As [`Store::beginning_documents`], as they were added.
    pub async fn beginning_texts(
        &self,
        conversation_id: &str,
    ) -> Result<Vec<NewDocument>, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(format!("select name, kind, text {BEGINNING}")));
        let rows = rows.bind(conversation_id).fetch_all(&self.readers).await;
        let rows = rows.map_err(|error| self.failed(error))?;
        rows.iter()
            .map(read_new_document)
            .collect::<Result<_, _>>()
            .map_err(|error| self.failed(error))
    }

    /// The conversations in a folder that have not begun: what the folder has is theirs.
    pub async fn conversations_not_begun(
        &self,
        folder_id: &str,
    ) -> Result<Vec<String>, StoreError> {
        sqlx::query_scalar(
            "select id from conversations where folder_id = ? and deleted_at_ms is null
                 and not exists (select 1 from messages where conversation_id = conversations.id)",
        )
        .bind(folder_id)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// Lets a conversation keep what it begins with, if it has no message yet.
    pub(crate) async fn begin_with_folder(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
    ) -> Result<(), StoreError> {
        // Rows of an earlier beginning, whose messages have all been deleted, go.
        for statement in [
            "delete from conversation_documents where conversation_id = ?1
                 and not exists (select 1 from messages where conversation_id = ?1)"
                .to_owned(),
            format!(
                "insert or ignore into conversation_documents (conversation_id, document_id)
                 select ?1, id {BEGINNING}"
            ),
        ] {
            let done = sqlx::query(AssertSqlSafe(statement)).bind(conversation_id);
            done.execute(&mut *tx).await.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }
}

/// Lets a conversation begin with a document that comes from elsewhere, behind those it begins with
/// already. One with the same name and text that no folder has is shared, because a file has it once
/// for each of its conversations: if it stands behind them too.
pub(crate) async fn insert_beginning_document(
    tx: &mut SqliteConnection,
    conversation_id: &str,
    document: &NewDocument,
    now_ms: i64,
) -> Result<(), sqlx::Error> {
    let known: Option<String> = sqlx::query_scalar(
        "select id from folder_documents where folder_id is null and num_bytes = ? and name = ?
             and kind = ? and text = ? and seq > (
                 select coalesce(max(last.seq), 0) from conversation_documents
                 join folder_documents as last on last.id = document_id where conversation_id = ?)
         order by seq limit 1",
    )
    .bind(i64::try_from(document.text.len()).unwrap_or(i64::MAX))
    .bind(&document.name)
    .bind(document.kind.as_str())
    .bind(&document.text)
    .bind(conversation_id)
    .fetch_optional(&mut *tx)
    .await?;
    let id = match known {
        Some(id) => id,
        None => insert(tx, None, document, now_ms).await?,
    };
    sqlx::query("insert into conversation_documents (conversation_id, document_id) values (?, ?)")
        .bind(conversation_id)
        .bind(&id)
        .execute(tx)
        .await
        .map(drop)
}

/// Removes for good the documents that a run has removed from folders; conversations that have begun
/// with them keep them.
pub(crate) async fn purge_folder_documents(
    tx: &mut SqliteConnection,
    run: &str,
) -> Result<(), sqlx::Error> {
    let purge = sqlx::query(
        "update folder_documents set folder_id = null, removed_by_run_id = null
         where removed_by_run_id = ?",
    );
    purge.bind(run).execute(tx).await.map(drop)
}

async fn insert(
    tx: &mut SqliteConnection,
    folder_id: Option<&str>,
    document: &NewDocument,
    now_ms: i64,
) -> Result<String, sqlx::Error> {
    let id = new_id().to_string();
    sqlx::query(
        "insert into folder_documents (id, folder_id, name, kind, num_bytes, created_at_ms, text)
         values (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&id)
    .bind(folder_id)
    .bind(&document.name)
    .bind(document.kind.as_str())
    .bind(i64::try_from(document.text.len()).unwrap_or(i64::MAX))
    .bind(now_ms)
    .bind(&document.text)
    .execute(tx)
    .await?;
    Ok(id)
}
