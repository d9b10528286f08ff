//! Requests in one batch: each answer is the same as without the others, whatever the others ask
//! for, and whether they are stopped or fail.

use std::time::Duration;

use cairn_chat::SamplingParams;
use cairn_engine::{Engine, EngineOptions, GenerateEvent, GenerateRequest, Generation};
use serde_json::json;

use crate::client::{finish, request};
use crate::scripted::{Scripted, text_ids};

/// A bound for what should take milliseconds; only a hang gets near it.
const SOON: Duration = Duration::from_secs(60);

const ENDLESSLY: usize = 5_000_000;

async fn check_together(engine: &Engine, requests: &[GenerateRequest]) {
    let mut unbatched = Vec::new();
    for request in requests {
        unbatched.push(
            finish(&mut engine.generate(request.clone()))
                .await
                .expect("an answer")
                .finished
                .token_ids,
        );
    }
    let together: Vec<Generation> =
        requests.iter().map(|request| engine.generate(request.clone())).collect();
    for ((mut generation, expected), request) in together.into_iter().zip(unbatched).zip(requests) {
        assert_eq!(
            finish(&mut generation).await.expect("an answer").finished.token_ids,
            expected,
            "{request:?}"
        );
    }
}

fn requests(sampling: &[SamplingParams]) -> Vec<GenerateRequest> {
    let request = |(index, sampling): (usize, &SamplingParams)| {
        let prompt: Vec<u32> =
            (0..3 + 5 * index as u32).map(|position| (60 + 7 * position) % 90).collect();
        let num_top_logprobs = index.is_multiple_of(2).then_some(index);
        let request = request(&prompt, 30 + index);
        GenerateRequest {
            sampling: sampling.clone(),
            use_prompt_cache: false,
            ignore_eos: true,
            num_top_logprobs,
            ..request
        }
    };
    sampling.iter().enumerate().map(request).collect()
}

#[tokio::test]
async fn each_sequence_has_its_own_sampling() {
    let greedy = SamplingParams::default;
    let chosen = [
        greedy(),
        SamplingParams { logit_bias: [(70, 2000.0)].into(), ..greedy() },
        SamplingParams { repetition_penalty: Some(1.7), ..greedy() },
        SamplingParams { presence_penalty: Some(1.5), frequency_penalty: Some(0.7), ..greedy() },
        SamplingParams {
            logit_bias: [(70, -4.0), (75, 3.0)].into(),
            repetition_penalty: Some(1.3),
            ..greedy()
        },
    ];
    let seeded = |seed| SamplingParams { temperature: 3.0, seed: Some(seed), ..greedy() };
    let drawn = [
        seeded(1),
        seeded(2),
        greedy(),
        SamplingParams { top_p: 0.9, ..seeded(1) },
        SamplingParams { top_k: 20, logit_bias: [(70, 4.0)].into(), ..seeded(3) },
        SamplingParams { min_p: 0.01, frequency_penalty: Some(0.5), ..seeded(4) },
    ];
    // Rows with equal settings share their filters, but not their random numbers.
    let alike = [1, 2, 3, 4].map(|seed| SamplingParams { top_p: 0.9, top_k: 40, ..seeded(seed) });
    let scripted = Scripted::endless();
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("tiny-chat", &cairn_tests::tiny_model("llama/tiny-chat")).await.expect("loads");
    check_together(&engine, &requests(&chosen)).await;
    check_together(&engine, &requests(&drawn)).await;
    check_together(&engine, &requests(&alike)).await;
    engine.load("scripted", scripted.folder()).await.expect("loads");
    check_together(&engine, &requests(&chosen)).await;
    check_together(&engine, &requests(&drawn)).await;
    check_together(&engine, &requests(&alike)).await;
}

#[tokio::test]
async fn a_failure_ends_one_answer_of_five() {
    async fn check(fields: serde_json::Value, sampling: SamplingParams, failing: usize) {
        let calm = Scripted::new(&text_ids("abcdefg"));
        let brittle = Scripted::with(&text_ids("abcdefg"), fields);
        let (engine, _) = Engine::start(EngineOptions::default());
        // Only the failing one reaches position 40.
        let requests: Vec<GenerateRequest> = (0..5)
            .map(|index| {
                let prompt = vec![index as u32 + 1; if index == failing { 30 } else { 3 + index }];
                let mut request = GenerateRequest {
                    sampling: sampling.clone(),
                    use_prompt_cache: false,
                    ..request(&prompt, 25)
                };
                // A sequence with a bounded cache is retried with a bounded cache.
                request.kv_cache.max_size = (index == 3).then_some(8);
                request
            })
            .collect();
        engine.load("calm", calm.folder()).await.expect("loads");
        let mut expected = Vec::new();
        for request in &requests {
            expected.push(finish(&mut engine.generate(request.clone())).await.expect("an answer"));
        }
        engine.load("brittle", brittle.folder()).await.expect("loads");
        let generations: Vec<Generation> =
            requests.iter().map(|request| engine.generate(request.clone())).collect();
        for (index, mut generation) in generations.into_iter().enumerate() {
            let result = tokio::time::timeout(SOON, finish(&mut generation)).await.expect("ends");
            match result {
                Ok(answer) => {
                    assert_ne!(index, failing);
                    assert_eq!(
                        answer.finished.token_ids, expected[index].finished.token_ids,
                        "answer {index} beside {failing}"
                    );
                    assert_eq!(
                        (answer.tokens, answer.text),
                        (expected[index].tokens.clone(), expected[index].text.clone())
                    );
                }
                Err(failure) => assert_eq!(index, failing, "{failure:?}"),
            }
        }
    }
    let seeded = SamplingParams { temperature: 3.0, seed: Some(5), ..SamplingParams::default() };
    for failing in [0, 2, 4] {
        check(json!({ "fail_at": 40 }), SamplingParams::default(), failing).await;
        check(json!({ "fail_at": 40 }), seeded.clone(), failing).await;
    }
    check(json!({ "panic_at": 40 }), seeded, 1).await;
}

/// Waits until `generation` has emitted an event for which `is_reached` holds.
async fn until(generation: &mut Generation, is_reached: impl Fn(&GenerateEvent) -> bool) {
    loop {
        let event = tokio::time::timeout(SOON, generation.recv())
            .await
            .expect("comes soon")
            .expect("an event");
        if is_reached(&event) {
            return;
        }
    }
}

#[tokio::test]
async fn stopped_requests_free_their_rows_while_others_continue() {
    let model = Scripted::endless();
    let options = EngineOptions {
        completion_batch_size: 2,
        prefill_batch_size: 2,
        ..EngineOptions::default()
    };
    let (engine, _) = Engine::start(options);
    engine.load("endless", model.folder()).await.expect("loads");
    let one_at_a_time =
        |prompt: &[u32]| GenerateRequest { prefill_step_size: 1, ..request(prompt, ENDLESSLY) };
    let mut going_on = engine.generate(one_at_a_time(&[1, 2, 3]));
    until(&mut going_on, |event| matches!(event, GenerateEvent::Delta { .. })).await;
    let is_reading =
        |event: &GenerateEvent| matches!(event, GenerateEvent::Prefill { processed: 3.., .. });
    let is_writing = |event: &GenerateEvent| matches!(event, GenerateEvent::Delta { .. });
    for (number, is_dropped) in [(4, true), (5, false)] {
        for is_in_prompt in [true, false] {
            // Too long to be prefilled before it is stopped, or prefilled soon.
            let mut stopped =
                engine.generate(one_at_a_time(&vec![7; if is_in_prompt { 100_000 } else { 4 }]));
            let mut waiting = engine.generate(request(&[8, number], 12));
            until(
                &mut stopped,
                if is_in_prompt {
                    &is_reading as &dyn Fn(&GenerateEvent) -> bool
                } else {
                    &is_writing
                },
            )
            .await;
            if is_dropped {
                drop(stopped);
            } else {
                stopped.stop();
                until(&mut stopped, |event| matches!(event, GenerateEvent::Finished(_))).await;
            }
            let answer = tokio::time::timeout(SOON, finish(&mut waiting))
                .await
                .expect("has room")
                .expect("an answer");
            assert_eq!(answer.finished.token_ids, model.answer(&[8, number], 12));
        }
    }
    until(&mut going_on, is_writing).await;
    going_on.stop();
    loop {
        match going_on.recv().await.expect("an event") {
            GenerateEvent::Finished(finished) => {
                assert_eq!(finished.token_ids, model.answer(&[1, 2, 3], finished.token_ids.len()));
                break;
            }
            event => assert!(matches!(event, GenerateEvent::Delta { .. }), "{event:?}"),
        }
    }
}
