//! What the monitor reads and writes: minutes that never wait, and the figures of answers.

use cairn_chat::{FinishReason, GenerationStats};

use super::{Scratch, finished};
use crate::{AnswerSums, FinishedMessage, MessageStatus, Store};

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;

fn stats(model: &str, prompt: usize, cached: usize) -> GenerationStats {
    GenerationStats {
        model: model.to_owned(),
        finish_reason: FinishReason::Stop,
        num_prompt_tokens: prompt,
        num_cached_tokens: cached,
        num_kept_tokens: None,
        cache_note: None,
        miss: None,
        saved_ms: (cached > 0).then_some(cached as f64 * 10.0),
        num_generation_tokens: 10,
        guesses: None,
        queue_ms: 0.0,
        prompt_tps: (prompt - cached) as f64,
        generation_tps: 20.0,
        time_to_first_token_ms: prompt as f64,
        mlx_active_bytes: 0,
        mlx_peak_bytes: 0,
        process_bytes: 0,
        process_peak_bytes: 0,
    }
}

/// An answer that was asked for at this time.
async fn answer(store: &Store, conversation: &str, at_ms: i64, stats: Option<GenerationStats>) {
    let (_, answer) = store.begin_turn(conversation, "Q", at_ms).await.unwrap();
    let done = FinishedMessage { stats, ..finished(MessageStatus::Complete, "A") };
    store.finish(&answer.id, &done).await.unwrap();
}

#[tokio::test]
async fn minutes_stay_after_a_restart_and_come_back_in_their_order() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    // The clock was set back in between.
    for at_ms in [5 * MINUTE, 9 * MINUTE, 7 * MINUTE] {
        assert!(store.add_monitor_minute(at_ms, &at_ms.to_string(), at_ms).await.unwrap());
    }
    assert!(store.add_monitor_minute(1, "no JSON", 1).await.is_err());
    store.close().await.unwrap();
    let store = scratch.open().await;
    let minutes = |since, until| store.monitor_minutes(since, until);
    let all: Vec<i64> = [5, 9, 7].map(|minute| minute * MINUTE).into();
    let times = |rows: Vec<(i64, String)>| rows.into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    assert_eq!(times(minutes(0, DAY).await.unwrap()), all);
    assert_eq!(times(minutes(5 * MINUTE, 7 * MINUTE).await.unwrap()), [7 * MINUTE]);
}

#[tokio::test]
async fn old_minutes_go_a_few_at_a_time_and_their_number_is_bounded() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    scratch
        .execute(
            "with recursive n (i) as (select 1 union all select i + 1 from n where i < 4000)
             insert into monitor_minutes (at_ms, figures) select i, '0' from n",
        )
        .await;
    let count = || async { store.monitor_minutes(-1, i64::MAX).await.unwrap().len() };
    let held: i64 = scratch.scalar("select count(*) from monitor_minutes").await;
    assert_eq!(held, 4000);
    let mut removed = Vec::new();
    for minute in 0..30 {
        let before: i64 = scratch.scalar("select count(*) from monitor_minutes").await;
        store.add_monitor_minute(5000 + minute, "1", 5000).await.unwrap();
        let after: i64 = scratch.scalar("select count(*) from monitor_minutes").await;
        removed.push(before + 1 - after);
    }
    assert!(removed.iter().all(|&removed| removed <= 60), "{removed:?}");
    assert_eq!(count().await, 2 * 24 * 60, "too many go, however new their times are");

    for _ in 0..60 {
        store.add_monitor_minute(4 * DAY, "2", 4 * DAY).await.unwrap();
    }
    let rows = store.monitor_minutes(-1, i64::MAX).await.unwrap();
    assert!(rows.iter().all(|(at_ms, _)| *at_ms == 4 * DAY), "old ones go, however few there are");
    assert_eq!(rows.len(), 60);
}

#[tokio::test]
async fn a_minute_does_not_wait_for_a_database_in_use_and_later_writes_do_again() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let transaction = store.begin().await.unwrap();
    assert!(!store.add_monitor_minute(1, "1", 1).await.unwrap(), "another write goes on here");
    drop(transaction);

    let mut other = scratch.connect().await;
    sqlx::query("begin immediate").execute(&mut other).await.unwrap();
    assert!(!store.add_monitor_minute(2, "2", 2).await.unwrap(), "another program writes");
    let waiting = store.set_setting("app", "1");
    let ending = async {
        // It waits by now, or has not begun: both are well.
        tokio::task::yield_now().await;
        sqlx::query("rollback").execute(&mut other).await.unwrap();
    };
    let (waited, ()) = tokio::join!(waiting, ending);
    waited.unwrap();
    let mut connection = store.writer.acquire().await.unwrap();
    let timeout: i64 =
        sqlx::query_scalar("pragma busy_timeout").fetch_one(&mut *connection).await.unwrap();
    assert_eq!(timeout, 5000);
    drop(connection);
    assert!(store.add_monitor_minute(3, "3", 3).await.unwrap());
    assert_eq!(store.monitor_minutes(0, 9).await.unwrap(), [(3, "3".to_owned())]);
}

#[tokio::test]
async fn answers_are_summed_by_model_and_conversation_and_by_time() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut ids = Vec::new();
    for title in ["One", "Two", "Hidden"] {
        let id = store.create_conversation(0).await.unwrap().id;
        store.rename_conversation(&id, title).await.unwrap();
        ids.push(id);
    }
    answer(&store, &ids[0], 5, Some(stats("m", 100, 0))).await;
    answer(&store, &ids[0], 100, Some(stats("m", 100, 0))).await;
    answer(&store, &ids[0], 150, Some(stats("m", 200, 150))).await;
    answer(&store, &ids[1], 250, Some(stats("m", 300, 290))).await;
    answer(&store, &ids[1], 260, None).await;
    answer(&store, &ids[2], 270, Some(stats("m", 900, 0))).await;
    store.delete_conversations(&[&ids[2]], 280).await.unwrap();
    // A file that was damaged.
    answer(&store, &ids[1], 290, Some(stats("other", 1, 0))).await;
    scratch.execute("update messages set stats = '{\"model\": 7}' where created_at_ms = 290 and stats is not null").await;

    let sums = store.answer_sums(5, 280).await.unwrap();
    let expected = |title: &str, id: &str, figures: [i64; 3], first_token_ms, newest_at_ms| {
        let [num_answers, num_prompt_tokens, num_cached_tokens] = figures;
        AnswerSums {
            model: "m".to_owned(),
            conversation_id: id.to_owned(),
            title: title.to_owned(),
            num_answers,
            num_prompt_tokens,
            num_cached_tokens,
            num_generation_tokens: 10 * num_answers,
            num_first_tokens: num_answers,
            first_token_ms,
            saved_ms: Some(num_cached_tokens as f64 * 10.0),
            newest_at_ms,
        }
    };
    let two = expected("Two", &ids[1], [1, 300, 290], 300.0, 250);
    let one = expected("One", &ids[0], [2, 300, 150], 300.0, 150);
    assert_eq!(sums, [two, one]);

    let spans = store.answer_spans(5, 280, 100).await.unwrap();
    let figures: Vec<_> = spans
        .iter()
        .map(|span| (span.span, span.num_answers, span.num_prompt_tokens, span.num_cached_tokens))
        .collect();
    assert_eq!(figures, [(1, 2, 300, 150), (2, 1, 300, 290)]);
    let first = &spans[0];
    let times = [first.least_first_token_ms, first.mean_first_token_ms, first.most_first_token_ms];
    assert_eq!(times, [Some(100.0), Some(150.0), Some(200.0)]);

    assert_eq!(store.savings().await.unwrap().all_ms, 4400.0, "the day is a part of the whole");
    let damaged = store.answer_sums(280, 300).await.unwrap();
    assert_eq!((damaged[0].model.as_str(), damaged[0].num_prompt_tokens), ("7", 0));
    assert_eq!((damaged[0].num_first_tokens, damaged[0].saved_ms), (0, None));

    // A copy has the figures of its answers, and saved nothing.
    let leaf = store.branch(&ids[0]).await.unwrap().pop().unwrap().id;
    let copy = store.copy_branch(&ids[0], &leaf, "Copy", 300).await.unwrap().id;
    let sums = store.answer_sums(5, 280).await.unwrap();
    let of_copy = sums.iter().find(|sums| sums.conversation_id == copy).unwrap();
    assert_eq!((of_copy.num_cached_tokens, of_copy.saved_ms), (150, None));
}
