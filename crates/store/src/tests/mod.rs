//! Behaviour of the store on real database files in temporary folders, by subject.
#![allow(clippy::unwrap_used)]

mod conversations;
mod faults;
mod opening;
mod tables;
mod turns;

use std::path::PathBuf;

use crate::{FinishedMessage, MessageStatus, Store};

/// A folder of its own for one test, gone with it.
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
}

fn finished(status: MessageStatus, text: &str) -> FinishedMessage {
    FinishedMessage { status, text: text.to_owned(), token_ids: Some(vec![1, 2, 3]), error: None, stats: None }
}

/// Adds a question and its complete answer.
async fn turn(store: &Store, conversation_id: &str, question: &str, answer: &str) {
    let (user, assistant) = store.begin_turn(conversation_id, question, 10).await.unwrap();
    store.finish_turn(&user.id, &[7], &assistant.id, &finished(MessageStatus::Complete, answer)).await.unwrap();
}

/// The texts of the current branch.
async fn texts(store: &Store, conversation_id: &str) -> Vec<String> {
    store.branch(conversation_id).await.unwrap().into_iter().map(|message| message.text).collect()
}
