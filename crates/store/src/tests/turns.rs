//! Messages: turns, siblings, branches, and what is saved of an answer.

use cairn_chat::{FinishReason, GenerationStats, Role};

use super::{Scratch, finished, texts, turn};
use crate::messages::BRANCH;
use crate::{FinishedMessage, MessageStatus, Store, StoreError};

fn stats() -> GenerationStats {
    GenerationStats {
        model: "smol".into(),
        finish_reason: FinishReason::Length,
        num_prompt_tokens: 40,
        num_cached_tokens: 32,
        cached_from: None,
        num_kept_tokens: None,
        cache_note: Some("the template differs".into()),
        miss: None,
        saved_ms: None,
        num_generation_tokens: 9,
        guesses: None,
        queue_ms: 2.5,
        prompt_tps: 512.5,
        generation_tps: 31.25,
        time_to_first_token_ms: 80.0,
        mlx_active_bytes: 1 << 40,
        mlx_peak_bytes: 2,
        process_bytes: 3,
        process_peak_bytes: 4,
    }
}

async fn conversation(store: &Store) -> String {
    store.create_conversation(1).await.unwrap().id
}

#[tokio::test]
async fn a_turn_is_saved_and_finished() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    let (user, assistant) = store.begin_turn(&id, "question", 77).await.unwrap();
    assert_eq!(
        (user.role, user.status, user.parent_id.clone()),
        (Role::User, MessageStatus::Complete, None)
    );
    assert_eq!((assistant.role, assistant.status), (Role::Assistant, MessageStatus::Streaming));
    assert_eq!(assistant.parent_id.as_ref(), Some(&user.id));
    assert!(user.seq < assistant.seq);
    assert_eq!(store.branch(&id).await.unwrap(), [user.clone(), assistant.clone()]);
    assert_eq!(
        store.conversation(&id).await.unwrap().unwrap().leaf_message_id.as_ref(),
        Some(&assistant.id)
    );

    store.save_progress(&assistant.id, "ans", None, &[5], None).await.unwrap();
    let half = store.message(&assistant.id).await.unwrap().unwrap();
    assert_eq!(
        (half.text.as_str(), half.token_ids, half.status),
        ("ans", Some(vec![5]), MessageStatus::Streaming)
    );

    let outcome = FinishedMessage {
        status: MessageStatus::Failed,
        text: "answer".into(),
        segments: Some(r#"[{"kind":"text","text":"answer"}]"#.into()),
        token_ids: Some(vec![0, 1, u32::MAX]),
        error: Some("out of memory".into()),
        error_kind: Some("{}".into()),
        stats: Some(stats()),
        model: Some("smol".into()),
    };
    // Twice, as after a crash between the commit and its acknowledgement.
    for _ in 0..2 {
        store.finish_turn(&user.id, &[9, 8], &assistant.id, &outcome).await.unwrap();
    }
    // A save that was running when the answer ended.
    store.save_progress(&assistant.id, "ans", None, &[5], None).await.unwrap();
    store.close().await.unwrap();

    let store = scratch.open().await;
    let [user, assistant] = store.branch(&id).await.unwrap().try_into().unwrap();
    assert_eq!(
        (user.token_ids, user.text.as_str(), user.created_at_ms),
        (Some(vec![9, 8]), "question", 77)
    );
    let saved = FinishedMessage {
        status: assistant.status,
        text: assistant.text,
        segments: assistant.segments,
        token_ids: assistant.token_ids,
        error: assistant.error,
        error_kind: assistant.error_kind,
        stats: assistant.stats,
        model: assistant.model,
    };
    assert_eq!(saved, outcome);
    store.set_token_ids(&user.id, &[]).await.unwrap();
    assert_eq!(store.message(&user.id).await.unwrap().unwrap().token_ids, Some(vec![]));
}

#[tokio::test]
async fn texts_are_kept_verbatim() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let long = "wall of text ".repeat(80_000);
    for text in [
        "",
        " \n",
        "a\0b\0",
        "\0",
        "e\u{301} é ﬁ",
        "👩‍👩‍👧‍👦\u{202e}\u{feff}",
        "'; drop table messages; --",
        "\r\n\r",
        "NULL",
        "1e5",
        &long,
    ] {
        let id = conversation(&store).await;
        turn(&store, &id, text, text).await;
        assert!(texts(&store, &id).await == [text, text], "{text:.40?} was changed");
    }
}

#[tokio::test]
async fn another_answer_stands_beside_the_first() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    turn(&store, &id, "q1", "a1").await;
    turn(&store, &id, "q2", "a2").await;
    let first = store.branch(&id).await.unwrap().pop().unwrap();

    let second = store.begin_sibling_answer(&id, None, 20).await.unwrap();
    assert_eq!(second.parent_id, first.parent_id);
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2", ""]);
    store.finish(&second.id, &finished(MessageStatus::Complete, "b2")).await.unwrap();
    turn(&store, &id, "q3", "a3").await;
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2", "b2", "q3", "a3"]);
    assert_eq!(store.message(&first.id).await.unwrap().unwrap().text, "a2");
}

#[tokio::test]
async fn a_branch_takes_one_answer_at_a_time() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    assert!(matches!(
        store.begin_sibling_answer(&id, None, 1).await,
        Err(StoreError::NothingToAnswer { .. })
    ));
    let (_, assistant) = store.begin_turn(&id, "q", 1).await.unwrap();
    assert!(
        matches!(store.begin_turn(&id, "r", 2).await, Err(StoreError::AlreadyStreaming { conversation_id }) if conversation_id == id)
    );
    assert!(matches!(
        store.begin_sibling_answer(&id, None, 2).await,
        Err(StoreError::AlreadyStreaming { .. })
    ));
    assert_eq!(texts(&store, &id).await, ["q", ""]);

    for status in [
        MessageStatus::Stopped,
        MessageStatus::Failed,
        MessageStatus::Interrupted,
        MessageStatus::Complete,
    ] {
        store.finish(&assistant.id, &finished(status, "a")).await.unwrap();
        let sibling = store.begin_sibling_answer(&id, None, 3).await.unwrap();
        store.finish(&sibling.id, &finished(status, "b")).await.unwrap();
        assert_eq!(store.message(&sibling.id).await.unwrap().unwrap().status, status);
    }
}

#[tokio::test]
async fn a_message_that_is_not_there_is_named() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    let (user, assistant) = store.begin_turn(&id, "q", 1).await.unwrap();
    let outcome = finished(MessageStatus::Complete, "a");
    fn check(outcome: Result<(), StoreError>) {
        assert!(
            matches!(&outcome, Err(StoreError::NoMessage { id }) if id == "unknown"),
            "{outcome:?}"
        );
    }
    check(store.finish("unknown", &outcome).await);
    check(store.set_token_ids("unknown", &[1]).await);
    check(store.finish_turn("unknown", &[1], &assistant.id, &outcome).await);
    // Neither half was written.
    check(store.finish_turn(&user.id, &[1], "unknown", &outcome).await);
    assert_eq!(store.branch(&id).await.unwrap(), [user, assistant]);
}

#[tokio::test]
async fn figures_that_cannot_be_read_do_not_hide_the_answer() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    let (_, assistant) = store.begin_turn(&id, "q", 1).await.unwrap();
    let stats = Some(GenerationStats { prompt_tps: f64::NAN, ..stats() });
    store
        .finish(&assistant.id, &FinishedMessage { stats, ..finished(MessageStatus::Complete, "a") })
        .await
        .unwrap();
    let read = store.message(&assistant.id).await.unwrap().unwrap();
    assert_eq!((read.text.as_str(), read.stats), ("a", None));
}

#[tokio::test]
async fn a_branch_of_five_thousand_messages_is_read_and_purged() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    // Written past the API, in one transaction: 2,500 turns with a sync each would be most of this
    // test's time.
    let mut tx = store.begin().await.unwrap();
    sqlx::query(
        "with recursive n (i) as (select 0 union all select i + 1 from n where i < 4999)
         insert into messages (id, conversation_id, parent_id, role, status, text, token_ids, created_at_ms)
         select 'm' || i, ?, case i when 0 then null else 'm' || (i - 1) end, iif(i % 2, 'assistant', 'user'), 'complete', 'text ' || i, zeroblob(400), 0
         from n",
    )
    .bind(&id)
    .execute(&mut *tx)
    .await
    .unwrap();
    sqlx::query("update conversations set leaf_message_id = 'm4999'")
        .execute(&mut *tx)
        .await
        .unwrap();
    store.commit(tx).await.unwrap();

    // What a branch costs depends on its length, never on how many messages there are.
    let plan: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(sqlx::AssertSqlSafe(format!("explain query plan {BRANCH}")))
            .bind(&id)
            .fetch_all(&store.readers)
            .await
            .unwrap();
    assert!(!plan.is_empty());
    for (.., step) in &plan {
        assert!(!step.contains("SCAN messages"), "{plan:?}");
    }
    let branch = store.branch(&id).await.unwrap();
    assert_eq!(branch.len(), 5_000);
    assert!(branch.iter().enumerate().all(|(i, message)| message.id == format!("m{i}")));
    assert!(branch.windows(2).all(|pair| pair[1].parent_id.as_ref() == Some(&pair[0].id)));

    store.delete_conversations(&[&id], 2).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(scratch.open().await.message("m0").await.unwrap(), None);
}

#[tokio::test]
async fn the_file_refuses_a_tree_that_reaches_into_another_conversation() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (one, other) = (conversation(&store).await, conversation(&store).await);
    turn(&store, &one, "q", "a").await;
    let leaf = store.conversation(&one).await.unwrap().unwrap().leaf_message_id;
    let moved = sqlx::query("update conversations set leaf_message_id = ? where id = ?")
        .bind(leaf)
        .bind(other)
        .execute(&store.writer)
        .await;
    assert!(moved.is_err());
}
