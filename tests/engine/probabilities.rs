//! The probabilities of an answer that exists equal those that were reported while it was generated,
//! whatever of its prompt is saved.

use cairn_engine::{
    AnswerToken, Engine, EngineOptions, GenerateRequest, PromptInput, TokenLogprob,
};

use crate::client::{Answer, finish, request};
use crate::test_engine::{BOTH, CacheRows, ON_DISK, Talk, TestEngine, ask, chat_model, owner};

const NUM_TOP: usize = 5;
const QUESTION: &str = "A MILE NO MAN CAN FIND";

fn talk() -> Talk {
    // Longer than a chunk.
    Talk::new(&"AID ME, MIND ME, LEAD ME HOME. ".repeat(12))
}

fn asked() -> GenerateRequest {
    let request = ask(talk().asking(QUESTION), &owner("conversation/1"));
    GenerateRequest { num_top_logprobs: Some(NUM_TOP), ..request }
}

/// A request to read an answer again.
fn again(answer: &Answer) -> GenerateRequest {
    GenerateRequest { answer_so_far: answer.finished.token_ids.clone(), ..asked() }
}

/// The tokens of an answer, and how many tokens were read for them.
async fn read(engine: &Engine, request: GenerateRequest) -> (Vec<AnswerToken>, usize) {
    let mut steps = Vec::new();
    let tokens = engine.probabilities(request, |read, total| steps.push((read, total))).await;
    assert!(steps.is_sorted(), "{steps:?}");
    let (_, total) = steps.last().copied().unwrap_or_default();
    let first = steps.iter().find(|(read, _)| *read > 0).map_or(0, |(read, _)| *read);
    (tokens.expect("reads"), total - first)
}

fn check_same(found: &[AnswerToken], expected: &[TokenLogprob], what: &str) {
    // An end-of-sequence token is sampled without a delta.
    assert!(found.len() - expected.len() <= 1 && !expected.is_empty(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.token, expected.token, "{what}");
        let near = |one: f32, other: f32| (one - other).abs() <= 1e-4;
        assert!(near(found.logprob, expected.logprob), "{what}: {found:?} is not {expected:?}");
        assert_eq!((found.top.len(), expected.top.len()), (NUM_TOP, NUM_TOP));
        for (found, expected) in found.top.iter().zip(&expected.top) {
            assert!(near(found.logprob, expected.logprob), "{what}: {found:?}, {expected:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probabilities_are_those_of_generating() {
    for case in [
        "llama/dense-tied",
        "qwen3_moe/dense",
        "gemma3_text/pattern3",
        "gpt_oss/dense",
        "qwen3_next/dense",
    ] {
        let model = chat_model(case);
        let folder = tempfile::tempdir().unwrap();
        let mut harness =
            TestEngine::start(model.path(), folder.path(), BOTH, CacheRows::default()).await;
        let answer = harness.answer(asked()).await;
        let found = read(&harness.engine, again(&answer)).await.0;
        check_same(&found, &answer.logprobs, &format!("{case}, from memory"));
        let alone = GenerateRequest { use_prompt_cache: false, ..again(&answer) };
        let found = read(&harness.engine, alone).await.0;
        check_same(&found, &answer.logprobs, &format!("{case}, nothing saved"));
        harness.settle().await;
        let rows = harness.close().await;
        let harness = TestEngine::start(model.path(), folder.path(), ON_DISK, rows).await;
        let found = read(&harness.engine, again(&answer)).await.0;
        check_same(&found, &answer.logprobs, &format!("{case}, from disk"));
        let texts: String = found.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(texts, answer.text, "{case}");
        harness.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_not_saved_is_read_and_the_conversation_keeps_its_place() {
    let (model, folder) = (chat_model("llama/dense-tied"), tempfile::tempdir().unwrap());
    let harness = TestEngine::start(model.path(), folder.path(), BOTH, CacheRows::default()).await;
    let answer = harness.answer(asked()).await;
    let figures = harness.handle().view(1).figures;
    let (_, num_read) = read(&harness.engine, again(&answer)).await;
    assert!(num_read <= answer.finished.token_ids.len(), "{num_read} tokens were read");
    assert_eq!(
        harness.handle().view(1).figures.num_lookups,
        figures.num_lookups,
        "a look is no lookup"
    );
    // The next turn continues what is resident.
    let mut talk = talk();
    talk.add(QUESTION, &answer);
    let next = harness.answer(ask(talk.asking("NO"), &owner("conversation/1"))).await;
    let num_before = answer.finished.stats.num_prompt_tokens + answer.finished.token_ids.len() - 1;
    assert!(next.finished.stats.num_cached_tokens >= num_before, "{:?}", next.finished.stats);
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_token_has_its_rank_and_the_entropy_of_its_place() {
    let model = chat_model("llama/dense-tied");
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("model", model.path()).await.expect("loads");
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(model.path().join("config.json")).unwrap()).unwrap();
    let num_top = config["vocab_size"].as_u64().unwrap() as usize;
    let request = GenerateRequest {
        answer_so_far: vec![70, 65, 66, 2],
        num_top_logprobs: Some(num_top),
        ..request(&[68, 69], 0)
    };
    let (tokens, _) = read(&engine, request).await;
    assert_eq!(tokens.iter().map(|token| token.token).collect::<Vec<_>>(), [70, 65, 66, 2]);
    for token in &tokens {
        let logprob = |top: &cairn_engine::LikelyToken| top.token == token.token;
        assert_eq!(token.top.iter().position(logprob), Some(token.rank));
        let bits: f32 =
            token.top.iter().map(|top| -top.logprob.exp() * top.logprob / 2f32.ln()).sum();
        assert!((token.entropy_bits - bits).abs() < 1e-3, "{} is not {bits}", token.entropy_bits);
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_read_beside_another_and_dropping_it_ends_that() {
    let model = chat_model("llama/dense-tied");
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("model", model.path()).await.expect("loads");
    let mut other =
        engine.generate(GenerateRequest { max_tokens: 20, ignore_eos: true, ..asked() });
    let long = GenerateRequest { answer_so_far: vec![65; 400], ..asked() };
    let dropped = tokio::time::timeout(
        std::time::Duration::ZERO,
        engine.probabilities(long.clone(), |_, _| ()),
    );
    assert!(dropped.await.is_err());
    let (tokens, _) = read(&engine, long).await;
    assert_eq!(tokens.len(), 400);
    assert_eq!(finish(&mut other).await.expect("an answer").tokens.len(), 20);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_refused() {
    let model = chat_model("llama/dense-tied");
    let (engine, _) = Engine::start(EngineOptions::default());
    let check = async |request: GenerateRequest, expected: &str| {
        let refused = engine.probabilities(request, |_, _| ()).await;
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(asked(), "no model").await;
    engine.load("model", model.path()).await.expect("loads");
    check(asked(), "prompt").await;
    let beyond = GenerateRequest { answer_so_far: vec![u32::MAX], ..request(&[65], 1) };
    check(beyond, "vocabulary").await;
    let unnamed =
        GenerateRequest { model: Some("other".to_owned()), answer_so_far: vec![65], ..asked() };
    check(unnamed, "other").await;
    let empty = GenerateRequest {
        answer_so_far: vec![65],
        ..GenerateRequest::new(PromptInput::Tokens(Vec::new()))
    };
    check(empty, "prompt").await;
    engine.shutdown().await;
}
