//! What answers saved: by chat and in sum, after restarts and deletions.

use cairn_chat::{FinishReason, GenerationStats};

use super::{Scratch, finished};
use crate::{AnsweredWith, FinishedMessage, MessageStatus, Store};

fn stats(model: &str, read: usize, tps: f64, saved_ms: Option<f64>) -> GenerationStats {
    GenerationStats {
        model: model.to_owned(),
        finish_reason: FinishReason::Stop,
        num_prompt_tokens: read + 100,
        num_cached_tokens: 100,
        cached_from: None,
        num_kept_tokens: None,
        cache_note: None,
        miss: None,
        saved_ms,
        num_generation_tokens: 10,
        guesses: None,
        queue_ms: 0.0,
        prompt_tps: tps,
        generation_tps: 20.0,
        time_to_first_token_ms: 1.0,
        mlx_active_bytes: 0,
        mlx_peak_bytes: 0,
        process_bytes: 0,
        process_peak_bytes: 0,
    }
}

/// Ends an answer with these figures.
async fn end(store: &Store, answer_id: &str, stats: GenerationStats) {
    let done = FinishedMessage { stats: Some(stats), ..finished(MessageStatus::Complete, "A") };
    store.finish(answer_id, &done).await.unwrap();
}

/// An answer that was asked for at this time and saved so much.
async fn answer(store: &Store, conversation: &str, at_ms: i64, saved_ms: Option<f64>) -> String {
    let (_, answer) = store.begin_turn(conversation, "Q", at_ms).await.unwrap();
    end(store, &answer.id, stats("m", 10, 1.0, saved_ms)).await;
    answer.id
}

#[tokio::test]
async fn the_sum_stays_when_the_program_restarts_and_when_chats_and_answers_go() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    assert_eq!(store.savings().await.unwrap(), crate::Savings::default());
    let a = store.create_conversation(0).await.unwrap().id;
    let b = store.create_conversation(0).await.unwrap().id;
    answer(&store, &a, 20, Some(1000.0)).await;
    let second = answer(&store, &a, 10, Some(500.0)).await;
    answer(&store, &a, 5, None).await;
    answer(&store, &b, 30, Some(7000.0)).await;
    let check = async |store: &Store, all_ms: f64, of: &[(&String, f64)]| {
        let savings = store.savings().await.unwrap();
        assert_eq!((savings.all_ms, savings.since_ms), (all_ms, Some(10)));
        let of: Vec<_> = of.iter().map(|(id, saved_ms)| ((*id).clone(), *saved_ms)).collect();
        assert_eq!(savings.conversations, of);
    };
    check(&store, 8500.0, &[(&b, 7000.0), (&a, 1500.0)]).await;

    // An answer that goes on replaces what it had saved; a copy of it saved nothing.
    end(&store, &second, stats("m", 10, 1.0, Some(600.0))).await;
    store.copy_branch(&a, &second, "copy", 40).await.unwrap();
    check(&store, 8600.0, &[(&b, 7000.0), (&a, 1600.0)]).await;

    store.delete_messages(&a, &second, true).await.unwrap();
    store.delete_conversations(&[&b], 50).await.unwrap();
    check(&store, 8600.0, &[(&a, 1600.0)]).await;
    store.restore_conversations(&[&b]).await.unwrap();
    check(&store, 8600.0, &[(&b, 7000.0), (&a, 1600.0)]).await;
    store.delete_conversations(&[&b], 60).await.unwrap();
    store.close().await.unwrap();

    let store = scratch.open().await;
    check(&store, 8600.0, &[(&a, 1600.0)]).await;
    store.delete_conversations(&[&a], 70).await.unwrap();
    assert_eq!(store.purge_conversations(&[&a], 70).await.unwrap().len(), 1);
    check(&store, 8600.0, &[]).await;
    let rows: i64 = scratch.scalar("select count(*) from answer_savings").await;
    assert_eq!(rows, 0, "of purged chats only the sum stays");
}

#[tokio::test]
async fn a_model_reads_as_fast_as_in_readings_as_long_as_those_of_the_chat_or_else_in_long_ones() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let here = store.create_conversation(0).await.unwrap().id;
    let other = store.create_conversation(0).await.unwrap().id;
    let read = async |conversation: &str, at_ms, model, read, tps| {
        let (_, answer) = store.begin_turn(conversation, "Q", at_ms).await.unwrap();
        end(&store, &answer.id, stats(model, read, tps, None)).await;
    };
    let check = async |model: &str, expected: Option<f64>| {
        assert_eq!(store.reading_rate(&here, model).await.unwrap(), expected, "{model}");
    };
    check("m", None).await;
    read(&here, 1, "m", 511, 2000.0).await;
    check("m", None).await;
    read(&other, 3, "m", 600, 2.0).await;
    read(&other, 2, "m", 900, 3.0).await;
    check("m", Some(3.0)).await;
    read(&here, 4, "m", 2000, 4.0).await;
    read(&here, 5, "m", 700, 5.0).await;
    check("m", Some(4.0)).await;
    check("n", None).await;
}

#[tokio::test]
async fn a_reading_that_shared_the_processor_does_not_make_more_seem_saved() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let here = store.create_conversation(0).await.unwrap().id;
    let other = store.create_conversation(0).await.unwrap().id;
    let mut at_ms = 0;
    let mut read = async |conversation: &str, num_tokens, tps| {
        at_ms += 1;
        let (_, answer) = store.begin_turn(conversation, "Q", at_ms).await.unwrap();
        end(&store, &answer.id, stats("m", num_tokens, tps, None)).await;
        store.reading_rate(&here, "m").await.unwrap()
    };
    read(&other, 600, 100.0).await;
    assert_eq!(read(&other, 600, 20.0).await, Some(100.0), "of two, the faster one");
    read(&other, 700, 90.0).await;
    assert_eq!(read(&other, 600, 10.0).await, Some(90.0));
    // In the chat itself: those of others that are as long tell that it was slow.
    assert_eq!(read(&here, 9000, 5.0).await, Some(5.0), "nothing as long is known");
    assert_eq!(read(&other, 8000, 40.0).await, Some(40.0));
    assert_eq!(read(&other, 7000, 42.0).await, Some(40.0));
    // A machine that has become slower is believed after a while.
    for _ in 0..5 {
        read(&other, 8000, 30.0).await;
    }
    assert_eq!(store.reading_rate(&here, "m").await.unwrap(), Some(30.0));
}

#[tokio::test]
async fn what_was_read_ahead_tells_how_fast_a_model_reads_also_after_a_restart() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let here = store.create_conversation(0).await.unwrap().id;
    for (model, num_tokens, tps) in [
        ("m", 876, 40.0),
        ("n", 15, 1.0),
        ("n", 900, f64::NAN),
        ("n", 900, 0.0),
        ("short", 256, 64.0),
        ("short", 16, 16.0),
    ] {
        store.note_reading(model, num_tokens, tps, 1).await.unwrap();
    }
    store.close().await.unwrap();
    let store = scratch.open().await;
    let rate = async |model: &str| store.reading_rate(&here, model).await.unwrap();
    assert_eq!((rate("m").await, rate("n").await), (Some(40.0), None));
    let of_four_seconds = Some(256.0 / 3.0);
    assert_eq!(rate("short").await, of_four_seconds, "but for one, which the shorter took");
    store.note_reading("m", 600, 50.0, 3).await.unwrap();
    store.note_reading("m", 500, 1.0, 4).await.unwrap();
    assert_eq!(rate("m").await, Some(50.0), "of two long ones, the faster one");

    for at_ms in 5..100 {
        store.note_reading("m", 512, 60.0, at_ms).await.unwrap();
    }
    let held: i64 = scratch.scalar("select count(*) from readings where model = 'm'").await;
    assert_eq!((held, rate("m").await), (32, Some(60.0)));
    let others: i64 = scratch.scalar("select count(*) from readings where model = 'short'").await;
    assert_eq!(others, 2);
}

/// Readings of so many tokens by a model that reads 100 tokens a second, and takes so long for each
/// reading besides: the speed that they tell.
async fn told_rate(overhead_seconds: f64, num_tokens: &[usize]) -> Option<f64> {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    for read in num_tokens {
        let seconds = overhead_seconds + *read as f64 / 100.0;
        let (_, answer) = store.begin_turn(&id, "Q", 0).await.unwrap();
        end(&store, &answer.id, stats("m", *read, *read as f64 / seconds, None)).await;
    }
    store.reading_rate(&id, "m").await.unwrap()
}

#[tokio::test]
async fn short_readings_tell_a_speed_with_which_no_more_seems_saved_than_was() {
    async fn check(overhead_seconds: f64, num_tokens: &[usize], saved_of_a_second: Option<f64>) {
        let rate = told_rate(overhead_seconds, num_tokens).await;
        // 100 tokens that were not read again saved one second.
        let said = rate.map(|tps| (100.0 / tps * 1000.0).round() / 1000.0);
        assert_eq!(said, saved_of_a_second, "with {overhead_seconds} s for {num_tokens:?}");
        assert!(said.is_none_or(|seconds| seconds <= 1.0));
    }
    // Half a second for each reading, which made 100 tokens seem to take 1.5 s.
    check(0.5, &[100], None).await;
    check(0.5, &[100; 32], None).await;
    check(0.5, &[300, 20], Some(0.933)).await;
    check(0.5, &[300, 20, 30, 40], Some(0.933)).await;
    check(0.5, &[16, 200, 200, 200], Some(0.92)).await;
    check(0.5, &[64; 8], None).await;
    check(0.0, &[20, 400], Some(0.95)).await;
    check(3.0, &[20, 400], Some(0.95)).await;
    check(9.0, &[20, 400], None).await;
    // Too short, and nothing to save.
    check(0.5, &[15, 300], None).await;
    check(0.0, &[16, 40], None).await;
}

#[tokio::test]
async fn what_the_answer_before_was_written_with_is_remembered() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    let with = |prompt: &str, template: Option<&str>| AnsweredWith {
        system_prompt: Some(prompt.to_owned()),
        template: template.map(str::to_owned),
    };
    let note = async |now: AnsweredWith| store.note_answered_with(&id, &now).await.unwrap();
    assert_eq!(note(with("Be brief.", None)).await, AnsweredWith::default());
    assert_eq!(note(with("Be brief.", Some("t"))).await, with("Be brief.", None));
    assert_eq!(note(with("", Some("t"))).await, with("Be brief.", Some("t")));
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.answered_with(&id).await.unwrap(), with("", Some("t")));
    assert_eq!(store.answered_with("gone").await.unwrap(), AnsweredWith::default());
    let gone = store.note_answered_with("gone", &with("x", None)).await.unwrap();
    assert_eq!(gone, AnsweredWith::default());
}

#[tokio::test]
async fn a_branch_takes_over_what_its_answers_were_written_with() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    let answer = answer(&store, &id, 1, None).await;
    let with = AnsweredWith {
        system_prompt: Some("Be brief.".to_owned()),
        template: Some("t m".to_owned()),
    };
    store.note_answered_with(&id, &with).await.unwrap();
    let copy = store.copy_branch(&id, &answer, "Copy", 2).await.unwrap().id;
    assert_eq!(store.answered_with(&copy).await.unwrap(), with);
}
