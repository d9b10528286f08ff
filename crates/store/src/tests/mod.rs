//! Behaviour of the store on real database files in temporary folders, by subject.
#![allow(clippy::unwrap_used)]

mod api_keys;
mod backups;
mod branches;
mod cache_refs;
mod changes;
mod chat_models;
mod conversations;
mod displaced;
mod documents;
mod faults;
mod folder_documents;
mod growth;
mod jobs;
mod monitor;
mod named_caches;
mod opening;
mod per_chat;
mod recovery;
mod savings;
mod search;
mod tables;
mod transfer;
mod turns;
mod work;

use std::path::PathBuf;

use cairn_prompt_cache::Namespace;

use crate::{FinishedMessage, MessageStatus, NamedCacheKind, NamedCacheRow, Store};

/// A temporary folder for one test.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    fn database(&self) -> PathBuf {
        self.0.path().join("cairn.db")
    }

    async fn open(&self) -> Store {
        Store::open(&self.database()).await.unwrap()
    }

    /// Runs a statement as another program would.
    async fn execute(&self, statement: &str) {
        let mut connection = self.connect().await;
        let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()));
        statement.execute(&mut connection).await.unwrap();
    }

    /// The one value that a query finds.
    async fn scalar<T>(&self, select: &'static str) -> T
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        let mut connection = self.connect().await;
        sqlx::query_scalar(select).fetch_one(&mut connection).await.unwrap()
    }

    async fn connect(&self) -> sqlx::SqliteConnection {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.database());
        sqlx::ConnectOptions::connect(&options).await.unwrap()
    }
}

fn finished(status: MessageStatus, text: &str) -> FinishedMessage {
    FinishedMessage {
        status,
        text: text.to_owned(),
        segments: None,
        token_ids: Some(vec![1, 2, 3]),
        error: None,
        error_kind: None,
        stats: None,
        model: None,
    }
}

/// Adds a question and its complete answer.
async fn turn(store: &Store, conversation_id: &str, question: &str, answer: &str) {
    let (user, assistant) = store.begin_turn(conversation_id, question, 10).await.unwrap();
    store
        .finish_turn(&user.id, &[7], &assistant.id, &finished(MessageStatus::Complete, answer))
        .await
        .unwrap();
}

fn named_cache(id: &str, name: &str, last_used_at_ms: i64) -> NamedCacheRow {
    NamedCacheRow {
        id: id.into(),
        name: name.into(),
        model: "smol".into(),
        namespace: Namespace::computed("f00d", "kv8g64".parse().unwrap()),
        kind: NamedCacheKind::Prompt,
        num_tokens: 3,
        token_ids: Some(vec![1, 70_000, u32::MAX]),
        title: "עברית\u{202e}\0".into(),
        start_text: "It was".into(),
        end_text: "the end.\n".into(),
        imported_from: None,
        created_at_ms: 5,
        last_used_at_ms,
        deleted_at_ms: None,
    }
}

/// The texts of the current branch.
async fn texts(store: &Store, conversation_id: &str) -> Vec<String> {
    store.branch(conversation_id).await.unwrap().into_iter().map(|message| message.text).collect()
}
