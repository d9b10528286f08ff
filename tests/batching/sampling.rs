//! Processors, samplers and log-probabilities belong to one row of a batch.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use cairn_chat::SamplingParams;
use cairn_lm::batch::{BatchGenerator, BatchOptions, BatchRequest, batch_generate_tokens};
use cairn_lm::{
    GenerateOptions, LmError, LogitsProcessor, LogitsProcessors, Sampler, generate_step,
};
use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::{Numbers, answers, model, scripted, tokens, unbatched, with_logprobs};

/// A custom logits processor for one row.
fn processors(function: LogitsProcessor) -> LogitsProcessors {
    let mut processors = LogitsProcessors::default();
    processors.push(function);
    processors
}

/// A processor that makes `token` certain.
fn always(token: u32) -> LogitsProcessors {
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
        BatchRequest { processors: always(7), ..BatchRequest::new(prompts[0].clone(), 4) },
        BatchRequest::new(prompts[1].clone(), 4),
        BatchRequest { processors: always(3), ..BatchRequest::new(prompts[2].clone(), 4) },
    ];
    let answers = answers(&model, requests, BatchOptions::default());
    assert_eq!(answers[0].tokens, [7; 4]);
    assert_eq!(answers[1].tokens, tokens(&unbatched(&model, &prompts[1], 4)));
    assert_eq!(answers[2].tokens, [3; 4]);
}

#[test]
fn a_processor_sees_cached_tokens_the_prompt_and_the_answer() {
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
            if calls < 3 { Ok(logits) } else { Err(Exception::custom("no more".to_owned()).into()) }
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
