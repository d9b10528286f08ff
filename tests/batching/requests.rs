//! The life of a request: admission, progress, stop sequences, limits, cancellation, failure, and
//! the caches that it returns.

use cairn_chat::FinishReason;
use cairn_lm::batch::{
    BatchGenerator, BatchOptions, BatchRequest, BatchResponse, RequestId, batch_generate,
    batch_generate_tokens,
};
use cairn_lm::cache::{LayerCache, RotatingKvCache};
use cairn_lm::models::Model;
use cairn_lm::{
    GenerateOptions, LmError, LoadOptions, LoadedModel, NO_TOKEN_LIMIT, StreamRequest, generate,
};

use crate::{Numbers, answers, model, scripted, tokens, unbatched, with_logprobs};

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
fn requests_are_admitted_in_order_while_answers_continue() {
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
fn a_prompt_that_was_read_joins_those_that_decode_in_a_call_of_its_own() {
    let model = model("llama/dense-tied");
    let mut batch = BatchGenerator::new(model.clone(), BatchOptions::default());
    let mut numbers = Numbers(11);
    batch.insert(BatchRequest::new(numbers.tokens(&model, 5), 30)).expect("insert");
    batch.prefill_slice(100);
    assert_eq!(batch.num_decoding(), 1, "nobody waits for the first one");

    for _ in 0..2 {
        batch.insert(BatchRequest::new(numbers.tokens(&model, 5), 30)).expect("insert");
    }
    let read = batch.prefill_slice(100);
    assert_eq!((batch.num_decoding(), read.prompts.len()), (1, 2));
    assert!(read.prompts.iter().all(|prompt| prompt.processed == 4 && !prompt.end_of_prompt));
    batch.decode_step().expect("step");
    let late = batch.insert(BatchRequest::new(numbers.tokens(&model, 5), 30)).expect("insert");
    let joined = batch.prefill_slice(100);
    assert_eq!(batch.num_decoding(), 3);
    assert!(joined.prompts.iter().all(|prompt| prompt.end_of_prompt && prompt.id != late));
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

#[test]
fn a_request_is_removed_at_once_while_it_waits_prefills_or_decodes() {
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
    assert_eq!([0, 1, 2].map(|index| batch.has(ids[index])), [false, true, false]);
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

#[test]
fn an_answer_that_ends_as_its_pass_fails_is_whole_but_leaves_no_caches() {
    let folder = tempfile::tempdir().expect("a folder");
    let config =
        r#"{"model_type": "scripted", "vocab_size": 8, "script": [5, 6, 7], "fail_at": 3}"#;
    std::fs::write(folder.path().join("config.json"), config).expect("config.json");
    let (model, _) =
        Model::load(folder.path(), LoadOptions::new().keep_quantized(true)).expect("a model");
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
fn caches_without_a_batched_form_are_answered_too() {
    let model = model("llama/dense-tied");
    // A ring that never overwrites its first four tokens cannot be a row of a batch.
    let rings = || -> Vec<_> {
        let ring = LayerCache::Rotating(RotatingKvCache::new(64, 4));
        vec![ring; model.make_cache().len()]
    };
    let prompts: Vec<Vec<u32>> = [6, 11, 4, 9]
        .iter()
        .map(|&length| Numbers(length).tokens(&model, length as usize))
        .collect();
    let requests = prompts.iter().enumerate().map(|(index, prompt)| {
        let caches = (index % 2 == 0).then(rings);
        BatchRequest { caches, ..BatchRequest::new(prompt.clone(), 8) }
    });
    for (answer, prompt) in
        answers(&model, requests.collect(), BatchOptions::default()).iter().zip(&prompts)
    {
        assert_eq!(answer.tokens, tokens(&unbatched(&model, prompt, 8)));
    }
}

#[test]
fn bounded_caches_hold_only_the_last_tokens() {
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
fn statistics_count_all_prompts_and_answers() {
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
fn a_batch_of_prompts_is_answered_with_texts() {
    let loaded = LoadedModel::load(
        &cairn_tests::tiny_model("llama/tiny-chat"),
        LoadOptions::new().keep_quantized(true),
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
