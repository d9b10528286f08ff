//! How a case is written, and how it is checked: however the stream is cut.

use cairn_chat::{
    AnswerFormat, CallOutcome, OfferedTool, Segment, SegmentEvent, SegmentParser, ToolCall,
};
use serde_json::json;

/// What a case expects of an answer; markup is left out.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Reasoning(String),
    /// A call that can be run: name and arguments.
    Call(String, String),
    /// A call with this id.
    CallWithId(String, String, String),
    Unfinished(Option<String>, String, String),
    Malformed(Option<String>, String),
}

pub fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

pub fn reasoning(text: &str) -> Part {
    Part::Reasoning(text.to_owned())
}

pub fn call(name: &str, arguments: &str) -> Part {
    Part::Call(name.to_owned(), arguments.to_owned())
}

pub fn call_with_id(name: &str, id: &str, arguments: &str) -> Part {
    Part::CallWithId(name.to_owned(), id.to_owned(), arguments.to_owned())
}

/// A call that breaks off: its name if it was announced, the arguments so far, the raw text.
pub fn unfinished(name: &str, arguments: &str, raw: &str) -> Part {
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    Part::Unfinished(name, arguments.to_owned(), raw.to_owned())
}

pub fn malformed(name: &str, raw: &str) -> Part {
    Part::Malformed(Some(name.to_owned()).filter(|name| !name.is_empty()), raw.to_owned())
}

pub fn parts(segments: &[Segment]) -> Vec<Part> {
    let part = |segment: &Segment| match segment.clone() {
        Segment::Text(text) => Some(Part::Text(text)),
        Segment::Reasoning(text) => Some(Part::Reasoning(text)),
        Segment::Markup(_) => None,
        Segment::ToolCall(ToolCall { name, id, arguments, outcome, raw }) => Some(match outcome {
            CallOutcome::Complete => match id {
                None => Part::Call(name.unwrap(), arguments),
                Some(id) => Part::CallWithId(name.unwrap(), id, arguments),
            },
            CallOutcome::Unfinished => Part::Unfinished(name, arguments, raw),
            CallOutcome::Malformed => Part::Malformed(name, raw),
        }),
    };
    segments.iter().filter_map(part).collect()
}

pub fn tools() -> Vec<OfferedTool> {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "zip": {"type": "string"},
        "days": {"type": "integer"},
        "metric": {"type": "boolean"},
        "near": {"type": ["object", "null"]},
        "any": {"anyOf": [{"type": "number"}, {"type": "string"}]},
    }});
    let tool = |name: &str| OfferedTool { name: name.to_owned(), parameters: parameters.clone() };
    vec![tool("weather"), tool("time")]
}

pub fn parser(format: AnswerFormat, prompt: &str) -> SegmentParser {
    SegmentParser::new(format).with_tools(tools()).after_prompt(prompt).without_tokens([
        "<|im_end|>",
        "<|eot|>",
        "",
    ])
}

/// The segments of an answer that arrives in these pieces, after a check of its events' order.
pub fn segments(parser: &SegmentParser, pieces: &[&str]) -> Vec<Segment> {
    let mut parser = parser.clone();
    let mut events: Vec<SegmentEvent> =
        pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    check_order(&events);
    Segment::collect(events)
}

/// Calls are numbered, and their events are not mixed with others.
pub fn check_order(events: &[SegmentEvent]) {
    let (mut open, mut num_started, mut num_complete) = (None, 0, 0);
    let (end, before) = events.split_last().unwrap();
    for event in before {
        match event {
            SegmentEvent::CallStarted { index, .. } => {
                assert_eq!((open, *index), (None, num_started), "{events:?}");
                (open, num_started) = (Some(*index), num_started + 1);
            }
            SegmentEvent::CallArguments { index, json } => {
                assert_eq!(open, Some(*index), "{events:?}");
                assert!(!json.is_empty());
            }
            SegmentEvent::CallEnded { index, outcome, .. } => {
                assert_eq!(open.take(), *index, "{events:?}");
                num_complete += usize::from(*outcome == CallOutcome::Complete);
            }
            SegmentEvent::Text(text)
            | SegmentEvent::Reasoning(text)
            | SegmentEvent::Markup(text) => {
                assert!(open.is_none() && !text.is_empty(), "{events:?}");
            }
            SegmentEvent::Ended { .. } => panic!("an end before the end: {events:?}"),
        }
    }
    assert_eq!(*end, SegmentEvent::Ended { num_complete_calls: num_complete });
}

/// What must hold of every answer: nothing is lost, no marker is text, complete arguments are an
/// object.
pub fn check_rules(format: AnswerFormat, answer: &str, segments: &[Segment]) {
    let raw: String = segments.iter().map(Segment::raw).collect();
    assert_eq!(raw, answer, "{segments:?}");
    for segment in segments {
        match segment {
            Segment::Text(text) => {
                for marker in format.markers() {
                    assert!(!text.contains(marker), "{marker} in {text:?} of {answer:?}");
                }
            }
            Segment::ToolCall(ToolCall { arguments, outcome: CallOutcome::Complete, .. }) => {
                let parsed: serde_json::Value = serde_json::from_str(arguments).unwrap();
                assert!(parsed.is_object(), "{arguments}");
            }
            _ => {}
        }
    }
}

/// Visits the ways to cut an answer: at each character, at each position, and at each pair of
/// positions if it is short.
pub fn each_cut(answer: &str, visit: impl Fn(&[&str])) {
    let cuts: Vec<usize> = answer.char_indices().map(|(at, _)| at).collect();
    let characters: Vec<&str> = answer.split_inclusive(|_: char| true).collect();
    visit(&characters);
    for (number, &first) in cuts.iter().enumerate() {
        visit(&[&answer[..first], &answer[first..]]);
        let seconds = if answer.len() <= 120 { &cuts[number..] } else { &[] };
        for &second in seconds {
            visit(&[&answer[..first], &answer[first..second], &answer[second..]]);
        }
    }
}

/// An answer must become these parts, however it is cut.
pub fn check_after(names: (&str, &str), prompt: &str, answer: &str, expected: &[Part]) {
    let format = AnswerFormat::named(names.0, names.1);
    assert_eq!(format.names(), names, "a family that is not in the table");
    let parser = parser(format, prompt);
    let whole = segments(&parser, &[answer]);
    assert_eq!(parts(&whole), expected, "{answer:?}: {whole:?}");
    check_rules(format, answer, &whole);
    each_cut(answer, |pieces| {
        assert_eq!(segments(&parser, pieces), whole, "{pieces:?}");
    });
}

pub fn check(calls: &str, answer: &str, expected: &[Part]) {
    check_after(("<think>", calls), "", answer, expected);
}

pub const ARGUMENTS: &str = r#"{"city": "Köln \"<tool_call>\" {", "days": [1, {"a": null}]}"#;
