//! The segments of an answer, which come beside its text.

use cairn_chat::{
    CallOutcome, FinishReason, Message, OfferedTool, Role, Segment, SegmentEvent, ToolCall,
};
use cairn_engine::{Engine, EngineOptions, GenerateRequest, PromptInput, SegmentOptions, SoFar};
use serde_json::json;

use crate::client::{Answer, finish};
use crate::scripted::{EOS, Scripted, text_ids};
use crate::test_engine::owner;

/// `<|im_start|>` of the tokenizer.
const START: u32 = 257;
const TEMPLATE: &str =
    "{% for turn in messages %}{{ turn.content }}{% endfor %}{# <think> <tool_call> #}";
const OPENED: &str =
    "{% for turn in messages %}{{ turn.content }}{% endfor %}<think>{# <tool_call> #}";

/// The answer of a model with a template to “Hi”, as the request that `change` makes.
async fn answer(
    template: &str,
    words: &[u32],
    change: impl Fn(GenerateRequest) -> GenerateRequest,
) -> Answer {
    let rendered = if template == OPENED { "Hi<think>" } else { "Hi" };
    let model = Scripted::saying(&text_ids(rendered), words).with_template(template);
    let (engine, _) = Engine::start(EngineOptions::default());
    let info = engine.load("scripted", model.folder()).await.expect("loads");
    assert_eq!(info.answer_format.names(), ("<think>", "hermes"));
    let hi = Message { role: Role::User, content: "Hi".to_owned(), token_ids: None };
    let tool = OfferedTool { name: "look".to_owned(), parameters: json!({ "type": "object" }) };
    let segments =
        SegmentOptions { reads_calls: true, tools: vec![tool], ..SegmentOptions::default() };
    let request = GenerateRequest {
        segments: Some(segments),
        max_tokens: 500,
        ..GenerateRequest::new(PromptInput::Messages(vec![hi]))
    };
    finish(&mut engine.generate(change(request))).await.expect("an answer")
}

fn call(arguments: &str) -> Segment {
    Segment::ToolCall(ToolCall {
        name: Some("look".to_owned()),
        id: None,
        arguments: arguments.to_owned(),
        outcome: CallOutcome::Complete,
        raw: format!("{{\"name\": \"look\", \"arguments\": {arguments}}}"),
    })
}

const CALL: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>";

/// What somebody is told of an answer: its segments without markup.
fn told(answer: &Answer) -> Vec<Segment> {
    let is_told = |event: &&SegmentEvent| !matches!(event, SegmentEvent::Markup(_));
    Segment::collect(answer.segments.iter().filter(is_told).cloned())
}

#[tokio::test]
async fn reasoning_text_and_calls_come_apart_and_the_text_is_as_without_them() {
    let text = format!("<think>\nHm.\n</think>\n\nLook: {CALL}");
    let mut words = text_ids(&text);
    words.insert(text.find("ook").expect("a word"), START);
    let with = answer(TEMPLATE, &words, |request| request).await;
    let expected = [
        Segment::Reasoning("Hm.".to_owned()),
        Segment::Text("Look: ".to_owned()),
        call("{\"at\": 1}"),
    ];
    assert_eq!(told(&with), expected);
    assert_eq!(with.segments.last(), Some(&SegmentEvent::Ended { num_complete_calls: 1 }));
    let raw: String = Segment::collect(with.segments.clone()).iter().map(Segment::raw).collect();
    assert_eq!(raw, text.replace("Look", "L<|im_start|>ook"));

    let without =
        answer(TEMPLATE, &words, |request| GenerateRequest { segments: None, ..request }).await;
    assert_eq!((with.text, with.tokens), (without.text, without.tokens));
    assert_eq!(without.segments, []);
}

#[tokio::test]
async fn a_template_that_opens_the_reasoning_begins_the_answer_in_it() {
    let words = text_ids("Hm.</think>Yes");
    let found = answer(OPENED, &words, |request| request).await;
    let segments = [Segment::Reasoning("Hm.".to_owned()), Segment::Text("Yes".to_owned())];
    assert_eq!(told(&found), segments);
}

#[tokio::test]
async fn a_stop_string_ends_the_segments_before_it() {
    let stop = |request| GenerateRequest { stop: vec!["\"at".to_owned()], ..request };
    let found = answer(TEMPLATE, &text_ids(CALL), stop).await;
    assert_eq!(found.finished.stop_string.as_deref(), Some("\"at"));
    let [Segment::ToolCall(call)] = &told(&found)[..] else { panic!("{:?}", found.segments) };
    assert_eq!((call.outcome, call.arguments.as_str()), (CallOutcome::Unfinished, "{"));
}

#[tokio::test]
async fn calls_are_text_where_nobody_looks_for_them() {
    let without = |mut request: GenerateRequest| {
        request.segments = Some(SegmentOptions::default());
        request
    };
    let found = answer(TEMPLATE, &text_ids(CALL), without).await;
    assert_eq!(told(&found), [Segment::Text(CALL.to_owned())]);
}

#[tokio::test]
async fn an_answer_of_one_call_ends_behind_it() {
    let words = text_ids(&format!("{CALL}\n{CALL}"));
    let both = answer(TEMPLATE, &words, |request| request).await;
    assert_eq!(both.segments.last(), Some(&SegmentEvent::Ended { num_complete_calls: 2 }));
    assert_eq!(both.finished.token_ids.last(), Some(&EOS));
    let ends = |mut request: GenerateRequest| {
        request.segments.as_mut().expect("asked for").ends_after_call = true;
        request
    };
    let one = answer(TEMPLATE, &words, ends).await;
    assert_eq!(one.segments.last(), Some(&SegmentEvent::Ended { num_complete_calls: 1 }));
    assert_eq!(one.finished.stats.finish_reason, FinishReason::Stop);
    assert!(one.tokens.len() <= CALL.len(), "{}", one.tokens.len());
}

#[tokio::test]
async fn an_answer_that_was_stopped_goes_on_as_if_it_had_not_been() {
    let words = text_ids(&format!("<think>\nÄh.\n</think>\n\nSchön: {CALL} Fin"));
    let model = Scripted::saying(&text_ids("Hi"), &words).with_template(TEMPLATE);
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("scripted", model.folder()).await.expect("loads");
    let ask = async |answer_so_far: &[u32], max_tokens| {
        let hi = Message { role: Role::User, content: "Hi".to_owned(), token_ids: None };
        let segments = SegmentOptions { reads_calls: true, ..SegmentOptions::default() };
        let request = GenerateRequest {
            answer_so_far: answer_so_far.to_vec(),
            segments: Some(segments),
            owner: Some(owner("conversation/1")),
            max_tokens,
            ..GenerateRequest::new(PromptInput::Messages(vec![hi]))
        };
        finish(&mut engine.generate(request)).await.expect("an answer")
    };
    let whole = ask(&[], 500).await;
    for at in 1..words.len() {
        let Answer { text, mut segments, finished: first, .. } = ask(&[], at).await;
        assert_eq!(first.token_ids, words[..at]);
        let rest = ask(&first.token_ids, 500).await;
        assert_eq!(rest.tokens, whole.tokens[at..], "after {at} tokens");
        assert_eq!(rest.finished.token_ids, whole.finished.token_ids, "after {at} tokens");
        assert_eq!(rest.finished.new_prompt_ids, whole.finished.new_prompt_ids);
        // What the first held back at its end comes with the rest.
        let text = text.strip_suffix(&first.text).expect("the end of the text").to_owned();
        segments.truncate(segments.len() - first.segments.len());
        let so_far = SoFar { text: text.clone(), segments: segments.clone() };
        assert_eq!(rest.so_far, Some(so_far), "after {at} tokens");
        assert_eq!(text + &rest.text, whole.text, "after {at} tokens");
        segments.extend(rest.segments);
        let segments = Segment::collect(segments);
        assert_eq!(segments, Segment::collect(whole.segments.clone()), "after {at} tokens");
        let num_cached = rest.finished.stats.num_cached_tokens;
        assert!(num_cached >= at, "after {at} tokens only {num_cached} were reused");
    }
}
