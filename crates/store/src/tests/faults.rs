//! A full disk, and futures dropped halfway.

use std::future::Future;

use super::{Scratch, finished, texts, turn};
use crate::{MessageStatus, Store, StoreError};

/// Limits the file to `pages` more pages, which SQLite treats as a full disk. The limit belongs to
/// the connection, and ends when the store replaces it after a failure.
async fn leave_room_for(store: &Store, pages: i64) {
    let count: i64 =
        sqlx::query_scalar("pragma page_count").fetch_one(&store.writer).await.unwrap();
    let statement = format!("pragma max_page_count = {}", count + pages);
    sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&store.writer).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_ends_with_the_shortage() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    turn(&store, &id, "q1", "a1").await;
    let (user, assistant) = store.begin_turn(&id, "q2", 2).await.unwrap();
    let long = "long ".repeat(100_000);

    // Room for a different number of pages each time, so that it runs out in different statements
    // of the transaction.
    for pages in 0..8 {
        let outcome = finished(MessageStatus::Complete, &long);
        let full = |outcome: Result<(), StoreError>| {
            assert!(
                matches!(&outcome, Err(StoreError::Full { path }) if *path == scratch.database()),
                "{outcome:?}"
            );
        };
        leave_room_for(&store, pages).await;
        full(store.save_progress(&assistant.id, &long, None, &[1], None).await);
        leave_room_for(&store, pages).await;
        full(store.finish_turn(&user.id, &[1], &assistant.id, &outcome).await);
        leave_room_for(&store, pages).await;
        full(store.set_setting("key", &long).await);
        assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2", ""]);
        assert_eq!(store.message(&user.id).await.unwrap().unwrap().token_ids, None);
    }

    leave_room_for(&store, 10_000).await;
    store
        .finish_turn(&user.id, &[1], &assistant.id, &finished(MessageStatus::Complete, &long))
        .await
        .unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert!(texts(&store, &id).await == ["q1", "a1", "q2", &long]);
}

/// Polls a future for so many turns of the scheduler, then drops it. Returns its outcome if it
/// finished.
async fn drop_after<T>(turns: usize, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        outcome = future => Some(outcome),
        () = async { for _ in 0..turns { tokio::task::yield_now().await } } => None,
    }
}

#[tokio::test]
async fn a_dropped_call_has_written_everything_or_nothing() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    let mut num_turns = 0;
    for turns in 0..300 {
        let question = format!("q{turns}");
        let acknowledged = drop_after(turns, store.begin_turn(&id, &question, 1)).await.is_some();
        // Waits until the dropped call is done or undone: there is one writer.
        store.set_setting("turn", &question).await.unwrap();
        let branch = store.branch(&id).await.unwrap();
        let added = branch.len() - 2 * num_turns;
        assert!(
            if acknowledged { added == 2 } else { added == 0 || added == 2 },
            "{added} rows after {turns} turns"
        );
        if added == 2 {
            num_turns += 1;
            let leaf = branch.last().unwrap();
            drop_after(turns, store.finish(&leaf.id, &finished(MessageStatus::Complete, "a")))
                .await;
            store.finish(&leaf.id, &finished(MessageStatus::Complete, "a")).await.unwrap();
        }
    }
    drop(store);
    assert_eq!(texts(&scratch.open().await, &id).await.len(), 2 * num_turns);
}
