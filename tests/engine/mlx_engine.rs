//! An engine of one model and one prefix, which answers each conversation with one token.

use std::sync::{Arc, Mutex};

use cairn_chat::{Message, Role};
use cairn_engine::{EngineError, MlxEngine, MlxEngineOptions};
use mlx_rs::{Array, ops};

use crate::classify::say;
use crate::test_engine::chat_model;

fn prefix() -> Vec<Message> {
    vec![say(Role::System, "Is the review friendly? Answer with one letter.")]
}

fn conversations(reviews: &[&str]) -> Vec<Vec<Message>> {
    let conversation = |review: &&str| [prefix().as_slice(), &[say(Role::User, review)]].concat();
    reviews.iter().map(conversation).collect()
}

const REVIEWS: [&str; 5] = ["Never again, or not soon", "Lovely!", "ok", "Fine by me", "Awful"];

#[tokio::test]
async fn each_conversation_is_answered_in_the_order_of_the_caller() {
    let model = chat_model("llama/gqa");
    let options = MlxEngineOptions {
        prefix_messages: prefix(),
        batch_size: 2,
        worker_name: "reviews".to_owned(),
        ..MlxEngineOptions::new(model.path())
    };
    let engine = MlxEngine::new(options.clone());
    engine.ensure_loaded().await.expect("loads");
    let mut batches = Vec::new();
    let together = engine
        .generate(conversations(&REVIEWS), |count| batches.push(count))
        .await
        .expect("answers");
    assert_eq!(batches, [2, 2, 1]);
    for (review, text) in REVIEWS.iter().zip(&together) {
        let alone = engine.generate(conversations(&[review]), |_| ()).await.expect("an answer");
        assert_eq!(alone, [text.as_str()], "{review}");
    }
    let name = engine.submit(|_| std::thread::current().name().map(str::to_owned)).await;
    assert_eq!(name.expect("a name").as_deref(), Some("reviews"));
    assert!(engine.peak_memory_gb() > 0.0);
    engine.close().await;
    let closed = engine.generate(conversations(&REVIEWS), |_| ()).await;
    assert!(matches!(closed, Err(EngineError::Closed)));
    assert!(matches!(engine.submit(|_| ()).await, Err(EngineError::Closed)));
}

#[tokio::test]
async fn a_logits_processor_sees_the_tokens_and_decides() {
    let model = chat_model("llama/gqa");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let options = MlxEngineOptions {
        prefix_messages: prefix(),
        logits_processor_factory: Some(Arc::new({
            let seen = Arc::clone(&seen);
            move |tokenizer| {
                let only = tokenizer.token_to_id("Z").expect("a byte");
                let seen = Arc::clone(&seen);
                Box::new(move |tokens: &Array, logits: Array| {
                    seen.lock().unwrap().push(tokens.dim(0));
                    let bias: Vec<f32> = (0..logits.dim(1))
                        .map(|id| if id as u32 == only { 0.0 } else { f32::NEG_INFINITY })
                        .collect();
                    Ok(ops::add(&logits, Array::from_slice(&bias, &[1, logits.dim(1)]))?)
                })
            }
        })),
        ..MlxEngineOptions::new(model.path())
    };
    let engine = MlxEngine::new(options);
    let answers = engine.generate(conversations(&REVIEWS), |_| ()).await.expect("answers");
    assert_eq!(answers, ["Z"; 5]);
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 5, "once for each conversation");
    assert!(seen.iter().all(|&num_tokens| num_tokens > 40), "the prefix is among the tokens");
    engine.close().await;
}

#[tokio::test]
async fn errors_come_to_those_who_wait() {
    let model = chat_model("llama/gqa");
    let options =
        MlxEngineOptions { prefix_messages: prefix(), ..MlxEngineOptions::new(model.path()) };
    let engine = MlxEngine::new(options);
    let mut wrong = conversations(&REVIEWS);
    wrong[3].remove(0);
    let error = engine.generate(wrong, |_| ()).await.expect_err("another prefix");
    assert_eq!(error.to_string(), "row 4: it does not begin with the prefix that all rows share");
    let error = engine.submit(|_| panic!("what was submitted")).await.expect_err("a panic");
    assert!(error.to_string().contains("what was submitted"), "{error}");
    let refused = engine.submit(|_| Err::<(), _>("its own error")).await.expect("runs");
    assert_eq!(refused, Err("its own error"));
    assert!(engine.generate(conversations(&["still"]), |_| ()).await.is_ok());
    engine.close().await;

    let missing = MlxEngine::new(MlxEngineOptions::new(model.path().join("nothing")));
    for _ in 0..2 {
        let error = missing.ensure_loaded().await.expect_err("no folder");
        assert!(error.to_string().starts_with("cannot load"), "{error}");
    }
    assert!(missing.generate(conversations(&REVIEWS), |_| ()).await.is_err());
    missing.close().await;
}

#[tokio::test]
async fn closing_waits_for_what_was_asked_before() {
    let model = chat_model("llama/gqa");
    let options =
        MlxEngineOptions { prefix_messages: prefix(), ..MlxEngineOptions::new(model.path()) };
    let engine = Arc::new(MlxEngine::new(options));
    engine.ensure_loaded().await.expect("loads");
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let asking = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move {
            let mut begun = Some(begun);
            let many: Vec<&str> = REVIEWS.iter().copied().cycle().take(200).collect();
            let numbered: Vec<String> =
                many.iter().enumerate().map(|(index, text)| format!("{text} {index}")).collect();
            let texts: Vec<&str> = numbered.iter().map(String::as_str).collect();
            engine
                .generate(conversations(&texts), |_| {
                    let _ = begun.take().map(|begun| begun.send(()));
                })
                .await
        }
    });
    has_begun.await.expect("a batch");
    engine.close().await;
    assert_eq!(asking.await.expect("joins").expect("answers").len(), 200);
}
