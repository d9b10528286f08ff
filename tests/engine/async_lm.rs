//! Log-probabilities of next tokens through `AsyncLm`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cairn_engine::{
    AsyncLm, AsyncLmOptions, CacheWalk, Engine, EngineError, EngineOptions, GenerateEvent,
    GenerateRequest, PromptInput, SampleRequest,
};
use cairn_tests::tiny_model;

/// No test waits so long.
const FOREVER: Duration = Duration::from_secs(100_000);

async fn tiny(options: AsyncLmOptions) -> AsyncLm {
    let folder = tiny_model("llama/dense-tied");
    AsyncLm::from_name(folder.to_str().expect("a name"), options).await.expect("loads")
}

/// Batches of so many that never go before they are full.
fn full(batch_size: usize) -> AsyncLmOptions {
    AsyncLmOptions { batch_size, timeout: FOREVER, ..AsyncLmOptions::default() }
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
    }
}

#[tokio::test]
async fn a_full_batch_goes_at_once_and_its_rows_are_what_each_is_alone() {
    let lm = tiny(full(4)).await;
    let rows = [vec![1, 2, 3], vec![4; 20], vec![5], vec![1, 2, 3, 4]];
    let together = lm.batch_next_token_logprobs(&rows).await.expect("computed");
    let counts = lm.counts().await.expect("counts");
    assert_eq!((counts.num_rows, lm.stored_logprobs().0), (4, 4));
    let alone = tiny(AsyncLmOptions::default()).await;
    for (ids, found) in rows.iter().zip(&together) {
        let total: f32 = found.iter().map(|logprob| logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-3, "{total}");
        assert_close(found, &alone.next_token_logprobs(ids).await.expect("computed"));
    }
    // In any order, and without waiting for a full batch.
    lm.clear_cache().await.expect("cleared");
    let reversed: Vec<Vec<u32>> = rows.iter().rev().cloned().collect();
    let again = lm.batch_next_token_logprobs_sync(&reversed).expect("computed");
    for (found, expected) in again.iter().rev().zip(&together) {
        assert_close(found, expected);
    }
}

#[tokio::test]
async fn a_batch_that_is_not_full_goes_when_its_time_has_come() {
    let lm = tiny(AsyncLmOptions { batch_size: 100, ..AsyncLmOptions::default() }).await;
    let rows: Vec<Vec<u32>> = (1..4).map(|token| vec![token]).collect();
    assert_eq!(lm.batch_next_token_logprobs(&rows).await.expect("computed").len(), 3);
    assert!(lm.batch_next_token_logprobs(&[]).await.expect("nothing to do").is_empty());
}

#[tokio::test]
async fn what_is_known_is_answered_at_once_and_equal_queries_are_one() {
    let lm = tiny(full(3)).await;
    let one = vec![1, 2, 3];
    let rows = lm.batch_next_token_logprobs(&[one.clone(), one.clone(), vec![9]]).await;
    let rows = rows.expect("computed");
    assert!(Arc::ptr_eq(&rows[0], &rows[1]));
    assert_eq!(lm.counts().await.expect("counts").num_rows, 2);
    // No batch is full.
    let known = lm.next_token_logprobs(&one).await.expect("known");
    assert!(Arc::ptr_eq(&rows[0], &known));
    let known = lm.next_token_logprobs_sync(&one).expect("known");
    assert!(Arc::ptr_eq(&rows[0], &known));
    let mixed = lm.batch_next_token_logprobs_sync(&[vec![7], one, vec![9]]).expect("computed");
    assert!(Arc::ptr_eq(&rows[2], &mixed[2]) && Arc::ptr_eq(&rows[0], &mixed[1]));
    assert_close(&mixed[0], &tiny(full(1)).await.next_token_logprobs(&[7]).await.expect("alone"));
}

#[tokio::test]
async fn queries_that_cannot_be_answered_say_why() {
    let lm = tiny(AsyncLmOptions::default()).await;
    let empty = lm.next_token_logprobs(&[]).await.expect_err("no tokens");
    assert!(empty.is_bad_request(), "{empty}");
    assert!(lm.next_token_logprobs_sync(&[]).is_err() && lm.cache_kv(&[]).await.is_err());
    let fine = vec![1, 2];
    let (unknown, computed) =
        tokio::join!(lm.next_token_logprobs(&[1 << 20]), lm.next_token_logprobs(&fine));
    assert!(unknown.expect_err("no such token").is_bad_request());
    computed.expect("the other is computed");
    let missing = AsyncLm::from_name("/no/such/folder", AsyncLmOptions::default()).await;
    assert!(matches!(missing, Err(EngineError::Load { .. })));
    let (engine, _changes) = Engine::start(EngineOptions::default());
    let unloaded = AsyncLm::of_engine(&engine, "nothing", AsyncLmOptions::default());
    let error = unloaded.next_token_logprobs(&fine).await.expect_err("not loaded");
    assert!(error.to_string().contains("the model nothing is not loaded"), "{error}");
    assert!(unloaded.walk_cache(&fine).await.is_err());
    engine.shutdown().await;
    let error = unloaded.next_token_logprobs(&fine).await.expect_err("shut down");
    assert!(matches!(error, EngineError::Closed), "{error}");
}

#[tokio::test]
async fn another_model_of_the_same_name_answers_for_itself() {
    let (engine, _changes) = Engine::start(EngineOptions::default());
    let lm = AsyncLm::of_engine(&engine, "tiny", AsyncLmOptions::default());
    let mut rows = Vec::new();
    for model in ["llama/dense-tied", "llama/dense-untied"] {
        engine.load("tiny", &tiny_model(model)).await.expect("loads");
        lm.cache_kv(&[1, 2]).await.expect("read in");
        rows.push(lm.next_token_logprobs(&[1, 2, 3]).await.expect("computed"));
    }
    assert_ne!(rows[0], rows[1]);
    let (alone, _changes) = Engine::start(EngineOptions::default());
    alone.load("tiny", &tiny_model("llama/dense-untied")).await.expect("loads");
    let alone = AsyncLm::of_engine(&alone, "tiny", AsyncLmOptions::default());
    assert_close(&rows[1], &alone.next_token_logprobs(&[1, 2, 3]).await.expect("computed"));
}

#[tokio::test]
async fn queries_that_are_reset_get_an_error() {
    let lm = tiny(full(2)).await;
    let ids = [1, 2, 3];
    let mut waiting = std::pin::pin!(lm.next_token_logprobs(&ids));
    // It is asked when it is first polled.
    std::future::poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    lm.reset_async_queries();
    assert!(matches!(waiting.await, Err(EngineError::QueryReset)));
    // Others are not held up by it.
    let rows = lm.batch_next_token_logprobs(&[vec![1], vec![2]]).await;
    assert_eq!(rows.expect("computed").len(), 2);
}

#[tokio::test]
async fn a_prefix_that_is_read_in_is_found() {
    let lm = tiny(AsyncLmOptions::default()).await;
    let ids = [3, 1, 4, 1, 5, 9, 2, 6];
    let walked =
        |num_logprob_tokens, num_kv_tokens| CacheWalk { num_logprob_tokens, num_kv_tokens };
    assert_eq!(lm.walk_cache(&ids).await.expect("walked"), walked(0, 0));
    lm.cache_kv(&ids[..4]).await.expect("read in");
    assert_eq!(lm.walk_cache(&ids).await.expect("walked"), walked(4, 4));
    assert_eq!(lm.walk_cache(&ids[..3]).await.expect("walked"), walked(0, 3));
    let before = lm.counts().await.expect("counts");
    assert_eq!(before.stored_tokens, 4);
    let found = lm.next_token_logprobs(&ids).await.expect("computed");
    let after = lm.counts().await.expect("counts");
    assert_eq!(after.num_tokens - before.num_tokens, 4);
    assert_eq!(lm.walk_cache(&ids).await.expect("walked"), walked(8, 8));
    lm.clear_cache().await.expect("cleared");
    assert_eq!(lm.walk_cache(&ids).await.expect("walked"), walked(0, 0));
    assert_eq!(lm.stored_logprobs(), (0, 0));
    assert_close(&found, &lm.next_token_logprobs(&ids).await.expect("computed again"));
}

#[tokio::test]
async fn samples_repeat_with_their_seed_and_end_at_the_tokens_that_end_them() {
    let lm = tiny(AsyncLmOptions::default()).await;
    let request = SampleRequest { max_tokens: 12, seed: Some(7), ..SampleRequest::default() };
    let prompt = [1, 2, 3];
    let sample = lm.sample(&prompt, &request).await.expect("sampled");
    assert_eq!(sample.len(), 12);
    assert_eq!(lm.sample(&prompt, &request).await.expect("sampled"), sample);
    let other = SampleRequest { seed: Some(8), ..request.clone() };
    assert_ne!(lm.sample(&prompt, &other).await.expect("sampled"), sample);
    let end = sample[5];
    let before_end = sample.iter().position(|&token| token == end).expect("it is there");
    let ending = SampleRequest { eos_token_ids: vec![end], ..request.clone() };
    let prompts = vec![prompt.to_vec(), vec![9, 9]];
    let both = lm.batch_sample(&prompts, &ending).await.expect("sampled");
    assert_eq!((both.len(), &both[0][..]), (2, &sample[..before_end]));
    // The likeliest token is what the log-probabilities say.
    let greedy = SampleRequest { temperature: 0.0, max_tokens: 1, ..SampleRequest::default() };
    let logprobs = lm.next_token_logprobs(&prompt).await.expect("computed");
    let best = logprobs.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1));
    let best = best.map(|(token, _)| token as u32).expect("a vocabulary");
    assert_eq!(lm.sample(&prompt, &greedy).await.expect("sampled"), [best]);
    assert!(lm.sample(&[], &greedy).await.is_err());
}

#[tokio::test]
async fn an_answer_and_queries_run_beside_each_other() {
    let (engine, _changes) = Engine::start(EngineOptions::default());
    engine.load("tiny", &tiny_model("llama/dense-tied")).await.expect("loads");
    let lm = AsyncLm::of_engine(&engine, "tiny", AsyncLmOptions::default());
    let request = |max_tokens| GenerateRequest {
        max_tokens,
        ignore_eos: true,
        ..GenerateRequest::new(PromptInput::Tokens(vec![1, 2, 3]))
    };
    let mut answer = engine.generate(request(100_000));
    while !matches!(answer.recv().await, Some(GenerateEvent::Delta { .. })) {}
    let rows: Vec<Vec<u32>> = (0..40).map(|row| vec![row, 5, row, 7]).collect();
    let beside = lm.batch_next_token_logprobs(&rows).await.expect("computed");
    // The answer is not at its end, and goes on.
    while !matches!(answer.recv().await, Some(GenerateEvent::Delta { .. })) {}
    drop(answer);
    let alone = tiny(full(40)).await.batch_next_token_logprobs(&rows).await.expect("computed");
    for (found, expected) in beside.iter().zip(&alone) {
        assert_close(found, expected);
    }
    // Nothing of it is in use when all is answered.
    lm.clear_cache().await.expect("cleared");
    drop(lm);
    let is_idle =
        |status: &cairn_engine::EngineStatus| status.models.iter().all(|model| !model.is_in_use);
    engine.status().wait_for(is_idle).await.expect("the engine lives");
    engine.shutdown().await;
}
