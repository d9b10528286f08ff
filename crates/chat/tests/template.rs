//! The chat templates of well-known models, and hostile ones.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cairn_chat::{
    Cancel, ChatError, ChatTemplate, Date, Message, Role, SpecialTokens, TemplateSources,
};
use serde_json::json;

const CHATML: &str = "\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const HEADERS: &str = "\
{{- bos_token }}
{%- if strftime_now is defined %}
    {%- set today = strftime_now('%d %b %Y') %}
{%- else %}
    {%- set today = '01 Jan 2025' %}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start|>system<|end|>\\n\\nToday: ' ~ today ~ '\\n\\n' ~ system ~ '<|eot|>' }}
{%- for message in messages %}
    {{- '<|start|>' + message.role + '<|end|>\\n\\n' + (message.content | trim) + '<|eot|>' }}
{%- endfor %}
{{- '<|start|>assistant<|end|>\\n\\n' if add_generation_prompt }}";

const INST: &str = "\
{%- if messages and messages[0]['role'] == 'system' -%}
{%- set ns = namespace(system=messages[0]['content'] + '\\n\\n', rest=messages[1:]) -%}
{%- else -%}
{%- set ns = namespace(system='', rest=messages) -%}
{%- endif -%}
{{ bos_token }}
{%- for m in ns.rest -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('user and assistant must take turns, not ' ~ m.role ~ ' again') }}
{%- endif -%}
{%- if m.role == 'user' -%}
[INST] {{ ns.system if loop.first }}{{ m.content }} [/INST]
{%- else -%}
{{ ' ' + m.content.strip() + eos_token }}
{%- endif -%}
{%- endfor -%}";

fn talk(words: &[(Role, &str)]) -> Vec<Message> {
    words
        .iter()
        .map(|(role, content)| Message {
            role: *role,
            content: (*content).to_owned(),
            token_ids: None,
        })
        .collect()
}

fn special() -> SpecialTokens {
    SpecialTokens { bos: Some("<s>".to_owned()), eos: Some("</s>".to_owned()) }
}

#[test]
fn templates_lay_conversations_out_as_their_models_expect() {
    use Role::{Assistant as A, System as S, User as U};
    let check = |source: &str, words: &[(Role, &str)], expected: &str| {
        let template = ChatTemplate::parse(source, special()).unwrap();
        assert_eq!(template.render(&talk(words), true).as_deref(), Ok(expected));
    };
    check(
        CHATML,
        &[(U, "hi")],
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    );
    check(
        CHATML,
        &[(S, "Be brief."), (U, " hi "), (A, "Ho\n"), (U, "")],
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n hi <|im_end|>\n<|im_start|>assistant\nHo\n<|im_end|>\n\
         <|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n",
    );
    check(CHATML, &[], "<|im_start|>assistant\n");
    check(
        HEADERS,
        &[(U, " hi\n")],
        "<s><|start|>system<|end|>\n\nToday: 01 Jan 2025\n\n<|eot|><|start|>user<|end|>\n\nhi<|eot|><|start|>assistant<|end|>\n\n",
    );
    check(
        HEADERS,
        &[(S, " Be brief. "), (U, "{{ 7 * 7 }}"), (A, "49?")],
        "<s><|start|>system<|end|>\n\nToday: 01 Jan 2025\n\nBe brief.<|eot|><|start|>user<|end|>\n\n{{ 7 * 7 }}<|eot|>\
         <|start|>assistant<|end|>\n\n49?<|eot|><|start|>assistant<|end|>\n\n",
    );
    check(INST, &[(U, "a"), (A, " b "), (U, "c")], "<s>[INST] a [/INST] b</s>[INST] c [/INST]");
    check(INST, &[(S, "Rules."), (U, "a")], "<s>[INST] Rules.\n\na [/INST]");
}

#[test]
fn the_language_is_that_of_hugging_face() {
    let check = |source: &str, expected: &str| {
        let messages =
            talk(&[(Role::User, "<think>no</think>\n\nyes"), (Role::Assistant, "é \"q\"")]);
        let rendered = ChatTemplate::parse(source, special())
            .and_then(|template| template.render(&messages, false));
        assert_eq!(rendered.as_deref(), Ok(expected), "{source}");
    };
    // Whitespace: the newline after a block and the blanks before one go, the last newline of the
    // source goes.
    check("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
    check("{{ 'x' }}\n  {{ 'y' }}\n", "x\n  y");
    check(
        "{% generation %}{{ messages[1].content }}{% endgeneration %}{{ generation }}",
        "é \"q\"",
    );
    check(
        "{%- for m in messages -%} {%- generation -%} {{ loop.index }} {%- endgeneration -%} {%- endfor -%}",
        "12",
    );
    // JSON as Python writes it.
    check("{{ messages[1] | tojson }}", r#"{"role": "assistant", "content": "é \"q\""}"#);
    check(
        "{{ {'a': [1, 2.0, none, true], 'b': {}} | tojson(indent=2) }}",
        "{\n  \"a\": [\n    1,\n    2.0,\n    null,\n    true\n  ],\n  \"b\": {}\n}",
    );
    check("{{ '<&\\'' | tojson(ensure_ascii=False) }}", r#""<&'""#);
    check("{{ 'é 🪨\\n' | tojson(true) }}", r#""\u00e9 \ud83e\udea8\n""#);
    check("{{ 'é' | tojson(ensure_ascii=true) }}", r#""\u00e9""#);
    check("{{ {'b': [1, 2], 'a': {}} | tojson(separators=(',', ':')) }}", r#"{"b":[1,2],"a":{}}"#);
    check(
        "{{ {'b': {'d': 1, 'c': 2}, 'a': 1e20} | tojson(sort_keys=true) }}",
        r#"{"a": 1e+20, "b": {"c": 2, "d": 1}}"#,
    );
    check("{{ [[], [1]] | tojson(indent=1) }}", "[\n [],\n [\n  1\n ]\n]");
    // Python's methods.
    check("{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}", "yes");
    check("{{ messages[0].get('name', 'none') ~ ' ' ~ messages[0].get('role') }}", "none user");
    check("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1");
    check(
        "{{ 'ABC'.lower().startswith('a') }} {{ ', '.join(['x', 'y']) }} {{ 'a-b'.replace('-', '+') }}",
        "True x, y a+b",
    );
    // Operators keep their meaning under the checks, on either side and for every type.
    check(
        "{{ 'a' ~ 1 ~ none }} {{ 'a' + 'b' }} {{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 10 }}",
        "a1None ab 5.0 3 1 1024",
    );
    check(
        "{{ '-' * 3 }} {{ 2 * 'ab' }} {{ ([1] * 2 + [3]) | length }} {{ [1, 2, 3][1:] }} {{ 'abc'[::-1] }}",
        "--- abab 3 [2, 3] cba",
    );
    check(
        "{{ 1 < 2 }} {{ 2 < 1 }} {{ 'b' > 'a' }} {{ 'a' in 'bag' }} {{ 'bag' in 'a' }} {{ 'role' in messages[0] }}",
        "True False True True False True",
    );
    check(
        "{{ 1 < 2 < 3 }} {{ 1 not in [1] }} {{ 'x' is in ['x'] }} {{ 1 is eq 1 }}",
        "True False True True",
    );
    check("{% set a, b = 'xy' | list %}{{ b ~ a }}", "yx");
    // Undefined is empty, and what a conversation without tools leaves undefined or none is tested
    // for.
    check(
        "[{{ nothing }}]{% for x in nothing %}x{% endfor %}{{ tools is none }}{{ strftime_now is defined }}",
        "[]TrueFalse",
    );
    check(
        "{{ tools is iterable }} {{ 'a' is iterable }} {{ 'a' is sequence }} {{ messages[0] is mapping }}",
        "False True True True",
    );
    check(
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | join(',') }}",
        "user",
    );
    check(
        "{% macro m(x, y='!') %}<{{ x ~ y }}>{% endmacro %}{{ m('a') }}{{ m(*['b'], **{'y': '?'}) }}",
        "<a!><b?>",
    );
    check("{% set out %}{{ 'a' }}b{% endset %}{{ out | upper }}", "AB");
    check(
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i > 2 %}{% break %}{% endif %}{{ i }}{% else %}-{% endfor %}",
        "02",
    );
    check("{% for n in [{'c': [{'c': []}]}] recursive %}({{ loop(n.c) }}){% endfor %}", "(())");
    check(
        "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.l | join(' ') }}",
        "user assistant",
    );
}

#[test]
fn the_day_is_given_by_the_caller() {
    let template = ChatTemplate::parse(HEADERS, special()).unwrap().dated(Date {
        year: 2026,
        month: 3,
        day: 9,
    });
    let text = template.render(&talk(&[(Role::User, "hi")]), false).unwrap();
    assert!(text.contains("Today: 09 Mar 2026"), "{text}");
    let hours = ChatTemplate::parse("{{ strftime_now('%H') }}", special()).unwrap().dated(Date {
        year: 2026,
        month: 3,
        day: 9,
    });
    assert!(
        matches!(hours.render(&[], false), Err(ChatError::TemplateFailed { reason }) if reason.contains("%H"))
    );
}

#[test]
fn a_template_that_counts_on_a_date_has_todays() {
    let check = |source: &str, expected: &str| {
        let template = ChatTemplate::parse(source, special()).unwrap();
        let template = template.with_clock(|| Date { year: 2026, month: 3, day: 9 });
        assert_eq!(template.render(&[], false).as_deref(), Ok(expected), "{source}");
    };
    check("{{ strftime_now('%Y-%m-%d') }}", "2026-03-09");
    // One that asks keeps its own date, so that the prompt is the same every day.
    check("{{ strftime_now('%d') if strftime_now is defined else 'someday' }}", "someday");
    check("{% if strftime_now is not defined %}someday{% endif %}", "someday");
}

#[test]
fn the_tokenizer_config_holds_the_template_in_several_forms() {
    let check = |config: serde_json::Value, expected: Result<&str, ChatError>| {
        let rendered = ChatTemplate::from_tokenizer_config_value(&config)
            .and_then(|template| template.render(&[], true));
        assert_eq!(rendered.as_deref(), expected.as_deref(), "{config}");
    };
    check(
        json!({"chat_template": "{{ bos_token }}|{{ eos_token }}", "bos_token": "<s>", "eos_token": {"content": "</s>"}}),
        Ok("<s>|</s>"),
    );
    check(
        json!({"chat_template": "[{{ bos_token }}]{{ bos_token is defined }}", "bos_token": null}),
        Ok("[]False"),
    );
    check(
        json!({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}),
        Ok("d"),
    );
    check(json!({"chat_template": {"default": "d", "tool_use": "t"}}), Ok("d"));
    check(json!({"chat_template": [{"name": "rag", "template": "r"}]}), Err(ChatError::NoTemplate));
    check(json!({"chat_template": null}), Err(ChatError::NoTemplate));
    check(json!({}), Err(ChatError::NoTemplate));
    let reason = "chat_template in tokenizer_config.json is neither a text nor a list".to_owned();
    check(json!({"chat_template": 7}), Err(ChatError::TemplateSyntax { reason }));
}

#[test]
fn requests_with_tools_take_the_template_for_them() {
    let source = |tool_use: Option<&str>| {
        let default = "{{ messages | length }} {{ tools is none }}".to_owned();
        let tool_use = tool_use.map(str::to_owned);
        let sources = TemplateSources { default: Some(default), tool_use };
        sources.parse(special()).unwrap()
    };
    let render = |template: &ChatTemplate, tools: &[serde_json::Value]| {
        template.render_json(&[json!({"role": "user", "content": "?"})], tools).unwrap()
    };
    let tool = [json!({"type": "function"})];
    let alone = source(None);
    assert_eq!(
        (render(&alone, &[]).as_str(), render(&alone, &tool).as_str()),
        ("1 True", "1 False")
    );
    let both = source(Some("[TOOLS]{{ messages | length }}"));
    assert_eq!(
        (render(&both, &[]).as_str(), render(&both, &tool).as_str()),
        ("1 True", "[TOOLS]1")
    );
    assert!(both.takes_tools() && both.all_sources().contains("[TOOLS]"));
    let dated = source(Some("{{ strftime_now('%d') }}")).with_clock(|| Date::from_unix_seconds(0));
    assert_eq!((render(&dated, &[]).as_str(), render(&dated, &tool).as_str()), ("1 True", "01"));
    let broken = TemplateSources { default: Some("d".into()), tool_use: Some("{% if %}".into()) };
    assert!(matches!(broken.parse(special()), Err(ChatError::TemplateSyntax { .. })));
    let only_tools = TemplateSources { default: None, tool_use: Some("t".into()) };
    assert_eq!(only_tools.parse(special()).unwrap_err(), ChatError::NoTemplate);
}

#[test]
fn errors_say_what_the_template_says_and_where() {
    let failure = |source: &str, words: &[(Role, &str)]| {
        ChatTemplate::parse(source, special())
            .and_then(|template| template.render(&talk(words), true))
            .unwrap_err()
    };
    let refusal = failure(INST, &[(Role::User, "a"), (Role::User, "b")]);
    assert_eq!(
        refusal,
        ChatError::TemplateRefused {
            message: "user and assistant must take turns, not user again".to_owned()
        }
    );
    assert_eq!(
        refusal.to_string(),
        "the chat template refuses this conversation: user and assistant must take turns, not user again"
    );
    let inside_a_macro =
        failure("{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}", &[]);
    assert_eq!(inside_a_macro, ChatError::TemplateRefused { message: "no".to_owned() });
    let check = |source: &str, expected: &str| {
        let message = failure(source, &[(Role::User, "a")]).to_string();
        assert!(message.contains(expected), "{source}: {message}");
    };
    check(
        "\n{% if %}",
        "cannot be read: syntax error: unexpected end of block (in chat template:2)",
    );
    check("{% for x in y %}", "cannot be read");
    check("\n\n{{ 1 + 'a' }}", "(in chat template:3)");
    check("{{ messages[0].content.pop() }}", "pop");
    check("{{ nothing.at.all }}", "undefined");
    check("{{ ''.__class__.__mro__ }}", "undefined");
    check("{{ messages | pprint }}", "pprint");
    check("{{ debug() }}", "debug");
    check(&" ".repeat(300_000), "300000 bytes, but at most 262144");
}

// What the errors of the limits say.
const STEPS: &[&str] = &["steps"];
const TEXT: &[&str] = &["text of more than"];
const WORK: &[&str] = &["bytes of data", "text of more than"];

/// Renders a hostile template; the error must contain one of `expected`. The time limit is an hour,
/// so only the budget can end it.
fn check_hostile(what: &str, source: &str, expected: &[&str]) {
    let error = ChatTemplate::parse(source, special())
        .map(|template| template.with_time_limit(Duration::from_secs(3600)))
        .and_then(|template| template.render(&talk(&[(Role::User, "hello")]), true))
        .expect_err(what);
    assert!(expected.iter().any(|part| error.to_string().contains(part)), "{what}: {error}");
}

#[test]
fn endless_loops_and_recursion_end_with_an_error() {
    check_hostile(
        "nested loops",
        &format!("{0}{0}{0}x{1}{1}{1}", "{% for i in range(1000) %}", "{% endfor %}"),
        &["steps", "text of more"],
    );
    check_hostile(
        "silent loops",
        &format!("{0}{0}{0}{1}{1}{1}", "{% for i in range(90000) %}", "{% endfor %}"),
        &["steps", "bytes of data"],
    );
    check_hostile("a long range", "{% for i in range(10 ** 12) %}{% endfor %}", &["too many"]);
    check_hostile("recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", &["recursion"]);
    check_hostile(
        "branching recursion",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(14) }}",
        STEPS,
    );
}

#[test]
fn values_that_double_end_with_an_error() {
    let doubling = |step: &str| {
        format!(
            "{{% set ns = namespace(x='0123456789abcdef') %}}{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
        )
    };
    check_hostile("doubling with ~", &doubling("ns.x ~ ns.x"), TEXT);
    check_hostile("doubling with +", &doubling("ns.x + ns.x"), TEXT);
    check_hostile("doubling with *", &doubling("ns.x * 2"), TEXT);
    check_hostile("doubling with replace", &doubling("ns.x | replace('0', ns.x)"), TEXT);
    check_hostile("doubling with the method replace", &doubling("ns.x.replace('', 'ab')"), TEXT);
    check_hostile("doubling with join", &doubling("[ns.x, ns.x] | join(ns.x)"), TEXT);
    check_hostile("doubling with the method join", &doubling("ns.x.join([ns.x, ns.x])"), TEXT);
    check_hostile("doubling with format", &doubling("'%s%s' | format(ns.x, ns.x)"), TEXT);
    check_hostile("doubling with the method format", &doubling("'{0}{0}{0}'.format(ns.x)"), TEXT);
    check_hostile("doubling with indent", &doubling("(ns.x ~ '\\n') | indent(100000, true)"), WORK);
    check_hostile(
        "doubling with a keyword",
        &doubling("(ns.x ~ '\\n') | indent(width=4000000000)"),
        TEXT,
    );
    check_hostile(
        "doubling lists",
        &doubling("[ns.x, ns.x]"),
        &["nested too deeply", "bytes of data"],
    );
    check_hostile("doubling lists flatly", &doubling("(ns.x | list) + (ns.x | list)"), WORK);
    check_hostile(
        "doubling tuples",
        &doubling("(ns.x, ns.x) * 1000"),
        &["nested too deeply", "bytes of data"],
    );
    check_hostile(
        "doubling dictionaries",
        &doubling("{'a': ns.x, 'b': ns.x}"),
        &["nested too deeply", "bytes of data"],
    );
    check_hostile("doubling JSON", &doubling("ns.x | tojson | tojson | tojson"), TEXT);
    let capture = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}";
    check_hostile("doubling by capture", capture, TEXT);
}

#[test]
fn long_texts_and_lists_end_with_an_error() {
    check_hostile(
        "raw text in a loop",
        &format!("{{% for i in range(90000) %}}{}{{% endfor %}}", "x".repeat(1000)),
        TEXT,
    );
    check_hostile(
        "captured raw text",
        &format!(
            "{{% set x %}}{{% for i in range(90000) %}}{}{{% endfor %}}{{% endset %}}",
            "x".repeat(1000)
        ),
        TEXT,
    );
    check_hostile("a wide format", "{{ '%1000000000d' | format(1) }}", TEXT);
    check_hostile("a wide format method", "{{ '{:1000000000}'.format(1) }}", TEXT);
    check_hostile("a width from an argument", "{{ '%*d' | format(1000000000, 1) }}", &["width"]);
    check_hostile("a nested width", "{{ '{:{}}'.format(1, 1000000000) }}", &["width"]);
    check_hostile("a repeated text", "{{ 'x' * 99999999 }}", TEXT);
    check_hostile(
        "a folded repeated text",
        &format!("{{% set x = {} %}}", vec!["'x' * 99999999"; 50].join(" ~ ")),
        TEXT,
    );
    check_hostile("a folded repeated tuple", "{% set x = (1, 2) * 50000000 %}", TEXT);
    check_hostile("a repeated list", "{{ ([1] * 99999999) | length }}", TEXT);
    check_hostile(
        "kept slices",
        "{% set ns = namespace(l=[]) %}{% set x = 'x' * 1000000 %}{% for i in range(90000) %}{% set ns.l = ns.l + [x[1:]] %}{% endfor %}",
        WORK,
    );
}

#[test]
fn reading_long_values_over_and_over_ends_with_an_error() {
    check_hostile(
        "long comparisons",
        "{% set x = 'x' * 4000000 %}{% set y = x[:] %}{% for i in range(90000) %}{% if x == y %}{% endif %}{% endfor %}",
        WORK,
    );
    check_hostile(
        "long searches",
        "{% set x = 'x' * 4000000 %}{% for i in range(90000) %}{% if 'y' in x or x.find('y') > 0 %}{% endif %}{% endfor %}",
        WORK,
    );
    check_hostile(
        "long tests",
        "{% set x = 'x' * 4000000 %}{% for i in range(90000) %}{% if x is upper %}{% endif %}{% endfor %}",
        WORK,
    );
    check_hostile(
        "long lengths",
        "{% set x = 'x' * 4000000 %}{% for i in range(90000) %}{% if x | length == 1 %}{% endif %}{% endfor %}",
        WORK,
    );
}

/// Templates that do something in a loop to a text of two million letters that are not ASCII, to a list
/// or to a dictionary with such a text.
const EXPENSIVE: [(&str, &str); 45] = [
    ("an index", "{% set x = a[1999990] %}"),
    ("an index from the end", "{% set x = a[-3] %}"),
    ("a slice", "{% set x = a[1999990:] %}"),
    ("a slice of a list", "{% set x = l[99990:] %}"),
    ("a loop that ends at once", "{% for c in a %}{% break %}{% endfor %}"),
    (
        "a loop that calls itself",
        "{% for c in 'x' recursive %}{% if loop.depth0 %}{% break %}{% endif %}{{ loop(a) }}{% endfor %}",
    ),
    (
        "a loop over arguments",
        "{% for c in 'x' recursive %}{% if loop.depth0 %}{% break %}{% endif %}{% set x = loop(*[a]) %}{% endfor %}",
    ),
    ("a key", "{% set x = d[a] %}"),
    ("a key of a literal", "{% set x = {a: 1} %}"),
    ("a key of a condition", "{% set x = d['k' if false else a] %}"),
    ("a key in", "{% set x = a in d %}"),
    ("a key not in", "{% set x = a not in d %}"),
    ("a chain with in", "{% set x = 'b' in a in [a] %}"),
    ("a text in", "{% set x = 'b' in a %}"),
    ("an item in", "{% set x = b in [a, a] %}"),
    ("the method get", "{% set x = d.get(a) %}"),
    ("the method get with a list", "{% set x = d.get((a, a)) %}"),
    ("the method count of a list", "{% set x = [a, a].count(b) %}"),
    ("the method strip", "{% set x = b.strip('ä') %}"),
    ("the method startswith", "{% set x = a.startswith((b, b, b, b)) %}"),
    ("the method isalpha", "{% set x = a.isalpha() %}"),
    ("the filter attr", "{% set x = d | attr(a) %}"),
    ("the filter attr with an index", "{% set x = a | attr(-1) %}"),
    ("the filter trim", "{% set x = b | trim('ä') %}"),
    ("the filter upper on a list", "{% set x = [a] | upper %}"),
    ("the filter sort", "{% set x = [a, b] | sort %}"),
    ("the filter unique", "{% set x = [a, b] | unique %}"),
    ("the filter max", "{% set x = ([a] + l) | max %}"),
    ("the filter dictsort", "{% set x = e | dictsort(by='value') %}"),
    ("the filter map with a filter", "{% set x = [a] | map('upper') %}"),
    ("the filter map with a path", "{% set x = l | map(attribute='0.' * 100000) %}"),
    ("the filter select", "{% set x = [a] | select('sameas', b) %}"),
    ("the filter selectattr", "{% set x = [e] | selectattr('k', 'in', b) %}"),
    ("the filter join", "{% set x = [1, 2] | join(d=a) %}"),
    ("the filter replace", "{% set x = 'x' | replace('x', [a]) %}"),
    ("the filter tojson", "{% set x = e | tojson %}"),
    ("the filter tojson with sorted keys", "{% set x = e | tojson(sort_keys=true) %}"),
    ("the filter length", "{% set x = a | length %}"),
    ("the test sameas", "{% set x = a is sameas b %}"),
    ("the test eq", "{% set x = a is eq b %}"),
    ("the test in", "{% set x = a is in d %}"),
    ("the test startingwith", "{% set x = [a] is startingwith b %}"),
    ("a comparison of dictionaries", "{% set x = {'k': a} == {'k': b} %}"),
    ("a comparison", "{% set x = a < b %}"),
    ("loop.changed", "{% set x = loop.changed(a, b) %}"),
];

fn expensive(step: &str) -> String {
    format!(
        "{{% set a = 'ä' * 2000000 %}}{{% set b = 'ä' * 1999999 ~ 'b' %}}\
         {{% set l = range(99999) | list %}}{{% set d = {{'k': 1, 'l': 2}} %}}{{% set e = {{'k': a}} %}}\
         {{% for i in range(99999) %}}{step}{{% endfor %}}"
    )
}

#[test]
fn charges_operations_by_the_size_they_touch() {
    // An hour, so that only the charges can end them.
    let patient = Duration::from_secs(3600);
    let check = |(what, step): &(&str, &str)| {
        let template = ChatTemplate::parse(&expensive(step), special()).unwrap();
        let error = template.with_time_limit(patient).render(&[], true).expect_err(what);
        let is_charged =
            matches!(error, ChatError::TemplateTooLarge { .. } | ChatError::OutputTooLong { .. });
        assert!(is_charged, "{what}: {error}");
    };
    let (first, second) = EXPENSIVE.split_at(EXPENSIVE.len() / 2);
    thread::scope(|scope| {
        scope.spawn(|| first.iter().for_each(check));
        second.iter().for_each(check);
    });
}

#[test]
fn stops_rendering_when_time_is_over() {
    let loops = format!("{0}{0}{1}{1}", "{% for i in range(90000) %}", "{% endfor %}");
    let recursion = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(20) }}";
    let straight = "{% if not a and not b %}{% endif %}".repeat(2000);
    for source in [loops.as_str(), recursion, &straight] {
        let template = ChatTemplate::parse(source, special()).unwrap();
        let error = template.with_time_limit(Duration::ZERO).render(&[], true).unwrap_err();
        assert_eq!(error, ChatError::TemplateTimeOver { limit: Duration::ZERO });
    }
    let limit = Duration::from_secs(2);
    let error = ChatError::TemplateTimeOver { limit };
    assert_eq!(error.to_string(), "the chat template was stopped after 2 s");
}

#[test]
fn other_work_of_the_machine_takes_no_time_from_a_rendering() {
    let limit = Duration::from_millis(100);
    let num_asked = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&num_asked);
    let cancel = Cancel::new(move || {
        // Another thread has the processor for longer than the limit.
        let others = thread::spawn(move || {
            let began = Instant::now();
            while began.elapsed() < limit {}
        });
        others.join().unwrap();
        asked.fetch_add(1, Ordering::Relaxed);
        false
    });
    let template = ChatTemplate::parse(CHATML, special()).unwrap();
    let template = template.with_time_limit(limit).with_cancel(cancel);
    assert!(template.render(&talk(&[(Role::User, "hello"); 100]), true).is_ok());
    assert!(num_asked.load(Ordering::Relaxed) > 0);
}

#[test]
fn ends_rendering_when_no_one_waits() {
    let num_asked = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&num_asked);
    let cancel = Cancel::new(move || asked.fetch_add(1, Ordering::Relaxed) == 9);
    let template = ChatTemplate::parse(CHATML, special()).unwrap().with_cancel(cancel);
    let messages = talk(&[(Role::User, "hello"); 1000]);
    assert_eq!(template.render(&messages, true), Err(ChatError::Cancelled));
    assert_eq!(num_asked.load(Ordering::Relaxed), 10);
    // Later renderings are not affected.
    assert!(template.render(&messages, true).is_ok());
}

#[test]
fn refuses_what_the_engine_would_panic_on() {
    check_hostile(
        "a cycle of nothing",
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}",
        &["loop.cycle has nothing to cycle"],
    );
    check_hostile("a long name", &format!("{{{{ {} }}}}", "a".repeat(300)), &["a name of more"]);
}

#[test]
fn deeply_nested_values_end_with_an_error() {
    check_hostile(
        "a namespace in itself",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        &["nested too deeply"],
    );
    check_hostile(
        "a chain of namespaces",
        "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}",
        &["nested too deeply"],
    );
    check_hostile(
        "a chain of lists",
        "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}",
        &["nested too deeply"],
    );
    check_hostile(
        "a chain of slices",
        "{% set ns = namespace(x=[1, 2]) %}{% for i in range(90000) %}{% set ns.x = ns.x[0:] %}{% endfor %}{{ raise_exception('flat') }}",
        &["flat"],
    );
}

#[test]
fn templates_reach_no_files() {
    check_hostile("include", "{% include '/etc/passwd' %}", &["not"]);
    check_hostile("extends", "{% extends '/etc/passwd' %}", &["not"]);
    check_hostile("import", "{% import '/etc/passwd' as x %}{{ x }}", &["not"]);
}

#[test]
fn sources_that_nest_or_chain_too_much_are_refused() {
    check_hostile(
        "deep parentheses",
        &format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000)),
        &["cannot be read"],
    );
    check_hostile(
        "deep lists",
        &format!("{{{{ {}1{} }}}}", "[".repeat(20_000), "]".repeat(20_000)),
        &["cannot be read"],
    );
    check_hostile(
        "deep ifs",
        &format!("{}{}", "{% if true %}".repeat(9_000), "{% endif %}".repeat(9_000)),
        &["cannot be read"],
    );
    check_hostile(
        "a long sum",
        &format!("{{{{ {}messages }}}}", "1 + ".repeat(60_000)),
        &["cannot be read"],
    );
    check_hostile(
        "a sum of the longest length",
        &format!("{{{{ {}messages }}}}", "1 + ".repeat(490)),
        &["+"],
    );
    check_hostile(
        "many nots",
        &format!("{{{{ {}1 }}}}", "not ".repeat(60_000)),
        &["cannot be read"],
    );
    check_hostile(
        "many filters",
        &format!("{{{{ 'a'{} }}}}", "|e".repeat(60_000)),
        &["cannot be read"],
    );
    check_hostile("many attributes", &format!("{{{{ a{} }}}}", ".a".repeat(490)), &["undefined"]);
    check_hostile(
        "many elifs",
        &format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000)),
        &["cannot be read"],
    );
    check_hostile(
        "elifs of the longest length",
        &format!("{{% if 0 %}}{}{{% endif %}}{{{{ a.b.c }}}}", "{% elif 0 %}".repeat(499)),
        &["undefined"],
    );
}

#[test]
fn variables_are_added_and_may_replace_special_tokens() {
    let render = |variables: serde_json::Value| {
        let source = "{{ bos_token }}{{ messages[0].content }}{{ '?' if tone == 'doubt' }}";
        let template = ChatTemplate::parse(source, special()).unwrap();
        let variables = variables.as_object().unwrap().clone();
        template.with_variables(variables)?.render(&talk(&[(Role::User, "Stones")]), true)
    };
    let plain = render(json!({})).unwrap();
    assert_eq!(render(json!({"tone": "doubt"})).unwrap(), format!("{plain}?"));
    assert_eq!(render(json!({"bos_token": "<new>"})).unwrap(), "<new>Stones");
    for name in ["messages", "add_generation_prompt"] {
        let mut variables = serde_json::Map::new();
        variables.insert(name.to_owned(), json!([]));
        let error = render(variables.into()).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}
