//! The work of requests: its sums, what deletions and copies leave of them, and what was read ahead.

use cairn_chat::{FinishReason, GenerationStats};

use super::{Scratch, finished};
use crate::{AheadSource, FinishedMessage, MessageStatus, Store, Work, WorkSums};

const DAY: i64 = 24 * 60 * 60 * 1000;

fn work(conversation: Option<&str>, at_ms: i64, read: u64, cached: [u64; 3]) -> Work {
    let [num_in_memory_tokens, num_restored_tokens, num_shared_tokens] = cached;
    Work {
        at_ms,
        kind: "answer".to_owned(),
        model: "m".to_owned(),
        conversation_id: conversation.map(str::to_owned),
        message_id: Some(format!("message {at_ms}")),
        num_read_tokens: read,
        num_in_memory_tokens,
        num_restored_tokens,
        num_shared_tokens,
        num_written_tokens: 10,
        first_token_ms: Some(read as f64),
    }
}

/// Read, cached and written tokens of all rows.
async fn total(store: &Store) -> [i64; 3] {
    let sums = store.work_sums(-1, i64::MAX).await.unwrap();
    let sum = |of: fn(&WorkSums) -> i64| sums.iter().map(of).sum();
    [
        sum(|sums| sums.num_read_tokens),
        sum(|sums| sums.num_cached_tokens),
        sum(|sums| sums.num_written_tokens),
    ]
}

#[tokio::test]
async fn sums_work_by_model_conversation_and_time() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let one = store.create_conversation(0).await.unwrap().id;
    let two = store.create_conversation(0).await.unwrap().id;
    store.rename_conversation(&one, "One").await.unwrap();
    let of = |kind: &str, work: Work| Work { kind: kind.to_owned(), ..work };
    let all = [
        work(Some(&one), 5, 1000, [0; 3]),
        work(Some(&one), 100, 100, [0; 3]),
        // An answer that was continued.
        Work {
            message_id: Some("message 100".to_owned()),
            ..work(Some(&one), 150, 50, [100, 30, 20])
        },
        of("read_ahead", work(Some(&one), 160, 7, [0; 3])),
        of("comparison", work(Some(&two), 250, 10, [0, 290, 0])),
        of("program", Work { model: "n".to_owned(), ..work(None, 260, 3, [0; 3]) }),
        work(Some("elsewhere"), 270, 1, [0; 3]),
    ];
    store.add_work(&all, 300).await.unwrap();
    let sums = store.work_sums(5, 280).await.unwrap();
    let figures: Vec<_> = sums
        .iter()
        .map(|sums| {
            let of = sums.title.as_deref().or(sums.conversation_id.as_deref()).unwrap_or("none");
            let tokens = (sums.num_read_tokens, sums.num_cached_tokens, sums.num_written_tokens);
            (of.to_owned(), sums.model.as_str(), sums.num_answers, tokens, sums.num_first_tokens)
        })
        .collect();
    let none = || "none".to_owned();
    assert_eq!(
        figures,
        [
            (none(), "m", 1, (1, 0, 10), 1),
            (none(), "n", 0, (3, 0, 10), 0),
            (String::new(), "m", 1, (10, 290, 10), 1),
            ("One".to_owned(), "m", 1, (157, 150, 30), 2),
        ]
    );
    let spans = store.work_spans(5, 280, 100).await.unwrap();
    let figures: Vec<_> = spans
        .iter()
        .map(|span| {
            (span.span, span.num_first_tokens, span.num_read_tokens, span.num_cached_tokens)
        })
        .collect();
    assert_eq!(figures, [(1, 2, 157, 150), (2, 2, 14, 290)]);
    let first = &spans[0];
    let times = [first.least_first_token_ms, first.mean_first_token_ms, first.most_first_token_ms];
    assert_eq!(times, [Some(50.0), Some(75.0), Some(100.0)]);
}

#[tokio::test]
async fn copies_and_deletions_change_no_total() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    let (_, answer) = store.begin_turn(&id, "Q", 10).await.unwrap();
    let stats = GenerationStats { saved_ms: Some(700.0), ..stats("m", 100, 40) };
    let done = FinishedMessage { stats: Some(stats), ..finished(MessageStatus::Complete, "A") };
    store.finish(&answer.id, &done).await.unwrap();
    store.add_work(&[work(Some(&id), 10, 60, [40, 0, 0])], 10).await.unwrap();
    let expected = [60, 40, 10];
    assert_eq!(total(&store).await, expected);
    let saved = async || {
        let sums = store.work_sums(-1, i64::MAX).await.unwrap();
        sums.iter().filter_map(|sums| sums.saved_ms).sum::<f64>()
    };
    assert_eq!(saved().await, 700.0);

    let copy = store.copy_branch(&id, &answer.id, "Copy", 20).await.unwrap().id;
    assert_eq!((total(&store).await, saved().await), (expected, 700.0));
    let sums = store.work_sums(-1, i64::MAX).await.unwrap();
    assert!(sums.iter().all(|sums| sums.conversation_id.as_ref() != Some(&copy)), "{sums:?}");

    store.delete_messages(&id, &answer.id, false).await.unwrap();
    store.delete_conversations(&[&id], 30).await.unwrap();
    assert_eq!(total(&store).await, expected);
    assert_eq!(store.work_sums(-1, i64::MAX).await.unwrap()[0].title, None, "it is not shown");
    store.purge_conversations(&[&id], 30).await.unwrap();
    assert_eq!(total(&store).await, expected);
    let named: i64 = scratch
        .scalar(
            "select count(*) from work where conversation_id is not null or message_id is not null",
        )
        .await;
    assert_eq!(named, 0, "nothing says whose work it was");
}

#[tokio::test]
async fn removes_old_work_a_few_rows_at_a_time() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let old: Vec<Work> = (0..200).map(|at_ms| work(None, at_ms, 1, [0; 3])).collect();
    store.add_work(&old, 200).await.unwrap();
    let count = async || total(&store).await[0];
    assert_eq!(count().await, 200);
    let mut left = Vec::new();
    for _ in 0..4 {
        store.add_work(&[work(None, 5 * DAY, 1000, [0; 3])], 5 * DAY).await.unwrap();
        left.push(count().await % 1000);
    }
    assert_eq!(left, [140, 80, 20, 0]);
}

#[tokio::test]
async fn takes_what_was_read_ahead_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    let owner = format!("conversation/{id}");
    let ranges = [
        (AheadSource::Shared, 0..20),
        (AheadSource::Restored, 20..20),
        (AheadSource::Read, 20..90),
    ];
    store.note_read_ahead(&owner, "m", &ranges).await.unwrap();
    store.note_read_ahead("folder/f", "m", &[(AheadSource::Read, 0..9)]).await.unwrap();
    store.close().await.unwrap();

    let store = scratch.open().await;
    assert!(store.take_read_ahead(&owner, "n").await.unwrap().is_empty(), "another model");
    let taken = store.take_read_ahead(&owner, "m").await.unwrap();
    assert_eq!(taken, [(AheadSource::Shared, 0..20), (AheadSource::Read, 20..90)]);
    assert!(store.take_read_ahead(&owner, "m").await.unwrap().is_empty());
    let of_folder = store.take_read_ahead("folder/f", "m").await.unwrap();
    assert_eq!(of_folder, [(AheadSource::Read, 0..9)], "each owner has its own");

    store.note_read_ahead(&owner, "m", &ranges).await.unwrap();
    store.delete_conversations(&[&id], 1).await.unwrap();
    store.purge_conversations(&[&id], 1).await.unwrap();
    let left: i64 = scratch.scalar("select count(*) from read_ahead").await;
    assert_eq!(left, 0, "it goes with its conversation");
}

fn stats(model: &str, prompt: usize, cached: usize) -> GenerationStats {
    GenerationStats {
        model: model.to_owned(),
        finish_reason: FinishReason::Stop,
        num_prompt_tokens: prompt,
        num_cached_tokens: cached,
        cached_from: None,
        num_kept_tokens: None,
        cache_note: None,
        miss: None,
        saved_ms: None,
        num_generation_tokens: 10,
        guesses: None,
        queue_ms: 0.0,
        prompt_tps: 10.0,
        generation_tps: 20.0,
        time_to_first_token_ms: 1.0,
        mlx_active_bytes: 0,
        mlx_peak_bytes: 0,
        process_bytes: 0,
        process_peak_bytes: 0,
    }
}
