//! Every architecture and kind of cache gives the same answers with and without a batch.

use std::collections::BTreeMap;

use cairn_chat::FinishReason;
use cairn_lm::Sampled;
use cairn_lm::batch::{
    BatchAnswer, BatchGenerator, BatchOptions, BatchRequest, RequestId, RowState,
};
use cairn_lm::cache::LayerCache;
use cairn_lm::models::Model;
use cairn_sweeps::sweep;

use crate::{Numbers, answers, model, tokens, unbatched, with_logprobs};

/// The checkpoints that every test of equality runs on: one for each architecture and kind of
/// cache.
const MODELS: &[&str] = &[
    "llama/dense-tied",
    "llama/gqa",
    "llama/rope-llama3",
    "llama/quant4-untied",
    "deepseek_v2/dense",
    "deepseek_v3/dense",
    "ernie4_5_moe/dense",
    "falcon_h1/dense",
    "gemma2/dense",
    "gemma3_text/dense",
    "gemma3_text/pattern3",
    "gemma4_text/dense",
    "gemma4_text/experts",
    "glm4_moe/dense",
    "gpt_oss/dense",
    "granitemoe/dense",
    "granitemoehybrid/dense",
    "jamba/dense",
    "lfm2/dense",
    "lfm2_moe/dense",
    "llama4/dense",
    "mamba2/dense",
    "ministral3/windows",
    "mistral3/ministral",
    "mixtral/dense",
    "nemotron_h/dense",
    "olmoe/quant4",
    "phi3/longrope",
    "phimoe/dense",
    "qwen2/dense",
    "qwen2_moe/dense",
    "qwen3/dense",
    "qwen3_5/dense",
    "qwen3_5_moe/dense",
    "qwen3_moe/dense",
    "qwen3_moe/quant4",
    "qwen3_next/dense",
    "qwen3_next/interval",
];

/// The sums of a batch are computed in another order than those of one row.
const TOLERANCE: f32 = 1e-4;

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
    let mut num_to_insert = 12;
    while num_to_insert > 0 || batch.has_work() {
        if num_to_insert > 0 && numbers.below(3) == 0 {
            num_to_insert -= 1;
            let (request, answer) = random_request(&model, &mut numbers);
            let id = batch.insert(request).expect("insert");
            expected.insert(id, answer);
            found.insert(id, Vec::new());
        }
        if numbers.below(12) == 0 && !expected.is_empty() {
            let id = *expected.keys().nth(numbers.below(expected.len())).expect("a request");
            if let Some(row) = batch.remove(id).expect("remove") {
                let whole = expected.remove(&id).expect("known");
                check_cancelled(&model, row, &found[&id], &whole, &described);
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

/// A request with a random prompt, limit and boundary, and its unbatched answer.
fn random_request(model: &Model, numbers: &mut Numbers) -> (BatchRequest, Vec<u32>) {
    let count = 1 + numbers.below(30);
    let prompt = numbers.tokens(model, count);
    let max_tokens = 1 + numbers.below(12);
    let request = BatchRequest {
        boundaries: vec![numbers.below(count + 1)],
        return_caches: true,
        ..BatchRequest::new(prompt.clone(), max_tokens)
    };
    (request, tokens(&unbatched(model, &prompt, max_tokens)))
}

/// The caches of a request that was cancelled after the tokens `sampled` continue to the tokens
/// that follow these in its `whole` answer.
fn check_cancelled(model: &Model, row: RowState, sampled: &[u32], whole: &[u32], described: &str) {
    if sampled.is_empty() || row.tokens.len() < sampled.len() || sampled.len() >= whole.len() {
        return;
    }
    assert!(row.tokens.ends_with(sampled), "{described}");
    assert_eq!(row.caches[0].offset(), row.tokens.len(), "{described}");
    let request = BatchRequest {
        caches: Some(row.caches),
        cached_tokens: row.tokens,
        ..BatchRequest::new(vec![], 3)
    };
    let rest = answers(model, vec![request], BatchOptions::default());
    let next = &whole[sampled.len()..whole.len().min(sampled.len() + 3)];
    assert!(rest[0].tokens.starts_with(next), "{described}");
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
fn conversations_continue_from_their_caches() {
    for case in MODELS {
        let model = model(case);
        let mut numbers = Numbers(3);
        let mut histories: Vec<Vec<u32>> = vec![Vec::new(); 3];
        let mut caches: Vec<Option<(Vec<LayerCache>, Vec<u32>)>> = vec![None, None, None];
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
