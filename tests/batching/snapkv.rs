//! Prompts of which SnapKV drops tokens: in a batch with others, with proposals that are looked up,
//! and with a copy of the model as its draft, each gives what it gives alone.

use std::ops::ControlFlow;

use cairn_lm::batch::{BatchAnswer, BatchGenerator, BatchOptions, BatchRequest};
use cairn_lm::cache::{LayerCache, SnapKv};
use cairn_lm::models::Model;
use cairn_lm::{
    Draft, Drafter, GenerateOptions, OwnDrafter, PromptLookup, Sampled, Sampler, generate_step,
    speculative_generate_step,
};

use crate::{Numbers, answers, model, tokens, with_logprobs};

const SNAPKV: SnapKv = SnapKv { keep_tokens: 48, min_context: 0 };

const MODELS: &[&str] = &[
    "llama/dense-tied",
    "gemma3_text/dense",
    "gemma4_text/dense",
    "qwen3_next/dense",
    "falcon_h1/dense",
    "deepseek_v2/dense",
    "deepseek_v3/dense",
];

/// The sums of a batch are computed in another order than those of one row.
const TOLERANCE: f32 = 1e-4;

fn alone(model: &Model, prompt: &[u32], max_tokens: usize, snapkv: Option<SnapKv>) -> Vec<Sampled> {
    let options = options(max_tokens, snapkv);
    let (mut caches, mut go_on) = (Vec::new(), |_, _| ControlFlow::Continue(()));
    let mut stream =
        generate_step(model, prompt, &mut caches, Sampler::Greedy, options, &mut go_on)
            .expect("start");
    std::iter::from_fn(|| stream.next_token().expect("step")).collect()
}

fn options(max_tokens: usize, snapkv: Option<SnapKv>) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        snapkv,
        prefill_step_size: 50,
        num_top_logprobs: Some(2),
        ..GenerateOptions::default()
    }
}

fn assert_near(case: &str, answer: &BatchAnswer, expected: &[Sampled]) {
    assert_eq!(answer.tokens, tokens(expected), "{case}");
    for (found, expected) in answer.logprobs.iter().zip(expected) {
        let expected = expected.logprobs.as_ref().expect("log-probabilities").own;
        assert!((found.0 - expected).abs() < TOLERANCE, "{case}: {} for {expected}", found.0);
    }
}

#[test]
fn compressed_and_whole_prompts_share_a_batch() {
    for case in MODELS {
        let model = model(case);
        let mut numbers = Numbers(3);
        let rows: Vec<(Vec<u32>, Option<SnapKv>, usize)> = [(150, true), (90, false), (211, true)]
            .into_iter()
            .zip([12, 20, 9])
            .map(|((length, is_compressed), max_tokens)| {
                (numbers.tokens(&model, length), is_compressed.then_some(SNAPKV), max_tokens)
            })
            .collect();
        let requests = rows.iter().map(|(prompt, snapkv, max_tokens)| BatchRequest {
            snapkv: *snapkv,
            ..with_logprobs(prompt, *max_tokens)
        });
        let options = BatchOptions { prefill_step_size: 50, ..BatchOptions::default() };
        let found = answers(&model, requests.collect(), options);
        let mut differs = false;
        for (index, (prompt, snapkv, max_tokens)) in rows.iter().enumerate() {
            let case = format!("{case}, row {index}");
            let expected = alone(&model, prompt, *max_tokens, *snapkv);
            assert_near(&case, &found[index], &expected);
            // As many tokens as were read, wherever the row has been.
            let offsets: Vec<usize> =
                found[index].finish.caches.iter().map(LayerCache::offset).collect();
            assert!(offsets.iter().all(|&offset| offset == offsets[0]), "{case}: {offsets:?}");
            let read = prompt.len() + max_tokens;
            assert!((read - 1..=read).contains(&offsets[0]), "{case}: {offsets:?}");
            let whole = alone(&model, prompt, *max_tokens, None);
            let own = |sampled: &Sampled| sampled.logprobs.as_ref().map(|logprobs| logprobs.own);
            differs |= snapkv.is_some() && own(&expected[0]) != own(&whole[0]);
        }
        assert!(differs, "{case}: what is dropped is not attended to");
    }
}

#[test]
fn progress_says_what_has_been_dropped() {
    let model = model("llama/dense-tied");
    let prompt = Numbers(5).tokens(&model, 120);
    let mut batch = BatchGenerator::new(model, BatchOptions::default());
    let request = BatchRequest { snapkv: Some(SNAPKV), ..BatchRequest::new(prompt, 4) };
    batch.insert(request).expect("a request");
    let mut compressed = Vec::new();
    while batch.has_work() {
        let step = batch.next().expect("a step");
        assert!(step.failed.is_empty());
        compressed.extend(step.prompts.into_iter().filter_map(|prompt| prompt.compressed));
    }
    let [compressed] = *compressed else { panic!("{compressed:?}") };
    assert_eq!((compressed.num_read, compressed.num_kept), (119, SNAPKV.keep_tokens));
}

#[test]
fn proposals_change_nothing() {
    for case in MODELS {
        let model = model(case);
        // What repeats is looked up, and some of what is found is wrong.
        let part = Numbers(9).tokens(&model, 37);
        let prompt: Vec<u32> = part.iter().cycle().take(160).copied().collect();
        let expected = tokens(&alone(&model, &prompt, 24, Some(SNAPKV)));
        let check = |name: &str, drafter: Drafter<'_>| {
            let (mut caches, mut go_on) = (Vec::new(), |_, _| ControlFlow::Continue(()));
            let options = options(24, Some(SNAPKV));
            let mut stream = speculative_generate_step(
                &model,
                drafter,
                &prompt,
                &mut caches,
                Sampler::Greedy,
                options,
                &mut go_on,
            )
            .expect("start");
            let found = std::iter::from_fn(|| stream.next_token().expect("step"));
            assert_eq!(tokens(&found.collect::<Vec<_>>()), expected, "{case} with {name}");
        };
        check("lookup", Drafter::Own(OwnDrafter::PromptLookup(PromptLookup::Always(5))));
        let mut own = Vec::new();
        check("a draft", Drafter::Model(Draft { model: &model, caches: &mut own }));
    }
}
