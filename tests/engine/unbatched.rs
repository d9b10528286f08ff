//! Answers that share no batch: with a draft model or quantized keys and values, and what the next
//! request continues of them.

use std::ops::ControlFlow;
use std::path::Path;

use cairn_chat::{FinishReason, SamplingParams};
use cairn_engine::{
    Acceptance, Engine, EngineOptions, GenerateRequest, KvCacheOptions, KvQuantization,
    PromptInput, Speculation,
};
use cairn_lm::{GenerateOptions, LoadOptions, LoadedModel, Sampler, generate_step};
use serde_json::json;

use crate::client::{Answer, finish, request};
use crate::file_parts::Parts;
use crate::scripted::{Scripted, text_ids};
use crate::test_engine::{
    CacheRows, ON_DISK, Talk, TestEngine, ask, chat_model, fresh_folder, owner,
};

async fn engine(model: &Scripted) -> Engine {
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    engine
}

fn drafted(prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        speculation: Speculation::Draft { num_tokens: 3 },
        ..request(prompt, max_tokens)
    }
}

fn quantized(start: usize) -> KvCacheOptions {
    KvCacheOptions {
        max_size: None,
        quantization: Some(KvQuantization { bits: 8, group_size: 32, start }),
        snapkv: None,
    }
}

async fn answer(engine: &Engine, request: GenerateRequest) -> Answer {
    finish(&mut engine.generate(request)).await.expect("an answer")
}

async fn refusal(engine: &Engine, request: GenerateRequest) -> String {
    finish(&mut engine.generate(request)).await.err().expect("is refused").message
}

#[tokio::test]
async fn a_draft_model_changes_no_token() {
    async fn check(script: &[u32], draft: &[u32], max_tokens: usize) {
        let (model, draft) = (Scripted::new(script), Scripted::new(draft));
        let engine = engine(&model).await;
        engine.load_draft("draft", draft.folder()).await.expect("loads");
        let prompt = [5, 6, 7];
        let plain = answer(&engine, request(&prompt, max_tokens)).await;
        let found = answer(&engine, drafted(&prompt, max_tokens)).await;
        assert_eq!(found.finished.token_ids, model.answer(&prompt, max_tokens), "{script:?}");
        assert_eq!((found.tokens, found.text), (plain.tokens, plain.text), "{script:?}");
        let (stats, expected) = (found.finished.stats, plain.finished.stats);
        assert_eq!(stats.finish_reason, expected.finish_reason, "{script:?}");
        // What was read without a draft model is continued with one.
        assert_eq!((stats.num_prompt_tokens, stats.num_cached_tokens), (3, 2), "{script:?}");
        assert_eq!(stats.num_generation_tokens, expected.num_generation_tokens, "{script:?}");
        assert!(stats.time_to_first_token_ms > 0.0 && stats.prompt_tps > 0.0, "{script:?}");
    }
    let text = text_ids("every word that is said");
    check(&text, &text, 40).await;
    check(&text, &text_ids("every sord that is waid"), 40).await;
    check(&text, &[65], 1).await;
    check(&[65, 66, 67, 258], &[65, 66, 67], 40).await;
}

#[tokio::test]
async fn a_real_draft_model_changes_no_token() {
    let folder = cairn_tests::tiny_model("llama/tiny-chat");
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("tiny-chat", &folder).await.expect("loads");
    engine.load_draft("itself", &folder).await.expect("loads");
    let prompt = engine.tokenize("What is a cairn?").await.expect("tokens");
    let plain = answer(&engine, request(&prompt, 40)).await;
    assert_eq!(
        answer(&engine, drafted(&prompt, 40)).await.finished.token_ids,
        plain.finished.token_ids
    );
}

/// Checks how much of the first turn a second one reuses.
async fn check_second_turn(
    first: GenerateRequest,
    second: impl Fn(&[u32]) -> GenerateRequest,
    expected_cached: impl Fn(usize) -> usize,
) {
    let model = Scripted::endless();
    let engine = engine(&model).await;
    engine.load_draft("draft", model.folder()).await.expect("loads");
    let PromptInput::Tokens(mut prompt) = first.prompt.clone() else { panic!("tokens") };
    prompt.extend(answer(&engine, first).await.finished.token_ids);
    let expected = expected_cached(prompt.len());
    prompt.extend([8, 9]);
    let request = second(&prompt);
    let found = answer(&engine, request.clone()).await;
    assert_eq!(found.finished.stats.num_cached_tokens, expected, "{request:?}");
    assert_eq!(found.prefill.first(), Some(&(expected, prompt.len(), expected)), "{request:?}");
    assert_eq!(found.prefill.last(), Some(&(prompt.len(), prompt.len(), expected)), "{request:?}");
    assert_eq!(found.finished.token_ids, model.answer(&prompt, 20), "{request:?}");
}

#[tokio::test]
async fn the_next_turn_continues_with_and_without_a_draft_model() {
    let prompt = [1, 2, 3, 4];
    let bounded = |prompt: &[u32]| GenerateRequest {
        kv_cache: KvCacheOptions { max_size: Some(500), ..KvCacheOptions::default() },
        ..drafted(prompt, 20)
    };
    // Quantization that begins after the conversation's end: the script cannot read quantized ids.
    let undrafted =
        |prompt: &[u32]| GenerateRequest { kv_cache: quantized(5000), ..request(prompt, 20) };
    let forgetful =
        |prompt: &[u32]| GenerateRequest { use_prompt_cache: false, ..drafted(prompt, 20) };
    // The last token of an answer is not run, because nothing follows it.
    let all_but_last = |length| length - 1;
    check_second_turn(drafted(&prompt, 20), |prompt| drafted(prompt, 20), all_but_last).await;
    check_second_turn(undrafted(&prompt), undrafted, all_but_last).await;
    check_second_turn(undrafted(&prompt), |prompt| drafted(prompt, 20), all_but_last).await;
    check_second_turn(drafted(&prompt, 20), undrafted, all_but_last).await;
    // Caches that drop tokens are not kept, nor those of a request without the prompt cache.
    check_second_turn(bounded(&prompt), bounded, |_| 0).await;
    check_second_turn(drafted(&prompt, 20), bounded, |_| 0).await;
    check_second_turn(forgetful(&prompt), |prompt| drafted(prompt, 20), |_| 0).await;
    check_second_turn(drafted(&prompt, 20), forgetful, |_| 0).await;
}

#[tokio::test]
async fn a_request_without_the_prompt_cache_leaves_the_conversation_unchanged() {
    let model = Scripted::endless();
    let engine = engine(&model).await;
    engine.load_draft("draft", model.folder()).await.expect("loads");
    answer(&engine, drafted(&[1, 2, 3], 5)).await;
    answer(&engine, GenerateRequest { use_prompt_cache: false, ..drafted(&[7, 8, 9], 5) }).await;
    assert_eq!(
        answer(&engine, drafted(&[1, 2, 3, 4], 5)).await.finished.stats.num_cached_tokens,
        3
    );
}

#[tokio::test]
async fn the_request_after_a_stopped_or_failed_one_is_correct() {
    for (fields, expected) in [
        (json!({ "fail_at": 30 }), "the script fails"),
        (json!({ "panic_at": 30 }), "the script panics"),
    ] {
        let model = Scripted::with(&text_ids("abcdefg"), fields);
        let engine = engine(&model).await;
        engine.load_draft("draft", model.folder()).await.expect("loads");
        answer(&engine, drafted(&[1, 2, 3], 5)).await;
        // In decoding, then in prefill.
        for prompt_len in [20, 40] {
            let message = refusal(&engine, drafted(&vec![1; prompt_len], 50)).await;
            assert!(message.contains(expected), "{message}");
            let after = answer(&engine, drafted(&[1, 2, 3], 5)).await;
            assert_eq!(after.finished.token_ids, model.answer(&[1, 2, 3], 5));
            assert_eq!(
                after.finished.stats.num_cached_tokens, 2,
                "what a failure left behind is not used"
            );
        }
    }
    let endless = Scripted::endless();
    let engine = engine(&endless).await;
    engine.load_draft("draft", endless.folder()).await.expect("loads");
    // Stopped during prefill or during decoding: the tokens processed until then are reused.
    for (prompt_len, step) in [(300, 1), (4, 2048)] {
        let prompt = vec![1; prompt_len];
        let request = GenerateRequest { prefill_step_size: step, ..drafted(&prompt, 5_000_000) };
        let mut generation = engine.generate(request.clone());
        for _ in 0..5 {
            generation.recv().await.expect("an event");
        }
        generation.stop();
        let stopped = finish_late(&mut generation).await;
        assert_eq!(stopped.stats.finish_reason, FinishReason::Cancelled);
        let after = answer(&engine, GenerateRequest { max_tokens: 5, ..request }).await;
        assert_eq!(after.finished.token_ids, endless.answer(&prompt, 5));
        assert!(after.finished.stats.num_cached_tokens > 0);
    }
}

/// The end of an answer whose first events have been received already.
async fn finish_late(
    generation: &mut cairn_engine::Generation,
) -> cairn_engine::FinishedGeneration {
    loop {
        if let cairn_engine::GenerateEvent::Finished(finished) =
            generation.recv().await.expect("an event")
        {
            return *finished;
        }
    }
}

/// A prompt that a draft model cannot read between the few tokens of an answer.
fn long_prompt() -> Vec<u32> {
    (0..900).map(|index| index % 100).collect()
}

/// A model, and another that says the same wherever it has read everything.
fn with_draft() -> [Scripted; 2] {
    let script = text_ids("abcdefghijklmnopq rstuvwxyz,.");
    [10_000, 20_000]
        .map(|length| Scripted::with(&script, json!({ "max_position_embeddings": length })))
}

/// An engine with a prompt cache and a draft model.
async fn drafting(models: &[Scripted; 2], folder: &Path, rows: CacheRows) -> TestEngine {
    let [model, draft] = models;
    let harness = TestEngine::start(model.folder(), folder, ON_DISK, rows).await;
    harness.engine.load_draft("draft", draft.folder()).await.expect("loads");
    harness
}

#[tokio::test]
async fn a_draft_model_reads_between_the_tokens_and_continues_after_a_restart() {
    let (models, temp) = (with_draft(), fresh_folder());
    let model = &models[0];
    let prompt = long_prompt();
    let ask = |prompt: &[u32], max_tokens| GenerateRequest {
        owner: Some(owner("conversation/1")),
        ..drafted(prompt, max_tokens)
    };
    let harness = drafting(&models, temp.path(), CacheRows::default()).await;
    let first = harness.answer(ask(&prompt, 8)).await.finished;
    assert_eq!(first.token_ids, model.answer(&prompt, 8));
    assert_eq!(first.acceptance.num_drafted, 0, "it has not read the prompt yet");
    // It goes on where it was.
    let prompt = [prompt, first.token_ids].concat();
    let second = harness.answer(ask(&prompt, 40)).await.finished;
    assert_eq!(second.token_ids, model.answer(&prompt, 40));
    let Acceptance { num_drafted, num_accepted, .. } = second.acceptance;
    assert!(num_drafted > 0 && num_accepted == num_drafted, "{num_accepted} of {num_drafted}");

    let rows = harness.close().await;
    let prompt = [prompt, second.token_ids].concat();
    let mut harness = drafting(&models, temp.path(), rows).await;
    let third = harness.answer(ask(&prompt, 8)).await.finished;
    assert_eq!(third.token_ids, model.answer(&prompt, 8));
    let Acceptance { num_drafted, num_accepted, .. } = third.acceptance;
    assert!(num_drafted > 0 && num_accepted == num_drafted, "{num_accepted} of {num_drafted}");
    assert!(third.stats.num_cached_tokens > 900);

    // What the draft model has read goes with the conversation.
    harness.drop_residents().await;
    harness.settle().await;
    harness.handle().purge(&owner("conversation/1"));
    harness.settle().await;
    assert_eq!(harness.rows.chunks.len(), 0);
}

/// Nothing of a conversation that is purged while it is answered comes back, whoever hears of the purge
/// first: the saving of what the draft model has read, or another answer.
#[tokio::test]
async fn a_purge_during_an_answer_is_not_undone_when_that_ends() {
    let (models, temp) = (with_draft(), fresh_folder());
    let mut harness = drafting(&models, temp.path(), CacheRows::default()).await;
    let purged = owner("conversation/1");
    let prompt = long_prompt();
    let plain = GenerateRequest { owner: Some(purged.clone()), ..request(&prompt, 9000) };
    let with_draft = GenerateRequest { owner: Some(purged.clone()), ..drafted(&prompt, 9000) };
    for (asked, another_hears) in [(with_draft, false), (plain, true)] {
        let mut generation = harness.engine.generate(asked);
        for _ in 0..5 {
            generation.recv().await.expect("an event");
        }
        harness.handle().purge(&purged);
        if another_hears {
            harness.answer(GenerateRequest { use_prompt_cache: true, ..request(&[7], 2) }).await;
        }
        generation.stop();
        finish_late(&mut generation).await;
        harness.settle().await;
        assert!(harness.handle().path(&purged).is_empty(), "another hears: {another_hears}");
        assert!(harness.rows.chunks.values().all(|chunk| chunk.num_tokens() < 100));
    }
}

#[tokio::test]
async fn automatic_speed_uses_a_draft_model_where_that_pays() {
    let (models, temp) = (with_draft(), fresh_folder());
    let model = &models[0];
    let harness = drafting(&models, temp.path(), CacheRows::default()).await;
    let prompt = long_prompt();
    let automatic = GenerateRequest { speculation: Speculation::Auto, ..request(&prompt, 200) };
    let found = harness.answer(automatic.clone()).await.finished;
    assert_eq!(found.token_ids, model.answer(&prompt, 200));
    assert!(found.acceptance.num_accepted > 0, "{:?}", found.acceptance);
    // Others join it, and then it shares their passes.
    let mut both = [(); 2].map(|()| harness.engine.generate(automatic.clone()));
    for generation in &mut both {
        let answer = finish(generation).await.expect("an answer").finished;
        assert_eq!(answer.token_ids, model.answer(&prompt, 200));
    }
    harness.close().await;
}

#[tokio::test]
async fn draft_models_can_be_loaded_and_dropped() {
    let model = Scripted::endless();
    let engine = engine(&model).await;
    let none = "speculative decoding needs a draft model: load one first";
    assert_eq!(refusal(&engine, drafted(&[1], 1)).await, none);

    let folder = tempfile::tempdir().expect("folder");
    cairn_tests::copy_tiny_model("llama/dense-tied", folder.path()).expect("copies");
    let message =
        engine.load_draft("other", folder.path()).await.expect_err("is refused").to_string();
    assert!(
        message.contains("259") && message.contains("128") && !message.contains('\n'),
        "{message}"
    );
    let message = engine
        .load_draft("nowhere", &folder.path().join("nowhere"))
        .await
        .expect_err("is refused")
        .to_string();
    assert!(message.starts_with("cannot load nowhere"), "{message}");
    assert_eq!(refusal(&engine, drafted(&[1], 1)).await, none);

    engine.load_draft("draft", model.folder()).await.expect("loads");
    assert_eq!(answer(&engine, drafted(&[1], 9)).await.finished.token_ids, model.answer(&[1], 9));
    engine.unload_draft().await.expect("unloads");
    assert_eq!(refusal(&engine, drafted(&[1], 1)).await, none);
    engine.unload_draft().await.expect("twice does no harm");
    engine.load_draft("draft", model.folder()).await.expect("loads");
    engine.load("scripted", model.folder()).await.expect("loads");
    assert_eq!(refusal(&engine, drafted(&[1], 1)).await, none, "a draft model goes with its model");
}

#[tokio::test]
async fn answers_with_quantized_caches_equal_the_model_s_own() {
    let folder = tempfile::tempdir().expect("folder");
    cairn_tests::copy_tiny_model("qwen3_moe/quant4", folder.path()).expect("copies");
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("moe", folder.path()).await.expect("loads");
    let loaded = LoadedModel::load(folder.path(), LoadOptions::new()).expect("loads");
    let prompt: Vec<u32> = (40..70).collect();
    for start in [0, 35] {
        let KvCacheOptions { quantization, .. } = quantized(start);
        let options = GenerateOptions {
            max_tokens: 20,
            kv_quantization: quantization,
            ..GenerateOptions::default()
        };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let mut stream = generate_step(
            &loaded.model,
            &prompt,
            &mut Vec::new(),
            Sampler::Greedy,
            options,
            &mut go_on,
        )
        .expect("starts");
        let expected: Vec<u32> = std::iter::from_fn(|| stream.next_token().expect("step"))
            .map(|sampled| sampled.token)
            .collect();
        let request = GenerateRequest {
            kv_cache: quantized(start),
            ignore_eos: true,
            ..request(&prompt, 20)
        };
        assert_eq!(answer(&engine, request).await.finished.token_ids, expected, "from {start} on");
    }
}

#[tokio::test]
async fn requests_that_cannot_be_served_are_refused_with_the_reason() {
    let model = Scripted::endless();
    let engine = engine(&model).await;
    engine.load_draft("draft", model.folder()).await.expect("loads");
    let kv_cache = |bits, group_size| KvCacheOptions {
        max_size: None,
        quantization: Some(KvQuantization { bits, group_size, start: 0 }),
        snapkv: None,
    };
    let mut cases = Vec::new();
    for bits in [0, 1, 5, 7, 16] {
        cases.push((
            GenerateRequest { kv_cache: kv_cache(bits, 64), ..request(&[1], 1) },
            format!("kv_bits = {bits}, but it must be one of [2, 3, 4, 6, 8]"),
        ));
    }
    cases.push((
        GenerateRequest { kv_cache: kv_cache(8, 48), ..request(&[1], 1) },
        "kv_group_size = 48".to_owned(),
    ));
    cases.push((
        GenerateRequest { prefill_step_size: 0, ..drafted(&[1], 1) },
        "prefill_step_size is 0".to_owned(),
    ));
    let sampling = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
    cases.push((GenerateRequest { sampling, ..drafted(&[1], 1) }, "top_p is 2".to_owned()));
    for (request, expected) in cases {
        let message = refusal(&engine, request).await;
        assert!(message.contains(&expected), "{message} does not say {expected}");
    }
    assert_eq!(answer(&engine, drafted(&[1], 9)).await.finished.token_ids, model.answer(&[1], 9));
}

#[tokio::test]
async fn tokenize_returns_the_tokens_of_a_text_prompt() {
    let model = Scripted::new(&[65]);
    let (engine, _) = Engine::start(EngineOptions::default());
    let error = engine.tokenize("a").await.expect_err("nothing is loaded").to_string();
    assert_eq!(error, "no model is loaded: choose one first");
    engine.load("scripted", model.folder()).await.expect("loads");
    for text in ["", "a cairn", "é\n<|im_end|>"] {
        let tokens = engine.tokenize(text).await.expect("tokens");
        if text.is_empty() {
            assert!(tokens.is_empty());
            continue;
        }
        let of_text = answer(
            &engine,
            GenerateRequest {
                max_tokens: 1,
                ..GenerateRequest::new(PromptInput::Text(text.to_owned()))
            },
        )
        .await;
        assert_eq!(tokens, of_text.finished.new_prompt_ids);
    }
}

/// Merges two heads into one, so that a group of 32 fits.
fn widen_head(model: &Path) {
    let path = model.join("config.json");
    let config = std::fs::read_to_string(&path).expect("config.json");
    let config = config.replace("\"num_attention_heads\": 2", "\"num_attention_heads\": 1");
    let config = config.replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1");
    std::fs::write(path, config.replace("\"head_dim\": 16", "\"head_dim\": 32"))
        .expect("config.json");
    let path = model.join("model.safetensors");
    let mut weights = Parts::read(&path);
    for norm in weights.tensors.iter_mut().filter(|tensor| {
        tensor.name.ends_with("q_norm.weight") || tensor.name.ends_with("k_norm.weight")
    }) {
        (norm.shape, norm.bytes) = (vec![32], norm.bytes.repeat(2));
    }
    weights.write(&path);
}

#[tokio::test]
async fn a_quantized_answer_is_regenerated_from_the_checkpoint_at_its_question() {
    let (model, temp) = (chat_model("qwen3_next/equal-heads"), fresh_folder());
    widen_head(model.path());
    let harness = TestEngine::start(model.path(), temp.path(), ON_DISK, CacheRows::default()).await;
    let talk = Talk::new(&"AID ME AND LEAD ME HOME. ".repeat(4));
    let question = || GenerateRequest {
        kv_cache: quantized(0),
        ..ask(talk.asking("FIND A MILE AND A CALM LAND"), &owner("conversation/1"))
    };
    let first = harness.answer(question()).await;
    harness.drop_residents().await;
    let again = harness.answer(question()).await;
    let (stats, expected) = (&again.finished.stats, first.finished.stats.num_prompt_tokens);
    assert!(
        stats.num_cached_tokens < expected && stats.num_cached_tokens + 20 > expected,
        "{stats:?}"
    );
    assert_eq!(again.finished.token_ids, first.finished.token_ids);
    // Another question reuses the system prompt.
    let other = harness
        .answer(GenerateRequest {
            kv_cache: quantized(0),
            ..ask(talk.asking("NO"), &owner("conversation/2"))
        })
        .await;
    assert!(other.finished.stats.num_cached_tokens >= 100, "{:?}", other.finished.stats);
}
