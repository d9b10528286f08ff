//! Stop conditions: stop strings across token boundaries, and extra end tokens. In a batch and with
//! a kit.

use cairn_chat::{FinishReason, Message, Role};
use cairn_engine::{Engine, EngineOptions, GenerateRequest, PromptInput, Speculation};

use crate::client::{finish, request};
use crate::scripted::{EOS, Scripted, text_ids, text_of};

const PROMPT: &[u32] = &[1, 2, 3];

async fn engine(model: &Scripted) -> Engine {
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    engine.load_draft("draft", model.folder()).await.expect("loads");
    engine
}

/// The request in a batch, and with a draft model.
fn ways(request: GenerateRequest) -> [GenerateRequest; 2] {
    [
        request.clone(),
        GenerateRequest { speculation: Speculation::Draft { num_tokens: 3 }, ..request },
    ]
}

#[tokio::test]
async fn a_stop_string_ends_the_text_before_it() {
    let model = Scripted::endless();
    let engine = engine(&model).await;
    let whole = text_of(&model.answer(PROMPT, 60));
    let check = async |stops: Vec<String>, expected: Option<&str>| {
        for request in ways(GenerateRequest { stop: stops.clone(), ..request(PROMPT, 60) }) {
            let answer = finish(&mut engine.generate(request)).await.expect("an answer");
            let stats = &answer.finished.stats;
            assert_eq!(answer.finished.stop_string.as_deref(), expected, "{stops:?}");
            let Some(stop) = expected else {
                assert_eq!(
                    (answer.text.as_str(), stats.finish_reason),
                    (whole.as_str(), FinishReason::Length),
                    "{stops:?}"
                );
                continue;
            };
            let end = whole.find(stop).expect("a part");
            assert_eq!(
                (answer.text.as_str(), stats.finish_reason),
                (&whole[..end], FinishReason::Stop),
                "{stops:?}"
            );
            // Each token is a byte: the bytes of the stop string are sampled, and no more.
            assert_eq!(
                answer.finished.token_ids,
                model.answer(PROMPT, end + stop.len()),
                "{stops:?}"
            );
        }
    };
    let part = |start: usize, stop: usize| whole[start..stop].to_owned();
    for (start, stop) in [(0, 1), (0, 7), (5, 6), (5, 12), (30, 45), (52, 60)] {
        check(vec![part(start, stop)], Some(&part(start, stop))).await;
    }
    // The stop string that is completed first.
    check(vec![part(20, 40), part(25, 30)], Some(&part(25, 30))).await;
    check(vec![part(10, 15) + "!", part(30, 39)], Some(&part(30, 39))).await;
    check(vec!["!?".to_owned(), whole.clone() + "!"], None).await;
    check(Vec::new(), None).await;
}

#[tokio::test]
async fn a_stop_string_is_found_across_tokens_that_split_characters() {
    let model = Scripted::new(&text_ids("é"));
    let engine = engine(&model).await;
    let whole = text_of(&model.answer(PROMPT, 40));
    let start = whole.find('é').expect("both bytes in order");
    for request in ways(GenerateRequest { stop: vec!["é".to_owned()], ..request(PROMPT, 40) }) {
        let answer = finish(&mut engine.generate(request)).await.expect("an answer");
        assert_eq!(
            (answer.text.as_str(), answer.finished.stop_string.as_deref()),
            (&whole[..start], Some("é"))
        );
    }
}

#[tokio::test]
async fn text_withheld_for_a_stop_string_is_emitted_at_the_end() {
    let model = Scripted::new(&[u32::from(b'<')]);
    let engine = engine(&model).await;
    for request in ways(GenerateRequest { stop: vec!["<|end|>".to_owned()], ..request(PROMPT, 5) })
    {
        let answer = finish(&mut engine.generate(request)).await.expect("an answer");
        assert_eq!((answer.text.as_str(), answer.finished.text.as_str()), ("<<<<<", "<"));
        assert_eq!(
            (answer.finished.stop_string, answer.finished.stats.finish_reason),
            (None, FinishReason::Length)
        );
    }
}

#[tokio::test]
async fn extra_tokens_end_an_answer() {
    let model = Scripted::new(&[65, 66, 67, 256, 257]);
    let engine = engine(&model).await;
    let whole = model.answer(PROMPT, 100);
    let check = async |extra: &[&str], ids: &[u32]| {
        let extra_eos_tokens: Vec<String> = extra.iter().map(|&token| token.to_owned()).collect();
        for request in
            ways(GenerateRequest { extra_eos_tokens, ignore_eos: true, ..request(PROMPT, 100) })
        {
            let answer = finish(&mut engine.generate(request)).await.expect("an answer");
            let end = whole.iter().position(|id| ids.contains(id)).map(|index| index + 1);
            assert_eq!(answer.finished.token_ids, whole[..end.unwrap_or(100)], "{extra:?}");
            let (reason, num_in_text) = match end {
                Some(end) => (FinishReason::Stop, end - 1),
                None => (FinishReason::Length, 100),
            };
            let stats = answer.finished.stats;
            assert_eq!(
                (stats.finish_reason, stats.num_generation_tokens),
                (reason, num_in_text),
                "{extra:?}"
            );
            assert_eq!(answer.tokens, whole[..num_in_text], "{extra:?}");
            assert_eq!(answer.text, text_of(&answer.tokens), "{extra:?}");
        }
    };
    check(&[], &[]).await;
    check(&["C"], &[67]).await;
    check(&["<|im_start|>"], &[257]).await;
    check(&["<|im_start|>", "B"], &[257, 66]).await;
    check(&["<|im_end|>"], &[EOS]).await;

    for request in ways(GenerateRequest {
        extra_eos_tokens: vec!["<|unheard-of|>".to_owned()],
        ..request(PROMPT, 5)
    }) {
        let message =
            finish(&mut engine.generate(request)).await.err().expect("is refused").message;
        assert_eq!(
            message,
            "the model's vocabulary has no token '<|unheard-of|>', which should end the answer"
        );
    }
}

/// `<|im_start|>`: a special token that does not end an answer.
const START: u32 = 257;

#[tokio::test]
async fn a_special_token_matches_stop_strings_and_is_left_out_of_a_chat() {
    // After a prompt whose sum is a multiple of seven the model samples "a", "<|im_start|>" and then "b".
    let model = Scripted::new(&[97, 98, 98, 98, 98, 98, START]);
    let engine = engine(&model).await;
    let prompt = [0, 7];
    assert_eq!(model.answer(&prompt, 4), [97, START, 98, 98]);
    let check = async |stop: &[&str], skip_special_tokens, text: &str, num_tokens: usize| {
        let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
        for request in
            ways(GenerateRequest { stop: stop.clone(), skip_special_tokens, ..request(&prompt, 4) })
        {
            let answer = finish(&mut engine.generate(request)).await.expect("an answer");
            assert_eq!(answer.text, text, "{stop:?}");
            assert_eq!(answer.finished.token_ids.len(), num_tokens, "{stop:?}");
            assert_eq!(answer.finished.stop_string.is_some(), num_tokens < 4, "{stop:?}");
        }
    };
    check(&[], true, "abb", 4).await;
    check(&[], false, "a<|im_start|>bb", 4).await;
    check(&["<|im_start|>"], true, "a", 2).await;
    check(&["<|im_start|>"], false, "a", 2).await;
    check(&["start|>b"], true, "a", 3).await;
    check(&["start|>b"], false, "a<|im_", 3).await;
}

#[tokio::test]
async fn a_stop_string_may_be_completed_by_the_last_incomplete_character() {
    let model = Scripted::new(&[0xe2]);
    let engine = engine(&model).await;
    let stop = vec!["\u{fffd}".to_owned()];
    for request in ways(GenerateRequest { stop: stop.clone(), ..request(PROMPT, 1) }) {
        let answer = finish(&mut engine.generate(request)).await.expect("an answer");
        assert_eq!(answer.text, "");
        assert_eq!(answer.finished.stop_string.as_deref(), Some("\u{fffd}"));
        assert_eq!(answer.finished.stats.finish_reason, FinishReason::Stop);
    }
}

/// A template that takes longer than is allowed.
const SLOW: &str = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";

fn slow_request() -> GenerateRequest {
    let content = "Hello".to_owned();
    let question = Message { role: Role::User, content, token_ids: None };
    GenerateRequest { prompt: PromptInput::Messages(vec![question]), ..request(&[], 10) }
}

#[tokio::test]
async fn ends_stopped_request_while_template_renders() {
    let model = Scripted::endless().with_template(SLOW);
    let engine = engine(&model).await;
    for request in ways(slow_request()) {
        let mut generation = engine.generate(request);
        generation.stop();
        let finished = finish(&mut generation).await.expect("ends").finished;
        assert_eq!(finished.stats.finish_reason, FinishReason::Cancelled);
        assert!(finished.token_ids.is_empty() && finished.new_prompt_ids.is_empty());
    }
    // A request that no one stops fails, and other requests are answered.
    let failure = finish(&mut engine.generate(slow_request())).await.err().expect("fails");
    let expected = "cannot build the prompt: the chat template was stopped after ";
    assert!(failure.message.starts_with(expected), "{failure:?}");
    let answer = finish(&mut engine.generate(request(PROMPT, 5))).await.expect("an answer");
    assert_eq!(answer.finished.token_ids, model.answer(PROMPT, 5));
}

#[tokio::test]
async fn shuts_down_while_template_renders() {
    let model = Scripted::endless().with_template(SLOW);
    let engine = engine(&model).await;
    let mut generation = engine.generate(slow_request());
    engine.shutdown().await;
    let failure = finish(&mut generation).await.err().expect("fails");
    assert_eq!(failure.message, "the engine has been shut down");
}
