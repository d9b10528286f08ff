//! How much a model thinks, by its chat template: the templates of `tests/goldens/templates/`, and
//! small ones of the forms that others have.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use cairn_chat::{
    ChatTemplate, Date, Message, Role, SpecialTokens, Thinking, ThinkingChoices, forget_thinking,
};
use serde_json::{Map, Value, json};

const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
/// Refuses efforts that it does not know, as Qwen3.8's does; `medium` says nothing.
const STRICT: &str = "\
{%- if enable_thinking is undefined or enable_thinking is true -%}\
{%- set effort = reasoning_effort | default('xhigh') -%}\
{%- if effort not in ('xhigh', 'medium', 'low') %}{{ raise_exception('no effort ' ~ effort) }}{% endif -%}\
{%- if effort == 'xhigh' %}<system>Think carefully.\n{% elif effort == 'low' %}<system>Be brief.\n{% endif -%}\
{%- endif -%}\
{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>\
{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% else %}<think>{% endif %}";
/// Takes what it does not know for one that it knows, as GLM's does.
const TWO: &str = "\
{%- set effort = 'High' if reasoning_effort is defined and reasoning_effort == 'high' else 'Max' -%}\
<system>Effort: {{ effort }}\n{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>\
{{- '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}";
/// Thinks only if asked, and has an effort that means no thoughts.
const MODES: &str = "\
{%- if reasoning_effort is not defined %}{% set reasoning_effort = 'none' %}{% endif -%}\
{%- if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('unknown') }}{% endif -%}\
[effort]{{ reasoning_effort }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
/// Ignores efforts that it does not know.
const LENIENT: &str = "\
{%- if reasoning_effort is defined and reasoning_effort in ['low', 'high', 'max'] -%}\
<system>Thinking: {{ reasoning_effort }}\n{% endif -%}\
{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>\
{%- if thinking is defined and not thinking %}</think>{% endif %}";
/// A mode in words, and a template that refuses system prompts.
const WORDS: &str = "\
{%- if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif -%}\
{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>\
{{- '<think>' if thinking_mode is defined and thinking_mode == 'thinking' else '</think>' }}";
/// Only mentions the variable.
const MENTIONS: &str = "{# enable_thinking, reasoning_effort #}{% set x = enable_thinking %}";

fn parse(source: &str) -> ChatTemplate {
    let special = SpecialTokens { bos: Some("<s>".to_owned()), eos: Some("</s>".to_owned()) };
    let template = ChatTemplate::parse(source, special).unwrap();
    template.with_clock(|| Date { year: 2026, month: 7, day: 1 })
}

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/templates");
    fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap()
}

/// The levels, with a star after the template's own.
fn described(choices: &ThinkingChoices) -> String {
    let star = |level| if choices.own() == Some(level) { "*" } else { "" };
    let levels: Vec<_> = choices.levels().map(|level| format!("{level}{}", star(level))).collect();
    levels.join(" ")
}

fn rendered(source: &str, wanted: Thinking, given: Value) -> String {
    let question = Message { role: Role::User, content: "Why?".to_owned(), token_ids: None };
    let given: Map<String, Value> = serde_json::from_value(given).unwrap();
    let template = parse(source).with_variables(given).unwrap().with_thinking(wanted);
    template.render(&[question], true).unwrap()
}

#[test]
fn finds_choices_of_real_templates() {
    for (name, expected) in [
        ("deepseek-r1", "off* on"),
        ("deepseek-v3.1", "off* on"),
        ("gemma4", "off* on"),
        ("glm-4.6", "off on*"),
        ("glm-4.7-flash", "off on*"),
        ("gpt-oss", "low medium* high"),
        ("granite-3.3", "off* on"),
        ("granite-4.0", ""),
        ("kimi-k2", ""),
        ("minimax-m2", ""),
        ("ministral-3", ""),
        ("mistral-nemo", ""),
        ("mistral-small-3.2", ""),
        ("own-command-r", ""),
        ("own-exaone4", "off* on"),
        ("own-gemma3", ""),
        ("own-lfm2", ""),
        ("own-llama3", ""),
        ("own-nemotron", "off on*"),
        ("own-olmo", ""),
        ("phi-3.5", ""),
        ("qwen2.5", ""),
        ("qwen3-coder", ""),
        ("qwen3.5", "off on*"),
        ("qwen3", "off on*"),
        ("seed-oss", "off low medium high"),
        ("smollm3", "off on*"),
    ] {
        assert_eq!(described(parse(&golden(name)).thinking()), expected, "{name}");
    }
}

#[test]
fn finds_choices_of_other_forms() {
    for (source, expected) in [
        (STRICT, "off low medium xhigh*"),
        (TWO, "off high max*"),
        (MODES, "off* high"),
        (LENIENT, "off low high max"),
        (WORDS, "off* on"),
        (MENTIONS, ""),
        (TURNS, ""),
        ("{{ raise_exception('never') }}", ""),
    ] {
        assert_eq!(described(parse(source).thinking()), expected, "{source}");
    }
}

#[test]
fn takes_nearest_level() {
    fn check(source: &str, expected: [Option<Thinking>; 9]) {
        use Thinking::{Automatic, High, Low, Max, Medium, Minimal, Off, On, Xhigh};
        let template = parse(source);
        let wanted = [Automatic, Off, On, Minimal, Low, Medium, High, Xhigh, Max];
        assert_eq!(wanted.map(|level| template.thinking().allowed(level)), expected, "{source}");
    }
    use Thinking::{High, Low, Max, Medium, Off, On, Xhigh};
    let some = |levels: [Thinking; 9]| levels.map(Some);
    check(TURNS, [None; 9]);
    check(STRICT, some([Medium, Off, Medium, Low, Low, Medium, Medium, Xhigh, Xhigh]));
    check(TWO, some([High, Off, High, High, High, High, High, High, Max]));
    check(MODES, some([Off, Off, High, High, High, High, High, High, High]));
    check(WORDS, some([Off, Off, On, Off, On, On, On, On, On]));
    check(&golden("qwen3"), some([On, Off, On, Off, On, On, On, On, On]));
    let gpt_oss = golden("gpt-oss");
    check(&gpt_oss, some([Medium, Low, Medium, Low, Low, Medium, High, High, High]));
    // Nothing says what this one does by itself.
    let [_, rest @ ..] = some([Off, Off, Low, Low, Low, Low, High, High, Max]);
    let [off, on, minimal, low, medium, high, xhigh, max] = rest;
    check(LENIENT, [None, off, on, minimal, low, medium, high, xhigh, max]);
}

#[test]
fn leaves_prompt_as_maker_wrote_it() {
    let question = Message { role: Role::User, content: "Why?".to_owned(), token_ids: None };
    for name in ["qwen3", "qwen3.5", "gemma4", "gpt-oss", "glm-4.6", "seed-oss", "phi-3.5"] {
        let source = golden(name);
        let plain = parse(&source).render(std::slice::from_ref(&question), true).unwrap();
        assert_eq!(rendered(&source, Thinking::Automatic, json!({})), plain, "{name}");
    }
}

#[test]
fn renders_wanted_level() {
    fn check(source: &str, wanted: Thinking, given: Value, has: &str) {
        let text = rendered(source, wanted, given.clone());
        assert!(text.contains(has), "{wanted} {given}: {text}");
    }
    check(STRICT, Thinking::Low, json!({}), "Be brief.");
    check(STRICT, Thinking::Max, json!({}), "Think carefully.");
    check(STRICT, Thinking::Automatic, json!({}), "<user>Why?\n<assistant><think>");
    check(STRICT, Thinking::Off, json!({}), "<think></think>");
    check(MODES, Thinking::Max, json!({}), "[effort]high");
    check(LENIENT, Thinking::Off, json!({}), "<assistant></think>");
    check(&golden("gpt-oss"), Thinking::Off, json!({}), "Reasoning: low");
    check(&golden("seed-oss"), Thinking::Low, json!({}), "1024");
    check(&golden("gemma4"), Thinking::High, json!({}), "<|think|>");
    // Variables that a program gives count before that.
    check(STRICT, Thinking::Off, json!({ "reasoning_effort": "low" }), "Be brief.");
    check(STRICT, Thinking::Low, json!({ "enable_thinking": false }), "<think></think>");
    let both = json!({ "enable_thinking": true, "reasoning_effort": "low" });
    check(STRICT, Thinking::Off, both, "Be brief.");
    check(
        &golden("gpt-oss"),
        Thinking::Low,
        json!({ "reasoning_effort": "high" }),
        "Reasoning: high",
    );
    check(
        &golden("gpt-oss"),
        Thinking::Low,
        json!({ "reasoning_effort": "own" }),
        "Reasoning: own",
    );
    check(MODES, Thinking::Off, json!({ "reasoning_effort": "low" }), "[effort]high");
    check(MODES, Thinking::High, json!({ "reasoning_effort": "off" }), "[effort]none");
    // Also efforts of another template, and efforts that this template would refuse.
    check(
        STRICT,
        Thinking::Low,
        json!({ "reasoning_effort": "high" }),
        "<user>Why?\n<assistant><think>",
    );
    check(STRICT, Thinking::Low, json!({ "reasoning_effort": "none" }), "<think></think>");
    check(STRICT, Thinking::Low, json!({ "thinking": false }), "<think></think>");
    check(&golden("qwen3"), Thinking::On, json!({ "reasoning_effort": "none" }), "</think>");
    check(
        &golden("gpt-oss"),
        Thinking::Low,
        json!({ "reasoning_effort": "max" }),
        "Reasoning: high",
    );
    check(TURNS, Thinking::Low, json!({ "reasoning_effort": "max" }), "<user>Why?");
}

#[test]
fn knows_names_and_budgets() {
    for (name, expected) in [
        ("none", Some(Thinking::Off)),
        ("XHigh", Some(Thinking::Xhigh)),
        (" medium ", Some(Thinking::Medium)),
        ("adaptive", Some(Thinking::Automatic)),
        ("", None),
        ("much", None),
    ] {
        assert_eq!(Thinking::from_name(name), expected, "{name:?}");
    }
    for (num_tokens, expected) in [
        (0, Thinking::Off),
        (1024, Thinking::Low),
        (10_000, Thinking::Medium),
        (32_000, Thinking::High),
    ] {
        assert_eq!(Thinking::from_budget(num_tokens), expected, "{num_tokens}");
    }
}

#[test]
fn forgets_variables_about_thinking() {
    let given = json!({ "enable_thinking": false, "reasoning_effort": "low", "thinking_budget": 1, "x": 2 });
    let mut variables: Map<String, Value> = serde_json::from_value(given).unwrap();
    forget_thinking(&mut variables);
    assert_eq!(Value::Object(variables), json!({ "x": 2 }));
}
