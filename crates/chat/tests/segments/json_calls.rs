//! Calls that are JSON: between tags, behind a name, or without any marker; whole, broken off and malformed.

use cairn_chat::{AnswerFormat, SegmentParser};

use crate::kit::{
    ARGUMENTS, Part, call, call_with_id, check, check_after, malformed, parser, parts, reasoning,
    segments, text, unfinished,
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
    // In reasoning that is closed there are no calls.
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
}

#[test]
fn escapes_what_calls_forgot_to_escape() {
    let check = |answer: &str, expected: &[Part]| check("hermes", answer, expected);
    check(
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"line\n\tend\r\n\"}}</tool_call>\
         <tool_call>{\"name\":\"g\"}",
        &[call("f", r#"{"a": "line\n\tend\r\n"}"#), call("g", "{}")],
    );
    check(
        r#"<tool_call>{"name": "f", "arguments": {"a": "\d+ \n C:\work \u12"}}</tool_call>"#,
        &[call("f", r#"{"a": "\\d+ \n C:\\work \\u12"}"#)],
    );
    check(
        "<tool_call>{\"arguments\": {\"a\": \"\n\"}, \"name\": \"f\"}</tool_call>",
        &[call("f", r#"{"a": "\n"}"#)],
    );
    // Arguments as a text of JSON, escaped only once.
    check(
        r#"<tool_call>{"name":"f","arguments":"{\"a\":\"b\nc\"}"}</tool_call>"#,
        &[call("f", r#"{"a":"b\nc"}"#)],
    );
    check(
        r#"<tool_call>{"name":"f","arguments":{"a":"b\"#,
        &[unfinished("f", r#"{"a":"b"#, r#"{"name":"f","arguments":{"a":"b\"#)],
    );
    crate::kit::check(
        "mistral",
        "[TOOL_CALLS]f[ARGS]{\"a\": \"\\d\n\"}",
        &[call("f", r#"{"a": "\\d\n"}"#)],
    );
    crate::kit::check(
        "llama3",
        "{\"name\": \"time\", \"parameters\": {\"a\": \"1\n2\"}}",
        &[call("time", r#"{"a": "1\n2"}"#)],
    );
}

#[test]
fn markers_in_arguments_do_not_end_calls() {
    for marker in ["</tool_call>", "<tool_call>", "</think>", "<think>", "<|im_end|>", "```"] {
        let arguments = format!("{{\"city\": \"a {marker} b\"}}");
        let json = format!("{{\"name\": \"weather\", \"arguments\": {arguments}}}");
        let tagged = format!("<tool_call>\n{json}\n</tool_call>");
        let expected = [call("weather", &arguments)];
        check("hermes", &tagged, &expected);
        check("hermes", &format!("<think>{tagged}"), &expected);
        check("hermes", &format!("```json\n{json}\n```"), &expected);
        let tags = format!(
            "<tool_call>\n<function=weather>\n<parameter=city>\na {marker} b\n</parameter>\n\
             </function>\n</tool_call>"
        );
        check("qwen3-coder", &tags, &expected);
        check("qwen3-coder", &format!("<think>{tags}"), &expected);
    }
}

#[test]
fn calls_in_reasoning_count_if_it_stays_open() {
    let one = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
    let time = || call("time", "{}");
    let check = |answer: &str, expected: &[Part]| check("hermes", answer, expected);
    check(&format!("<think>\nI look.\n{one}"), &[reasoning("I look."), time()]);
    check(&format!("<think>{one}\n{one}<|im_end|>"), &[time(), time()]);
    check(&format!("<think>a{one}\nThat is all."), &[reasoning("a"), time(), text("That is all.")]);
    let cut = &one[..one.len() - 5];
    check(&format!("<think>a{cut}"), &[reasoning("a"), time()]);
    check(&format!("<think>a{one}b</think>c"), &[reasoning(&format!("a{one}b")), text("c")]);
    check(&format!("<think>a\n{one}\n</think>\n{one}"), &[reasoning(&format!("a\n{one}")), time()]);
    // A call of another tool, or one that is not whole, is part of the reasoning.
    let other = one.replace("time", "move");
    check(&format!("<think>{other}b"), &[reasoning(&format!("{other}b"))]);
    check(&format!("<think>{other}{one}"), &[reasoning(&other), time()]);
    let begun = &one[..40];
    check(&format!("<think>{begun}"), &[reasoning(begun)]);
    check(&format!("<think>{begun}</think>b"), &[reasoning(begun), text("b")]);
    let prose = "Some write <tool_call> and <function=time>, others {}.";
    check(&format!("<think>{prose}</think>b"), &[reasoning(prose), text("b")]);
    check(&format!("<think>{prose}\n{one}"), &[reasoning(prose), time()]);
    check_after(("<think>", "hermes"), "…<think>\n", one, &[time()]);
    let tags = "<function=time>\n<parameter=city>\na\n</parameter>\n</function>\n</tool_call>";
    let opened = format!("Hm.\n<tool_call>\n{tags}");
    let expected = [reasoning("Hm."), call("time", r#"{"city": "a"}"#)];
    check_after(("<think>", "qwen3-coder"), "…<think>\n", &opened, &expected);
    check_after(("<think>", "qwen3-coder"), "…<think>\n", &format!("Hm.\n{tags}"), &expected);
}

#[test]
fn without_tools_reasoning_has_no_calls() {
    let answer = "<think>a<tool_call>{\"name\": \"time\"}</tool_call>";
    let parser = SegmentParser::new(AnswerFormat::named("<think>", "hermes"));
    let expected = [reasoning("a<tool_call>{\"name\": \"time\"}</tool_call>")];
    assert_eq!(parts(&segments(&parser, &[answer])), expected);
}

#[test]
fn calls_in_a_last_fence_count() {
    let time = || call("time", r#"{"a": 1}"#);
    let json = r#"{"name": "time", "arguments": {"a": 1}}"#;
    for calls in ["hermes", "llama3", "gemma3", "gemma4", "deepseek-v3"] {
        let check = |answer: &str, expected: &[Part]| check(calls, answer, expected);
        let fence = format!("```json\n{json}\n```");
        check(&fence, &[time()]);
        check(&format!("I look.\n\n{fence}\n<|im_end|>"), &[text("I look."), time()]);
        check(&format!("<think>a</think>\n{fence}"), &[reasoning("a"), time()]);
        check(&format!("```json\n[{json}, {json}]\n```"), &[time(), time()]);
        check(&format!("```json\n{json}\n{json}\n``"), &[time(), time()]);
        for other in [
            format!("{fence}\nThis looks."),
            format!("{fence}\n{fence}"),
            "```json\n{\"name\": \"time\"}\n```".to_owned(),
            "```json\n{\"name\": \"move\", \"arguments\": {}}\n```".to_owned(),
            "```json\n{\"a\": 1}\n```\n".to_owned(),
            "```json\n{\"name\": \"time\", \"argu".to_owned(),
            format!("```json\n[{json}, 1]\n```"),
            "```json5\n{}\n```".to_owned(),
            "```json\n\n```".to_owned(),
            "```json".to_owned(),
        ] {
            if other.starts_with(&format!("{fence}\n```")) {
                check(&other, &[text(&fence), time()]);
            } else {
                check(&other, &[text(&other)]);
            }
        }
    }
    let parser = SegmentParser::new(AnswerFormat::named("<think>", "hermes"));
    let fence = format!("```json\n{json}\n```");
    assert_eq!(parts(&segments(&parser, &[&fence])), [text(&fence)]);
}

#[test]
fn answers_cut_in_a_closing_marker_leave_nothing() {
    for (calls, answer) in [
        ("hermes", "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": \"time\"}\n{\"name\": \"f\"}\n</tool_call>"),
        ("phi4", "<|tool_call|>[{\"name\": \"time\", \"arguments\": {}}]<|/tool_call|>"),
        ("deepseek-v3.1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        (
            "deepseek-v3",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
        ),
        ("lfm2", "<|tool_call_start|>[time()]<|tool_call_end|>"),
        ("gemma3", "```tool_code\ntime()\n```"),
        ("gemma4", "<|tool_call>call:time{}<tool_call|>"),
        ("qwen3-coder", "<tool_call>\n<function=time>\n</function>\n</tool_call>"),
        (
            "glm-4.5",
            "<tool_call>time\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        ),
    ] {
        let parser = parser(AnswerFormat::named("<think>", calls), "");
        let whole = parts(&segments(&parser, &[answer]));
        let last = answer.trim_end_matches("</tool_call>").trim_end().len();
        let last = if last < answer.len() { last } else { answer.rfind('<').unwrap_or(last) };
        let last = if calls == "gemma3" { answer.len() - 4 } else { last };
        for (cut, _) in answer.char_indices().filter(|(cut, _)| *cut > last + 2) {
            check(calls, &answer[..cut], &whole);
        }
    }
    check("qwen3-coder", "<tool_call>\n<function=time>\n</func", &[call("time", "{}")]);
    // Other text after a call stays.
    check(
        "hermes",
        "<tool_call>{\"name\":\"f\"}</tool_call>\na </t",
        &[call("f", "{}"), text("a </t")],
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
