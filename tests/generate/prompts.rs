//! Prefill: chunks, progress, cancellation, embeddings, caches, and the tokens that logits
//! processors see.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use cairn_chat::SamplingParams;
use cairn_lm::cache::{
    KvQuantization, LayerCache, PromptFile, PromptFileLayout, save_prompt_cache,
};
use cairn_lm::{
    GenerateOptions, Input, LmError, LogitsProcessors, Sampler, Sampling, generate_step,
};
use mlx_rs::{Array, ops};

use crate::golden::{KINDS, golden, never_cancel, offset, options, plain, rest, start};

/// The expected progress calls for a prompt of `length` tokens.
fn check_progress(length: usize, prefill_step_size: usize, expected: &[usize]) {
    let golden = golden("llama/dense-tied");
    let prompt = &golden.prompt[..length];
    let mut calls = Vec::new();
    let mut on_progress = |processed, total| {
        assert_eq!(total, length);
        calls.push(processed);
        ControlFlow::Continue(())
    };
    let options = GenerateOptions { prefill_step_size, ..options(1) };
    generate_step(
        &golden.model,
        prompt,
        &mut Vec::new(),
        Sampler::Greedy,
        options,
        &mut on_progress,
    )
    .expect("start");
    assert_eq!(calls, expected, "{length} tokens, {prefill_step_size} at once");
}

#[test]
fn progress_comes_before_the_first_and_after_every_chunk() {
    check_progress(1, 2048, &[0]);
    check_progress(2, 2048, &[0, 1]);
    check_progress(20, 2048, &[0, 19]);
    check_progress(20, 19, &[0, 19]);
    check_progress(20, 5, &[0, 5, 10, 15, 19]);
    check_progress(4, 1, &[0, 1, 2, 3]);
}

#[test]
fn a_cancelled_prompt_leaves_caches_that_can_be_continued() {
    for name in KINDS {
        let golden = golden(name);
        let expected = plain(&golden.model, &golden.prompt, options(8));
        for stop_at in [0, 5, 10] {
            let mut caches = Vec::new();
            let mut on_progress = |processed, _| {
                if processed < stop_at { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let options = GenerateOptions { prefill_step_size: 5, ..options(8) };
            let cancelled = generate_step(
                &golden.model,
                &golden.prompt,
                &mut caches,
                Sampler::Greedy,
                options.clone(),
                &mut on_progress,
            );
            assert!(matches!(cancelled, Err(LmError::Cancelled)), "{name} at {stop_at}");
            assert_eq!(offset(&caches), stop_at, "{name}");
            let mut stream = start(
                &golden.model,
                &golden.prompt[stop_at..],
                &mut caches,
                Sampler::Greedy,
                options,
            )
            .expect("start");
            assert_eq!(rest(&mut stream), expected, "{name}, continued from {stop_at}");
        }
    }
}

#[test]
fn without_tokens_to_sample_the_whole_prompt_is_read() {
    for name in KINDS {
        let golden = golden(name);
        let mut caches =
            start(&golden.model, &golden.prompt, &mut Vec::new(), Sampler::Greedy, options(0))
                .and_then(|stream| stream.into_caches())
                .expect("caches");
        assert_eq!(offset(&caches), golden.prompt.len());
        let with_next = [golden.prompt.as_slice(), &[7]].concat();
        let mut stream = start(
            &golden.model,
            &with_next[golden.prompt.len()..],
            &mut caches,
            Sampler::Greedy,
            options(8),
        )
        .expect("start");
        assert_eq!(rest(&mut stream), plain(&golden.model, &with_next, options(8)), "{name}");
    }
}

#[test]
fn an_answer_continues_from_the_caches_of_the_one_before_and_from_their_file() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("prompt.safetensors");
    for name in KINDS {
        let golden = golden(name);
        let whole = plain(&golden.model, &golden.prompt, options(12));
        for num_first in [1, 5] {
            let mut stream = start(
                &golden.model,
                &golden.prompt,
                &mut Vec::new(),
                Sampler::Greedy,
                options(num_first),
            )
            .expect("start");
            let first = rest(&mut stream);
            let mut caches = stream.into_caches().expect("caches");
            let sequence = [golden.prompt.as_slice(), &first].concat();
            let held = offset(&caches);
            save_prompt_cache(&file, &caches, &BTreeMap::new(), PromptFileLayout::V0_32)
                .expect("saves");
            let saved = PromptFile::open(&file).expect("opens");
            saved.check_fit(&golden.model, true).expect("fits");
            let mut loaded = saved.read().expect("reads");
            for (caches, source) in [(&mut caches, "memory"), (&mut loaded, "a file")] {
                let mut stream = start(
                    &golden.model,
                    &sequence[held..],
                    caches,
                    Sampler::Greedy,
                    options(12 - num_first),
                )
                .expect("start");
                assert_eq!(
                    [first.clone(), rest(&mut stream)].concat(),
                    whole,
                    "{name} after {num_first}, from {source}"
                );
            }
        }
    }
}

#[test]
fn embeddings_stand_for_their_tokens() {
    for name in KINDS {
        let golden = golden(name);
        let expected = plain(&golden.model, &golden.prompt, options(8));
        let embeddings = golden
            .model
            .embed(&Array::from_slice(&golden.prompt, &[1, golden.prompt.len() as i32]))
            .expect("embed");
        let flat = ops::squeeze_axes(&embeddings, &[0]).expect("squeeze");
        for embeddings in [&embeddings, &flat] {
            for tokens in [golden.prompt.as_slice(), &[]] {
                for prefill_step_size in [2048, 5] {
                    let input = Input { tokens, embeddings: Some(embeddings), ..Input::default() };
                    let options = GenerateOptions { prefill_step_size, ..options(8) };
                    let mut calls = Vec::new();
                    let mut on_progress = |processed, total| {
                        calls.push((processed, total));
                        ControlFlow::Continue(())
                    };
                    let stream = generate_step(
                        &golden.model,
                        input,
                        &mut Vec::new(),
                        Sampler::Greedy,
                        options,
                        &mut on_progress,
                    );
                    assert_eq!(rest(&mut stream.expect("start")), expected, "{name}");
                    assert_eq!(
                        calls.last(),
                        Some(&(golden.prompt.len() - 1, golden.prompt.len())),
                        "{name}"
                    );
                }
            }
        }
    }
}

#[test]
fn processors_change_the_first_token_after_embeddings_too() {
    let golden = golden("llama/dense-tied");
    let embeddings = golden.model.embed(&Array::from_slice(&[3u32, 4, 5], &[1, 3])).expect("embed");
    let params = SamplingParams {
        logit_bias: [(9, 2000.0)].into(),
        presence_penalty: Some(0.5),
        ..SamplingParams::default()
    };
    let processors = LogitsProcessors::new(&params, 128).expect("processors");
    let input = Input { embeddings: Some(&embeddings), ..Input::default() };
    let sampling = Sampling { sampler: Sampler::Greedy, processors };
    let mut stream =
        start(&golden.model, input, &mut Vec::new(), sampling, options(3)).expect("start");
    assert_eq!(rest(&mut stream), [9, 9, 9]);
}

fn refusal(input: Input<'_>, options: GenerateOptions) -> String {
    let golden = golden("llama/dense-tied");
    start(&golden.model, input, &mut Vec::new(), Sampler::Greedy, options)
        .expect_err("is refused")
        .to_string()
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let zeros = |shape: &[i32]| ops::zeros::<f32>(shape).expect("zeros");
    let (wide, long, deep) = (zeros(&[3, 33]), zeros(&[4, 32]), zeros(&[2, 3, 32]));
    let embeddings =
        |tokens, embeddings| Input { tokens, embeddings: Some(embeddings), ..Input::default() };
    let check = |input, options, expected: &str| {
        let message = refusal(input, options);
        assert!(message.contains(expected), "{message}");
    };
    check(Input::default(), options(1), "the prompt is empty");
    check(Input::from([1, 128].as_slice()), options(1), "token id 128");
    check(
        Input::from([1].as_slice()),
        GenerateOptions { prefill_step_size: 0, ..options(1) },
        "prefill_step_size is 0",
    );
    check(embeddings(&[], &wide), options(1), "input_embeddings is [3, 33]");
    check(
        embeddings(&[1, 2, 3], &long),
        options(1),
        "as many embeddings as the prompt has tokens (3)",
    );
    check(embeddings(&[], &deep), options(1), "input_embeddings is [2, 3, 32]");
    check(
        Input::from([1].as_slice()),
        GenerateOptions { max_kv_size: Some(4), ..options(1) },
        "max_kv_size",
    );
}

/// An argument that is refused before prefill leaves the given caches unchanged.
fn check_refused(
    name: &str,
    change: impl FnOnce(&mut Vec<LayerCache>, &mut Input<'_>, &mut GenerateOptions),
    expected: &str,
) {
    let golden = golden(name);
    let (read, rest) = golden.prompt.split_at(10);
    let stream =
        start(&golden.model, read, &mut Vec::new(), Sampler::Greedy, options(0)).expect("start");
    let mut caches = stream.into_caches().expect("caches");
    let (mut input, mut options) =
        (Input { tokens: rest, cached_tokens: read, ..Input::default() }, options(1));
    change(&mut caches, &mut input, &mut options);
    let num_caches = caches.len();
    let error = start(&golden.model, input, &mut caches, Sampler::Greedy, options)
        .expect_err("is refused")
        .to_string();
    assert!(error.contains(expected), "{name}: {error}");
    assert_eq!((caches.len(), offset(&caches)), (num_caches, 10), "{name}: {expected}");
}

#[test]
fn given_caches_survive_a_refusal() {
    let quantize = |options: &mut GenerateOptions| {
        options.kv_quantization = Some(KvQuantization { bits: 8, group_size: 32, start: 0 });
    };
    check_refused("gemma3_text/long-prompt", |_, _, options| quantize(options), "kv_bits");
    check_refused("llama/dense-tied", |_, input, _| input.cached_tokens = &[1, 128], "128");
    check_refused("llama/dense-tied", |caches, _, _| drop(caches.pop()), "layers");
    check_refused(
        "llama/dense-tied",
        |_, _, options| options.prefill_step_size = 0,
        "prefill_step_size",
    );
}

#[test]
fn processors_see_prompt_cache_and_answer() {
    let golden = golden("llama/dense-tied");
    let expected = plain(&golden.model, &golden.prompt, options(6));
    for num_cached in [0, 10] {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let mut processors = LogitsProcessors::default();
        let log = Rc::clone(&seen);
        processors.push(Box::new(move |tokens, logits| {
            log.borrow_mut().push(tokens.contiguous()?.as_slice::<u32>().to_vec());
            Ok(logits)
        }));
        let (cached_tokens, tokens) = golden.prompt.split_at(num_cached);
        let mut caches = Vec::new();
        if num_cached > 0 {
            caches =
                start(&golden.model, cached_tokens, &mut Vec::new(), Sampler::Greedy, options(0))
                    .and_then(|stream| stream.into_caches())
                    .expect("caches");
        }
        let input = Input { tokens, cached_tokens, ..Input::default() };
        let sampling = Sampling { sampler: Sampler::Greedy, processors };
        let mut stream = generate_step(
            &golden.model,
            input,
            &mut caches,
            sampling,
            options(6),
            &mut never_cancel,
        )
        .expect("start");
        assert_eq!(rest(&mut stream), expected);
        let all: Vec<Vec<u32>> =
            (0..6).map(|count| [golden.prompt.as_slice(), &expected[..count]].concat()).collect();
        assert_eq!(*seen.borrow(), all, "{num_cached} cached");
    }
}

#[test]
fn a_failing_processor_fails_its_answer_only() {
    let golden = golden("llama/dense-tied");
    let mut processors = LogitsProcessors::default();
    let mut num_calls = 0;
    processors.push(Box::new(move |_, logits| {
        num_calls += 1;
        if num_calls < 3 { Ok(logits) } else { Err(LmError::EmptyPrompt) }
    }));
    let sampling = Sampling { sampler: Sampler::Greedy, processors };
    let mut stream =
        start(&golden.model, &golden.prompt, &mut Vec::new(), sampling, options(6)).expect("start");
    assert!(stream.next_token().expect("first").is_some());
    assert!(stream.next_token().is_err());
    assert_eq!(plain(&golden.model, &golden.prompt, options(2)).len(), 2);

    let mut processors = LogitsProcessors::default();
    processors.push(Box::new(|_, logits| Ok(logits.max_axis(-1, true)?)));
    let sampling = Sampling { sampler: Sampler::Greedy, processors };
    let refusal = start(&golden.model, &golden.prompt, &mut Vec::new(), sampling, options(6))
        .expect_err("is refused");
    assert!(refusal.to_string().contains("[1, 128]"), "{refusal}");
}

#[test]
fn bounded_and_quantized_caches_answer() {
    for name in ["llama/quant4-untied", "llama/head-dim"] {
        let golden = golden(name);
        for prefill_step_size in [2048, 5] {
            let bounded =
                GenerateOptions { max_kv_size: Some(8), prefill_step_size, ..options(20) };
            let mut stream =
                start(&golden.model, &golden.prompt, &mut Vec::new(), Sampler::Greedy, bounded)
                    .expect("start");
            assert_eq!(rest(&mut stream).len(), 20);
            assert_eq!(offset(&stream.into_caches().expect("caches")), golden.prompt.len() + 19);
        }
    }
    let golden = golden("qwen3_moe/quant4");
    for (bits, start_at) in [(8, 0), (8, 30), (4, 26)] {
        let quantization = KvQuantization { bits, group_size: 32, start: start_at };
        let quantized = GenerateOptions {
            kv_quantization: Some(quantization),
            prefill_step_size: 5,
            ..options(12)
        };
        let mut stream =
            start(&golden.model, &golden.prompt, &mut Vec::new(), Sampler::Greedy, quantized)
                .expect("start");
        assert_eq!(rest(&mut stream).len(), 12);
        let caches = stream.into_caches().expect("caches");
        assert!(
            caches.iter().all(|cache| matches!(cache, LayerCache::Quantized(_))),
            "{bits} bits from {start_at}"
        );
    }
    let late = KvQuantization { bits: 2, group_size: 32, start: 5000 };
    let late = GenerateOptions { kv_quantization: Some(late), ..options(12) };
    assert_eq!(
        plain(&golden.model, &golden.prompt, late),
        plain(&golden.model, &golden.prompt, options(12))
    );
}
