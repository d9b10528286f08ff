//! Distinguishing the writes of other programs from the store's own.

use super::Scratch;
use crate::Store;

/// Always changes the file: SQLite does not count a commit that leaves every value as it was.
async fn write(store: &Store) {
    store.record_model_use("/models/a", "a", 1).await.unwrap();
}

async fn check(store: &Store, what: &str, expected: bool) {
    assert_eq!(store.changes_by_others().await.unwrap(), expected, "{what}");
}

#[tokio::test]
async fn only_the_commits_of_other_programs_are_changes() {
    let scratch = Scratch::new();
    let app = scratch.open().await;
    check(&app, "nothing yet", false).await;
    let command = scratch.open().await;
    // Opening may write; whether that counts is unspecified.
    app.changes_by_others().await.unwrap();

    for round in 0..3 {
        write(&app).await;
        app.last_used_model().await.unwrap();
        check(&app, "what it wrote itself", false).await;
        check(&command, "what the other wrote", true).await;
        check(&command, "the same again", false).await;
        write(&command).await;
        write(&app).await;
        check(&app, "theirs before its own", true).await;
        write(&app).await;
        write(&command).await;
        check(&app, "theirs after its own", true).await;
        check(&app, "the same once more", false).await;
        assert!(command.changes_by_others().await.unwrap(), "round {round}");
        command.conversations().await.unwrap();
        check(&app, "what the other read", false).await;
    }

    // A rolled-back transaction does not count.
    drop(command.begin().await.unwrap());
    check(&app, "nothing was committed", false).await;
    write(&command).await;
    command.close().await.unwrap();
    check(&app, "what the other wrote before it closed", true).await;
    app.close().await.unwrap();
    assert!(app.changes_by_others().await.is_err());
}

#[tokio::test]
async fn no_change_is_missed_while_the_writing_connection_is_replaced() {
    let scratch = Scratch::new();
    let (app, command) = (scratch.open().await, scratch.open().await);
    app.changes_by_others().await.unwrap();
    for num_writes in 0..6 {
        app.writer.acquire().await.unwrap().close().await.unwrap();
        for _ in 0..num_writes {
            write(&command).await;
        }
        // Also without writes: the store cannot know.
        check(&app, "a new connection", true).await;
        check(&app, "the same connection", false).await;
    }
}
