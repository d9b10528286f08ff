//! Several loaded models within one memory limit.

use std::time::Duration;

use cairn_engine::{Engine, EngineOptions, GenerateEvent, GenerateRequest, MemoryPressure};
use serde_json::json;

use crate::client::{Answer, finish, request};
use crate::scripted::{Scripted, text_ids};

/// A bound for what should take milliseconds; only a hang gets near it.
const SOON: Duration = Duration::from_secs(60);

const GB: u64 = 1_000_000_000;

/// A model that claims to take so many bytes.
fn claiming(bytes: u64, script: &str) -> Scripted {
    let fields = json!({ "declared_weight_bytes": bytes, "max_position_embeddings": 10_000_000 });
    Scripted::with(&text_ids(script), fields)
}

fn start(limit_bytes: u64) -> Engine {
    let memory_limit_bytes = Some(limit_bytes);
    Engine::start(EngineOptions { memory_limit_bytes, ..EngineOptions::default() }).0
}

fn to(model: &str, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest { model: Some(model.to_owned()), ..request }
}

async fn answer(engine: &Engine, request: GenerateRequest) -> Answer {
    let mut generation = engine.generate(request);
    tokio::time::timeout(SOON, finish(&mut generation)).await.expect("ends").expect("an answer")
}

async fn load(engine: &Engine, name: &str, model: &Scripted) {
    engine.load(name, model.folder()).await.expect("loads");
}

/// The names of the loaded models, the least recently used first.
async fn loaded(engine: &Engine) -> Vec<String> {
    // Answered by a job after it, so that what was published last is seen.
    engine.flush_cache().await;
    engine.status().borrow().models.iter().map(|model| model.name.clone()).collect()
}

#[tokio::test]
async fn models_stay_loaded_side_by_side() {
    let (a, b) = (claiming(GB, "abc"), claiming(GB, "xyz"));
    let engine = start(4 * GB);
    load(&engine, "a", &a).await;
    load(&engine, "b", &b).await;
    // Without a name, the one that was loaded last answers.
    assert_eq!(answer(&engine, request(&[1], 5)).await.finished.token_ids, b.answer(&[1], 5));
    let named = answer(&engine, to("a", request(&[1], 5))).await;
    assert_eq!(named.finished.token_ids, a.answer(&[1], 5));
    assert_eq!(named.finished.stats.model, "a");
    // Loaded again, it is what it was: a conversation continues from memory.
    let prompt: Vec<u32> = (1..60).collect();
    let first = answer(&engine, to("a", request(&prompt, 5))).await;
    load(&engine, "b", &b).await;
    load(&engine, "a", &a).await;
    let next = [&prompt[..], &first.finished.token_ids, &[7]].concat();
    let cached = answer(&engine, request(&next, 5)).await.finished.stats.num_cached_tokens;
    assert_eq!(cached, next.len() - 2);
    assert_eq!(loaded(&engine).await, ["b", "a"]);
    let unknown = finish(&mut engine.generate(to("c", request(&[1], 1)))).await.err();
    assert_eq!(unknown.expect("no c").message, "the model c is not loaded: load it first");
}

#[tokio::test]
async fn a_model_whose_files_have_changed_is_loaded_again() {
    let (model, other) = (claiming(GB, "abc"), claiming(GB, "wxyz"));
    let engine = start(4 * GB);
    load(&engine, "m", &model).await;
    std::fs::copy(other.folder().join("config.json"), model.folder().join("config.json"))
        .expect("copies");
    load(&engine, "m", &model).await;
    assert_eq!(answer(&engine, request(&[1], 5)).await.finished.token_ids, other.answer(&[1], 5));
    assert_eq!(loaded(&engine).await, ["m"]);
}

#[tokio::test]
async fn the_least_recently_used_idle_model_goes_for_another() {
    let models = ["abc", "def", "ghi"].map(|script| claiming(GB, script));
    let engine = start(5 * GB / 2);
    load(&engine, "a", &models[0]).await;
    load(&engine, "b", &models[1]).await;
    answer(&engine, to("a", request(&[1], 2))).await;
    load(&engine, "c", &models[2]).await;
    assert_eq!(loaded(&engine).await, ["a", "c"]);

    // One that answers stays, although it was used least recently.
    let mut running = engine.generate(to("a", request(&[1], 5_000_000)));
    while !matches!(running.recv().await, Some(GenerateEvent::Delta { .. })) {}
    answer(&engine, to("c", request(&[1], 2))).await;
    load(&engine, "b", &models[1]).await;
    assert_eq!(loaded(&engine).await, ["a", "b"]);

    let large = claiming(2 * GB, "jkl");
    let refused = engine.load("large", large.folder()).await.expect_err("is refused").to_string();
    assert!(
        refused.starts_with("large needs 2.0 GB, and 1.5 GB of the 2.5 GB for models are free: wait until a is no longer in use"),
        "{refused}"
    );
    // Nothing has changed.
    assert_eq!(loaded(&engine).await, ["a", "b"]);
    assert_eq!(
        answer(&engine, request(&[1], 2)).await.finished.token_ids,
        models[1].answer(&[1], 2)
    );
    drop(running);
    load(&engine, "large", &large).await;
    assert_eq!(loaded(&engine).await, ["large"]);
    let huge = claiming(3 * GB, "mno");
    let refused = engine.load("huge", huge.folder()).await.expect_err("is refused").to_string();
    assert!(refused.contains("are free: choose a smaller model"), "{refused}");
}

#[tokio::test]
async fn an_answer_waits_for_memory_or_is_refused_with_the_numbers() {
    let model = claiming(GB, "abc");
    // Room for one answer to a long prompt.
    let engine = start(GB + (6 << 20));
    load(&engine, "m", &model).await;
    let long: Vec<u32> = (0..4000).map(|index| index % 200).collect();
    let mut first = engine.generate(request(&long, 5_000_000));
    while !matches!(first.recv().await, Some(GenerateEvent::Delta { .. })) {}
    let mut second = engine.generate(request(&long, 3));
    tokio::select! {
        biased;
        event = second.recv() => panic!("{event:?} before there is memory"),
        // Turns of the engine go by, in which it could begin.
        () = async { for _ in 0..50 { drop(first.recv().await) } } => {}
    }
    first.stop();
    let answer = tokio::time::timeout(SOON, finish(&mut second)).await.expect("ends");
    assert_eq!(answer.expect("an answer").finished.token_ids, model.answer(&long, 3));

    let too_long = vec![7; 100_000];
    let failure = finish(&mut engine.generate(request(&too_long, 3))).await.err();
    let message = failure.expect("is refused").message;
    assert!(
        message.starts_with("the answer needs 0.")
            && message.contains("of the 1.0 GB for models are free"),
        "{message}"
    );
}

#[tokio::test]
async fn memory_pressure_unloads_what_is_idle() {
    let models = ["abc", "def"].map(|script| claiming(GB, script));
    let engine = start(4 * GB);
    load(&engine, "a", &models[0]).await;
    load(&engine, "b", &models[1]).await;
    engine.relieve_memory(MemoryPressure::Warning);
    assert_eq!(loaded(&engine).await, ["a", "b"]);
    let mut running = engine.generate(to("a", request(&[1], 5_000_000)));
    while !matches!(running.recv().await, Some(GenerateEvent::Delta { .. })) {}
    engine.relieve_memory(MemoryPressure::Critical);
    let mut status = engine.status();
    let only_a = |status: &cairn_engine::EngineStatus| {
        status.models.len() == 1 && status.models[0].name == "a"
    };
    tokio::time::timeout(SOON, status.wait_for(only_a)).await.expect("b goes").expect("a status");
    running.stop();
    let answer = tokio::time::timeout(SOON, async {
        loop {
            match running.recv().await.expect("an event") {
                GenerateEvent::Finished(finished) => break finished.token_ids,
                GenerateEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    });
    let tokens = answer.await.expect("ends");
    assert_eq!(tokens, models[0].answer(&[1], tokens.len()));
}
