//! Calls in other forms, which become JSON: tags for arguments, and brackets.

use crate::kit::{Part, call, check, malformed, reasoning, text, unfinished};

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
