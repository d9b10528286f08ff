//! The segments of answers of well-known families, however the stream is cut.
#![allow(clippy::unwrap_used)]

use cairn_chat::{
    AnswerFormat, CallOutcome, OfferedTool, Segment, SegmentEvent, SegmentParser, ToolCall,
};
use serde_json::json;

/// What a case expects of an answer; markup is left out.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Reasoning(String),
    /// A call that can be run: name and arguments.
    Call(String, String),
    /// A call with this id.
    CallWithId(String, String, String),
    Unfinished(Option<String>, String, String),
    Malformed(Option<String>, String),
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn reasoning(text: &str) -> Part {
    Part::Reasoning(text.to_owned())
}

fn call(name: &str, arguments: &str) -> Part {
    Part::Call(name.to_owned(), arguments.to_owned())
}

fn call_with_id(name: &str, id: &str, arguments: &str) -> Part {
    Part::CallWithId(name.to_owned(), id.to_owned(), arguments.to_owned())
}

/// A call that breaks off: its name if it was announced, the arguments so far, the raw text.
fn unfinished(name: &str, arguments: &str, raw: &str) -> Part {
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    Part::Unfinished(name, arguments.to_owned(), raw.to_owned())
}

fn malformed(name: &str, raw: &str) -> Part {
    Part::Malformed(Some(name.to_owned()).filter(|name| !name.is_empty()), raw.to_owned())
}

fn parts(segments: &[Segment]) -> Vec<Part> {
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

fn tools() -> Vec<OfferedTool> {
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

fn parser(format: AnswerFormat, prompt: &str) -> SegmentParser {
    SegmentParser::new(format).with_tools(tools()).after_prompt(prompt).without_tokens([
        "<|im_end|>",
        "<|eot|>",
        "",
    ])
}

/// The segments of an answer that arrives in these pieces, after a check of its events' order.
fn segments(parser: &SegmentParser, pieces: &[&str]) -> Vec<Segment> {
    let mut parser = parser.clone();
    let mut events: Vec<SegmentEvent> =
        pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    check_order(&events);
    Segment::collect(events)
}

/// Calls are numbered, and their events are not mixed with others.
fn check_order(events: &[SegmentEvent]) {
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
fn check_rules(format: AnswerFormat, answer: &str, segments: &[Segment]) {
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
fn each_cut(answer: &str, visit: impl Fn(&[&str])) {
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
fn check_after(names: (&str, &str), prompt: &str, answer: &str, expected: &[Part]) {
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

fn check(calls: &str, answer: &str, expected: &[Part]) {
    check_after(("<think>", calls), "", answer, expected);
}

const ARGUMENTS: &str = r#"{"city": "Köln \"<tool_call>\" {", "days": [1, {"a": null}]}"#;

#[test]
fn reasoning_is_told_apart_from_text() {
    let check = |prompt: &str, answer: &str, expected: &[Part]| {
        check_after(("<think>", ""), prompt, answer, expected);
    };
    check("", "Hi.", &[text("Hi.")]);
    check("", "", &[]);
    check("", "<think>\nHm.\n</think>\n\nHi.", &[reasoning("Hm."), text("Hi.")]);
    check("", "<think></think>\n\nHi.\n", &[text("Hi.\n")]);
    check("", "<think>\n\n</think>\n\n Hi", &[text(" Hi")]);
    check("", "\n<think>a\n\nb\n \n</think>Hi", &[reasoning("a\n\nb\n "), text("Hi")]);
    check("", "A <think>b</think> c", &[text("A "), reasoning("b"), text(" c")]);
    check("", "<think>cut \n", &[reasoning("cut \n")]);
    check("", "<think>", &[]);
    // The template has opened it.
    check("…<think>\n", "Hm.\n</think>\n\nHi.", &[reasoning("Hm."), text("Hi.")]);
    check("…<think>", "\n\nHm.</think>Hi.", &[reasoning("Hm."), text("Hi.")]);
    check("…<think>\n", "<think>\nHm.</think>", &[reasoning("Hm.")]);
    check("…<think>\n", "Say <think>.</think>!", &[reasoning("Say <think>."), text("!")]);
    check("…<think>\n\n</think>\n\n", "Hi.", &[text("Hi.")]);
    check("write <think> twice", "Hi.", &[text("Hi.")]);
    // Something like a marker is text.
    check("", "x < y, a <think, <thin", &[text("x < y, a <think, <thin")]);
    check("", "a <", &[text("a <")]);
    check("", "<think>a </thin", &[reasoning("a </thin")]);
    check("", "<<think>a<</think>>", &[text("<"), reasoning("a<"), text(">")]);
    // A closing marker alone is structure.
    check("", "a</think>b", &[text("a"), text("b")]);
    // More line ends than belong to a marker.
    let lines = "\n".repeat(10);
    check("", &format!("a{lines}<think>b"), &[text("a\n\n"), reasoning("b")]);
    // Special tokens are no text.
    check("", "a\n<|im_end|>\nb", &[text("a\n"), text("\nb")]);
    check("", "<think>a<|im_end|>b", &[reasoning("a"), reasoning("b")]);
    check("", "a<|im_end", &[text("a<|im_end")]);
}

#[test]
fn other_markers_of_reasoning_work_alike() {
    let answer = "<seed:think>a\n</seed:think>b";
    check_after(("<seed:think>", ""), "", answer, &[reasoning("a"), text("b")]);
    check_after(("[THINK]", ""), "", "[THINK]a[/THINK]b [x]", &[reasoning("a"), text("b [x]")]);
    let answer = "<|channel>thought\na\n<channel|>b";
    check_after(("<|channel>thought", "gemma4"), "", answer, &[reasoning("a"), text("b")]);
    let prompt = "<|turn>model\n<|channel>thought\n<channel|>";
    check_after(("<|channel>thought", "gemma4"), prompt, "b", &[text("b")]);
}

#[test]
fn hermes_calls_are_json_between_tags() {
    let check = |answer: &str, expected: &[Part]| check("hermes", answer, expected);
    let one =
        format!("<tool_call>\n{{\"name\": \"weather\", \"arguments\": {ARGUMENTS}}}\n</tool_call>");
    check(&one, &[call("weather", ARGUMENTS)]);
    check(
        &format!("<think>\nHm.\n</think>\n\nI look.\n{one}\n{one}\n"),
        &[
            reasoning("Hm."),
            text("I look."),
            call("weather", ARGUMENTS),
            call("weather", ARGUMENTS),
        ],
    );
    check(
        r#"<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call>b"#,
        &[call("f", r#"{"a":1}"#), text("b")],
    );
    check(
        r#"<tool_call>{"name":"f","id":"c1","arguments":{}}</tool_call>"#,
        &[call_with_id("f", "c1", "{}")],
    );
    check(r#"<tool_call>{"name":"f"}"#, &[call("f", "{}")]);
    check(r#"<tool_call>{"name":"f","arguments":null}"#, &[call("f", "{}")]);
    check(r#"<tool_call>{"name":"f","arguments":"{\"a\":1}"}"#, &[call("f", r#"{"a":1}"#)]);
    check(
        r#"<tool_call>{"type":"function","x":[{"name":"g"}],"name":"f","arguments":{"name":"h"}}"#,
        &[call("f", r#"{"name":"h"}"#)],
    );
    // Several in one pair of tags, or a list as Granite writes it.
    check(
        r#"<tool_call>{"name":"f"}, {"name":"g"}</tool_call>"#,
        &[call("f", "{}"), text(r#", {"name":"g"}"#)],
    );
    check(
        "<tool_call>\n{\"name\":\"f\"}\n{\"name\":\"g\"}\n</tool_call>",
        &[call("f", "{}"), call("g", "{}")],
    );
    check(
        r#"<tool_call>[{"name":"f"}, {"name":"g","arguments":{}}]</tool_call> b"#,
        &[call("f", "{}"), call("g", "{}"), text(" b")],
    );
    check("<tool_call>[]</tool_call>b", &[text("b")]);
    // A brace too many does not undo the call.
    check(r#"<tool_call>{"name":"f"}}</tool_call>"#, &[call("f", "{}"), text("}")]);
    // Within reasoning there are no calls.
    check("<think>a <tool_call>{</think>b", &[reasoning("a <tool_call>{"), text("b")]);
    check("a </tool_call> <tool_cal", &[text("a "), text(" <tool_cal")]);
}

#[test]
fn a_call_that_breaks_off_says_so() {
    let check = |answer: &str, expected: &[Part]| check("hermes", answer, expected);
    check(
        r#"<tool_call>{"name":"f","arguments":{"a":"b"#,
        &[unfinished("f", r#"{"a":"b"#, r#"{"name":"f","arguments":{"a":"b"#)],
    );
    check(
        r#"<tool_call>{"name":"f","arguments":{"a":1}"#,
        &[unfinished("f", r#"{"a":1}"#, r#"{"name":"f","arguments":{"a":1}"#)],
    );
    check("<tool_call>\n{\"na", &[unfinished("", "", "{\"na")]);
    check("<tool_call>\n", &[unfinished("", "", "")]);
    check("a<tool_call>[{\"name\":\"f\"},", &[text("a"), call("f", "{}"), unfinished("", "", "")]);
}

#[test]
fn a_malformed_call_keeps_its_text() {
    let check = |answer: &str, expected: &[Part]| check("hermes", answer, expected);
    check("<tool_call>f(x)</tool_call>b", &[malformed("", "f(x)"), text("b")]);
    check("<tool_call></tool_call>", &[malformed("", "")]);
    check("<tool_call>{'name': 'f'}</tool_call>", &[malformed("", "{'name': 'f'}")]);
    check(
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1,}}\n</tool_call>\nb",
        &[malformed("f", "{\"name\": \"f\", \"arguments\": {\"a\": 1,}}\n"), text("b")],
    );
    check(r#"<tool_call>{"a": 1}</tool_call>"#, &[malformed("", r#"{"a": 1}"#)]);
    check(r#"<tool_call>{"name": ""}"#, &[malformed("", r#"{"name": ""}"#)]);
    check(
        r#"<tool_call>{"name": "f", "arguments": [1]}"#,
        &[malformed("", r#"{"name": "f", "arguments": [1]}"#)],
    );
    check(r#"<tool_call>{"name":"f","name":"g"}"#, &[malformed("", r#"{"name":"f","name":"g"}"#)]);
    check(
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"line\nend\"}}\
         <tool_call>{\"name\":\"g\"}",
        &[
            malformed("f", "{\"name\": \"f\", \"arguments\": {\"a\": \"line\nend\"}}"),
            call("g", "{}"),
        ],
    );
}

#[test]
fn llama_calls_may_have_no_marker() {
    let check = |answer: &str, expected: &[Part]| check("llama3", answer, expected);
    let json = format!("{{\"name\": \"weather\", \"parameters\": {ARGUMENTS}}}");
    check(&json, &[call("weather", ARGUMENTS)]);
    check(&format!("\n\n{json}"), &[call("weather", ARGUMENTS)]);
    check(&format!("<|python_tag|>{json}<|eot|>"), &[call("weather", ARGUMENTS)]);
    check(
        r#"{"name":"time","parameters":{}}; {"name":"weather","arguments":{}}"#,
        &[call("time", "{}"), call("weather", "{}")],
    );
    check(
        r#"{"type": "function", "name": "time", "parameters": {"a"#,
        &[unfinished("time", "{\"a", r#"{"type": "function", "name": "time", "parameters": {"a"#)],
    );
    // JSON that is no call of an offered tool is text.
    for json in [
        r#"{"name": "Köln", "parameters": {}}"#,
        r#"{"name": "weather", "inhabitants": 1}"#,
        r#"{"name": "weather"}"#,
        r#"{"name": "weather", "para"#,
        r#"{"parameters": {}, "name": "weather"}"#,
        "{",
        "{ x }",
        "{}",
        "Call {\"name\": \"time\", \"parameters\": {}}",
    ] {
        check(json, &[text(json)]);
    }
    check(
        r#"{"name": "time", "parameters": {}}; {"b"<|python_tag|>"#,
        &[call("time", "{}"), text(r#"{"b""#), unfinished("", "", "")],
    );
    let long = format!("{{{}\"name\": \"time\", \"parameters\": {{}}}}", " ".repeat(600));
    check(&long, &[text(&long)]);
    // Code for an interpreter, and calls of built-in tools, have another form.
    check("<|python_tag|>brave.call(q=\"x\")", &[malformed("", "brave.call(q=\"x\")")]);
}

#[test]
fn without_tools_json_is_text() {
    let format = AnswerFormat::named("", "llama3");
    let json = r#"{"name": "weather", "parameters": {}}"#;
    let whole = segments(&SegmentParser::new(format), &[json]);
    assert_eq!(parts(&whole), [text(json)]);
}

#[test]
fn qwen3_coder_calls_have_tags_for_arguments() {
    let check = |answer: &str, expected: &[Part]| check("qwen3-coder", answer, expected);
    check(
        "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln <b>\n</parameter>\n\
         <parameter=zip>\n01\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n\
         </tool_call>\n",
        &[text("I look."), call("weather", r#"{"city": "Köln <b>", "zip": "01", "days": 3}"#)],
    );
    for (key, value, json) in [
        ("metric", "True", "true"),
        ("metric", "false", "false"),
        ("metric", "maybe", "\"maybe\""),
        ("near", "None", "null"),
        ("near", "{\"a\": 1}", "{\"a\": 1}"),
        ("city", "{\"a\": 1}", r#""{\"a\": 1}""#),
        ("city", "\n\n a\n\n", "\"\\n a\\n\""),
        ("days", "3.5", "3.5"),
        ("days", "three", "\"three\""),
        ("any", "3", "3"),
        ("any", "x", "\"x\""),
        ("other", "3", "\"3\""),
        ("other", "[3]", "[3]"),
        ("city", "</function>", "\"</function>\""),
        ("city", "", "\"\""),
    ] {
        let answer = format!("<function=weather><parameter={key}>{value}</parameter></function>");
        let arguments = format!("{{\"{key}\": {json}}}");
        check(&answer, &[call("weather", &arguments)]);
    }
    check("<tool_call>\n<function=f>\n</function>\n</tool_call>b", &[call("f", "{}"), text("b")]);
    check("<function=f></function>\n<function=g></function>", &[call("f", "{}"), call("g", "{}")]);
    // Models fall back to JSON.
    check("<tool_call>\n{\"name\": \"f\"}\n</tool_call>", &[call("f", "{}")]);
    check(
        "<tool_call><function=f><parameter=a>1</par",
        &[unfinished("f", "", "<function=f><parameter=a>1</par")],
    );
    check("<tool_call><functio", &[malformed("", "<functio")]);
    check("<function=f>x</function>", &[malformed("f", "<function=f>x</function>")]);
    check("<function=f g></function>", &[malformed("", "<function=f g></function>")]);
    check("a <function", &[text("a <function")]);
}

#[test]
fn other_tags_work_alike() {
    check(
        "glm-4.5",
        "<think>a</think>\nI look.\n<tool_call>weather\n<arg_key>city</arg_key>\n\
         <arg_value>\nKöln</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n\
         </tool_call>",
        &[reasoning("a"), text("I look."), call("weather", "{\"city\": \"\\nKöln\", \"days\": 3}")],
    );
    check(
        "glm-4.5",
        "<tool_call>f<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>\
         <tool_call>g</tool_call>",
        &[call("f", "{\"a\": \"b\"}"), call("g", "{}")],
    );
    check("glm-4.5", "<tool_call>f\n<arg_key>a</arg", &[unfinished("f", "", "f\n<arg_key>a</arg")]);
    check(
        "glm-4.5",
        "<tool_call>f<arg_key>a</arg_key>b",
        &[malformed("f", "f<arg_key>a</arg_key>b")],
    );
    // A name that is too long is no name, and what follows it is read again.
    for length in [250, 256, 257, 300] {
        let name = "x".repeat(length);
        let answer = format!("<tool_call>{name}<tool_call>g</tool_call>");
        let is_swallowed = length < 257;
        let raw = if is_swallowed { format!("{name}<tool_call>g") } else { name };
        let second = if is_swallowed { text("") } else { call("g", "{}") };
        let mut expected = vec![malformed("", &raw), second];
        expected.retain(|part| *part != text(""));
        check("glm-4.5", &answer, &expected);
    }
    check(
        "minimax-m2",
        "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">K\n</parameter>\n\
         </invoke>\n<invoke name=\"time\">\n</invoke>\n</minimax:tool_call>",
        &[call("weather", "{\"city\": \"K\\n\"}"), call("time", "{}")],
    );
    check(
        "seed-oss",
        "<seed:tool_call><function=f><parameter=a>b</parameter></function></seed:tool_call>",
        &[call("f", "{\"a\": \"b\"}")],
    );
}

#[test]
fn names_may_stand_before_the_json() {
    let json = format!(
        "[TOOL_CALLS] [{{\"name\": \"weather\", \"arguments\": {ARGUMENTS}, \"id\": \"a1\"}}]"
    );
    check("mistral", &json, &[call("weather", ARGUMENTS)]);
    check(
        "mistral",
        &format!("a[TOOL_CALLS]weather[ARGS]{ARGUMENTS}"),
        &[text("a"), call("weather", ARGUMENTS)],
    );
    check(
        "mistral",
        r#"[TOOL_CALLS]f[CALL_ID]a1[ARGS]{"a":1}[TOOL_CALLS]g{}"#,
        &[call_with_id("f", "a1", r#"{"a":1}"#), call("g", "{}")],
    );
    check("mistral", "[TOOL_CALLS]f[AR", &[unfinished("", "", "f[AR")]);
    check("mistral", "[TOOL_CALLS]f g[ARGS]{}", &[malformed("", "f g[ARGS]{}")]);
    check("mistral", "[TOOL_CALLS]f[TOOL_CALLS]g{}", &[malformed("", "f"), call("g", "{}")]);
    check("mistral", "[1] [TOOL", &[text("[1] [TOOL")]);
    check(
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>\
         {\"a\":1}<|tool_call_end|><|tool_call_begin|>g<|tool_call_argument_begin|>{}\
         <|tool_call_end|><|tool_calls_section_end|>",
        &[call_with_id("f", "functions.f:0", "{\"a\":1}"), call("g", "{}")],
    );
    check(
        "deepseek-v3",
        "a\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n\
         {\"a\": \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n\
         ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &[text("a"), call("f", "{\"a\": \"```\"}"), call("g", "{}")],
    );
    check("deepseek-v3", "a\n```\nb\n```<｜tool", &[text("a\n```\nb\n```<｜tool")]);
    check(
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>g<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &[call("f", "{\"a\":1}"), malformed("", "g<｜tool▁sep｜>")],
    );
    let long = "x".repeat(300);
    check(
        "deepseek-v3.1",
        &format!("<｜tool▁call▁begin｜>{long}{{}}"),
        &[malformed("", &format!("{long}{{}}"))],
    );
}

#[test]
fn json_with_other_markers_works_alike() {
    let json = format!("{{\"name\": \"weather\", \"arguments\": {ARGUMENTS}}}");
    for answer in [
        format!("<|tool_call|>{json}<|/tool_call|>"),
        format!("<|tool_call|>[{json}]<|/tool_call|>"),
        format!("<|tool_call|>[{json}]"),
    ] {
        check("phi4", &answer, &[call("weather", ARGUMENTS)]);
    }
    check(
        "nemotron",
        &format!("<TOOLCALL>[{json}, {json}]</TOOLCALL>"),
        &[call("weather", ARGUMENTS), call("weather", ARGUMENTS)],
    );
    let cohere = format!(
        "<|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {ARGUMENTS}}}\n]<|END_ACTION|>"
    );
    check("command", &cohere, &[call_with_id("weather", "0", ARGUMENTS)]);
    check("command", "<|START_RESPONSE|>Seven.<|END_RESPONSE|>", &[text("Seven.")]);
}

#[test]
fn calls_in_brackets_become_json() {
    check(
        "gemma4",
        "a<|tool_call>call:weather{city:<|\"|>Köln \"<tool_call|>\" }<|\"|>,\
         days:3,near:{a:[true,null,<|\"|><|\"|>],<|\"|>b c<|\"|>:-1.5}}<tool_call|><|tool_call>call:time{}<tool_call|>",
        &[
            text("a"),
            call(
                "weather",
                "{\"city\":\"Köln \\\"<tool_call|>\\\" }\",\"days\":3,\
                 \"near\":{\"a\":[true,null,\"\"],\"b c\":-1.5}}",
            ),
            call("time", "{}"),
        ],
    );
    check("gemma4", "<|tool_call>call:f{a:<|\"|>b", &[unfinished("", "", "call:f{a:<|\"|>b")]);
    check("gemma4", "<|tool_call>call:f{a:b c}<tool_call|>", &[malformed("", "call:f{a:b c}")]);
    check("gemma4", "<|tool_call>f{}<tool_call|>b", &[malformed("", "f{}"), text("b")]);
    check(
        "function-gemma",
        "<start_function_call>call:weather{city:<escape>K}<escape>}<end_function_call>\
         <start_function_response>",
        &[call("weather", r#"{"city":"K}"}"#)],
    );
    check(
        "lfm2",
        "<|tool_call_start|>[weather(city=\"K)\\\"ö\", days=[1, -2.5,], near={'a': None}), \
         time(zone='a' 'b\\n\\u00e9\\q')]<|tool_call_end|>ok",
        &[
            call("weather", r#"{"city":"K)\"ö","days":[1,-2.5],"near":{"a":null}}"#),
            call("time", r#"{"zone":"ab\né\\q"}"#),
            text("ok"),
        ],
    );
    check(
        "lfm2",
        "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {}}]<|tool_call_end|>",
        &[call("f", "{}")],
    );
    check("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>", &[malformed("", "f(1)]")]);
    check(
        "olmo3",
        "a <function_calls>weather(city=\"K)\\nö\", metric=true, near=null)\n\ntime(zone='a')\n\
         </function_calls>ok",
        &[
            text("a "),
            call("weather", r#"{"city":"K)\nö","metric":true,"near":null}"#),
            call("time", r#"{"zone":"a"}"#),
            text("ok"),
        ],
    );
    check("olmo3", "<function_calls>\ntime()</function_calls>", &[call("time", "{}")]);
    check(
        "olmo3",
        "<function_calls>[time(a=1), time(a=2)]</function_calls>",
        &[call("time", r#"{"a":1}"#), call("time", r#"{"a":2}"#)],
    );
    check("olmo3", "<function_calls>time(a=1)\n(b)", &[call("time", r#"{"a":1}"#), text("(b)")]);
    check(
        "olmo3",
        "<function_calls>time(a=1)\nand (b)</function_calls>",
        &[call("time", r#"{"a":1}"#), malformed("", "and (b)")],
    );
    check(
        "olmo3",
        "<function_calls>time(a=1)\ntime(a",
        &[call("time", r#"{"a":1}"#), unfinished("", "", "time(a")],
    );
    check("lfm2", "<|tool_call_start|>[f(a='b", &[unfinished("", "", "f(a='b")]);
    check(
        "gemma3",
        "```tool_code\ntime(zone='a')\n```\nb",
        &[call("time", r#"{"zone":"a"}"#), text("b")],
    );
    check("gemma3", "```tool_code\nprint(1)\n```\nb", &[malformed("", "print(1)\n"), text("b")]);
    check("gemma3", "```\ncode\n``` `", &[text("```\ncode\n``` `")]);
    check("gemma3", r#"{"name": "time", "parameters": {"a": 1}}"#, &[call("time", r#"{"a": 1}"#)]);
}

#[test]
fn harmony_channels_become_segments() {
    let names = ("<|channel|>analysis", "harmony");
    let check = |answer: &str, expected: &[Part]| {
        check_after(
            names,
            "<|start|>system<|message|>x<|end|><|start|>assistant",
            answer,
            expected,
        );
    };
    check(
        "<|channel|>analysis<|message|>Hm. {<|end|><|start|>assistant<|channel|>final<|message|>Hi.\
         <|return|>",
        &[reasoning("Hm. {"), text("Hi.")],
    );
    check(
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary \
         to=functions.weather <|constrain|>json<|message|>{\"a\": \"<|call|>\"}<|call|>",
        &[text("I look."), call("weather", "{\"a\": \"<|call|>\"}")],
    );
    check(" to=functions.f<|channel|>commentary json<|message|> {} \n", &[call("f", "{}")]);
    check(
        "<|channel|>analysis to=python<|message|>print(1)<|call|>",
        &[malformed("python", "print(1)")],
    );
    check(
        "<|channel|>commentary to=functions.f<|message|>{\"a\": tru<|call|>b",
        &[malformed("f", "{\"a\": tru"), text("b")],
    );
    check(
        "<|channel|>commentary to=functions.f<|message|>{\"a\": tru",
        &[unfinished("f", "{\"a\": tru", "{\"a\": tru")],
    );
    check("<|channel|>commentary to=functions.f<|message|>", &[unfinished("f", "", "")]);
    // A header that breaks off, and an answer without one.
    check("<|channel|>final<|message|>Hi.<|end|><|start|>assis", &[text("Hi.")]);
    check("<|channel|>fin", &[]);
    check(" to=functions.f<|chan", &[]);
    check("Hi.", &[text("Hi.")]);
    check_after(names, "", "Hi.", &[text("Hi.")]);
    check_after(
        names,
        "",
        "Hi.<|start|>assistant<|channel|>final<|message|>b <|",
        &[text("Hi."), text("b <|")],
    );
    let long = "x".repeat(300);
    check(&long, &[text(&long)]);
    check(&format!("<|channel|>{long}<|message|>y"), &[text(&long), text("y")]);
    // A prompt that has opened the message.
    let prompt = "<|start|>assistant<|channel|>analysis<|message|>";
    check_after(names, prompt, "Hm.<|end|>Hi.<|eot|>", &[reasoning("Hm."), text("Hi.")]);
    check_after(names, "<|start|>assistant<|channel|>final", "<|message|>Hi.", &[text("Hi.")]);
}

#[test]
fn a_family_is_recognized_by_its_template() {
    let check = |template: &str, tokens: &[&str], expected: (&str, &str)| {
        let format = AnswerFormat::of(template, |token| tokens.contains(&token));
        assert_eq!(format.names(), expected, "{template}");
    };
    check("{{ messages }}", &[], ("", ""));
    check("{{ '<tool_call>\\n{\"name\"' }}", &[], ("", "hermes"));
    check("<think> <tool_call> {\"name\": }", &[], ("<think>", "hermes"));
    check("content.split('</think>') <tool_call>\n<function=x>", &[], ("<think>", "qwen3-coder"));
    check("<tool_call>{name} <arg_key> </think>", &[], ("<think>", "glm-4.5"));
    check("<｜tool▁call▁begin｜> '```json' </think>", &[], ("<think>", "deepseek-v3"));
    check("<｜tool▁call▁begin｜>", &[], ("", "deepseek-v3.1"));
    check("[TOOL_CALLS] [THINK]", &[], ("[THINK]", "mistral"));
    check("<|start|> <|channel|> <|message|>", &[], ("<|channel|>analysis", "harmony"));
    check("<|tool_call>call: <|channel>thought", &[], ("<|channel>thought", "gemma4"));
    check("<start_of_turn> <start_function_call>", &[], ("", "function-gemma"));
    check("<start_of_turn>", &[], ("", "gemma3"));
    check("<think> within <function_calls></function_calls>", &[], ("<think>", "olmo3"));
    check("<|start_header_id|> \"parameters\": d", &[], ("", "llama3.2"));
    // The vocabulary speaks where the template is silent.
    check("{{ messages }}", &["<|python_tag|>"], ("", "llama3"));
    check("{{ messages }}", &["<|tool_call_begin|>", "<think>"], ("", "kimi-k2"));
    check("{{ messages }}", &["<think>", "</think>"], ("<think>", ""));
    check("<tool_call>", &["<|python_tag|>"], ("", "hermes"));
}

/// A small generator of numbers (xorshift), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// Markers, parts of markers, JSON and text, in any order.
fn soup(format: AnswerFormat, random: &mut Random) -> String {
    let (markers, long) = (format.markers(), "aö".repeat(40));
    let snippets = [
        long.as_str(),
        "a",
        " ",
        "\n",
        "\n\n",
        "<",
        "<|",
        "[",
        "]",
        "{",
        "}",
        "ö",
        "｜",
        ",",
        ";",
        ":",
        "\"",
        "\\",
        "{\"name\": \"time\", \"parameters\": ",
        "{\"name\":\"f\",\"arguments\":{\"a\":\"",
        "\"}}",
        "weather",
        "time(a=1)",
        "call:f{",
        "f",
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "</tool_call>",
        "[ARGS]",
        "```",
        "{}",
        "to=functions.f",
        "<|im_end|>",
        "<|eot|>",
        "<escape>",
        "<|\"|>",
        "'",
    ];
    let mut text = String::new();
    for _ in 0..random.below(14) {
        let marker = (!markers.is_empty()).then(|| markers[random.below(markers.len())]);
        match (random.below(10), marker) {
            (0..4, Some(marker)) => text.push_str(marker),
            (4, Some(marker)) => {
                let cuts: Vec<usize> = marker.char_indices().map(|(at, _)| at).collect();
                let cut = cuts[random.below(cuts.len())];
                text.push_str(if random.below(2) == 0 { &marker[..cut] } else { &marker[cut..] });
            }
            _ => text.push_str(snippets[random.below(snippets.len())]),
        }
    }
    text
}

#[test]
fn the_rules_hold_for_any_text_of_any_family() {
    let mut random = Random(0x5eed);
    for format in AnswerFormat::all() {
        for prompt in ["", "…<think>\n", "…<|start|>assistant"] {
            let parser = parser(format, prompt);
            for _ in 0..60 {
                let answer = soup(format, &mut random);
                let whole = segments(&parser, &[&answer]);
                check_rules(format, &answer, &whole);
                let characters: Vec<&str> = answer.split_inclusive(|_: char| true).collect();
                let mut pieces = Vec::new();
                let mut rest = answer.as_str();
                while !rest.is_empty() {
                    let num_characters = 1 + random.below(6);
                    let end =
                        rest.char_indices().nth(num_characters).map_or(rest.len(), |(at, _)| at);
                    pieces.push(&rest[..end]);
                    rest = &rest[end..];
                }
                for pieces in [characters, pieces] {
                    let cut = segments(&parser, &pieces);
                    assert_eq!(cut, whole, "{:?}: {pieces:?}", format.names());
                }
            }
        }
    }
}

#[test]
fn what_is_held_back_is_bounded() {
    // Every piece is a character; what has not come out in any form must stay small.
    let check = |calls: &str, answer: &str, limit: usize| {
        let mut parser = parser(AnswerFormat::named("<think>", calls), "");
        let (mut given, mut taken) = (0, 0);
        for piece in answer.split_inclusive(|_: char| true) {
            taken += piece.len();
            for event in parser.push(piece) {
                given += match event {
                    SegmentEvent::Text(text)
                    | SegmentEvent::Reasoning(text)
                    | SegmentEvent::Markup(text) => text.len(),
                    SegmentEvent::CallArguments { json, .. } => json.len(),
                    SegmentEvent::CallEnded { .. }
                    | SegmentEvent::CallStarted { .. }
                    | SegmentEvent::Ended { .. } => 0,
                };
            }
            assert!(taken - given <= limit, "{} bytes held at {taken}", taken - given);
        }
    };
    let lines = "\n".repeat(1000);
    let words = "word < [ { \n".repeat(1000);
    check("hermes", &format!("a{lines}<think>{words}{lines}"), 16);
    check("llama3", &format!("{{{}", " ".repeat(1000)), 520);
    let json = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{{\"a\":\"{}", "x".repeat(1000));
    check("hermes", &json, 64);
}
