//! Speculative decoding gives the same answer as plain decoding, whatever is proposed and whatever the
//! kinds of caches are.

use std::ops::ControlFlow;

use cairn_chat::SamplingParams;
use cairn_lm::cache::{KvQuantization, LayerCache};
use cairn_lm::models::Model;
use cairn_lm::{
    Acceptance, Draft, GenerateOptions, Input, LoadOptions, LogitsProcessors, PromptLookup,
    Sampler, Sampling, SpeculativeStream, speculative_generate_step,
};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype, ops};

use crate::golden::{
    Golden, KINDS, all, collect, golden, never_cancel, offset, options, plain, rest, start, tokens,
};

fn begin(
    model: &Model,
    draft: &Model,
    prompt: &[u32],
    sampling: impl Into<Sampling>,
    options: GenerateOptions,
) -> SpeculativeStream {
    let draft = Draft { model: draft, caches: &mut Vec::new() };
    speculative_generate_step(
        model,
        draft,
        prompt,
        &mut Vec::new(),
        sampling,
        options,
        &mut never_cancel,
    )
    .expect("start")
}

/// A stream that looks up its proposals in the prompt and in `seen` before it.
fn look_up(
    golden: &Golden,
    seen: &[u32],
    lookup: PromptLookup,
    sampling: impl Into<Sampling>,
    options: GenerateOptions,
) -> SpeculativeStream {
    let input = Input { tokens: &golden.prompt, embeddings: None, cached_tokens: seen };
    let caches = &mut Vec::new();
    speculative_generate_step(
        &golden.model,
        lookup,
        input,
        caches,
        sampling,
        options,
        &mut never_cancel,
    )
    .expect("start")
}

/// The prompt and `answer`, with each `wrong`th token of it replaced.
fn seen(golden: &Golden, answer: &[u32], wrong: usize) -> Vec<u32> {
    let vocab_size = golden.model.vocab_size() as u32;
    let answer = answer.iter().enumerate().map(|(index, &token)| {
        if (index + 1).is_multiple_of(wrong) { (token + 1) % vocab_size } else { token }
    });
    golden.prompt.iter().copied().chain(answer).collect()
}

/// Ways to look up: a fixed number, or as many as pay.
const LOOKUPS: [PromptLookup; 5] = [
    PromptLookup::Always(1),
    PromptLookup::Always(2),
    PromptLookup::Always(5),
    PromptLookup::Always(30),
    PromptLookup::WhereItPays,
];

/// Checks that speculative decoding gives the plain answer; returns the acceptance.
fn check(golden: &Golden, draft: &Golden, options: &GenerateOptions) -> Acceptance {
    let mut stream =
        begin(&golden.model, &draft.model, &golden.prompt, Sampler::Greedy, options.clone());
    let sampled = collect(&mut stream);
    let case = format!("{} with {} as its draft, {options:?}", golden.name, draft.name);
    assert_eq!(tokens(&sampled), plain(&golden.model, &golden.prompt, options.clone()), "{case}");
    let acceptance = stream.acceptance();
    assert_eq!(
        acceptance.num_accepted,
        sampled.iter().filter(|step| step.from_draft).count(),
        "{case}"
    );
    assert!(acceptance.num_accepted <= acceptance.num_drafted, "{case}");
    acceptance
}

#[test]
fn greedy_answers_are_those_without_a_draft_model() {
    let all = all();
    for (index, golden) in all.iter().enumerate() {
        let is_a_kind = KINDS.contains(&golden.name.as_str());
        let numbers: &[usize] = if is_a_kind { &[1, 2, 3, 20] } else { &[3] };
        for &num_draft_tokens in numbers {
            let options = GenerateOptions { num_draft_tokens, ..options(16) };
            if is_a_kind {
                // A model accepts all of its own proposals.
                let itself = check(golden, golden, &options);
                assert_eq!(itself.num_drafted, itself.num_accepted, "{}", golden.name);
            }
            let others = all[index + 1..].iter().chain(&all[..index]);
            if let Some(other) = others
                .into_iter()
                .find(|other| other.model.vocab_size() == golden.model.vocab_size())
            {
                check(golden, other, &options);
            }
        }
    }
}

#[test]
fn greedy_answers_are_the_same_when_caches_are_bounded_or_quantized() {
    let (tied, untied, gqa) =
        (golden("llama/dense-tied"), golden("llama/dense-untied"), golden("llama/gqa"));
    for max_kv_size in [5, 16, 30, 64] {
        let options = GenerateOptions { max_kv_size: Some(max_kv_size), ..options(20) };
        check(&tied, &untied, &options);
        check(&gqa, &gqa, &options);
    }
    let moe = golden("qwen3_moe/quant4");
    for start in [0, 20] {
        let kv_quantization = Some(KvQuantization { bits: 8, group_size: 32, start });
        check(&moe, &moe, &GenerateOptions { kv_quantization, ..options(20) });
    }
}

/// Checks that looking up gives the plain answer, however much of what was seen is right.
fn check_lookup(golden: &Golden, options: &GenerateOptions) {
    let answer = plain(&golden.model, &golden.prompt, options.clone());
    let (lookups, wrongs) = match KINDS.contains(&golden.name.as_str()) {
        true => (LOOKUPS.as_slice(), [1, 2, 3, 7, 100].as_slice()),
        false => (&LOOKUPS[2..3], [3].as_slice()),
    };
    for &lookup in lookups {
        for &wrong in wrongs {
            let seen = seen(golden, &answer, wrong);
            let mut stream = look_up(golden, &seen, lookup, Sampler::Greedy, options.clone());
            let sampled = collect(&mut stream);
            let case = format!("{} with {lookup:?}, wrong {wrong}, {options:?}", golden.name);
            assert_eq!(tokens(&sampled), answer, "{case}");
            let acceptance = stream.acceptance();
            let num_drafted = sampled.iter().filter(|step| step.from_draft).count();
            assert_eq!(acceptance.num_accepted, num_drafted, "{case}");
            assert!(acceptance.num_accepted <= acceptance.num_drafted, "{case}");
            if wrong == 100 && lookup == PromptLookup::Always(5) && options.max_kv_size.is_none() {
                // Five of six tokens; the first passes find nothing.
                assert!(num_drafted * 2 > answer.len(), "{case}: {acceptance:?}");
            }
        }
    }
}

#[test]
fn greedy_answers_are_those_without_prompt_lookup() {
    for golden in all() {
        check_lookup(&golden, &options(24));
    }
}

#[test]
fn looking_up_suits_bounded_and_quantized_caches() {
    let (tied, moe) = (golden("llama/dense-tied"), golden("qwen3_moe/quant4"));
    for max_kv_size in [5, 16, 30, 64] {
        check_lookup(&tied, &GenerateOptions { max_kv_size: Some(max_kv_size), ..options(24) });
    }
    for start in [0, 20, moe.prompt.len() + 9] {
        let kv_quantization = Some(KvQuantization { bits: 8, group_size: 32, start });
        check_lookup(&moe, &GenerateOptions { kv_quantization, ..options(24) });
    }
}

/// A stream that was drained, and goes on by itself after all, launches passes ahead again.
#[test]
fn a_stream_that_was_drained_goes_on() {
    for name in KINDS {
        let golden = golden(name);
        let answer = plain(&golden.model, &golden.prompt, options(30));
        for (lookup, wrong) in [
            (PromptLookup::WhereItPays, 1),
            (PromptLookup::Always(3), 3),
            (PromptLookup::Always(3), 100),
        ] {
            let seen = seen(&golden, &answer, wrong);
            let mut stream = look_up(&golden, &seen, lookup, Sampler::Greedy, options(30));
            let mut found = Vec::new();
            let (mut num_drained, mut num_ahead) = (0, 0);
            while let Some(sampled) = stream.next_token().expect("step") {
                found.push(sampled.token);
                if found.len() % 7 == 3 {
                    // A pass that is under way is returned first.
                    while !stream.drain().expect("drains") {
                        found.push(stream.next_token().expect("step").expect("token").token);
                    }
                    num_drained += 1;
                    if let Some(sampled) = stream.next_token().expect("step") {
                        found.push(sampled.token);
                    }
                    num_ahead += usize::from(!stream.drain().expect("drains"));
                }
            }
            assert_eq!(found, answer, "{name}, {lookup:?}, {wrong}");
            assert!(num_drained > 1, "{name}");
            // Not where proposals wait for their token.
            assert!(num_ahead > 0, "{name}, {lookup:?}, {wrong}: no pass was under way again");
        }
    }
}

#[test]
fn nothing_is_proposed_where_nothing_repeats() {
    let golden = golden("llama/dense-tied");
    let answer = plain(&golden.model, &golden.prompt, options(2));
    let golden = Golden { prompt: vec![1, 2], ..golden };
    let lookup = PromptLookup::Always(5);
    let mut stream = look_up(&golden, &[], lookup, Sampler::Greedy, options(2));
    assert_eq!(collect(&mut stream).len(), answer.len());
    assert_eq!(stream.acceptance(), Acceptance::default());
}

#[test]
fn the_first_two_of_three_tokens_are_drafted() {
    let golden = golden("llama/dense-tied");
    let with_logprobs =
        GenerateOptions { num_draft_tokens: 2, num_top_logprobs: Some(2), ..options(5) };
    let sampled = collect(&mut begin(
        &golden.model,
        &golden.model,
        &golden.prompt,
        Sampler::Greedy,
        with_logprobs.clone(),
    ));
    let from_draft: Vec<bool> = sampled.iter().map(|step| step.from_draft).collect();
    assert_eq!(from_draft, [true, true, false, true, true]);
    let mut unassisted =
        start(&golden.model, &golden.prompt, &mut Vec::new(), Sampler::Greedy, with_logprobs)
            .expect("start");
    for step in &sampled {
        let (found, expected) = (
            step.logprobs.as_ref().expect("asked for"),
            unassisted.next_token().expect("step").expect("token").logprobs,
        );
        let expected = expected.expect("asked for");
        // Several rows use other kernels than a single one; the last bits differ.
        assert!((found.own - expected.own).abs() < 1e-4);
        assert_eq!(found.top.len(), 2);
        assert_eq!(found.top[0].0, expected.top[0].0);
    }
}

/// After `num_taken` tokens both models' caches hold the returned tokens and nothing else.
fn check_stop(golden: &Golden, draft: &Golden, max_kv_size: Option<usize>, num_taken: usize) {
    let options = GenerateOptions { max_kv_size, ..options(16) };
    let case = format!("{} with {}, {max_kv_size:?}, after {num_taken}", golden.name, draft.name);
    let whole = plain(&golden.model, &golden.prompt, options.clone());
    let mut stream =
        begin(&golden.model, &draft.model, &golden.prompt, Sampler::Greedy, options.clone());
    for expected in &whole[..num_taken] {
        assert_eq!(stream.next_token().expect("step").expect("token").token, *expected, "{case}");
    }
    let (mut caches, draft_caches) = stream.into_caches().expect("caches");
    let mut draft_caches = draft_caches.expect("of the draft model");
    let sequence = [&golden.prompt, &whole[..num_taken]].concat();
    let (held, draft_held) = (offset(&caches), offset(&draft_caches));
    assert!((golden.prompt.len() - 1..sequence.len()).contains(&held), "{case}");
    if golden.name.starts_with("llama") && max_kv_size.is_none() {
        // Caches that can be trimmed hold all but the last token.
        assert_eq!(held, sequence.len() - 1, "{case}");
    }
    let options = GenerateOptions { max_tokens: 16 - num_taken, ..options };
    let mut main =
        start(&golden.model, &sequence[held..], &mut caches, Sampler::Greedy, options.clone())
            .expect("start");
    assert_eq!(rest(&mut main), whole[num_taken..], "{case}");
    if max_kv_size.is_none() {
        let drafted = start(
            &draft.model,
            &sequence[draft_held..],
            &mut draft_caches,
            Sampler::Greedy,
            options.clone(),
        );
        let mut rest_of_draft = drafted.expect("start");
        assert_eq!(
            rest(&mut rest_of_draft),
            plain(&draft.model, &sequence, options),
            "{case}, the draft model"
        );
    }
}

#[test]
fn an_early_stop_returns_caches_without_refused_tokens() {
    let others = all();
    for name in KINDS {
        let golden = golden(name);
        for num_taken in 0..=9 {
            check_stop(&golden, &golden, None, num_taken);
        }
        let other = others.iter().find(|other| {
            other.name != *name && other.model.vocab_size() == golden.model.vocab_size()
        });
        for num_taken in 0..=9 {
            check_stop(&golden, other.expect("another of its vocabulary"), None, num_taken);
        }
    }
    let (tied, untied) = (golden("llama/dense-tied"), golden("llama/dense-untied"));
    for num_taken in 0..=9 {
        check_stop(&tied, &untied, Some(28), num_taken);
    }
}

#[test]
fn an_early_stop_with_lookup_returns_caches_without_refused_tokens() {
    for name in KINDS {
        let golden = golden(name);
        let answer = plain(&golden.model, &golden.prompt, options(16));
        for (num_taken, wrong) in (0..=9).flat_map(|taken| [(taken, 3), (taken, 100)]) {
            let seen = seen(&golden, &answer, wrong);
            let lookup = PromptLookup::Always(4);
            let mut stream = look_up(&golden, &seen, lookup, Sampler::Greedy, options(16));
            for expected in &answer[..num_taken] {
                let sampled = stream.next_token().expect("step").expect("token");
                assert_eq!(sampled.token, *expected, "{name}");
            }
            let (mut caches, draft_caches) = stream.into_caches().expect("caches");
            assert!(draft_caches.is_none());
            let sequence = [&golden.prompt, &answer[..num_taken]].concat();
            let held = offset(&caches);
            assert!((golden.prompt.len() - 1..=sequence.len()).contains(&held), "{name}");
            if held == sequence.len() {
                continue; // Nothing is left to begin with.
            }
            let left = options(16 - num_taken);
            let unread = &sequence[held..];
            let mut rest_of_answer =
                start(&golden.model, unread, &mut caches, Sampler::Greedy, left).expect("start");
            assert_eq!(rest(&mut rest_of_answer), answer[num_taken..], "{name}, {num_taken}");
        }
    }
}

/// Settings whose random numbers are used differently: a filter over all rows, and XTC, which uses
/// one more for each token.
fn random_settings(seed: u64) -> [SamplingParams; 3] {
    let seeded = SamplingParams { temperature: 1.0, seed: Some(seed), ..SamplingParams::default() };
    [
        SamplingParams { top_p: 0.9, min_p: 0.01, ..seeded.clone() },
        SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.02, ..seeded.clone() },
        SamplingParams { temperature: 0.3, top_k: 20, ..seeded },
    ]
}

#[test]
fn sampled_answers_are_those_of_the_main_model_alone() {
    for name in KINDS {
        let golden = golden(name);
        let all = all();
        let other = all.iter().find(|other| {
            other.name != *name && other.model.vocab_size() == golden.model.vocab_size()
        });
        let other = &other.expect("another of its vocabulary").model;
        for params in random_settings(7).into_iter().chain(random_settings(8)) {
            let sampler = || Sampler::new(&params, &[]);
            let prompt = &golden.prompt;
            let mut alone = start(&golden.model, prompt, &mut Vec::new(), sampler(), options(30))
                .expect("start");
            let alone = rest(&mut alone);
            for draft in [&golden.model, other] {
                let mut stream = begin(&golden.model, draft, prompt, sampler(), options(30));
                assert_eq!(tokens(&collect(&mut stream)), alone, "{name}, {params:?}");
                if std::ptr::eq(draft, &golden.model) && params.xtc_probability == 0.0 {
                    // It draws with the numbers of the main model.
                    let Acceptance { num_drafted, num_accepted, .. } = stream.acceptance();
                    assert_eq!(num_accepted, num_drafted, "{name}, {params:?}");
                }
            }
            for wrong in [2, 5, 100] {
                let seen = seen(&golden, &alone, wrong);
                let lookup = PromptLookup::Always(5);
                let mut stream = look_up(&golden, &seen, lookup, sampler(), options(30));
                assert_eq!(tokens(&collect(&mut stream)), alone, "{name}, {params:?}, {wrong}");
            }
        }
    }
}

#[test]
fn processors_work_on_both_models() {
    for name in KINDS {
        let golden = golden(name);
        let vocab_size = golden.model.vocab_size();
        let penalised = |params: &SamplingParams| Sampling {
            sampler: Sampler::Greedy,
            processors: LogitsProcessors::new(params, vocab_size).expect("processors"),
        };
        let penalty = SamplingParams {
            repetition_penalty: Some(1.5),
            presence_penalty: Some(0.5),
            ..SamplingParams::default()
        };
        let mut unassisted =
            start(&golden.model, &golden.prompt, &mut Vec::new(), penalised(&penalty), options(16))
                .expect("start");
        let mut stream =
            begin(&golden.model, &golden.model, &golden.prompt, penalised(&penalty), options(16));
        assert_eq!(tokens(&collect(&mut stream)), rest(&mut unassisted), "{name}");
        assert_eq!(
            stream.acceptance().num_accepted,
            12,
            "{name}: the draft model sees the same history"
        );

        let answer = plain(&golden.model, &golden.prompt, options(16));
        for wrong in [3, 100] {
            let seen = seen(&golden, &answer, wrong);
            let lookup = PromptLookup::Always(5);
            let mut stream = look_up(&golden, &seen, lookup, penalised(&penalty), options(16));
            // What was seen counts as said before for penalties, so the answer is another one.
            let same = Input { tokens: &golden.prompt, embeddings: None, cached_tokens: &seen };
            let mut unassisted =
                start(&golden.model, same, &mut Vec::new(), penalised(&penalty), options(16))
                    .expect("start");
            assert_eq!(tokens(&collect(&mut stream)), rest(&mut unassisted), "{name}, {wrong}");
        }

        let bias = SamplingParams { logit_bias: [(5, 2000.0)].into(), ..SamplingParams::default() };
        let sampled = collect(&mut begin(
            &golden.model,
            &golden.model,
            &golden.prompt,
            penalised(&bias),
            options(5),
        ));
        assert_eq!(tokens(&sampled), [5; 5], "{name}");
    }
}

#[test]
fn progress_counts_the_main_model() {
    let golden = golden("llama/dense-tied");
    let mut calls = Vec::new();
    let mut on_progress = |processed, total| {
        calls.push((processed, total));
        ControlFlow::Continue(())
    };
    let options = GenerateOptions { prefill_step_size: 3, ..options(1) };
    let draft = Draft { model: &golden.model, caches: &mut Vec::new() };
    let prompt = &golden.prompt[..6];
    speculative_generate_step(
        &golden.model,
        draft,
        prompt,
        &mut Vec::new(),
        Sampler::Greedy,
        options,
        &mut on_progress,
    )
    .expect("start");
    assert_eq!(calls, [(0, 6), (0, 6), (0, 6), (0, 6), (3, 6), (5, 6)]);
}

#[test]
fn models_that_do_not_fit_together_are_refused() {
    let (small, chat) = (golden("llama/dense-tied"), golden("llama/tiny-chat"));
    let refusal = |draft: &Model, input: Input<'_>| {
        let draft = Draft { model: draft, caches: &mut Vec::new() };
        let stream = speculative_generate_step(
            &small.model,
            draft,
            input,
            &mut Vec::new(),
            Sampler::Greedy,
            options(1),
            &mut never_cancel,
        );
        stream.expect_err("is refused").to_string()
    };
    let message = refusal(&chat.model, Input::from(&small.prompt));
    assert!(message.contains("259") && message.contains("128"), "{message}");
    let embeddings = ops::zeros::<f32>(&[3, 32]).expect("zeros");
    let message =
        refusal(&small.model, Input { embeddings: Some(&embeddings), ..Input::default() });
    assert!(message.contains("input_embeddings"), "{message}");
}

/// The checkpoint with weights in bf16.
fn in_bf16(name: &str) -> Golden {
    let folder = tempfile::tempdir().expect("a folder");
    cairn_tests::copy_tiny_model(name, folder.path()).expect("copies");
    let path = folder.path().join("model.safetensors");
    let weights = Array::load_safetensors(&path).expect("weights");
    let weights: Vec<(String, Array)> = weights
        .into_iter()
        .map(|(name, weight)| (name, weight.as_dtype(Dtype::Bfloat16).expect("bf16")))
        .collect();
    // Read before the file is written.
    eval(weights.iter().map(|(_, weight)| weight)).expect("reads");
    let named = weights.iter().map(|(name, weight)| (name.as_str(), weight));
    Array::save_safetensors(named, None, &path).expect("saves");
    let (model, _) =
        Model::load(folder.path(), LoadOptions::new().keep_quantized(true)).expect("loads");
    Golden { model, ..golden(name) }
}

/// How much less likely each token of `answer` is than the likeliest, in logits, when tokens are read one at
/// a time as in plain decoding; and the largest logit.
fn behind_the_likeliest(golden: &Golden, answer: &[u32]) -> Vec<(f32, f32)> {
    let mut caches = golden.model.make_cache();
    let sequence = [&golden.prompt[..], answer].concat();
    let prefix = golden.prompt.len() - 1;
    let read = |tokens: &[u32], caches: &mut [LayerCache]| {
        let tokens = Array::from_slice(tokens, &[1, tokens.len() as i32]);
        golden.model.forward(&tokens, caches).expect("a pass")
    };
    read(&sequence[..prefix], &mut caches);
    let gaps = sequence[prefix..].windows(2).map(|pair| {
        let hidden = read(&pair[..1], &mut caches);
        let logits = golden.model.logits(&hidden).expect("logits");
        let logits = logits.as_dtype(Dtype::Float32).expect("f32");
        let logits = logits.reshape(&[-1]).expect("a row");
        let logits = logits.as_slice::<f32>();
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        (largest - logits[pair[1] as usize], largest)
    });
    gaps.collect()
}

#[test]
fn in_bf16_only_tokens_as_likely_as_the_likeliest_are_chosen_and_they_are_counted() {
    let (mut num_checked, mut num_ties) = (0, 0);
    for name in KINDS.iter().filter(|name| !name.contains("quant")) {
        let golden = in_bf16(name);
        let plain = plain(&golden.model, &golden.prompt, options(60));
        for lookup in LOOKUPS {
            let seen = seen(&golden, &plain, 5);
            let mut stream = look_up(&golden, &seen, lookup, Sampler::Greedy, options(60));
            let answer = tokens(&collect(&mut stream));
            let acceptance = stream.acceptance();
            assert!(acceptance.num_checked >= acceptance.num_accepted, "{name}, {lookup:?}");
            assert!(acceptance.num_checked <= answer.len(), "{name}, {lookup:?}");
            num_checked += acceptance.num_checked;
            for (gap, largest) in behind_the_likeliest(&golden, &answer) {
                // Two steps of bf16, which has eight bits: one for each of two logits.
                let tie = 2.0 * largest.abs().max(1.0) / 128.0;
                assert!(gap <= tie, "{name}, {lookup:?}: {gap} behind {largest}");
                num_ties += usize::from(gap > 0.0);
            }
        }
        let of_plain = behind_the_likeliest(&golden, &plain);
        assert!(of_plain.iter().all(|(gap, _)| *gap == 0.0), "{name}: that is plain decoding");
    }
    println!("{num_checked} tokens checked, {num_ties} of all not the likeliest by the last bits");
    assert!(num_checked > 0);
}
