//! Answers whose tokens are looked up or predicted by the model's head: the same as plain ones, alone
//! and among others.

use cairn_chat::{FinishReason, GuessCounts, SamplingParams};
use cairn_engine::{
    Acceptance, Engine, EngineOptions, EngineState, EngineStatus, GenerateEvent, GenerateRequest,
    Speculation,
};

use crate::client::{Answer, finish, request};
use crate::scripted::{Scripted, text_ids};

const LOOKUPS: [Speculation; 3] = [
    Speculation::Lookup { num_tokens: 1 },
    Speculation::Lookup { num_tokens: 6 },
    Speculation::Auto,
];

async fn answer(engine: &Engine, request: GenerateRequest) -> Answer {
    finish(&mut engine.generate(request)).await.expect("an answer")
}

/// Models of each kind, with the ways to propose for them.
fn cases() -> [(&'static str, Vec<Speculation>); 5] {
    let with_heads = [1, 3].map(|num_tokens| Speculation::Mtp { num_tokens });
    let with_heads = [&LOOKUPS[2..], &with_heads].concat();
    [
        ("llama/tiny-chat", LOOKUPS.to_vec()),
        ("gemma3_text/long-prompt", LOOKUPS.to_vec()),
        ("qwen3_next/dense", LOOKUPS.to_vec()),
        ("qwen3_next/head", with_heads.clone()),
        ("qwen3_5/head", with_heads),
    ]
}

/// Receives until the answer has `num_tokens`, and returns these.
async fn begin(generation: &mut cairn_engine::Generation, num_tokens: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    while tokens.len() < num_tokens {
        match generation.recv().await.expect("an event") {
            GenerateEvent::Delta { token, .. } => tokens.push(token),
            GenerateEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    tokens
}

/// A prompt that repeats itself, so that there is something to look up from the first token on.
fn prompt(number: u32) -> Vec<u32> {
    let line = (0..9).map(|position| (31 + 7 * position + number) % 32);
    line.cycle().take(60 + number as usize).collect()
}

/// Greedy, random, and with a penalty, which each needs something else of the lookup.
fn requests() -> Vec<GenerateRequest> {
    let greedy = SamplingParams::default();
    let seeded = SamplingParams { temperature: 0.7, seed: Some(5), ..greedy.clone() };
    let penalised = SamplingParams { frequency_penalty: Some(0.1), ..greedy.clone() };
    let filtered = SamplingParams { top_p: 0.9, ..seeded.clone() };
    [greedy, seeded, penalised, filtered]
        .into_iter()
        .zip(0u32..)
        .map(|(sampling, number)| GenerateRequest {
            sampling,
            use_prompt_cache: false,
            ignore_eos: true,
            num_top_logprobs: number.is_multiple_of(2).then_some(2),
            ..request(&prompt(number), 60)
        })
        .collect()
}

#[tokio::test]
async fn looking_up_changes_no_token() {
    for (model, speculations) in cases() {
        let (engine, _) = Engine::start(EngineOptions::default());
        engine.load("model", &cairn_tests::tiny_model(model)).await.expect("loads");
        for request in requests() {
            let plain = answer(&engine, request.clone()).await;
            assert_eq!(plain.finished.acceptance, Acceptance::default());
            assert_eq!(plain.finished.stats.guesses, None);
            for &speculation in &speculations {
                let looked_up = GenerateRequest { speculation, ..request.clone() };
                let found = answer(&engine, looked_up).await;
                let case = format!("{model}, {speculation:?}, {:?}", request.sampling);
                assert_eq!(found.tokens, plain.tokens, "{case}");
                assert_eq!(found.logprobs.len(), plain.logprobs.len(), "{case}");
                for (found, plain) in found.logprobs.iter().zip(&plain.logprobs) {
                    // Several rows use other kernels than a single one.
                    assert!((found.logprob - plain.logprob).abs() < 1e-4, "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn what_repeats_is_accepted_and_counted() {
    let model = Scripted::new(&text_ids("a"));
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    let asked = GenerateRequest {
        speculation: Speculation::Lookup { num_tokens: 5 },
        ..request(&text_ids("aaaa"), 60)
    };
    let found = answer(&engine, asked).await;
    assert_eq!(found.tokens, model.answer(&text_ids("aaaa"), 60));
    let Acceptance { num_drafted, num_accepted, num_checked } = found.finished.acceptance;
    let guesses = GuessCounts { num_proposed: num_drafted, num_accepted, num_checked };
    assert_eq!(found.finished.stats.guesses, Some(guesses));
    // Of six tokens of a pass one is the model's own.
    assert_eq!((num_drafted, num_accepted), (50, 50));
    assert_eq!(found.finished.stats.finish_reason, FinishReason::Length);
}

#[tokio::test]
async fn an_answer_that_was_expected_is_proposed_from_its_beginning() {
    let (prompt, expected) = (text_ids("say it"), "abcdefghijklmnopqrstuvwxyz");
    let model = Scripted::saying(&prompt, &text_ids(expected));
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    let ask = |speculation, prediction: &str| GenerateRequest {
        speculation,
        prediction: Some(prediction.to_owned()),
        use_prompt_cache: false,
        ..request(&prompt, 60)
    };
    let lookup = Speculation::Lookup { num_tokens: 5 };
    for (speculation, prediction, num_accepted) in [
        // Of six tokens of a pass one is the model's own; the last pass has two and the end.
        (lookup, expected, 22),
        (lookup, "something else", 0),
        (Speculation::Off, expected, 0),
    ] {
        let found = answer(&engine, ask(speculation, prediction)).await;
        assert_eq!(found.tokens, text_ids(expected));
        let case = format!("{speculation:?}, {prediction}");
        assert_eq!(found.finished.acceptance.num_accepted, num_accepted, "{case}");
    }
}

#[tokio::test]
async fn a_head_is_right_as_often_as_the_script_says() {
    let fields = serde_json::json!({ "head_errs_every": 1_000_000 });
    let model = Scripted::with(&text_ids("abcdefg hij"), fields);
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    let prompt = text_ids("say it");
    let speculation = Speculation::Mtp { num_tokens: 3 };
    let asked = GenerateRequest { speculation, ..request(&prompt, 61) };
    let found = answer(&engine, asked).await;
    assert_eq!(found.tokens, model.answer(&prompt, 61));
    // Of four tokens of a pass one is the model's own.
    assert_eq!(found.finished.acceptance.num_accepted, 45 + 1);
    let asked = GenerateRequest { speculation: Speculation::Auto, ..request(&prompt, 400) };
    let found = answer(&engine, asked).await;
    assert_eq!(found.tokens, model.answer(&prompt, 400));
    assert!(found.finished.acceptance.num_drafted > 0, "the head proposes nothing");
}

/// Answers that begin while others are being written, as rows that leave and join a batch.
#[tokio::test]
async fn answers_that_look_up_join_the_others() {
    for (model, speculations) in cases() {
        let (engine, _) = Engine::start(EngineOptions::default());
        engine.load("model", &cairn_tests::tiny_model(model)).await.expect("loads");
        let requests: Vec<GenerateRequest> = requests()
            .into_iter()
            .map(|request| GenerateRequest { num_top_logprobs: None, ..request })
            .collect();
        let mut alone = Vec::new();
        for request in &requests {
            alone.push(answer(&engine, request.clone()).await.tokens);
        }
        for speculation in speculations {
            for num_before in [1, 2, 7, 20] {
                let mut running = Vec::new();
                for request in requests.clone() {
                    let mut generation =
                        engine.generate(GenerateRequest { speculation, ..request });
                    let tokens = begin(&mut generation, num_before).await;
                    running.push((generation, tokens));
                }
                for ((mut generation, mut tokens), alone) in running.into_iter().zip(&alone) {
                    let left = alone.len() - tokens.len();
                    tokens.extend(begin(&mut generation, left).await);
                    assert_eq!(&tokens, alone, "{model}, {speculation:?}, after {num_before}");
                }
            }
        }
    }
}

/// A conversation that continues from saved context: the head has not read what was restored.
#[tokio::test]
async fn a_head_proposes_behind_restored_context() {
    for model in ["qwen3_next/head", "qwen3_5/head"] {
        let (engine, _) = Engine::start(EngineOptions::default());
        engine.load("model", &cairn_tests::tiny_model(model)).await.expect("loads");
        let speculation = Speculation::Mtp { num_tokens: 2 };
        let sampling = SamplingParams { temperature: 30.0, seed: Some(9), ..Default::default() };
        let ask = |prompt: &[u32], use_prompt_cache, speculation| GenerateRequest {
            sampling: sampling.clone(),
            use_prompt_cache,
            ignore_eos: true,
            speculation,
            ..request(prompt, 40)
        };
        let first = answer(&engine, ask(&prompt(0), true, speculation)).await;
        let longer = [prompt(0), first.tokens, vec![5, 6, 7]].concat();
        let plain = answer(&engine, ask(&longer, false, Speculation::Off)).await;
        let continued = answer(&engine, ask(&longer, true, speculation)).await;
        assert_eq!(continued.tokens, plain.tokens, "{model}");
        assert!(continued.finished.stats.num_cached_tokens > 0, "{model}");
        let Acceptance { num_drafted, num_accepted, .. } = continued.finished.acceptance;
        assert!(5 * num_accepted > num_drafted, "{model}: {num_accepted} of {num_drafted}");
    }
}

#[tokio::test]
async fn a_model_without_a_head_says_so() {
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("model", &cairn_tests::tiny_model("llama/tiny-chat")).await.expect("loads");
    let asked =
        GenerateRequest { speculation: Speculation::Mtp { num_tokens: 1 }, ..request(&[5, 6], 3) };
    let refused = finish(&mut engine.generate(asked)).await.err().expect("is refused");
    assert!(refused.message.contains("has no prediction head"), "{}", refused.message);
}

/// Answers that are asked for at once: the first begins by itself, and leaves for the batch of the
/// second before, or as, its first token comes.
#[tokio::test]
async fn an_answer_may_join_the_others_before_its_first_token() {
    for (model, speculations) in cases() {
        if !speculations.contains(&Speculation::Auto) {
            continue;
        }
        let (engine, _) = Engine::start(EngineOptions::default());
        engine.load("model", &cairn_tests::tiny_model(model)).await.expect("loads");
        let speculation = Speculation::Auto;
        let requests = requests().into_iter().map(|request| GenerateRequest {
            num_top_logprobs: None,
            prefill_step_size: 16,
            ..request
        });
        let requests: Vec<GenerateRequest> = requests.collect();
        let mut alone = Vec::new();
        for request in &requests {
            alone.push(answer(&engine, request.clone()).await.tokens);
        }
        for _ in 0..3 {
            let together: Vec<_> = requests
                .iter()
                .map(|request| engine.generate(GenerateRequest { speculation, ..request.clone() }))
                .collect();
            for (mut generation, alone) in together.into_iter().zip(&alone) {
                let found = finish(&mut generation).await.expect("an answer");
                assert_eq!(&found.tokens, alone, "{model}");
            }
        }
        // What was done is published at the latest when nothing is left to do.
        let mut status = engine.status();
        let is_idle = |status: &EngineStatus| matches!(status.state, EngineState::Ready { .. });
        let work = status.wait_for(is_idle).await.expect("a status").work;
        assert!(work.num_shared_passes > 0, "{model}: no answer joins another");
    }
}

/// The other comes when the first has all its tokens, and has not ended yet.
#[tokio::test]
async fn an_answer_with_all_its_tokens_joins_nobody() {
    let model = Scripted::endless();
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    for max_tokens in [1, 1, 1, 1, 2, 2, 3, 3].repeat(20) {
        let asked = GenerateRequest {
            speculation: Speculation::Auto,
            use_prompt_cache: false,
            ..request(&[5, 6, 7], max_tokens)
        };
        let mut first = engine.generate(asked.clone());
        let mut tokens = begin(&mut first, 1).await;
        let mut other = engine.generate(asked);
        tokens.extend(finish(&mut first).await.expect("an answer").tokens);
        assert_eq!(tokens, model.answer(&[5, 6, 7], max_tokens));
        finish(&mut other).await.expect("an answer");
    }
}

#[tokio::test]
async fn one_that_is_stopped_leaves_the_others_alone() {
    let model = Scripted::endless();
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    let asked =
        GenerateRequest { speculation: Speculation::Auto, ..request(&[5, 6, 7], 5_000_000) };
    let mut stopped = engine.generate(asked.clone());
    let first = begin(&mut stopped, 40).await;
    let mut other = engine.generate(GenerateRequest { max_tokens: 50, ..asked });
    stopped.stop();
    let whole = begin(&mut other, 50).await;
    assert_eq!(whole, model.answer(&[5, 6, 7], 50));
    assert_eq!(first, whole[..40]);
}
