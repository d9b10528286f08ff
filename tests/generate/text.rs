//! The text of answers: pieces, stop rules, limits, statistics.

use cairn_chat::{FinishReason, SamplingParams};
use cairn_lm::{
    Draft, Drafter, GenerateOptions, Generated, Input, LoadedModel, Sampling, Stops, StreamRequest,
    generate, stream_generate,
};
use mlx_rs::Array;

use crate::golden::{chat, options};

fn prompt(loaded: &LoadedModel) -> Vec<u32> {
    loaded.tokenizer.encode_prompt("Tell me a story").expect("encode")
}

fn answer(loaded: &LoadedModel, stops: Stops, options: GenerateOptions) -> Generated {
    let prompt = prompt(loaded);
    let request = StreamRequest { stops, options, ..StreamRequest::new(loaded, &prompt) };
    generate(loaded, request).expect("answer")
}

#[test]
fn an_answer_has_as_many_tokens_as_were_asked_for() {
    let loaded = chat();
    let prompt = prompt(&loaded);
    for max_tokens in [1, 4, 40] {
        let request =
            StreamRequest { options: options(max_tokens), ..StreamRequest::new(&loaded, &prompt) };
        let responses: Vec<_> = stream_generate(&loaded, request)
            .expect("start")
            .map(|response| response.expect("response"))
            .collect();
        assert_eq!(responses.len(), max_tokens);
        for (index, response) in responses.iter().enumerate() {
            assert_eq!(response.generation_tokens, index + 1);
            assert_eq!(response.prompt_tokens, prompt.len());
            assert_eq!(
                response.finish_reason,
                (index + 1 == max_tokens).then_some(FinishReason::Length)
            );
            assert!(
                response.prompt_tps > 0.0 && response.peak_memory_gb > 0.0 && !response.from_draft
            );
            assert!(response.logprobs.is_none() && response.stop_tokens.is_empty());
        }
        let text: String = responses.iter().map(|response| response.text.as_str()).collect();
        assert_eq!(text.len(), max_tokens, "one byte for each token");
    }
}

/// The answer to the fixed prompt without stop rules.
fn whole(loaded: &LoadedModel) -> Generated {
    answer(loaded, Stops::default(), options(60))
}

#[test]
fn stop_strings_cut_the_answer_before_them() {
    let loaded = chat();
    let whole = whole(&loaded);
    for (start, length) in [(0, 1), (0, 5), (7, 3), (30, 12), (59, 1)] {
        let stop = &whole.text[start..start + length];
        let first = whole.text.find(stop).expect("part of the answer");
        let stops =
            Stops { strings: vec!["never there".to_owned(), stop.to_owned()], ..Stops::default() };
        let found = answer(&loaded, stops, options(60));
        assert_eq!(found.text, whole.text[..first], "{stop:?}");
        assert_eq!(found.tokens, whole.tokens[..first + length], "{stop:?}");
        assert_eq!(found.last.finish_reason, Some(FinishReason::Stop));
        assert_eq!(found.last.stop_string.as_deref(), Some(stop));
        assert_eq!(found.last.stop_tokens, whole.tokens[first..first + length], "{stop:?}");
    }
}

#[test]
fn withheld_text_that_completes_no_stop_string_is_returned_at_the_end() {
    let loaded = chat();
    let whole = whole(&loaded);
    let withheld = format!("{}!", &whole.text[40..]);
    let found = answer(&loaded, Stops { strings: vec![withheld], ..Stops::default() }, options(60));
    assert_eq!(
        (found.text.as_str(), found.last.finish_reason),
        (whole.text.as_str(), Some(FinishReason::Length))
    );
    let sequence = [&whole.tokens[50..], &[1]].concat();
    let found =
        answer(&loaded, Stops { token_sequences: vec![sequence], ..Stops::default() }, options(60));
    assert_eq!(
        (found.text.as_str(), found.last.finish_reason),
        (whole.text.as_str(), Some(FinishReason::Length))
    );
}

/// Checks an answer that a token sequence ends: the text has neither that sequence nor anything
/// after it.
fn check_tokens(
    stops: Stops,
    end: usize,
    stop_tokens: &[u32],
    loaded: &LoadedModel,
    whole: &Generated,
) {
    let found = answer(loaded, stops, options(60));
    // The token that completes the sequence is no part of the answer.
    assert_eq!(found.tokens, whole.tokens[..end - 1]);
    assert_eq!(found.last.generation_tokens, end - 1);
    assert_eq!(found.text, whole.text[..end - stop_tokens.len()]);
    assert_eq!(
        (found.last.finish_reason, found.last.stop_string),
        (Some(FinishReason::Stop), None)
    );
    assert_eq!(found.last.stop_tokens, stop_tokens);
}

#[test]
fn stop_tokens_and_sequences_end_an_answer_without_their_text() {
    let loaded = chat();
    let whole = whole(&loaded);
    let first_end = |sequence: &[u32]| {
        let start = whole
            .tokens
            .windows(sequence.len())
            .position(|window| window == sequence)
            .expect("part of the answer");
        start + sequence.len()
    };
    for (start, length) in [(0, 1), (3, 1), (0, 4), (20, 3), (50, 10)] {
        let sequence = whole.tokens[start..start + length].to_vec();
        let stops =
            Stops { token_sequences: vec![vec![1, 2, 3], sequence.clone()], ..Stops::default() };
        check_tokens(stops, first_end(&sequence), &sequence, &loaded, &whole);
    }
    let eos = whole.tokens[10];
    check_tokens(
        Stops { eos_token_ids: [eos].into(), ..Stops::default() },
        first_end(&[eos]),
        &[eos],
        &loaded,
        &whole,
    );
}

#[test]
fn a_draft_model_changes_no_text() {
    let loaded = chat();
    let (whole, prompt) = (whole(&loaded), prompt(&loaded));
    let draft = Some(Draft { model: &loaded.model, caches: &mut Vec::new() });
    let request = StreamRequest {
        drafter: draft.map(Drafter::Model),
        options: options(60),
        stops: Stops::default(),
        ..StreamRequest::new(&loaded, &prompt)
    };
    let mut stream = stream_generate(&loaded, request).expect("start");
    let text: String = stream.by_ref().map(|response| response.expect("response").text).collect();
    assert_eq!(text, whole.text);
    assert_eq!(stream.acceptance().num_accepted, 45, "three of four tokens");
}

#[test]
fn a_large_bias_makes_every_token_the_same() {
    let loaded = chat();
    let prompt = prompt(&loaded);
    let params = SamplingParams {
        logit_bias: [(u32::from(b'!'), 2000.0)].into(),
        ..SamplingParams::default()
    };
    let sampling = Sampling::new(&params, &loaded).expect("sampling");
    let request =
        StreamRequest { sampling, options: options(5), ..StreamRequest::new(&loaded, &prompt) };
    assert_eq!(generate(&loaded, request).expect("answer").text, "!!!!!");
}

#[test]
fn cached_tokens_count_as_prompt() {
    let loaded = chat();
    let prompt = prompt(&loaded);
    let expected = answer(&loaded, Stops::default(), options(10));
    let (cached_tokens, tokens) = prompt.split_at(6);
    let mut caches = Vec::new();
    let request = StreamRequest {
        caches: Some(&mut caches),
        options: options(1),
        ..StreamRequest::new(&loaded, cached_tokens)
    };
    let stream = stream_generate(&loaded, request).expect("start");
    let (mut caches, _) = stream.into_caches().expect("caches");
    let input = Input { tokens, cached_tokens, ..Input::default() };
    let request = StreamRequest {
        caches: Some(&mut caches),
        options: options(10),
        ..StreamRequest::new(&loaded, input)
    };
    let found = generate(&loaded, request).expect("answer");
    assert_eq!((found.text, found.last.prompt_tokens), (expected.text, prompt.len()));
}

#[test]
fn embeddings_of_another_shape_are_refused() {
    let loaded = chat();
    for shape in [&[64][..], &[], &[1, 1, 1, 64]] {
        let embeddings =
            Array::from_slice(&vec![0.0f32; shape.iter().product::<i32>() as usize], shape);
        let input = Input { embeddings: Some(&embeddings), ..Input::default() };
        let error = stream_generate(&loaded, StreamRequest::new(&loaded, input))
            .expect_err("is refused")
            .to_string();
        assert!(error.contains("input_embeddings"), "{shape:?}: {error}");
    }
}

#[test]
fn an_answer_of_no_tokens_is_refused() {
    let loaded = chat();
    let prompt = prompt(&loaded);
    let request = StreamRequest { options: options(0), ..StreamRequest::new(&loaded, &prompt) };
    assert!(
        stream_generate(&loaded, request)
            .expect_err("is refused")
            .to_string()
            .contains("max_tokens is 0")
    );
}
