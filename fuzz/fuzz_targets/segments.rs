//! Segments of answers: whatever a model writes, nothing is lost, no marker is left in text, a
//! complete call has an object for its arguments, and all this does not depend on how the stream
//! was cut.
//!
//! The first byte chooses the family, the second whether the prompt has opened reasoning and where
//! the stream is cut. The rest is the answer.
#![no_main]

use std::sync::LazyLock;

use cairn_chat::{AnswerFormat, CallOutcome, OfferedTool, Segment, SegmentParser};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::json;

static FORMATS: LazyLock<Vec<AnswerFormat>> = LazyLock::new(|| AnswerFormat::all().collect());

fuzz_target!(|input: &[u8]| {
    let [family, cut, answer @ ..] = input else { return };
    let Ok(answer) = std::str::from_utf8(answer) else { return };
    let format = FORMATS[usize::from(*family) % FORMATS.len()];
    let prompts = ["", "<think>\n", "<|start|>assistant", "<|channel>thought\n"];
    let prompt = prompts[usize::from(cut % 4)];

    let whole = segments(format, prompt, answer, answer.len());
    check_rules(format, answer, &whole);
    assert_eq!(segments(format, prompt, answer, 1), whole, "character by character");
    let length = usize::from(cut / 4) + 2;
    assert_eq!(segments(format, prompt, answer, length), whole, "in pieces of {length}");
});

/// The segments of an answer that arrives in pieces of so many characters.
fn segments(format: AnswerFormat, prompt: &str, answer: &str, length: usize) -> Vec<Segment> {
    let parameters = json!({"properties": {"a": {"type": "integer"}}});
    let tools = vec![OfferedTool { name: "f".to_owned(), parameters }];
    let mut parser = SegmentParser::new(format)
        .with_tools(tools)
        .after_prompt(prompt)
        .without_tokens(["<|eot|>"]);
    let mut events = Vec::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let end = rest.char_indices().nth(length).map_or(rest.len(), |(at, _)| at);
        events.extend(parser.push(&rest[..end]));
        rest = &rest[end..];
    }
    events.extend(parser.finish());
    Segment::collect(events)
}

fn check_rules(format: AnswerFormat, answer: &str, segments: &[Segment]) {
    let raw: String = segments.iter().map(Segment::raw).collect();
    assert_eq!(raw, answer, "{segments:?}");
    for segment in segments {
        match segment {
            Segment::Text(text) => {
                let left = format.markers().into_iter().find(|marker| text.contains(marker));
                assert_eq!(left, None, "in {text:?}");
            }
            Segment::ToolCall(call) if call.outcome == CallOutcome::Complete => {
                assert!(call.name.as_ref().is_some_and(|name| !name.is_empty()));
                assert!(call.arguments.trim_start().starts_with('{'));
                serde_json::from_str::<IgnoredAny>(&call.arguments).expect("JSON");
            }
            _ => {}
        }
    }
}
