//! The next token of many prompts: each row as if it were alone, whatever its company.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cairn_chat::{Message, Role};
use cairn_engine::{
    ClassifyEvent, ClassifyRequest, ClassifyRow, Engine, EngineError, EngineOptions, GenerateEvent,
    OptionScoring, PromptInput, RowAnswer,
};
use serde_json::json;

use crate::client::{finish, request};
use crate::scripted::{Scripted, text_ids};
use crate::test_engine::chat_model;

/// Rows are computed with sums in another order than alone.
const TOLERANCE: f32 = 1e-4;

pub fn say(role: Role, content: &str) -> Message {
    Message { role, content: content.to_owned(), token_ids: None }
}

fn row(prompt: PromptInput, options: &[&str]) -> ClassifyRow {
    ClassifyRow { prompt, options: options.iter().map(|&option| option.to_owned()).collect() }
}

async fn start(model: &Path) -> Engine {
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("model", model).await.expect("loads");
    engine
}

/// The answers by row, and how many times progress of the prefix was reported.
async fn classify(
    engine: &Engine,
    request: ClassifyRequest,
) -> (BTreeMap<usize, Result<RowAnswer, EngineError>>, usize) {
    let mut running = engine.classify(request);
    let (mut answers, mut num_prefix_events) = (BTreeMap::new(), 0);
    loop {
        match running.recv().await.expect("an event") {
            ClassifyEvent::Prefix { .. } => num_prefix_events += 1,
            ClassifyEvent::Row { index, answer } => {
                assert!(answers.insert(index, answer).is_none(), "row {index} comes once");
            }
            ClassifyEvent::Finished => break,
            ClassifyEvent::Failed(error) => panic!("{error}"),
        }
    }
    assert!(running.recv().await.is_none(), "nothing comes after the end");
    (answers, num_prefix_events)
}

/// In the letters that every tiny vocabulary has.
const REVIEWS: [&str; 7] = [
    "GOOD",
    "NOMAD AGAIN",
    "DIM LAMB AND A BAD MELON 0N A COLD DIAL AND NO FILM OF A LIMB",
    "OK",
    "GOOD",
    "\n\n  BLANK AFOG",
    "0123456789",
];

fn reviews() -> (Vec<Message>, Vec<ClassifyRow>) {
    let prefix = vec![say(Role::System, "IF A MEAL IN A LINE IF GOOD: 1")];
    let rows = REVIEWS.map(|review| {
        let messages = [prefix.as_slice(), &[say(Role::User, review)]].concat();
        row(PromptInput::Messages(messages), &[])
    });
    (prefix, rows.to_vec())
}

/// Compares the answers with what `score` says of each prompt alone.
async fn assert_as_alone(
    engine: &Engine,
    rows: &[ClassifyRow],
    answers: &BTreeMap<usize, Result<RowAnswer, EngineError>>,
) {
    for (index, row) in rows.iter().enumerate() {
        let answer = answers[&index].as_ref().expect("an answer");
        let alone = engine.score(row.prompt.clone(), 3).await.expect("a score");
        assert_eq!(answer.num_prompt_tokens, alone.tokens.len(), "row {index}");
        assert!((answer.logprob - alone.next[0].1).abs() < TOLERANCE, "row {index}");
        for (found, expected) in answer.top.iter().zip(&alone.next) {
            assert!((found.1 - expected.1).abs() < TOLERANCE, "{found:?}, not {expected:?}");
        }
    }
}

#[tokio::test]
async fn rows_of_a_prefix_are_answered_as_each_alone() {
    for case in [
        "llama/gqa",
        "gemma3_text/dense",
        "qwen3_next/dense",
        "qwen3/dense",
        "deepseek_v3/dense",
        "gemma4_text/dense",
        "gpt_oss/dense",
    ] {
        let model = chat_model(case);
        let engine = start(model.path()).await;
        let (prefix, rows) = reviews();
        for batch_size in [1, 3, 32] {
            // The rows have the system prompt in common, whether the request says so or not.
            let is_said = batch_size > 1;
            let request = ClassifyRequest {
                prefix: is_said.then(|| PromptInput::Messages(prefix.clone())),
                batch_size,
                num_top: 3,
                ..ClassifyRequest::new(rows.clone())
            };
            let (answers, _) = classify(&engine, request).await;
            assert_as_alone(&engine, &rows, &answers).await;
            let shared = |index: usize| answers[&index].as_ref().unwrap().num_cached_tokens;
            assert!(shared(0) > 20 && (1..7).all(|index| shared(index) == shared(0)), "{case}");
        }
        engine.shutdown().await;
    }
}

#[tokio::test]
async fn texts_and_tokens_share_a_prefix_too() {
    let model = chat_model("llama/gqa");
    let engine = start(model.path()).await;
    let text = "All of these begin with some words that are the same: ".to_owned();
    let rows: Vec<ClassifyRow> = ["one", " two", "three more words"]
        .iter()
        .map(|rest| row(PromptInput::Text(format!("{text}{rest}")), &[]))
        .collect();
    let request = ClassifyRequest {
        prefix: Some(PromptInput::Text(text)),
        num_top: 3,
        ..ClassifyRequest::new(rows.clone())
    };
    let (answers, _) = classify(&engine, request).await;
    assert_as_alone(&engine, &rows, &answers).await;
    assert!(answers.values().all(|answer| answer.as_ref().unwrap().num_cached_tokens > 40));

    let shared: Vec<u32> = (1..60).collect();
    let rows: Vec<ClassifyRow> = [[1, 2].as_slice(), &[3], &[4, 5, 6]]
        .iter()
        .map(|rest| row(PromptInput::Tokens([shared.as_slice(), rest].concat()), &[]))
        .collect();
    let request = ClassifyRequest {
        prefix: Some(PromptInput::Tokens(shared)),
        num_top: 3,
        ..ClassifyRequest::new(rows.clone())
    };
    let (answers, _) = classify(&engine, request).await;
    assert_as_alone(&engine, &rows, &answers).await;
    assert!(answers.values().all(|answer| answer.as_ref().unwrap().num_cached_tokens == 59));
    engine.shutdown().await;
}

#[tokio::test]
async fn the_state_of_an_open_turn_is_read_once() {
    let model = chat_model("llama/gqa");
    let engine = start(model.path()).await;
    let state = "The parcel left on Monday and arrived on Friday, wet but whole.";
    let rows: Vec<ClassifyRow> = ["Was it late?", "Was it broken?"]
        .iter()
        .map(|question| format!("{state}\n\n{question}"))
        .map(|text| row(PromptInput::Messages(vec![say(Role::User, &text)]), &[]))
        .collect();
    let request = ClassifyRequest {
        prefix: Some(PromptInput::OpenTurn(vec![say(Role::User, state)])),
        num_top: 3,
        ..ClassifyRequest::new(rows.clone())
    };
    let (answers, num_prefix_events) = classify(&engine, request).await;
    assert_as_alone(&engine, &rows, &answers).await;
    assert_eq!(num_prefix_events, 1);
    assert!(answers.values().all(|answer| answer.as_ref().unwrap().num_cached_tokens > 40));
    engine.shutdown().await;
}

#[tokio::test]
async fn options_have_the_joint_probability_of_their_tokens() {
    let model = chat_model("llama/gqa");
    let engine = start(model.path()).await;
    let (prefix, rows) = reviews();
    let options = ["yes", "no", "y", "not at all"];
    let rows: Vec<ClassifyRow> =
        rows.into_iter().map(|review| row(review.prompt, &options)).collect();
    let request = ClassifyRequest {
        prefix: Some(PromptInput::Messages(prefix)),
        option_scoring: OptionScoring::Joint,
        ..ClassifyRequest::new(rows.clone())
    };
    let (answers, _) = classify(&engine, request).await;
    for (index, row) in rows.iter().enumerate() {
        let answer = answers[&index].as_ref().expect("an answer");
        let prompt = engine.score(row.prompt.clone(), 0).await.expect("a score").tokens;
        let joint = async |option: &str| {
            let all = [prompt.as_slice(), &text_ids(option)].concat();
            let score = engine.score(PromptInput::Tokens(all), 0).await.expect("a score");
            score.logprobs[prompt.len()..].iter().flatten().sum::<f32>()
        };
        // Each of the shorter ones goes on to the longer one with that one's next letter.
        let (yes, no, y, not) =
            (joint("yes").await, joint("no").await, joint("y").await, joint("not at all").await);
        let (ye, not_only) = (joint("ye").await, joint("not").await);
        let without = |all: f32, longer: f32| (all.exp() - longer.exp()).ln();
        let expected = [yes, without(no, not_only), without(y, ye), not];
        for (found, expected) in answer.option_logprobs.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-2, "{index}: {found}, not {expected}");
        }
        let best = answer.option_logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(answer.logprob, best);
        let chosen = options.iter().position(|&option| option == answer.text).expect("an option");
        assert_eq!(answer.option_logprobs[chosen], best);
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn rows_that_cannot_be_answered_are_named_and_the_others_answered() {
    let model = chat_model("llama/gqa");
    let engine = start(model.path()).await;
    let (prefix, mut rows) = reviews();
    rows[1].prompt = PromptInput::Messages(vec![say(Role::User, "NO MEAL")]);
    rows[2].options = Arc::from(["yes".to_owned(), "yellow".to_owned()]);
    rows[3].options = Arc::from([String::new(), "a".to_owned()]);
    rows[5].prompt = PromptInput::Messages(
        [prefix.as_slice(), &[say(Role::User, &"LONG ".repeat(2000))]].concat(),
    );
    let request = ClassifyRequest {
        prefix: Some(PromptInput::Messages(prefix)),
        ..ClassifyRequest::new(rows)
    };
    let (answers, _) = classify(&engine, request).await;
    let message = |index: usize| answers[&index].as_ref().expect_err("an error").to_string();
    assert_eq!(message(1), "it does not begin with the prefix that all rows share");
    assert_eq!(message(2), "“yes” and “yellow” begin with the same token: choose others");
    assert_eq!(message(3), "option 1 is empty");
    assert!(message(5).contains("context"), "{}", message(5));
    for index in [0, 4, 6] {
        assert!(answers[&index].is_ok(), "row {index}");
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn a_row_that_fails_leaves_the_others_of_its_pass() {
    // A pass that comes to token 40 fails.
    let model = Scripted::with(&text_ids("abcdefg"), json!({ "fail_at": 40 }));
    let engine = start(model.folder()).await;
    let lengths = [5, 6, 45, 7, 44, 8];
    let rows: Vec<ClassifyRow> =
        lengths.iter().map(|&length| row(PromptInput::Tokens(vec![1; length]), &[])).collect();
    let (answers, _) = classify(&engine, ClassifyRequest::new(rows)).await;
    for (index, &length) in lengths.iter().enumerate() {
        match &answers[&index] {
            Ok(answer) => {
                assert_eq!(vec![answer.token], model.answer(&vec![1; length], 1), "row {index}");
            }
            Err(error) => assert!(length > 40, "row {index}: {error}"),
        }
    }
    assert_eq!(answers.values().filter(|answer| answer.is_err()).count(), 2);
    engine.shutdown().await;
}

#[tokio::test]
async fn answers_go_on_while_rows_are_computed() {
    let model = Scripted::endless();
    let engine = start(model.folder()).await;
    let mut answer = engine.generate(request(&[1, 2, 3], 2_000_000));
    while !matches!(answer.recv().await, Some(GenerateEvent::Delta { .. })) {}
    let rows: Vec<ClassifyRow> = (0..300)
        .map(|index| {
            row(PromptInput::Tokens([vec![index % 200; 29], vec![index / 200]].concat()), &[])
        })
        .collect();
    let mut running = engine.classify(ClassifyRequest::new(rows));
    let mut num_deltas_between = 0;
    let mut num_rows = 0;
    while num_rows < 300 {
        tokio::select! {
            biased;
            event = running.recv() => match event {
                Some(ClassifyEvent::Row { answer: Ok(_), .. }) => num_rows += 1,
                other => panic!("{other:?}"),
            },
            event = answer.recv() => match event {
                Some(GenerateEvent::Delta { .. }) => num_deltas_between += 1,
                other => panic!("{other:?} while the answer runs"),
            },
        }
    }
    assert!(num_deltas_between > 0, "the answer went on between rows");
    drop(answer);
    engine.shutdown().await;
}

#[tokio::test]
async fn a_dropped_request_is_cancelled() {
    let model = Scripted::endless();
    let engine = start(model.folder()).await;
    let rows: Vec<ClassifyRow> =
        (0..100_000).map(|index| row(PromptInput::Tokens(vec![index % 200, 7]), &[])).collect();
    let mut running = engine.classify(ClassifyRequest::new(rows));
    assert!(matches!(running.recv().await, Some(ClassifyEvent::Row { .. })));
    drop(running);
    let answer = finish(&mut engine.generate(request(&[9, 8], 20))).await.expect("an answer");
    assert_eq!(answer.finished.token_ids, model.answer(&[9, 8], 20));
    engine.shutdown().await;
}

#[tokio::test]
async fn a_prefix_that_is_kept_is_not_read_again() {
    let model = chat_model("qwen3_next/dense");
    let engine = start(model.path()).await;
    let (prefix, rows) = reviews();
    let request = ClassifyRequest {
        prefix: Some(PromptInput::Messages(prefix)),
        keep_prefix: true,
        num_top: 3,
        ..ClassifyRequest::new(rows.clone())
    };
    let (first, num_events) = classify(&engine, request.clone()).await;
    assert_eq!(num_events, 1);
    let (second, num_events) = classify(&engine, request.clone()).await;
    assert_eq!(num_events, 0);
    for index in 0..rows.len() {
        assert_eq!(first[&index].as_ref().unwrap(), second[&index].as_ref().unwrap());
    }
    engine.forget_conversations().await;
    assert_eq!(classify(&engine, request).await.1, 1);
    engine.shutdown().await;
}

#[tokio::test]
async fn without_a_model_a_request_fails() {
    let (engine, _) = Engine::start(EngineOptions::default());
    let mut running = engine.classify(ClassifyRequest::new(Vec::new()));
    assert!(matches!(running.recv().await, Some(ClassifyEvent::Failed(EngineError::NoModel))));
    engine.shutdown().await;
    let mut running = engine.classify(ClassifyRequest::new(Vec::new()));
    assert!(matches!(running.recv().await, Some(ClassifyEvent::Failed(EngineError::Closed))));
}
