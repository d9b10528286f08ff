//! Prompts that come together and begin alike are restored once, and each is answered as by itself.

use std::pin::pin;
use std::sync::mpsc;

use cairn_engine::GenerateRequest;

use crate::client::{Answer, finish};
use crate::test_engine::{
    CacheRows, ON_DISK, Talk, TestEngine, ask, chat_model, fresh_folder, owner,
};

const QUESTIONS: [&str; 6] = ["A 1", "B 22", "C 333", "A 1 AND NO END", "D", "B 0"];

/// Several chunks.
fn system_prompt() -> String {
    "A LONG BEGINNING OF A BIG MANGO ".repeat(20)
}

/// The answers to `questions`, which the engine's thread finds waiting together.
async fn ask_together(engine: &TestEngine, questions: &[&str]) -> Vec<Answer> {
    let (release, held) = mpsc::channel::<()>();
    let mut hold = pin!(engine.engine.submit(None, move |_| held.recv().is_err()));
    tokio::select! {
        biased;
        _ = &mut hold => panic!("the thread is held"),
        () = std::future::ready(()) => {}
    }
    let talk = Talk::new(&system_prompt());
    let ask = |(index, question): (usize, &&str)| {
        let owner = owner(&format!("conversation/{index}"));
        engine.engine.generate(ask(talk.asking(question), &owner))
    };
    let mut generations: Vec<_> = questions.iter().enumerate().map(ask).collect();
    drop(release);
    hold.await.expect("was held");
    let mut answers = Vec::new();
    for generation in &mut generations {
        answers.push(finish(generation).await.expect("an answer"));
    }
    answers
}

async fn check(case: &str) {
    let (model, folder) = (chat_model(case), fresh_folder());
    let start = |rows| TestEngine::start(model.path(), folder.path(), ON_DISK, rows);
    let mut engine = start(CacheRows::default()).await;
    let talk = Talk::new(&system_prompt());
    engine.answer(ask(talk.asking("E"), &owner("conversation/first"))).await;
    engine.settle().await;
    let rows = engine.close().await;

    let num_restored = |engine: &TestEngine| engine.handle().view(0).figures.num_restored_chunks;
    let engine = start(rows).await;
    let answers = ask_together(&engine, &QUESTIONS).await;
    let num_together = num_restored(&engine);
    for (answer, question) in answers.iter().zip(QUESTIONS) {
        let request = ask(talk.asking(question), &owner("conversation/alone"));
        let uncached = GenerateRequest { use_prompt_cache: false, owner: None, ..request };
        let uncached = engine.answer(uncached).await.finished;
        let found = &answer.finished;
        assert_eq!(found.token_ids, uncached.token_ids, "{case}: {question}");
        let num_cached = answers[0].finished.stats.num_cached_tokens;
        assert_eq!(found.stats.num_cached_tokens, num_cached, "{case}: {question}");
    }
    let engine = start(engine.close().await).await;
    ask_together(&engine, &["F 5"]).await;
    let num_chunks = num_restored(&engine);
    assert!(num_chunks > 1, "{case}: {num_chunks} chunks");
    assert_eq!(num_together, num_chunks, "{case}: each chunk once");
    engine.close().await;
}

#[tokio::test]
async fn equal_beginnings_are_restored_once_for_all_who_wait() {
    // Keys of all tokens, of a window, and states.
    for case in ["llama/gqa", "gemma3_text/dense", "qwen3_next/dense"] {
        check(case).await;
    }
}
