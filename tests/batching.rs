//! Batched generation gives the same tokens as unbatched generation, whichever requests join, leave
//! or fail in the same batch.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use cairn_chat::{FinishReason, SamplingParams};
use cairn_lm::batch::{
    BatchAnswer, BatchGenerator, BatchOptions, BatchRequest, BatchResponse, RequestId,
    batch_generate, batch_generate_tokens,
};
use cairn_lm::models::Model;
use cairn_lm::{
    GenerateOptions, LmError, LoadOptions, LoadedModel, LogitsProcessor, LogitsProcessors,
    NO_TOKEN_LIMIT, Sampled, Sampler, StreamRequest, generate, generate_step,
};
use cairn_sweeps::sweep;
use mlx_rs::{Array, ops};

/// The checkpoints that every test of equality runs on: one for each architecture and kind of
/// cache.
const MODELS: &[&str] = &[
    "llama/dense-tied",
    "llama/gqa",
    "llama/rope-llama3",
    "llama/quant4-untied",
    "gemma3_text/dense",
    "gemma3_text/pattern3",
    "qwen3/dense",
    "qwen3_moe/dense",
    "qwen3_moe/quant4",
    "qwen3_next/dense",
    "qwen3_next/interval",
];

/// The sums of a batch are computed in another order than those of one row.
const TOLERANCE: f32 = 1e-4;

fn model(case: &str) -> Model {
    Model::load(&cairn_tests::tiny_model(case), LoadOptions { keep_quantized: true })
        .unwrap_or_else(|error| panic!("{case}: {error}"))
        .0
}

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn tokens(&mut self, model: &Model, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(model.vocab_size()) as u32).collect()
    }
}

/// The greedy, unbatched answer to a prompt, with log-probabilities.
fn unbatched(model: &Model, prompt: &[u32], max_tokens: usize) -> Vec<Sampled> {
    let options =
        GenerateOptions { max_tokens, num_top_logprobs: Some(2), ..GenerateOptions::default() };
    let mut caches = model.make_cache();
    let mut on_progress = |_, _| ControlFlow::Continue(());
    let mut stream =
        generate_step(model, prompt, &mut caches, Sampler::Greedy, options, &mut on_progress)
            .expect("start");
    std::iter::from_fn(|| stream.next_token().expect("step")).collect()
}

fn tokens(sampled: &[Sampled]) -> Vec<u32> {
    sampled.iter().map(|step| step.token).collect()
}

fn with_logprobs(prompt: &[u32], max_tokens: usize) -> BatchRequest {
    BatchRequest {
        num_top_logprobs: Some(2),
        return_caches: true,
        ..BatchRequest::new(prompt.to_vec(), max_tokens)
    }
}

fn answers(model: &Model, requests: Vec<BatchRequest>, options: BatchOptions) -> Vec<BatchAnswer> {
    let (answers, _) = batch_generate_tokens(model, requests, options).expect("batch");
    answers.into_iter().map(|answer| answer.expect("answer")).collect()
}

fn assert_equal(case: &str, answer: &BatchAnswer, expected: &[Sampled]) {
    assert_eq!(answer.tokens, tokens(expected), "{case}");
    assert_eq!(answer.logprobs.len(), expected.len(), "{case}");
    for (found, expected) in answer.logprobs.iter().zip(expected) {
        let expected = expected.logprobs.as_ref().expect("log-probabilities");
        assert!(
            (found.0 - expected.own).abs() < TOLERANCE,
            "{case}: {} instead of {}",
            found.0,
            expected.own
        );
        for (found, expected) in found.1.iter().zip(&expected.top) {
            assert!(
                (found.1 - expected.1).abs() < TOLERANCE,
                "{case}: {found:?} instead of {expected:?}"
            );
        }
    }
}

/// Compares the answers to prompts of the given lengths in a batch under `options` with those of
/// each prompt unbatched.
fn check(case: &str, lengths: &[usize], max_tokens: &[usize], options: &BatchOptions) {
    let model = model(case);
    let mut numbers = Numbers(lengths.len() as u64);
    let prompts: Vec<Vec<u32>> =
        lengths.iter().map(|&length| numbers.tokens(&model, length)).collect();
    let limits = max_tokens.iter().copied().cycle();
    let requests = prompts
        .iter()
        .zip(limits.clone())
        .map(|(prompt, limit)| with_logprobs(prompt, limit))
        .collect();
    let answers = answers(&model, requests, options.clone());
    for ((answer, prompt), limit) in answers.iter().zip(&prompts).zip(limits) {
        assert_equal(case, answer, &unbatched(&model, prompt, limit));
        assert_eq!(answer.finish.reason, FinishReason::Length);
    }
}

#[test]
fn a_batch_answers_as_unbatched_requests() {
    for case in MODELS {
        check(case, &[12, 5, 9], &[10], &BatchOptions::default());
        check(case, &[7], &[10], &BatchOptions::default());
        check(case, &[1, 40, 3, 1], &[6], &BatchOptions::default());
        check(
            case,
            &[30, 4, 77],
            &[8, 1, 3],
            &BatchOptions { prefill_step_size: 8, ..BatchOptions::default() },
        );
    }
}

#[test]
fn more_requests_than_slots_are_all_answered() {
    let options =
        BatchOptions { completion_batch_size: 3, prefill_batch_size: 2, ..BatchOptions::default() };
    for case in MODELS {
        check(case, &[5, 9, 2, 14, 3, 3, 21, 6], &[4, 9, 2, 7], &options);
        check(
            case,
            &[5, 9, 2, 14, 3],
            &[4, 9, 2, 7],
            &BatchOptions { prefer_prefill_when_pending: true, ..options.clone() },
        );
    }
}

/// Random requests join, leave and are cancelled; whatever the schedule, the tokens are those of
/// the unbatched requests.
fn random_schedule(case: &str, seed: u64) {
    let model = model(case);
    let mut numbers = Numbers(seed);
    let options = BatchOptions {
        completion_batch_size: 1 + numbers.below(6),
        prefill_batch_size: 1 + numbers.below(4),
        prefill_step_size: 1 + numbers.below(20),
        prefer_prefill_when_pending: numbers.below(2) == 0,
        ..BatchOptions::default()
    };
    let described = format!("{case}, seed {seed}, {options:?}");
    let mut batch = BatchGenerator::new(model.clone(), options);
    let mut expected: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    let mut found: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    let mut num_left = 12;
    while num_left > 0 || batch.has_work() {
        if num_left > 0 && numbers.below(3) == 0 {
            num_left -= 1;
            let count = 1 + numbers.below(30);
            let prompt = numbers.tokens(&model, count);
            let max_tokens = 1 + numbers.below(12);
            let boundaries = vec![numbers.below(count + 1)];
            let id = batch
                .insert(BatchRequest {
                    boundaries,
                    return_caches: true,
                    ..BatchRequest::new(prompt.clone(), max_tokens)
                })
                .expect("insert");
            expected.insert(id, tokens(&unbatched(&model, &prompt, max_tokens)));
            found.insert(id, Vec::new());
        }
        if numbers.below(12) == 0 && !expected.is_empty() {
            let id = *expected.keys().nth(numbers.below(expected.len())).expect("a request");
            if let Some(row) = batch.remove(id).expect("remove") {
                // The caches of a cancelled request are right too: they continue to the same
                // tokens.
                let sampled = &found[&id];
                let whole = &expected[&id];
                if row.tokens.len() >= sampled.len()
                    && !sampled.is_empty()
                    && sampled.len() < whole.len()
                {
                    assert!(row.tokens.ends_with(sampled), "{described}");
                    assert_eq!(row.caches[0].offset(), row.tokens.len(), "{described}");
                    let request = BatchRequest {
                        caches: Some(row.caches),
                        cached_tokens: row.tokens,
                        ..BatchRequest::new(vec![], 3)
                    };
                    let rest = answers(&model, vec![request], BatchOptions::default());
                    let goes_on = &whole[sampled.len()..whole.len().min(sampled.len() + 3)];
                    assert!(rest[0].tokens.starts_with(goes_on), "{described}");
                }
                expected.remove(&id);
            }
        }
        let step = batch.next().expect("step");
        assert!(step.failed.is_empty(), "{described}: {:?}", step.failed);
        for token in step.tokens {
            found.get_mut(&token.id).expect("known").push(token.token);
            if let Some(finish) = token.finish {
                assert_eq!(finish.caches[0].offset(), finish.tokens.len(), "{described}");
            }
        }
    }
    for (id, expected) in expected {
        assert_eq!(found[&id], expected, "{described}");
    }
}

#[test]
fn any_schedule_gives_the_tokens_of_unbatched_requests() {
    for seed in sweep("requests join, leave and are cancelled", 1) {
        for case in MODELS {
            random_schedule(case, seed);
        }
    }
}

#[test]
fn conversations_go_on_from_their_caches() {
    for case in MODELS {
        let model = model(case);
        let mut numbers = Numbers(3);
        let mut histories: Vec<Vec<u32>> = vec![Vec::new(); 3];
        let mut caches: Vec<Option<(Vec<cairn_lm::cache::LayerCache>, Vec<u32>)>> =
            vec![None, None, None];
        for round in 0..3 {
            let mut requests = Vec::new();
            for (history, caches) in histories.iter_mut().zip(&mut caches) {
                let count = 2 + numbers.below(9);
                history.extend(numbers.tokens(&model, count));
                let (caches, cached_tokens) = caches.take().unzip();
                let cached_tokens: Vec<u32> = cached_tokens.unwrap_or_default();
                let prompt = history[cached_tokens.len()..].to_vec();
                requests.push(BatchRequest { caches, cached_tokens, ..with_logprobs(&prompt, 5) });
            }
            for ((answer, history), caches) in answers(&model, requests, BatchOptions::default())
                .into_iter()
                .zip(&mut histories)
                .zip(&mut caches)
            {
                assert_equal(
                    &format!("{case}, round {round}"),
                    &answer,
                    &unbatched(&model, history, 5),
                );
                history.extend(&answer.tokens);
                assert!(
                    history.starts_with(&answer.finish.tokens),
                    "{case}: the tokens are those that the caches hold"
                );
                *caches = Some((answer.finish.caches, answer.finish.tokens));
            }
        }
    }
}

#[test]
fn a_prompt_that_is_cached_to_its_end_is_answered() {
    for case in MODELS {
        let model = model(case);
        let prompt = Numbers(4).tokens(&model, 9);
        let mut batch = BatchGenerator::new(model.clone(), BatchOptions::default());
        let request = BatchRequest { return_caches: true, ..BatchRequest::new(prompt.clone(), 3) };
        let id = batch.insert(request).expect("insert");
        while batch.next().expect("step").tokens.is_empty() {}
        let row = batch.remove(id).expect("remove").expect("a row");
        let expected = tokens(&unbatched(&model, &row.tokens, 4));
        for caches in [Some(row.caches), None] {
            let request = BatchRequest {
                caches,
                cached_tokens: row.tokens.clone(),
                ..BatchRequest::new(Vec::new(), 4)
            };
            assert_eq!(
                answers(&model, vec![request], BatchOptions::default())[0].tokens,
                expected,
                "{case}"
            );
        }
    }
}

#[test]
fn stop_sequences_end_their_answers_before_the_length_does() {
    let model = model("llama/dense-tied");
    let prompts: Vec<Vec<u32>> =
        [6, 11, 4].iter().map(|&length| Numbers(length).tokens(&model, length as usize)).collect();
    let whole: Vec<Vec<u32>> =
        prompts.iter().map(|prompt| tokens(&unbatched(&model, prompt, 6))).collect();
    // The first row stops at its third token, the second at a pair that ends with its last token,
    // the third at its limit.
    let stops = [
        vec![vec![whole[0][2]]],
        vec![whole[1][4..6].to_vec()],
        vec![vec![], vec![whole[2][0], whole[2][0] ^ 1]],
    ];
    let request = |(prompt, stop): (&Vec<u32>, &Vec<Vec<u32>>)| BatchRequest {
        stop: stop.clone(),
        ..BatchRequest::new(prompt.clone(), 6)
    };
    let answers =
        answers(&model, prompts.iter().zip(&stops).map(request).collect(), BatchOptions::default());
    let first = whole[0].iter().position(|token| *token == whole[0][2]).expect("third token");
    assert_eq!(
        (answers[0].finish.reason, &answers[0].tokens[..]),
        (FinishReason::Stop, &whole[0][..first])
    );
    assert_eq!(answers[1].finish.reason, FinishReason::Stop);
    assert_eq!((answers[2].finish.reason, &answers[2].tokens), (FinishReason::Length, &whole[2]));
    // A stop sequence of the options applies to all requests.
    let options = BatchOptions { stop: vec![vec![whole[2][1]]], ..BatchOptions::default() };
    let (all, _) =
        batch_generate_tokens(&model, vec![BatchRequest::new(prompts[2].clone(), 6)], options)
            .expect("batch");
    assert_eq!(all[0].as_ref().expect("answer").finish.reason, FinishReason::Stop);
}

#[test]
fn what_cannot_be_answered_is_refused_at_once() {
    let model = model("llama/dense-tied");
    let mut batch = BatchGenerator::new(model.clone(), BatchOptions::default());
    let refused = |batch: &mut BatchGenerator, request| {
        batch.insert(request).expect_err("refused").to_string()
    };
    assert_eq!(refused(&mut batch, BatchRequest::new(vec![], 3)), "the prompt is empty");
    assert_eq!(
        refused(&mut batch, BatchRequest::new(vec![1], 0)),
        "max_tokens is 0, but an answer has at least 1 token"
    );
    assert!(
        refused(&mut batch, BatchRequest::new(vec![1, 1 << 30], 3))
            .contains("outside the vocabulary")
    );
    let caches = BatchRequest { caches: Some(Vec::new()), ..BatchRequest::new(vec![1], 3) };
    assert!(refused(&mut batch, caches).contains("the caches of a request are for 0 layers"));
    let cached = BatchRequest {
        caches: Some(model.make_cache()),
        cached_tokens: vec![1, 2],
        ..BatchRequest::new(vec![1], 3)
    };
    assert_eq!(
        refused(&mut batch, cached),
        "the caches of a request hold 0 tokens, but 2 cached tokens were named"
    );
    assert!(!batch.has_work());
    let step = batch.next().expect("an empty round");
    assert!(step.tokens.is_empty() && step.prompts.is_empty() && step.failed.is_empty());
    assert_eq!((batch.stats().generation_tps(), batch.stats().prompt_tps()), (0.0, 0.0));
}

#[test]
fn requests_leave_at_once_wherever_they_are() {
    let model = model("llama/dense-tied");
    let options = BatchOptions {
        prefill_batch_size: 2,
        completion_batch_size: 2,
        prefill_step_size: 4,
        ..BatchOptions::default()
    };
    let mut batch = BatchGenerator::new(model.clone(), options);
    let prompt = Numbers(5).tokens(&model, 10);
    let ids: Vec<RequestId> = (0..3)
        .map(|_| batch.insert(BatchRequest::new(prompt.clone(), 5)).expect("insert"))
        .collect();
    batch.next().expect("step");
    assert_eq!((batch.num_pending(), batch.num_prefilling(), batch.num_decoding()), (1, 2, 0));
    let row = batch.extract_cache(ids[0]).expect("extract").expect("a row");
    assert_eq!((&row.tokens[..], row.caches[0].offset()), (&prompt[..4], 4));
    assert_eq!(batch.remove(ids[0]).expect("remove").expect("a row").tokens, prompt[..4]);
    assert!(batch.remove(ids[2]).expect("remove").expect("a row").tokens.is_empty());
    assert!(batch.remove(ids[2]).expect("remove").is_none());
    while batch.next().expect("step").tokens.is_empty() {}
    assert_eq!((batch.num_pending(), batch.num_prefilling(), batch.num_decoding()), (0, 0, 1));
    assert_eq!(
        batch.remove(ids[1]).expect("remove").expect("a row").tokens.len(),
        prompt.len() + 1
    );
    assert!(!batch.has_work());
    assert!(batch.extract_cache(ids[1]).expect("extract").is_none());
    batch.close();
}

#[test]
fn progress_names_segments_and_the_end() {
    let model = model("llama/dense-tied");
    let options = BatchOptions { prefill_step_size: 4, ..BatchOptions::default() };
    let mut batch = BatchGenerator::new(model.clone(), options);
    let prompt = Numbers(6).tokens(&model, 12);
    batch
        .insert(BatchRequest { boundaries: vec![6, 12, 90], ..BatchRequest::new(prompt, 1) })
        .expect("insert");
    let mut seen = Vec::new();
    while batch.has_work() {
        let step = batch.next().expect("step");
        seen.extend(
            step.prompts
                .iter()
                .map(|step| (step.processed, step.total, step.end_of_segment, step.end_of_prompt)),
        );
    }
    let expected = [
        (4, 12, false, false),
        (6, 12, true, false),
        (10, 12, false, false),
        (11, 12, true, false),
        (12, 12, true, true),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn requests_are_admitted_in_order_and_answers_go_on_meanwhile() {
    let model = model("llama/dense-tied");
    let options = BatchOptions {
        prefill_batch_size: 1,
        completion_batch_size: 4,
        prefill_step_size: 4,
        ..BatchOptions::default()
    };
    for prefer in [false, true] {
        let mut batch = BatchGenerator::new(
            model.clone(),
            BatchOptions { prefer_prefill_when_pending: prefer, ..options.clone() },
        );
        let mut numbers = Numbers(7);
        let first = batch.insert(BatchRequest::new(numbers.tokens(&model, 2), 30)).expect("insert");
        while batch.next().expect("step").tokens.is_empty() {}
        let long = batch.insert(BatchRequest::new(numbers.tokens(&model, 40), 3)).expect("insert");
        let short = batch.insert(BatchRequest::new(numbers.tokens(&model, 2), 3)).expect("insert");
        let (mut order, mut num_meanwhile) = (Vec::new(), 0);
        while order.len() < 2 {
            let step = batch.next().expect("step");
            num_meanwhile += step.tokens.iter().filter(|token| token.id == first).count();
            order.extend(
                step.prompts
                    .iter()
                    .filter(|progress| progress.end_of_prompt)
                    .map(|progress| progress.id),
            );
        }
        assert_eq!(order, [long, short], "a long prompt is not overtaken");
        if prefer {
            assert_eq!(num_meanwhile, 0)
        } else {
            assert!(num_meanwhile >= 10, "{num_meanwhile}")
        }
    }
}

#[test]
fn a_bounded_memory_holds_only_the_last_tokens() {
    let model = model("llama/dense-tied");
    let options = BatchOptions { max_kv_size: Some(8), ..BatchOptions::default() };
    let prompts: Vec<Vec<u32>> =
        [20, 3, 8].iter().map(|&length| Numbers(length).tokens(&model, length as usize)).collect();
    let together = answers(
        &model,
        prompts.iter().map(|prompt| with_logprobs(prompt, 12)).collect(),
        options.clone(),
    );
    let huge = BatchOptions { max_kv_size: Some(usize::MAX), ..BatchOptions::default() };
    assert_eq!(
        answers(&model, vec![BatchRequest::new(vec![1, 2], 4)], huge)[0].tokens,
        tokens(&unbatched(&model, &[1, 2], 4))
    );
    for (prompt, together) in prompts.iter().zip(together) {
        let unbatched = answers(&model, vec![with_logprobs(prompt, 12)], options.clone()).remove(0);
        assert_eq!(together.tokens, unbatched.tokens);
        let held = together.finish.caches[0]
            .arrays()
            .iter()
            .map(|array| array.dim(2))
            .max()
            .expect("arrays");
        assert!(held <= 8, "{held}");
    }
}

#[test]
fn caches_without_a_batched_form_are_answered_too() {
    let model = model("llama/dense-tied");
    let kept = || -> Vec<_> {
        let ring = cairn_lm::cache::RotatingKvCache::new(64, 4);
        model
            .make_cache()
            .iter()
            .map(|_| cairn_lm::cache::LayerCache::Rotating(ring.clone()))
            .collect()
    };
    let prompts: Vec<Vec<u32>> = [6, 11, 4, 9]
        .iter()
        .map(|&length| Numbers(length).tokens(&model, length as usize))
        .collect();
    let requests = prompts.iter().enumerate().map(|(index, prompt)| {
        let caches = (index % 2 == 0).then(kept);
        BatchRequest { caches, ..BatchRequest::new(prompt.clone(), 8) }
    });
    for (answer, prompt) in
        answers(&model, requests.collect(), BatchOptions::default()).iter().zip(&prompts)
    {
        assert_eq!(answer.tokens, tokens(&unbatched(&model, prompt, 8)));
    }
}

#[test]
fn figures_count_what_was_done() {
    let model = model("llama/dense-tied");
    let requests =
        [5, 9].map(|length| BatchRequest::new(Numbers(1).tokens(&model, length), 4)).into();
    let (answers, stats) =
        batch_generate_tokens(&model, requests, BatchOptions::default()).expect("batch");
    assert!(
        answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.logprobs.is_empty())),
        "none unless asked for"
    );
    assert_eq!((stats.prompt_tokens, stats.generation_tokens), (14, 8));
    assert!(
        stats.prompt_tps() > 0.0 && stats.generation_tps() > 0.0 && stats.peak_memory_bytes > 0
    );
}

#[test]
fn a_failing_request_does_not_affect_the_others() {
    let model = model("llama/dense-tied");
    let requests = vec![
        BatchRequest::new(vec![1, 2], 3),
        BatchRequest::new(vec![], 3),
        BatchRequest::new(vec![3], 3),
    ];
    let (answers, _) =
        batch_generate_tokens(&model, requests, BatchOptions::default()).expect("batch");
    assert!(matches!(answers[1], Err(LmError::EmptyPrompt)));
    for (answer, prompt) in [(&answers[0], vec![1, 2]), (&answers[2], vec![3])] {
        assert_eq!(answer.as_ref().expect("answer").tokens, tokens(&unbatched(&model, &prompt, 3)));
    }
}

/// A custom logits processor for one row.
fn processors(function: LogitsProcessor) -> LogitsProcessors {
    let mut processors = LogitsProcessors::default();
    processors.push(function);
    processors
}

/// A processor that makes `token` certain.
fn only(token: u32) -> LogitsProcessors {
    processors(Box::new(move |_, logits| {
        let row: Vec<f32> = (0..logits.dim(1))
            .map(|id| if id == token as i32 { 0.0 } else { f32::NEG_INFINITY })
            .collect();
        Ok(ops::add(&logits, Array::from_slice(&row, &[1, logits.dim(1)]))?)
    }))
}

#[test]
fn each_row_has_its_own_processors() {
    let model = model("llama/dense-tied");
    let prompts: Vec<Vec<u32>> =
        [5, 9, 3].map(|length| Numbers(length).tokens(&model, length as usize)).into();
    let requests = vec![
        BatchRequest { processors: only(7), ..BatchRequest::new(prompts[0].clone(), 4) },
        BatchRequest::new(prompts[1].clone(), 4),
        BatchRequest { processors: only(3), ..BatchRequest::new(prompts[2].clone(), 4) },
    ];
    let answers = answers(&model, requests, BatchOptions::default());
    assert_eq!(answers[0].tokens, [7; 4]);
    assert_eq!(answers[1].tokens, tokens(&unbatched(&model, &prompts[1], 4)));
    assert_eq!(answers[2].tokens, [3; 4]);
}

#[test]
fn a_processor_sees_cached_tokens_the_prompt_and_the_answer() {
    use std::cell::RefCell;
    use std::rc::Rc;
    let model = model("llama/dense-tied");
    let seen: Rc<RefCell<Vec<Vec<u32>>>> = Rc::default();
    let recorded = Rc::clone(&seen);
    let function: LogitsProcessor = Box::new(move |tokens, logits| {
        recorded.borrow_mut().push(tokens.contiguous()?.as_slice::<u32>().to_vec());
        Ok(logits)
    });
    let cached = vec![4, 5, 6, 7];
    let mut caches = model.make_cache();
    model.forward(&Array::from_slice(&cached, &[1, 4]), &mut caches).expect("forward");
    let requests = vec![
        BatchRequest {
            caches: Some(caches),
            cached_tokens: cached,
            processors: processors(function),
            ..BatchRequest::new(vec![8, 9], 3)
        },
        BatchRequest::new(vec![1, 2, 3], 5),
    ];
    let answers = answers(&model, requests, BatchOptions::default());
    let whole = [&[4, 5, 6, 7, 8, 9][..], &answers[0].tokens].concat();
    let expected: Vec<Vec<u32>> =
        (6..whole.len().max(7)).map(|length| whole[..length].to_vec()).collect();
    assert_eq!(seen.borrow()[..expected.len()], expected);
}

#[test]
fn a_processor_that_fails_ends_its_request_only() {
    let model = model("llama/dense-tied");
    for together in [1, 3] {
        let mut calls = 0;
        let failing: LogitsProcessor = Box::new(move |_, logits| {
            calls += 1;
            if calls < 3 {
                Ok(logits)
            } else {
                Err(mlx_rs::error::Exception::custom("no more".to_owned()).into())
            }
        });
        let mut requests = vec![BatchRequest {
            processors: processors(failing),
            ..BatchRequest::new(vec![1, 2], 9)
        }];
        requests.extend((1..together).map(|id| BatchRequest::new(vec![id, id], 6)));
        let (answers, _) =
            batch_generate_tokens(&model, requests, BatchOptions::default()).expect("batch");
        assert!(answers[0].as_ref().expect_err("failed").to_string().contains("no more"));
        for (id, answer) in (1..together).zip(&answers[1..]) {
            assert_eq!(
                answer.as_ref().expect("answer").tokens,
                tokens(&unbatched(&model, &[id, id], 6))
            );
        }
    }
    let short: LogitsProcessor = Box::new(|_, logits| Ok(logits.sum_axis(-1, true)?));
    let requests = vec![
        BatchRequest { processors: processors(short), ..BatchRequest::new(vec![1], 2) },
        BatchRequest::new(vec![2], 2),
    ];
    let (answers, _) =
        batch_generate_tokens(&model, requests, BatchOptions::default()).expect("batch");
    assert!(matches!(answers[0], Err(LmError::ProcessedShape { .. })) && answers[1].is_ok());
}

#[test]
fn caches_are_returned_only_on_request() {
    let model = model("llama/dense-tied");
    let prompt = Numbers(6).tokens(&model, 5);
    for num_rows in [1, 3] {
        // All rows end in the same step, so that those with and without caches leave together.
        for returning in 0..=num_rows {
            let request = |index| BatchRequest {
                return_caches: index < returning,
                ..BatchRequest::new(prompt.clone(), 4)
            };
            let requests = (0..num_rows).map(request).collect();
            let answers = answers(&model, requests, BatchOptions::default());
            for (index, answer) in answers.iter().enumerate() {
                let offsets: Vec<usize> =
                    answer.finish.caches.iter().map(|cache| cache.offset()).collect();
                let num_layers = if index < returning { model.make_cache().len() } else { 0 };
                assert_eq!(offsets, vec![answer.finish.tokens.len(); num_layers]);
            }
        }
    }
    let mut batch = BatchGenerator::new(model.clone(), BatchOptions::default());
    let ids = [(); 2].map(|()| batch.insert(BatchRequest::new(prompt.clone(), 9)).expect("insert"));
    while batch.next().expect("step").tokens.is_empty() {}
    let row = batch.remove(ids[0]).expect("remove").expect("a row");
    assert!(row.caches.is_empty() && row.tokens.starts_with(&prompt));
}

#[test]
fn an_answer_that_ends_as_its_pass_fails_is_whole_but_leaves_no_caches() {
    let folder = tempfile::tempdir().expect("a folder");
    let config =
        r#"{"model_type": "scripted", "vocab_size": 8, "script": [5, 6, 7], "fail_at": 3}"#;
    std::fs::write(folder.path().join("config.json"), config).expect("config.json");
    let (model, _) =
        Model::load(folder.path(), LoadOptions { keep_quantized: true }).expect("a model");
    // The second token sampled is at position 3: its pass fails while it ends the answer.
    let (whole, _) = batch_generate_tokens(
        &model,
        vec![BatchRequest::new(vec![3, 3], 2)],
        BatchOptions::default(),
    )
    .expect("batch");
    let sampled = &whole[0].as_ref().expect("answer").tokens;
    let request = BatchRequest { stop: vec![sampled.clone()], ..BatchRequest::new(vec![3, 3], 9) };
    let mut batch = BatchGenerator::new(model, BatchOptions::default());
    batch.insert(request).expect("insert");
    let mut finish = None;
    while batch.has_work() {
        let step = batch.next().expect("step");
        assert!(step.failed.is_empty(), "{:?}", step.failed);
        finish = step.tokens.into_iter().find_map(|token| token.finish).or(finish);
    }
    let finish = finish.expect("an end");
    assert_eq!(
        (finish.reason, finish.caches.len(), finish.tokens),
        (FinishReason::Stop, 0, Vec::new())
    );
}

#[test]
fn a_seed_gives_the_same_answer_batched_and_unbatched() {
    let model = model("llama/dense-tied");
    let params = |seed, top_k| SamplingParams {
        temperature: 1.0,
        top_p: 0.9,
        top_k,
        seed: Some(seed),
        ..SamplingParams::default()
    };
    let sampled = |seed, top_k| BatchRequest {
        sampler: Sampler::new(&params(seed, top_k), &[]),
        ..BatchRequest::new(vec![1, 2, 3], 12)
    };
    // Rows with the same settings share filters, others do not; neither changes what a row draws.
    for (settings, has_greedy) in [
        ([(1, 4), (2, 4), (3, 4)], false),
        ([(1, 0), (2, 0), (3, 0)], true),
        ([(1, 0), (2, 5), (3, 9)], true),
    ] {
        let mut requests: Vec<BatchRequest> =
            settings.iter().map(|&(seed, top_k)| sampled(seed, top_k)).collect();
        if has_greedy {
            requests.push(BatchRequest::new(vec![4, 5], 12));
        }
        let together = answers(&model, requests, BatchOptions::default());
        for (answer, (seed, top_k)) in together.iter().zip(settings) {
            assert_eq!(
                answer.tokens,
                answers(&model, vec![sampled(seed, top_k)], BatchOptions::default())[0].tokens
            );
        }
        assert_ne!(together[0].tokens, together[1].tokens);
        if has_greedy {
            assert_eq!(together[3].tokens, tokens(&unbatched(&model, &[4, 5], 12)));
        }
    }
}

/// A scripted model with a context of `context_length` tokens.
fn scripted(context_length: usize) -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        r#"{{"model_type": "scripted", "vocab_size": 8, "script": [5, 6, 7],
            "max_position_embeddings": {context_length}}}"#
    );
    std::fs::write(folder.path().join("config.json"), config).expect("config.json");
    Model::load(folder.path(), LoadOptions { keep_quantized: true }).expect("a model").0
}

#[test]
fn without_a_token_limit_an_answer_ends_with_the_context() {
    let model = scripted(20);
    let prompt = [1, 2, 3, 4, 5];
    let whole = tokens(&unbatched(&model, &prompt, NO_TOKEN_LIMIT));
    assert_eq!(whole.len(), 15);
    let requests = vec![
        BatchRequest::new(prompt.to_vec(), NO_TOKEN_LIMIT),
        BatchRequest::new(prompt[..2].to_vec(), NO_TOKEN_LIMIT),
    ];
    let answers = answers(&model, requests, BatchOptions::default());
    assert_eq!(answers[0].tokens, whole);
    assert_eq!(answers[1].tokens.len(), 18);
    assert_eq!(answers[1].finish.reason, FinishReason::Length);
}

/// Chooses the second likeliest token.
fn second_likeliest() -> Sampler {
    Sampler::Custom(Box::new(|logprobs: &Array| {
        let total = ops::exp(logprobs)?.sum_axis(-1, false)?;
        assert!((total.item_exact::<f32>() - 1.0).abs() < 1e-3, "log-probabilities");
        let order = ops::argsort_axis(logprobs, -1)?; // ascending
        let second = Array::from_slice(&[logprobs.dim(1) - 2], &[1]);
        Ok(ops::reshape(order.take_axis(second, 1)?, &[1])?)
    }))
}

#[test]
fn a_custom_sampler_chooses_the_tokens_of_its_row() {
    let model = model("llama/dense-tied");
    let prompt = Numbers(8).tokens(&model, 6);
    let custom = BatchRequest { sampler: second_likeliest(), ..with_logprobs(&prompt, 5) };
    let requests = vec![with_logprobs(&prompt, 5), custom];
    let answers = answers(&model, requests, BatchOptions::default());
    assert_eq!(answers[0].tokens, tokens(&unbatched(&model, &prompt, 5)));
    for (token, (logprob, top)) in answers[1].tokens.iter().zip(&answers[1].logprobs) {
        assert_eq!((*token, *logprob), top[1]);
    }
    // Without a batch it gives the same tokens.
    let options = GenerateOptions { max_tokens: 5, ..GenerateOptions::default() };
    let mut on_progress = |_, _| ControlFlow::Continue(());
    let caches = &mut Vec::new();
    let mut stream =
        generate_step(&model, &prompt, caches, second_likeliest(), options, &mut on_progress)
            .expect("start");
    let found: Vec<u32> =
        std::iter::from_fn(|| stream.next_token().expect("step")).map(|step| step.token).collect();
    assert_eq!(found, answers[1].tokens);
}

#[test]
fn a_custom_sampler_is_held_to_its_contract() {
    let model = scripted(100);
    let with = |sampler| BatchRequest { sampler, ..BatchRequest::new(vec![1, 2], 3) };
    let constant = |array: Array| Sampler::Custom(Box::new(move |_: &Array| Ok(array.clone())));
    let requests = vec![
        BatchRequest::new(vec![1, 2], 3),
        with(constant(Array::from_slice(&[1u32, 2], &[2]))),
        with(constant(Array::from_slice(&[1.0f32], &[1]))),
        with(constant(Array::from_slice(&[1_000_000u32], &[1]))),
        with(Sampler::Custom(Box::new(|_: &Array| Err(LmError::Cancelled)))),
    ];
    let (answers, _) =
        batch_generate_tokens(&model, requests, BatchOptions::default()).expect("batch");
    assert_eq!(
        answers[0].as_ref().expect("an answer").tokens,
        tokens(&unbatched(&model, &[1, 2], 3))
    );
    for (index, expected) in [(1, "of shape [2]"), (2, "float32"), (4, "cancelled")] {
        let error = answers[index].as_ref().expect_err("fails").to_string();
        assert!(error.contains(expected), "{index}: {error}");
    }
    // An id outside the vocabulary becomes the last one of it.
    assert_eq!(answers[3].as_ref().expect("an answer").tokens, [7, 7, 7]);
}

#[test]
fn every_log_probability_of_a_step_is_there_on_request() {
    let model = model("llama/dense-tied");
    let mut batch = BatchGenerator::new(model.clone(), BatchOptions::default());
    for seed in [1, 2] {
        let prompt = Numbers(seed).tokens(&model, 4);
        batch.insert(with_logprobs(&prompt, 3)).expect("insert");
    }
    batch.insert(BatchRequest::new(vec![3, 4], 3)).expect("insert");
    let mut num_seen = 0;
    while batch.has_work() {
        for token in batch.next().expect("step").tokens {
            let Some(logprobs) = token.logprobs else { continue };
            assert_eq!(logprobs.all.shape(), [model.vocab_size() as i32]);
            let all = logprobs.all.contiguous().expect("contiguous");
            assert_eq!(all.as_slice::<f32>()[token.token as usize], logprobs.own);
            num_seen += 1;
        }
    }
    assert_eq!(num_seen, 6);
}

#[test]
fn the_bytes_of_all_caches_are_counted() {
    let model = model("llama/dense-tied");
    let mut batch = BatchGenerator::new(model.clone(), BatchOptions::default());
    assert_eq!(batch.prompt_cache_nbytes(), 0);
    let ids = [1, 2].map(|seed| {
        let prompt = Numbers(seed).tokens(&model, 20);
        batch.insert(BatchRequest::new(prompt, 50)).expect("insert")
    });
    batch.next().expect("step");
    let prefilled = batch.prompt_cache_nbytes();
    assert!(prefilled > 0);
    while batch.num_decoding() < 2 {
        batch.next().expect("step");
    }
    let both = batch.prompt_cache_nbytes();
    batch.remove(ids[0]).expect("remove");
    let one = batch.prompt_cache_nbytes();
    assert!(0 < one && one < both, "{one} of {both}");
    batch.remove(ids[1]).expect("remove");
    assert_eq!(batch.prompt_cache_nbytes(), 0);
}

#[test]
fn a_batch_of_prompts_is_answered_with_texts() {
    let loaded = LoadedModel::load(
        &cairn_tests::tiny_model("llama/tiny-chat"),
        LoadOptions { keep_quantized: true },
    )
    .expect("tiny-chat");
    let prompts = ["Tell me a story", "Hello"]
        .map(|text| loaded.tokenizer.encode_prompt(text).expect("encode"));
    let mut requests: Vec<BatchRequest> =
        prompts.iter().map(|prompt| BatchRequest::new(prompt.clone(), 12)).collect();
    requests.push(BatchRequest::new(Vec::new(), 12));
    let BatchResponse { texts, answers, stats } =
        batch_generate(&loaded, requests, BatchOptions::default()).expect("batch");
    for (index, prompt) in prompts.iter().enumerate() {
        let options = GenerateOptions { max_tokens: 12, ..GenerateOptions::default() };
        let expected =
            generate(&loaded, StreamRequest { options, ..StreamRequest::new(&loaded, prompt) })
                .expect("an answer");
        assert_eq!(texts[index], expected.text);
        assert_eq!(answers[index].as_ref().expect("an answer").tokens, expected.tokens);
    }
    assert!(answers[2].is_err() && texts[2].is_empty());
    assert_eq!(stats.generation_tokens, 24);
}
