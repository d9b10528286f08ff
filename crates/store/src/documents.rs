//! The documents table: files that stand before a question, as text. They are in the draft of their
//! conversation until a message is sent with them.

use std::collections::{BTreeSet, HashMap};

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row};

use crate::error::{no_conversation, no_document, unknown};
use crate::new_id;
use crate::{Store, StoreError};

/// What a document was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// Plain text.
    Text,
    /// Source code, and data in a form for programs.
    Code,
    /// Markdown.
    Markdown,
    /// A table as text.
    Csv,
    /// A web page; its text.
    Html,
    /// A PDF; its text.
    Pdf,
}

impl DocumentKind {
    const ALL: [DocumentKind; 6] = [
        DocumentKind::Text,
        DocumentKind::Code,
        DocumentKind::Markdown,
        DocumentKind::Csv,
        DocumentKind::Html,
        DocumentKind::Pdf,
    ];

    /// The name in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            DocumentKind::Text => "text",
            DocumentKind::Code => "code",
            DocumentKind::Markdown => "markdown",
            DocumentKind::Csv => "csv",
            DocumentKind::Html => "html",
            DocumentKind::Pdf => "pdf",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<DocumentKind> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// A document that is to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDocument {
    /// The name of its file.
    pub name: String,
    /// What it was made of.
    pub kind: DocumentKind,
    /// Its text, verbatim.
    pub text: String,
}

/// A document without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// UUID v7.
    pub id: String,
    /// The name of its file.
    pub name: String,
    /// What it was made of.
    pub kind: DocumentKind,
    /// The length of its text in bytes.
    pub num_bytes: i64,
    /// How many tokens it has, and the name of the model for which that was counted.
    pub counted: Option<(i64, String)>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

impl FromRow<'_, SqliteRow> for Document {
    fn from_row(row: &SqliteRow) -> Result<Document, sqlx::Error> {
        let kind: &str = row.try_get("kind")?;
        let (num_tokens, counted_by): (Option<i64>, Option<String>) =
            (row.try_get("num_tokens")?, row.try_get("counted_by")?);
        Ok(Document {
            kind: DocumentKind::named(kind).ok_or_else(|| unknown("kind of document", kind))?,
            id: row.try_get("id")?,
            name: row.try_get("name")?,
            num_bytes: row.try_get("num_bytes")?,
            counted: num_tokens.zip(counted_by),
            created_at_ms: row.try_get("created_at_ms")?,
        })
    }
}

/// The columns of a [`Document`].
const COLUMNS: &str =
    "documents.id, name, kind, num_bytes, num_tokens, counted_by, documents.created_at_ms";

impl Store {
    /// Adds documents to the draft of a conversation, behind those that are there.
    pub async fn add_draft_documents(
        &self,
        conversation_id: &str,
        documents: &[NewDocument],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let is_there: bool = sqlx::query_scalar(
            "select exists (select 1 from conversations where id = ? and deleted_at_ms is null)",
        )
        .bind(conversation_id)
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        if !is_there {
            return Err(no_conversation(conversation_id));
        }
        for document in documents {
            insert_document(&mut tx, conversation_id, document, "draft", now_ms)
                .await
                .map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await?;
        self.new_documents.notify_one();
        Ok(())
    }

    /// The documents in the draft of a conversation, in the order in which they were added.
    pub async fn draft_documents(
        &self,
        conversation_id: &str,
    ) -> Result<Vec<Document>, StoreError> {
        let select = format!(
            "select {COLUMNS} from documents where conversation_id = ? and state = 'draft' order by seq"
        );
        sqlx::query_as(sqlx::AssertSqlSafe(select))
            .bind(conversation_id)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// The documents in the draft of a conversation with their texts, as [`Store::draft_documents`].
    pub async fn draft_texts(
        &self,
        conversation_id: &str,
    ) -> Result<Vec<(Document, String)>, StoreError> {
        let select = format!(
            "select {COLUMNS}, text from documents
             where conversation_id = ? and state = 'draft' order by seq"
        );
        self.texts(select, conversation_id).await
    }

    /// The documents that `select` finds with this id bound, and their texts.
    pub(crate) async fn texts(
        &self,
        select: String,
        id: &str,
    ) -> Result<Vec<(Document, String)>, StoreError> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(select)).bind(id).fetch_all(&self.readers).await;
        let rows = rows.map_err(|error| self.failed(error))?;
        let read = |row: &SqliteRow| Ok((Document::from_row(row)?, row.try_get("text")?));
        rows.iter().map(read).collect::<Result<_, _>>().map_err(|error| self.failed(error))
    }

    /// Takes a document out of the draft of its conversation, until
    /// [`Store::restore_draft_document`] or until this program has closed the database.
    pub async fn remove_draft_document(&self, id: &str) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update documents set state = 'removed', removed_by_run_id = ? where id = ? and state = 'draft'",
        );
        self.change_row(change.bind(&self.run.id).bind(id), || no_document(id)).await
    }

    /// Undoes [`Store::remove_draft_document`].
    pub async fn restore_draft_document(&self, id: &str) -> Result<(), StoreError> {
        let change = sqlx::query(
            "update documents set state = 'draft', removed_by_run_id = null where id = ? and state = 'removed'",
        );
        self.change_row(change.bind(id), || no_document(id)).await
    }

    /// One document, also when it was removed, and its text.
    pub async fn document(&self, id: &str) -> Result<(Document, String), StoreError> {
        let select = format!("select {COLUMNS}, text from documents where id = ?");
        let row = sqlx::query(sqlx::AssertSqlSafe(select))
            .bind(id)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))?
            .ok_or_else(|| no_document(id))?;
        let read = || Ok((Document::from_row(&row)?, row.try_get("text")?));
        read().map_err(|error| self.failed(error))
    }

    /// Saves how many tokens a document has for a model.
    pub async fn set_document_tokens(
        &self,
        id: &str,
        num_tokens: i64,
        model: &str,
    ) -> Result<(), StoreError> {
        let change =
            sqlx::query("update documents set num_tokens = ?, counted_by = ? where id = ?");
        self.change_row(change.bind(num_tokens).bind(model).bind(id), || no_document(id)).await
    }

    /// The documents of a conversation's messages, of all branches, by the message.
    pub async fn documents_of(
        &self,
        conversation_id: &str,
    ) -> Result<HashMap<String, Vec<Document>>, StoreError> {
        let select = format!(
            "select message_id, {COLUMNS} from documents
             join message_documents on document_id = documents.id
             where conversation_id = ? and state = 'sent' order by seq"
        );
        self.by_message(&select, conversation_id, |row| Document::from_row(row)).await
    }

    /// The documents of a conversation's messages as they were added, of all branches, by the message.
    pub async fn document_texts_of(
        &self,
        conversation_id: &str,
    ) -> Result<HashMap<String, Vec<NewDocument>>, StoreError> {
        let select = "select message_id, name, kind, text from documents
             join message_documents on document_id = documents.id
             where conversation_id = ? and state = 'sent' order by seq";
        self.by_message(select, conversation_id, read_new_document).await
    }

    async fn by_message<T>(
        &self,
        select: &str,
        conversation_id: &str,
        read: impl Fn(&SqliteRow) -> Result<T, sqlx::Error>,
    ) -> Result<HashMap<String, Vec<T>>, StoreError> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(select.to_owned()))
            .bind(conversation_id)
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))?;
        let mut by_message: HashMap<String, Vec<T>> = HashMap::new();
        for row in &rows {
            let read = || Ok((row.try_get("message_id")?, read(row)?));
            let (message_id, document): (String, T) = read().map_err(|error| self.failed(error))?;
            by_message.entry(message_id).or_default().push(document);
        }
        Ok(by_message)
    }

    /// Gives a message that is being sent documents of the draft, or all of them.
    pub(crate) async fn send_draft_documents(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
        message_id: &str,
        documents: Option<&[String]>,
    ) -> Result<(), StoreError> {
        let ids = documents.and_then(|ids| serde_json::to_string(ids).ok());
        let link = sqlx::query(
            "insert into message_documents (message_id, document_id)
             select ?1, id from documents where conversation_id = ?2 and state = 'draft'
                 and (?3 is null or id in (select value from json_each(?3)))",
        );
        let link = link.bind(message_id).bind(conversation_id).bind(&ids).execute(&mut *tx).await;
        link.map_err(|error| self.failed(error))?;
        let send = sqlx::query(
            "update documents set state = 'sent' where conversation_id = ?1 and state = 'draft'
                 and (?2 is null or id in (select value from json_each(?2)))",
        );
        let sent = send.bind(conversation_id).bind(&ids).execute(tx).await;
        sent.map(drop).map_err(|error| self.failed(error))
    }

    /// Gives a message the documents of another version of it.
    pub(crate) async fn share_documents(
        &self,
        tx: &mut SqliteConnection,
        from_message_id: &str,
        to_message_id: &str,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "insert into message_documents (message_id, document_id)
             select ?, document_id from message_documents where message_id = ?",
        )
        .bind(to_message_id)
        .bind(from_message_id)
        .execute(tx)
        .await
        .map_err(|error| self.failed(error))?;
        Ok(())
    }

    /// Gives a message documents of its conversation: of other messages, or of the draft, which they
    /// leave. One that is neither is an error.
    pub(crate) async fn give_documents(
        &self,
        tx: &mut SqliteConnection,
        conversation_id: &str,
        message_id: &str,
        ids: &[String],
    ) -> Result<(), StoreError> {
        for id in ids.iter().collect::<BTreeSet<_>>() {
            let send = sqlx::query(
                "update documents set state = 'sent'
                 where id = ? and conversation_id = ? and state in ('draft', 'sent')",
            );
            let sent = send.bind(id).bind(conversation_id).execute(&mut *tx).await;
            self.changed_a_row(sent, || no_document(id))?;
            link(tx, message_id, id).await.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// Copies the documents of a message to the copy of it in another conversation.
    pub(crate) async fn copy_documents(
        &self,
        tx: &mut SqliteConnection,
        from_message_id: &str,
        to_conversation_id: &str,
        to_message_id: &str,
    ) -> Result<(), StoreError> {
        let ids: Vec<String> = sqlx::query_scalar(
            "select id from documents join message_documents on document_id = documents.id
             where message_id = ? order by seq",
        )
        .bind(from_message_id)
        .fetch_all(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        for id in ids {
            let copy = new_id().to_string();
            sqlx::query(
                "insert into documents (id, conversation_id, name, kind, state, num_bytes, num_tokens, counted_by, created_at_ms, text)
                 select ?, ?, name, kind, 'sent', num_bytes, num_tokens, counted_by, created_at_ms, text
                 from documents where id = ?",
            )
            .bind(&copy)
            .bind(to_conversation_id)
            .bind(&id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
            link(tx, to_message_id, &copy).await.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }
}

/// A document as it was added.
pub(crate) fn read_new_document(row: &SqliteRow) -> Result<NewDocument, sqlx::Error> {
    let kind: &str = row.try_get("kind")?;
    Ok(NewDocument {
        kind: DocumentKind::named(kind).ok_or_else(|| unknown("kind of document", kind))?,
        name: row.try_get("name")?,
        text: row.try_get("text")?,
    })
}

/// Saves a document of a message that comes from elsewhere.
pub(crate) async fn insert_sent_document(
    tx: &mut SqliteConnection,
    conversation_id: &str,
    message_id: &str,
    document: &NewDocument,
    now_ms: i64,
) -> Result<(), sqlx::Error> {
    let id = insert_document(tx, conversation_id, document, "sent", now_ms).await?;
    link(tx, message_id, &id).await
}

/// Saves a document of a draft that comes from elsewhere.
pub(crate) async fn insert_draft_document(
    tx: &mut SqliteConnection,
    conversation_id: &str,
    document: &NewDocument,
    now_ms: i64,
) -> Result<(), sqlx::Error> {
    insert_document(tx, conversation_id, document, "draft", now_ms).await.map(drop)
}

/// Removes for good the documents that a run has removed from drafts.
pub(crate) async fn purge_documents(
    tx: &mut SqliteConnection,
    run: &str,
) -> Result<(), sqlx::Error> {
    let purge = sqlx::query("delete from documents where removed_by_run_id = ?").bind(run);
    purge.execute(tx).await.map(drop)
}

async fn insert_document(
    tx: &mut SqliteConnection,
    conversation_id: &str,
    document: &NewDocument,
    state: &str,
    now_ms: i64,
) -> Result<String, sqlx::Error> {
    let id = new_id().to_string();
    sqlx::query(
        "insert into documents (id, conversation_id, name, kind, state, num_bytes, created_at_ms, text)
         values (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&id)
    .bind(conversation_id)
    .bind(&document.name)
    .bind(document.kind.as_str())
    .bind(state)
    .bind(i64::try_from(document.text.len()).unwrap_or(i64::MAX))
    .bind(now_ms)
    .bind(&document.text)
    .execute(tx)
    .await?;
    Ok(id)
}

async fn link(
    tx: &mut SqliteConnection,
    message_id: &str,
    document_id: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("insert into message_documents (message_id, document_id) values (?, ?)")
        .bind(message_id)
        .bind(document_id)
        .execute(tx)
        .await
        .map(drop)
}
