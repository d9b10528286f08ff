//! Single requests: events, text, figures and stop conditions.

use cairn_chat::{FinishReason, SamplingParams};
use cairn_engine::{
    Engine, EngineOptions, GenerateEvent, GenerateRequest, PromptInput, Speculation,
};
use serde_json::json;

use crate::client::{Answer, finish, request};
use crate::scripted::{EOS, Scripted, text_ids, text_of};

async fn engine(model: &Scripted) -> Engine {
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    engine
}

#[tokio::test]
async fn an_answer_is_what_its_tokens_decode_to() {
    async fn check(script: &[u32], prompt: &[u32], max_tokens: usize) {
        let model = Scripted::new(script);
        let engine = engine(&model).await;
        let answer =
            finish(&mut engine.generate(request(prompt, max_tokens))).await.expect("an answer");
        let expected = model.answer(prompt, max_tokens);
        assert_eq!(answer.finished.token_ids, expected, "{script:?}");
        assert_eq!(answer.tokens, expected.strip_suffix(&[EOS]).unwrap_or(&expected), "{script:?}");
        assert_eq!(answer.text, text_of(&expected), "{script:?}");
        assert_eq!(answer.finished.new_prompt_ids, prompt);
        let stats = &answer.finished.stats;
        assert_eq!(
            (stats.num_prompt_tokens, stats.num_generation_tokens),
            (prompt.len(), answer.tokens.len())
        );
        assert_eq!(stats.model, "scripted");
    }
    check(&text_ids("plain words, "), &[1, 2, 3], 50).await;
    check(&text_ids("lines\nand\n\nempty ones\n"), &[4], 120).await;
    // Bytes of emoji in any order: incomplete, complete and broken characters.
    check(&text_ids("😀é\n€ü😀a"), &[9, 9], 300).await;
    check(&[0xff, 0xc3, 0xa9, 0xe2, 10, 0x82, 0xac, 65], &[7, 1], 300).await;
    // Special tokens in the middle have no text.
    check(&[65, 257, 66, 256, 0xf0, 67], &[5, 6], 60).await;
    check(&[65, 66, 67, EOS, 68], &[1, 3], 60).await;
}

#[tokio::test]
async fn prefill_events_count_the_processed_tokens() {
    async fn check(prompt_len: u32, prefill_step_size: usize, expected: &[usize]) {
        let model = Scripted::new(&[65, 66]);
        let engine = engine(&model).await;
        let prompt: Vec<u32> = (0..prompt_len).collect();
        let request = GenerateRequest { prefill_step_size, ..request(&prompt, 1) };
        let answer = finish(&mut engine.generate(request)).await.expect("an answer");
        let steps: Vec<_> =
            expected.iter().map(|&processed| (processed, prompt.len(), 0)).collect();
        assert_eq!(answer.prefill, steps, "{prompt_len} tokens, {prefill_step_size} at once");
        assert_eq!(answer.finished.token_ids, model.answer(&prompt, 1));
    }
    // The last token of a prompt belongs to the first step of the answer.
    check(1, 2048, &[0, 1]).await;
    check(10, 2048, &[0, 9, 10]).await;
    check(10, 4, &[0, 4, 8, 9, 10]).await;
    check(9, 4, &[0, 4, 8, 9]).await;
    check(3, 1, &[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn a_prefill_step_size_of_zero_is_refused() {
    let model = Scripted::new(&[65, 66]);
    let engine = engine(&model).await;
    let request = GenerateRequest { prefill_step_size: 0, ..request(&[1, 2, 3], 1) };
    let failure = finish(&mut engine.generate(request)).await.err().expect("is refused");
    assert_eq!(failure.message, "prefill_step_size is 0, but must be 1 or more");
}

#[tokio::test]
async fn an_answer_ends_at_the_limit_the_context_or_an_end_of_sequence() {
    async fn check(script: &[u32], max_tokens: usize, expected: (FinishReason, usize, usize)) {
        let model = Scripted::with(script, json!({ "max_position_embeddings": 20 }));
        let engine = engine(&model).await;
        let answer = finish(&mut engine.generate(request(&[1, 1, 1, 1], max_tokens)))
            .await
            .expect("an answer");
        let stats = answer.finished.stats;
        assert_eq!(
            (stats.finish_reason, stats.num_generation_tokens, answer.finished.token_ids.len()),
            expected,
            "{script:?} {max_tokens}"
        );
    }
    check(&[65], 0, (FinishReason::Length, 0, 0)).await;
    check(&[65], 1, (FinishReason::Length, 1, 1)).await;
    check(&[65], 7, (FinishReason::Length, 7, 7)).await;
    check(&[65], 1000, (FinishReason::Length, 16, 16)).await;
    check(&[EOS], 0, (FinishReason::Length, 0, 0)).await;
    // The end-of-sequence token is one of the ids, which the next turn continues, but is not
    // counted.
    check(&[EOS], 10, (FinishReason::Stop, 0, 1)).await;
    check(&[EOS], 1, (FinishReason::Stop, 0, 1)).await;
    check(&[65, EOS], 10, (FinishReason::Stop, 1, 2)).await;
}

#[tokio::test]
async fn ignore_eos_continues_after_an_end_of_sequence() {
    let model = Scripted::new(&[EOS]);
    let engine = engine(&model).await;
    let request = GenerateRequest { ignore_eos: true, ..request(&[1], 5) };
    let answer = finish(&mut engine.generate(request)).await.expect("an answer");
    assert_eq!(
        (answer.finished.token_ids, answer.finished.stats.num_generation_tokens),
        (vec![EOS; 5], 5)
    );
}

/// A model that would end each answer at once, alone, with proposals, in a batch and in an answer that
/// goes on.
#[tokio::test]
async fn an_answer_does_not_end_before_its_fewest_tokens() {
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("model", &cairn_tests::tiny_model("llama/tiny-chat")).await.expect("loads");
    let greedy = SamplingParams { logit_bias: [(EOS, 1e4)].into(), ..Default::default() };
    let random = SamplingParams { temperature: 1.0, seed: Some(3), ..greedy.clone() };
    let prompt: Vec<u32> = (0..40).map(|index| index % 8).collect();
    let ask = |min_tokens, sampling: &SamplingParams| GenerateRequest {
        min_tokens,
        sampling: sampling.clone(),
        ..request(&prompt, 60)
    };
    let mut asked = Vec::new();
    for min_tokens in [0, 1, 7, 20] {
        for sampling in [&greedy, &random] {
            let alone = ask(min_tokens, sampling);
            let speculation = Speculation::Lookup { num_tokens: 3 };
            asked.push((min_tokens, GenerateRequest { speculation, ..alone.clone() }));
            asked.push((min_tokens, alone));
        }
    }
    let so_far = vec![4, 5, 6];
    asked.push((4, GenerateRequest { answer_so_far: so_far, ..ask(7, &greedy) }));
    let check = |num_tokens: usize, answer: Answer| {
        assert_eq!(answer.tokens.len(), num_tokens, "{:?}", answer.finished);
        assert!(!answer.tokens.contains(&EOS));
        assert_eq!(answer.finished.stats.finish_reason, FinishReason::Stop);
    };
    for (num_tokens, request) in &asked {
        let answer = finish(&mut engine.generate(request.clone())).await;
        check(*num_tokens, answer.expect("an answer"));
    }
    let at_once = asked.into_iter().map(|(count, request)| (count, engine.generate(request)));
    for (num_tokens, mut generation) in at_once.collect::<Vec<_>>() {
        check(num_tokens, finish(&mut generation).await.expect("an answer"));
    }
}

#[tokio::test]
async fn the_same_request_gives_the_same_answer() {
    async fn check(sampling: SamplingParams) {
        let model = Scripted::endless();
        let engine = engine(&model).await;
        let mut answers = Vec::new();
        for use_prompt_cache in [false, false, true, true] {
            let request = GenerateRequest {
                sampling: sampling.clone(),
                use_prompt_cache,
                ..request(&[3, 1, 4], 80)
            };
            answers.push(
                finish(&mut engine.generate(request)).await.expect("an answer").finished.token_ids,
            );
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{sampling:?}: {answers:?}");
    }
    check(SamplingParams::default()).await;
    check(SamplingParams {
        temperature: 2.0,
        top_p: 0.95,
        seed: Some(7),
        ..SamplingParams::default()
    })
    .await;
}

#[tokio::test]
async fn logprobs_are_reported_for_each_token_on_request() {
    let model = Scripted::endless();
    let engine = engine(&model).await;
    let mut generation =
        engine.generate(GenerateRequest { num_top_logprobs: Some(3), ..request(&[1, 2], 4) });
    let mut count = 0;
    while let Some(event) = generation.recv().await {
        let GenerateEvent::Delta { token, logprob, .. } = event else { continue };
        let logprob = logprob.expect("asked for");
        assert_eq!(
            (logprob.token, logprob.top.len(), logprob.top[0].token, logprob.top[0].logprob),
            (token, 3, token, logprob.logprob)
        );
        // One logit of 10 among 258 of 0.
        assert!(
            (logprob.logprob + (1.0 + 258.0 * (-10f32).exp()).ln()).abs() < 1e-4,
            "{}",
            logprob.logprob
        );
        count += 1;
    }
    assert_eq!(count, 4);
}

#[tokio::test]
async fn an_invalid_request_fails_with_its_reason() {
    async fn check(prompt: PromptInput, sampling: SamplingParams, expected: &str) {
        let model = Scripted::with(&[65], json!({ "max_position_embeddings": 20 }));
        let engine = engine(&model).await;
        let unservable = GenerateRequest { sampling, ..GenerateRequest::new(prompt) };
        let failure = finish(&mut engine.generate(unservable)).await.err().expect("fails");
        assert!(failure.message.contains(expected), "{} does not say {expected}", failure.message);
        let after =
            finish(&mut engine.generate(request(&[1], 1))).await.expect("the engine goes on");
        assert_eq!(after.finished.token_ids, [65]);
    }
    let tokens = |ids: &[u32]| PromptInput::Tokens(ids.to_vec());
    let greedy = SamplingParams::default;
    check(tokens(&[]), greedy(), "the prompt is empty").await;
    check(PromptInput::Text(String::new()), greedy(), "the prompt is empty").await;
    check(
        tokens(&[1; 20]),
        greedy(),
        "the prompt has 20 tokens, but the model's context ends at 20",
    )
    .await;
    check(
        tokens(&[1; 21]),
        greedy(),
        "the prompt has 21 tokens, but the model's context ends at 20",
    )
    .await;
    check(tokens(&[1, 259]), greedy(), "token id 259 is outside the vocabulary of 259").await;
    check(tokens(&[u32::MAX, 1]), greedy(), "token id 4294967295 is outside the vocabulary of 259")
        .await;
    check(tokens(&[1]), SamplingParams { temperature: -1.0, ..greedy() }, "temperature").await;
    check(tokens(&[1]), SamplingParams { top_p: 1.5, ..greedy() }, "top_p").await;
}
