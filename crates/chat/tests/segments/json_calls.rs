//! Calls that are JSON: between tags, behind a name, or without any marker; whole, broken off and malformed.

use cairn_chat::{AnswerFormat, SegmentParser};

use crate::kit::{
    ARGUMENTS, Part, call, call_with_id, check, malformed, parts, reasoning, segments, text,
    unfinished,
};

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
