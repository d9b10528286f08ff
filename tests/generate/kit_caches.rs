//! The caches that a `ModelKit` reuses between prompts: answers are those of a new kit, and no
//! token is read twice.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use cairn_lm::batch::{BatchOptions, BatchRequest, batch_generate_tokens};
use cairn_lm::{
    GenerateParams, LoadedModel, ModelKit, ModelKitOptions, PromptProgress, StopReason,
};

use crate::golden::{KINDS, golden, loaded};

const NUM_TOKENS: usize = 12;

fn kit(
    loaded: &Rc<LoadedModel>,
    options: &ModelKitOptions,
    draft: Option<&Rc<LoadedModel>>,
) -> ModelKit {
    let mut kit = ModelKit::new(Rc::clone(loaded), options.clone()).expect("kit");
    if let Some(draft) = draft {
        kit.set_draft_model(Rc::clone(draft)).expect("draft");
    }
    kit
}

/// The answer's tokens, and how many of the prompt's the main model's caches held.
fn answer(kit: &mut ModelKit, prompt: &[u32]) -> (Vec<u32>, usize) {
    let mut cached = 0;
    let mut on_progress = |event| {
        if let PromptProgress::Begin { is_draft: false, cached_tokens, .. } = event {
            cached = cached_tokens;
        }
        ControlFlow::Continue(())
    };
    let params = GenerateParams { max_tokens: NUM_TOKENS, ..GenerateParams::default() };
    let results = kit.generate(prompt, &params, &mut on_progress).expect("start");
    let tokens =
        results.flat_map(|result| result.expect("result").tokens).map(|token| token.id).collect();
    (tokens, cached)
}

/// Prompts that share a prefix with `prompt` and its answer in different ways: the same prompt, a
/// shorter one, another ending, a continued conversation.
fn prompts(prompt: &[u32], answer: &[u32]) -> Vec<Vec<u32>> {
    let last = prompt.len() - 1;
    let whole = [prompt, answer].concat();
    vec![
        prompt.to_vec(),
        prompt.to_vec(),
        prompt[..last].to_vec(),
        prompt.to_vec(),
        whole.clone(),
        [&whole[..], &[3, 4, 5]].concat(),
        [&prompt[..5], &[9, 8, 7, 6]].concat(),
        prompt[..1].to_vec(),
        prompt[..1].to_vec(),
        prompt[..2].to_vec(),
        [&prompt[..last], &[9, 8, 7]].concat(),
        [&prompt[..last - 3], &[9, 8, 7, 6, 5]].concat(),
        vec![11],
        prompt.to_vec(),
    ]
}

/// What a generator of batches samples for the prompt, which is its only row and has no caches yet.
fn batch_of_one(loaded: &LoadedModel, prompt: &[u32]) -> Vec<u32> {
    let stop = loaded.eos_token_ids.iter().map(|&id| vec![id]).collect();
    let requests = vec![BatchRequest::new(prompt.to_vec(), NUM_TOKENS)];
    let options = BatchOptions { stop, ..BatchOptions::default() };
    let (answers, _) =
        batch_generate_tokens(&loaded.model, requests, options).expect("a batch of one");
    let answer = answers.into_iter().next().expect("one").expect("an answer");
    answer.tokens
}

/// Without `is_exact` only the existence of an answer is checked: the numbers of a bounded or
/// quantized cache depend on how the prompt was divided into chunks.
fn check(name: &str, options: &ModelKitOptions, with_draft: bool, is_exact: bool) {
    let loaded = loaded(name);
    let draft = with_draft.then_some(&loaded);
    let prompt = golden(name).prompt;
    let mut used = kit(&loaded, options, draft);
    let (first, _) = answer(&mut kit(&loaded, options, draft), &prompt);
    // The answers of new kits; some prompts occur several times.
    let mut expected: BTreeMap<Vec<u32>, Vec<u32>> =
        BTreeMap::from([(prompt.clone(), first.clone())]);
    for (index, prompt) in prompts(&prompt, &first).into_iter().enumerate() {
        let (found, _) = answer(&mut used, &prompt);
        let case = format!("{name}, {options:?}, draft {with_draft}, prompt {index}");
        assert_eq!(found.len(), NUM_TOKENS, "{case}");
        if is_exact {
            let fresh = || answer(&mut kit(&loaded, options, draft), &prompt).0;
            assert_eq!(found, *expected.entry(prompt.clone()).or_insert_with(fresh), "{case}");
        }
    }
}

/// A kit answers one prompt after the other from what it has read before, and with or without a
/// draft model, with the tokens that a generator of batches samples for that prompt alone.
#[test]
fn a_kit_generates_what_a_batch_of_one_does() {
    for name in KINDS {
        let loaded = loaded(name);
        let prompt = golden(name).prompt;
        let first = batch_of_one(&loaded, &prompt);
        for draft in [None, Some(&loaded)] {
            let mut kit = kit(&loaded, &ModelKitOptions::default(), draft);
            for prompt in prompts(&prompt, &first) {
                let (found, _) = answer(&mut kit, &prompt);
                assert_eq!(found, batch_of_one(&loaded, &prompt), "{name}, {prompt:?}");
            }
        }
    }
}

#[test]
fn answers_do_not_depend_on_what_was_asked_before() {
    for name in KINDS {
        for with_draft in [false, true] {
            check(name, &ModelKitOptions::default(), with_draft, true);
            check(
                name,
                &ModelKitOptions { prefill_step_size: Some(4), ..ModelKitOptions::default() },
                with_draft,
                true,
            );
        }
    }
}

#[test]
fn bounded_and_quantized_kits_answer_whatever_was_asked_before() {
    for with_draft in [false, true] {
        for max_kv_size in [6, 20, 1000] {
            let options =
                ModelKitOptions { max_kv_size: Some(max_kv_size), ..ModelKitOptions::default() };
            check("llama/dense-tied", &options, with_draft, max_kv_size == 1000);
        }
        for start in [0, 20] {
            let quantized = ModelKitOptions {
                kv_bits: Some(8),
                kv_group_size: Some(32),
                ..ModelKitOptions::default()
            };
            let options = ModelKitOptions {
                quantized_kv_start: Some(start),
                max_kv_size: Some(6),
                ..quantized
            };
            check("qwen3_moe/quant4", &options, with_draft, false);
        }
    }
}

/// How many tokens of the second prompt are held after the first.
fn check_cached(
    name: &str,
    second: impl Fn(&[u32], &[u32]) -> Vec<u32>,
    expected: impl Fn(usize) -> usize,
) {
    let loaded = loaded(name);
    let prompt = golden(name).prompt;
    let mut kit = kit(&loaded, &ModelKitOptions::default(), None);
    let (first, cached) = answer(&mut kit, &prompt);
    assert_eq!(cached, 0);
    let (_, cached) = answer(&mut kit, &second(&prompt, &first));
    assert_eq!(cached, expected(prompt.len()), "{name}");
}

#[test]
fn no_token_is_read_twice_where_caches_can_go_back() {
    for name in KINDS {
        // The last token of an answer is never read into the caches.
        let continued = |prompt: &[u32], answer: &[u32]| [prompt, answer, &[3, 4]].concat();
        check_cached(name, continued, |length| length + NUM_TOKENS - 1);
        check_cached(name, |_, _| vec![11, 12], |_| 0);
    }
    for name in ["llama/dense-tied", "qwen3_moe/dense"] {
        check_cached(name, |prompt, _| prompt.to_vec(), |length| length - 1);
        check_cached(name, |prompt, _| prompt[..5].to_vec(), |_| 4);
    }
    for name in ["gemma3_text/long-prompt", "qwen3_next/dense"] {
        // These caches cannot be trimmed, but there is a rollback point.
        check_cached(name, |prompt, _| prompt.to_vec(), |length| length - 11);
        check_cached(
            name,
            |prompt, _| [&prompt[..prompt.len() - 3], &[1, 2]].concat(),
            |length| length - 11,
        );
        check_cached(name, |prompt, _| prompt[..5].to_vec(), |_| 0);
    }
}

#[test]
fn a_cancelled_prompt_is_continued_where_it_stopped() {
    for name in KINDS {
        let loaded = loaded(name);
        let prompt = golden(name).prompt;
        let options = ModelKitOptions { prefill_step_size: Some(4), ..ModelKitOptions::default() };
        let (expected, _) = answer(&mut kit(&loaded, &options, None), &prompt);
        for num_events in [1, 2, 3] {
            let mut kit = kit(&loaded, &options, None);
            let mut count = 0;
            let mut on_progress = |_| {
                count += 1;
                if count < num_events { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let mut results =
                kit.generate(&prompt, &GenerateParams::default(), &mut on_progress).expect("start");
            let result = results.next().expect("one result").expect("result");
            assert_eq!(result.stop_condition.expect("why").stop_reason, StopReason::UserCancelled);
            assert!(result.text.is_empty() && result.tokens.is_empty() && results.next().is_none());
            drop(results);
            assert_eq!(
                answer(&mut kit, &prompt),
                (expected.clone(), (num_events - 1) * 4),
                "{name} after {num_events} events"
            );
        }
    }
}

#[test]
fn a_stream_that_is_dropped_early_leaves_usable_caches() {
    for name in KINDS {
        let loaded = loaded(name);
        let prompt = golden(name).prompt;
        for draft in [None, Some(&loaded)] {
            let (expected, _) =
                answer(&mut kit(&loaded, &ModelKitOptions::default(), draft), &prompt);
            for num_taken in 0..5 {
                let mut kit = kit(&loaded, &ModelKitOptions::default(), draft);
                let mut results = kit
                    .generate(&prompt, &GenerateParams::default(), &mut |_| {
                        ControlFlow::Continue(())
                    })
                    .expect("start");
                for _ in 0..num_taken {
                    results.next().expect("a result").expect("result");
                }
                drop(results);
                assert_eq!(answer(&mut kit, &prompt).0, expected, "{name} after {num_taken}");
                let whole = [&prompt, &expected[..]].concat();
                let (fresh, _) =
                    answer(&mut self::kit(&loaded, &ModelKitOptions::default(), draft), &whole);
                assert_eq!(answer(&mut kit, &whole).0, fresh, "{name}");
            }
        }
    }
}
