//! The engine's thread: loading, cancelling, queueing, failing, shutting down.

use std::time::Duration;

use cairn_chat::FinishReason;
use cairn_engine::{
    Engine, EngineOptions, EngineState, GenerateEvent, GenerateRequest, Generation, PromptInput,
};
use serde_json::json;

use crate::client::{Answer, finish, request};
use crate::scripted::{Scripted, text_ids};

/// Far more tokens than any test waits for.
const ENDLESSLY: usize = 5_000_000;

/// A bound for what should take milliseconds; only a hang gets near it.
const SOON: Duration = Duration::from_secs(60);

fn start() -> Engine {
    Engine::start(EngineOptions::default()).0
}

fn one_at_a_time() -> Engine {
    Engine::start(EngineOptions {
        completion_batch_size: 1,
        prefill_batch_size: 1,
        ..EngineOptions::default()
    })
    .0
}

/// Waits for the first token.
async fn first_token(generation: &mut Generation) {
    loop {
        match generation.recv().await.expect("an event") {
            GenerateEvent::Delta { .. } => return,
            GenerateEvent::SoFar(_) | GenerateEvent::Prefill { .. } => {}
            other => panic!("{other:?} before any token"),
        }
    }
}

#[tokio::test]
async fn a_dropped_request_is_cancelled_and_the_next_one_served() {
    let model = Scripted::endless();
    let engine = start();
    engine.load("endless", model.folder()).await.expect("loads");
    for has_begun in [true, false] {
        let mut generation = engine.generate(request(&[1, 2, 3], ENDLESSLY));
        if has_begun {
            first_token(&mut generation).await;
        }
        drop(generation);
        let mut next = engine.generate(request(&[9, 8], 20));
        let answer = tokio::time::timeout(SOON, finish(&mut next))
            .await
            .expect("the dropped answer has ended")
            .expect("an answer");
        assert_eq!(answer.finished.token_ids, model.answer(&[9, 8], 20));
    }
}

/// The answer of a request that is stopped after its first token.
async fn stopped(engine: &Engine, prompt: &[u32]) -> Answer {
    let mut generation = engine.generate(request(prompt, ENDLESSLY));
    first_token(&mut generation).await;
    generation.stop();
    tokio::time::timeout(SOON, finish(&mut generation)).await.expect("stops").expect("an answer")
}

#[tokio::test]
async fn a_stopped_request_still_reports_its_figures() {
    let model = Scripted::endless();
    let engine = start();
    engine.load("endless", model.folder()).await.expect("loads");
    let answer = stopped(&engine, &[1, 2, 3]).await;
    let sampled = answer.finished.token_ids;
    assert_eq!(answer.finished.stats.finish_reason, FinishReason::Cancelled);
    assert_eq!(answer.finished.stats.num_generation_tokens, sampled.len());
    assert_eq!(sampled, model.answer(&[1, 2, 3], sampled.len()));
    assert_eq!(sampled[1..], answer.tokens, "every token was sent");
}

#[tokio::test]
async fn the_caches_of_a_stopped_request_stay_in_memory() {
    let model = Scripted::endless();
    let engine = start();
    engine.load("endless", model.folder()).await.expect("loads");
    let mut prompt = vec![1, 2, 3];
    prompt.extend(stopped(&engine, &prompt).await.finished.token_ids);
    // Answered by a job after it, so that the state published after the answer is seen.
    engine.flush_cache().await;
    assert_eq!(engine.status().borrow().state, EngineState::Ready { model: "endless".to_owned() });
    prompt.push(5);
    let next = finish(&mut engine.generate(request(&prompt, 4))).await.expect("an answer");
    assert!(
        next.finished.stats.num_cached_tokens >= prompt.len() - 3,
        "{} of {}",
        next.finished.stats.num_cached_tokens,
        prompt.len()
    );
    assert_eq!(next.finished.token_ids, model.answer(&prompt, 4));
}

#[tokio::test]
async fn a_request_stopped_before_its_first_token_reports_no_rates() {
    let model = Scripted::endless();
    let engine = start();
    engine.load("endless", model.folder()).await.expect("loads");
    let mut busy = engine.generate(request(&[1, 2, 3], ENDLESSLY));
    first_token(&mut busy).await;
    let mut waiting = engine.generate(request(&[1, 2, 3], ENDLESSLY));
    waiting.stop();
    drop(busy);
    let answer =
        tokio::time::timeout(SOON, finish(&mut waiting)).await.expect("stops").expect("an answer");
    let stats = answer.finished.stats;
    assert_eq!(stats.finish_reason, FinishReason::Cancelled);
    assert_eq!((stats.num_generation_tokens, stats.time_to_first_token_ms), (0, 0.0));
    assert_eq!((stats.prompt_tps, stats.generation_tps), (0.0, 0.0));
}

#[tokio::test]
async fn a_request_stopped_while_it_waits_ends_before_the_one_that_it_waits_for() {
    let model = Scripted::endless();
    let engine = one_at_a_time();
    engine.load("endless", model.folder()).await.expect("loads");
    let mut busy = engine.generate(request(&[1, 2, 3], ENDLESSLY));
    first_token(&mut busy).await;
    let mut waiting = engine.generate(request(&[4, 5], 20));
    let so_far = model.answer(&[6, 7], 3);
    let going_on = GenerateRequest { answer_so_far: so_far.clone(), ..request(&[6, 7], ENDLESSLY) };
    let mut behind = engine.generate(going_on);
    let mut last = engine.generate(request(&[8], 2));
    for (stopped, num_prompt_tokens, token_ids) in
        [(&mut waiting, 2, Vec::new()), (&mut behind, 5, so_far)]
    {
        stopped.stop();
        let answer =
            tokio::time::timeout(SOON, finish(stopped)).await.expect("ends").expect("an answer");
        let stats = answer.finished.stats;
        assert_eq!(stats.finish_reason, FinishReason::Cancelled);
        assert_eq!(stats.num_prompt_tokens, num_prompt_tokens);
        assert_eq!((stats.num_cached_tokens, stats.num_generation_tokens), (0, 0));
        assert_eq!(answer.finished.token_ids, token_ids);
    }
    // The one that they waited for is still being written, and the last has kept its place.
    first_token(&mut busy).await;
    drop(busy);
    let answer =
        tokio::time::timeout(SOON, finish(&mut last)).await.expect("ends").expect("an answer");
    assert_eq!(answer.finished.token_ids, model.answer(&[8], 2));
}

#[tokio::test]
async fn a_failure_or_panic_ends_its_own_job_only() {
    async fn check(fields: serde_json::Value, expected: &str) {
        let model = Scripted::with(&text_ids("abcdefg"), fields);
        let engine = start();
        engine.load("brittle", model.folder()).await.expect("loads");
        // In decoding, in prefill and in a score: each runs position 10.
        let mut during_answer = engine.generate(request(&[1; 7], 50));
        let mut during_prefill = engine.generate(request(&[1; 30], 50));
        let mut after = engine.generate(request(&[1, 2], 5));
        let score =
            engine.score(PromptInput::Tokens(vec![1; 30]), 1).await.expect_err("fails").to_string();
        let failure = finish(&mut during_answer).await.err().expect("fails");
        // Tokens 1 to 3 are at positions 7 to 9; the fourth is sampled, and lost when running it
        // fails.
        assert_eq!(failure.num_tokens, 3);
        let messages = [
            failure.message,
            finish(&mut during_prefill).await.err().expect("fails").message,
            score,
        ];
        assert!(messages.iter().all(|message| message.contains(expected)), "{messages:?}");
        assert_eq!(
            finish(&mut after).await.expect("an answer").finished.token_ids,
            model.answer(&[1, 2], 5)
        );
        // Answered by a job after it, so that the state published after the answer is seen.
        engine.flush_cache().await;
        assert_eq!(
            engine.status().borrow().state,
            EngineState::Ready { model: "brittle".to_owned() }
        );
    }
    check(json!({ "fail_at": 10 }), "the model failed: the script fails").await;
    check(json!({ "panic_at": 10 }), "the engine hit a bug while").await;
}

#[tokio::test]
async fn the_engine_loads_a_model_after_another_failed_to_load() {
    let engine = start();
    let broken = Scripted::with(&[65], json!({ "model_type": "unheard-of" }));
    let good = Scripted::new(&[65]);
    engine.load("first", good.folder()).await.expect("loads");

    let error = engine.load("broken", broken.folder()).await.expect_err("fails").to_string();
    assert!(
        error.starts_with("cannot load broken: the architecture 'unheard-of' is not supported"),
        "{error}"
    );
    for _ in 0..2 {
        let failure =
            finish(&mut engine.generate(request(&[1], 1))).await.err().expect("nothing is loaded");
        assert_eq!(failure.message, "no model is loaded: choose one first");
        // Read by a job after it, so that the state published after the answer is seen.
        engine.flush_cache().await;
        let state = engine.status().borrow().state.clone();
        assert_eq!(
            state,
            EngineState::Failed { model: "broken".to_owned(), message: error.clone() }
        );
    }

    let info = engine.load("good", good.folder()).await.expect("loads");
    assert_eq!(
        (info.name.as_str(), info.model_type.as_str(), info.vocab_size),
        ("good", "scripted", 259)
    );
    assert_eq!(engine.status().borrow().state, EngineState::Ready { model: "good".to_owned() });
    assert_eq!(
        finish(&mut engine.generate(request(&[1], 1))).await.expect("an answer").finished.token_ids,
        [65]
    );

    engine.unload().await.expect("unloads");
    assert_eq!(engine.status().borrow().state, EngineState::Empty);
    let error = engine
        .score(PromptInput::Tokens(vec![1]), 1)
        .await
        .expect_err("nothing is loaded")
        .to_string();
    assert_eq!(error, "no model is loaded: choose one first");
}

#[tokio::test]
async fn a_broken_model_folder_is_refused_with_its_reason() {
    async fn check(file: &str, contents: Option<&str>, expected: &str) {
        let model = Scripted::new(&[65]);
        let path = model.folder().join(file);
        match contents {
            Some(contents) => std::fs::write(&path, contents).expect("written"),
            None => std::fs::remove_file(&path).expect("removed"),
        }
        let error = start().load("m", model.folder()).await.expect_err("fails").to_string();
        assert!(
            error.starts_with("cannot load m: ")
                && error.contains(file)
                && error.contains(expected),
            "{file}: {error}"
        );
    }
    check("config.json", None, "cannot read").await;
    check("config.json", Some("{"), "is not valid").await;
    check(
        "config.json",
        Some(r#"{"model_type": "scripted", "vocab_size": 9, "script": [9]}"#),
        "script = [9]",
    )
    .await;
    check("config.json", Some(r#"{"model_type": "scripted"}"#), "vocab_size").await;
    check("tokenizer.json", None, "cannot read").await;
    check("tokenizer.json", Some("{}"), "is not a usable tokenizer").await;
    check("tokenizer_config.json", Some("[1"), "is not valid").await;
}

#[tokio::test]
async fn a_short_answer_does_not_wait_for_a_long_one() {
    let model = Scripted::endless();
    let engine = start();
    engine.load("endless", model.folder()).await.expect("loads");
    let mut long = engine.generate(request(&[1, 2, 3], ENDLESSLY));
    first_token(&mut long).await;
    let mut short: Vec<_> =
        (0..5).map(|number| (number, engine.generate(request(&[7, number], 12)))).collect();
    for (number, generation) in &mut short {
        let answer = tokio::time::timeout(SOON, finish(generation))
            .await
            .expect("ends first")
            .expect("an answer");
        assert_eq!(answer.finished.token_ids, model.answer(&[7, *number], 12));
    }
    long.stop();
    let sampled = tokio::time::timeout(SOON, finish(&mut long))
        .await
        .expect("stops")
        .expect("an answer")
        .finished
        .token_ids;
    assert_eq!(sampled, model.answer(&[1, 2, 3], sampled.len()));
}

#[tokio::test]
async fn requests_without_room_wait_in_order() {
    let model = Scripted::endless();
    let engine = one_at_a_time();
    engine.load("endless", model.folder()).await.expect("loads");
    // Each request continues the one before: the tokens that it finds cached show that that one was
    // served just before it.
    let mut prompt = vec![1, 2, 3];
    let mut expected_cached = 0;
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push((engine.generate(request(&prompt, 4)), expected_cached));
        prompt.extend(model.answer(&prompt, 4));
        expected_cached = prompt.len() - 1;
        prompt.push(5);
    }
    for (mut generation, expected_cached) in waiting {
        let answer = finish(&mut generation).await.expect("an answer");
        assert_eq!(answer.finished.stats.num_cached_tokens, expected_cached);
    }
}

#[tokio::test]
async fn shutdown_cancels_running_requests_and_refuses_waiting_ones() {
    let model = Scripted::endless();
    let engine = one_at_a_time();
    engine.load("endless", model.folder()).await.expect("loads");
    let mut running = engine.generate(request(&[1], ENDLESSLY));
    let mut waiting = engine.generate(request(&[1], ENDLESSLY));
    first_token(&mut running).await;
    tokio::time::timeout(SOON, engine.shutdown()).await.expect("shuts down");
    let answer = finish(&mut running).await.expect("an answer");
    assert_eq!(answer.finished.stats.finish_reason, FinishReason::Cancelled);
    for generation in [&mut waiting, &mut engine.generate(request(&[1], 1))] {
        assert_eq!(
            finish(generation).await.err().expect("refused").message,
            "the engine has been shut down"
        );
    }
    let error = engine.load("endless", model.folder()).await.expect_err("refused").to_string();
    assert_eq!(error, "the engine has been shut down");
    tokio::time::timeout(SOON, engine.shutdown()).await.expect("twice does no harm");
}

#[test]
fn dropping_the_last_handle_ends_the_thread() {
    let model = Scripted::endless();
    let engine = start();
    let mut generation = engine.generate(request(&[1], 1));
    assert!(
        matches!(generation.blocking_recv(), Some(GenerateEvent::Failed(_))),
        "nothing is loaded yet"
    );
    let status = engine.status();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(engine.load("endless", model.folder())).expect("loads");
    let mut generation = engine.generate(request(&[1], ENDLESSLY));
    runtime.block_on(first_token(&mut generation));
    drop(engine);
    assert!(status.has_changed().is_err(), "the thread's end of the status is gone");
}
