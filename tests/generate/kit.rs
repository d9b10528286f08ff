//! The results and errors of a `ModelKit`: stop conditions, log-probabilities, draft models.

use std::ops::ControlFlow;
use std::rc::Rc;

use cairn_chat::SamplingParams;
use cairn_lm::{
    GenerateParams, GenerationResult, LoadOptions, ModelKit, ModelKitOptions, PromptProgress,
    PromptProgressReporter, StopCondition, StopReason,
};

use crate::golden::{chat, loaded};

const LOAD: LoadOptions = LoadOptions::new().keep_quantized(true);

fn kit() -> ModelKit {
    ModelKit::new(Rc::new(chat()), ModelKitOptions::default()).expect("kit")
}

fn params(max_tokens: usize) -> GenerateParams {
    GenerateParams { max_tokens, ..GenerateParams::default() }
}

fn quiet(_: PromptProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn results(kit: &mut ModelKit, text: &str, params: &GenerateParams) -> Vec<GenerationResult> {
    let prompt = kit.tokenize(text).expect("tokenize");
    kit.generate(&prompt, params, &mut quiet)
        .expect("start")
        .map(|result| result.expect("result"))
        .collect()
}

fn text(results: &[GenerationResult]) -> String {
    results.iter().map(|result| result.text.as_str()).collect()
}

fn condition(results: &[GenerationResult]) -> &StopCondition {
    let (last, before) = results.split_last().expect("a result");
    assert!(before.iter().all(|result| result.stop_condition.is_none()));
    last.stop_condition.as_ref().expect("the last result says why")
}

#[test]
fn every_answer_says_why_it_ended() {
    let mut kit = kit();
    let limited = results(&mut kit, "Hello", &params(30));
    assert_eq!(
        (condition(&limited).stop_reason, condition(&limited).stop_reason.as_str()),
        (StopReason::TokenLimit, "token_limit")
    );
    let whole = text(&limited);

    let stop = &whole[12..17];
    let stopped = results(
        &mut kit,
        "Hello",
        &GenerateParams { stop_strings: vec![stop.to_owned()], ..params(30) },
    );
    assert_eq!(text(&stopped), whole[..whole.find(stop).expect("part")]);
    assert_eq!(
        (condition(&stopped).stop_reason, condition(&stopped).stop_string.as_str()),
        (StopReason::StopString, stop)
    );
    assert!(!condition(&stopped).stop_tokens.is_empty());

    let eos = 258;
    let sampling =
        SamplingParams { logit_bias: [(eos, 2000.0)].into(), ..SamplingParams::default() };
    let ended = results(&mut kit, "Hello", &GenerateParams { sampling, ..params(30) });
    assert_eq!(text(&ended), "");
    let expected = StopCondition {
        stop_reason: StopReason::EosToken,
        stop_string: "<|im_end|>".to_owned(),
        stop_tokens: vec![eos],
    };
    assert_eq!(condition(&ended), &expected);
    assert_eq!(ended[0].tokens.len(), 1);
}

#[test]
fn a_cancelled_answer_ends_with_one_more_result() {
    let mut kit = kit();
    let whole = text(&results(&mut kit, "Hello", &params(30)));
    let prompt = kit.tokenize("Hello").expect("tokenize");
    let mut stream = kit.generate(&prompt, &params(30), &mut quiet).expect("start");
    let mut found: Vec<GenerationResult> =
        stream.by_ref().take(3).map(|result| result.expect("result")).collect();
    stream.cancel();
    found.push(stream.next().expect("a last result").expect("result"));
    assert!(stream.next().is_none());
    assert_eq!(
        (condition(&found).stop_reason, text(&found).as_str()),
        (StopReason::UserCancelled, &whole[..3])
    );
}

#[test]
fn results_have_tokens_and_their_alternatives() {
    let mut kit = kit();
    for top_logprobs in [0, 1, 10] {
        let results = results(&mut kit, "Hello", &GenerateParams { top_logprobs, ..params(8) });
        for (token, top) in
            results.iter().flat_map(|result| result.tokens.iter().zip(&result.top_logprobs))
        {
            assert_eq!(top.len(), top_logprobs);
            assert!(token.logprob <= 0.0 && !token.from_draft && token.text.len() == 1);
            assert!(top.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
            if let Some(best) = top.first() {
                assert_eq!(
                    (best.id, best.logprob),
                    (token.id, token.logprob),
                    "greedy answers take the best"
                );
            }
        }
        assert_eq!(results.iter().map(|result| result.tokens.len()).sum::<usize>(), 8);
    }
}

#[test]
fn an_empty_text_is_a_space() {
    let kit = kit();
    assert_eq!(kit.tokenize("").expect("tokenize"), kit.tokenize(" ").expect("tokenize"));
    assert!(!kit.tokenize("").expect("tokenize").is_empty());
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let mut kit = kit();
    let mut check = |prompt: &[u32], params: GenerateParams, expected: &str| {
        let refusal =
            kit.generate(prompt, &params, &mut quiet).expect_err("is refused").to_string();
        assert!(refusal.contains(expected), "{refusal}");
    };
    check(&[1], GenerateParams { top_logprobs: 11, ..params(1) }, "top_logprobs is 11");
    check(&[1], params(0), "max_tokens is 0");
    check(&[], params(1), "the prompt is empty");
    check(&[300], params(1), "token id 300");
    check(&[1; 5000], params(1), "5000 tokens");
    check(&[1], GenerateParams { speculative_decoding: Some(true), ..params(1) }, "draft model");
    check(&[1], GenerateParams { stop_strings: vec![String::new()], ..params(1) }, "stop");
    let sampling = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
    check(&[1], GenerateParams { sampling, ..params(1) }, "top_p is 2");
}

#[test]
fn a_seed_repeats_an_answer() {
    let mut kit = kit();
    let mut draw = |seed| {
        let sampling =
            SamplingParams { temperature: 1.0, seed: Some(seed), ..SamplingParams::default() };
        text(&results(&mut kit, "Hello", &GenerateParams { sampling, ..params(20) }))
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    assert_eq!(draw(7), draw((1 << 32) + 7), "seeds have 32 bits");
}

#[test]
fn draft_models_come_and_go() {
    let mut kit = kit();
    let plain = text(&results(&mut kit, "Hello", &params(30)));
    kit.unload_draft_model();

    let folder = cairn_tests::tiny_model("llama/tiny-chat");
    assert!(kit.is_draft_model_compatible(&folder).expect("config"));
    kit.load_draft_model(&folder, LOAD).expect("draft");
    for (speculative_decoding, drafted) in
        [(None, true), (Some(true), true), (Some(false), false), (None, true)]
    {
        let params =
            GenerateParams { speculative_decoding, num_draft_tokens: Some(2), ..params(30) };
        let results = results(&mut kit, "Hello", &params);
        assert_eq!(text(&results), plain);
        let num_drafted = results
            .iter()
            .flat_map(|result| &result.tokens)
            .filter(|token| token.from_draft)
            .count();
        assert_eq!(num_drafted, if drafted { 20 } else { 0 }, "{speculative_decoding:?}");
    }

    let other = cairn_tests::tiny_model("llama/dense-tied");
    assert!(!kit.is_draft_model_compatible(&other).expect("config"));
    assert!(
        kit.set_draft_model(loaded("llama/dense-tied"))
            .expect_err("is refused")
            .to_string()
            .contains("vocabulary")
    );
    assert!(kit.draft_model().is_some(), "the one that was there stays");
    kit.unload_draft_model();
    assert!(kit.draft_model().is_none());
    assert_eq!(text(&results(&mut kit, "Hello", &params(30))), plain);
}

#[test]
fn progress_events_cover_both_models_and_their_cached_tokens() {
    let options = ModelKitOptions { prefill_step_size: Some(4), ..ModelKitOptions::default() };
    let mut kit = ModelKit::new(Rc::new(chat()), options).expect("kit");
    kit.load_draft_model(&cairn_tests::tiny_model("llama/tiny-chat"), LOAD).expect("draft");
    let events = |kit: &mut ModelKit, prompt: &[u32]| {
        let mut events = Vec::new();
        let mut on_progress = |event| {
            events.push(event);
            ControlFlow::Continue(())
        };
        drop(kit.generate(prompt, &params(1), &mut on_progress).expect("start"));
        events
    };
    let prompt: Vec<u32> = (65..75).collect();
    let begin = |is_draft, cached_tokens| PromptProgress::Begin {
        is_draft,
        cached_tokens,
        total_prompt_tokens: 10,
    };
    let update = |is_draft, prefill_tokens_processed| PromptProgress::Update {
        is_draft,
        prefill_tokens_processed,
    };
    let finish = |is_draft, prefill_tokens_processed| PromptProgress::Finish {
        is_draft,
        prefill_tokens_processed,
    };
    let read = |is_draft| {
        [
            begin(is_draft, 0),
            update(is_draft, 4),
            update(is_draft, 8),
            update(is_draft, 9),
            finish(is_draft, 9),
        ]
    };
    assert_eq!(events(&mut kit, &prompt), [read(true), read(false)].concat());
    let held = |is_draft| [begin(is_draft, 9), finish(is_draft, 0)];
    assert_eq!(events(&mut kit, &prompt), [held(true), held(false)].concat());

    let mut percents = Vec::new();
    let mut on_percent = |percent| {
        percents.push(percent);
        ControlFlow::Continue(())
    };
    let mut reporter = PromptProgressReporter::new(&mut on_percent);
    let longer: Vec<u32> = (65..82).collect();
    drop(kit.generate(&longer, &params(1), &mut |event| reporter.report(event)).expect("start"));
    assert_eq!((percents[0], percents.last()), (0.0, Some(&100.0)));
}
