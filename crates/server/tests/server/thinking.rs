//! How much a program wants the model to think, as the chat template is told.

use cairn_tiny_models::SHOWS_NOTHING;
use serde_json::{Value, json};

use crate::api::ask;
use crate::tools::{given, start_saying};

/// Refuses the question with its level. Thinks very long by itself, and knows three efforts.
const THINKS: &str = "{%- set off = enable_thinking is defined and not enable_thinking -%}\
    {%- set effort = reasoning_effort | default('xhigh') -%}\
    {%- if effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('no ' ~ effort) }}{% endif -%}\
    {%- set level = 'off' if off else effort -%}\
    {%- if messages[-1].content == 'Why?' %}{{ raise_exception('level ' ~ level) }}{% endif -%}\
    {{- level -}}";

fn body(more: &Value) -> Value {
    let mut body = json!({
        "model": "scripted", "max_tokens": 8,
        "messages": [{ "role": "user", "content": "Why?" }], "input": "Why?",
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn efforts_of_every_vendor_reach_template() {
    let running = start_saying("", THINKS).await;
    let check = async |path: &str, more: Value, expected: &str| {
        let said = given(&running, path, body(&more)).await;
        assert!(said.contains(&format!("level {expected}")), "{path} {more}: {said}");
    };
    for (effort, expected) in [
        ("none", "off"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "medium"),
        ("xhigh", "xhigh"),
        ("max", "xhigh"),
        ("enormous", "medium"),
    ] {
        check("/v1/chat/completions", json!({ "reasoning_effort": effort }), expected).await;
        let more = json!({ "reasoning": { "effort": effort } });
        check("/v1/responses", more, expected).await;
        check("/v1/messages", json!({ "output_config": { "effort": effort } }), expected).await;
    }
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages"] {
        check(path, json!({}), "medium").await;
        check(path, json!({ "enable_thinking": false }), "off").await;
        let given = json!({ "enable_thinking": false });
        check(path, json!({ "chat_template_kwargs": given }), "off").await;
        let given = json!({ "reasoning_effort": "high" });
        check(path, json!({ "chat_template_kwargs": given }), "medium").await;
    }
    let thinking = |kind: &str| json!({ "type": kind, "budget_tokens": 32_000 });
    for (kind, expected) in [("enabled", "medium"), ("disabled", "off"), ("adaptive", "medium")] {
        check("/v1/messages", json!({ "thinking": thinking(kind) }), expected).await;
    }
    let more = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    check("/v1/messages", more.clone(), "low").await;
    check("/v1/messages/count_tokens", more, "low").await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn efforts_are_never_refused() {
    let running = start_saying("Done.", SHOWS_NOTHING).await;
    for more in [
        json!({ "reasoning_effort": "max" }),
        json!({ "reasoning_effort": 7 }),
        json!({ "reasoning": "much" }),
        json!({ "thinking": { "type": "adaptive" } }),
        json!({ "thinking": true }),
    ] {
        let answer = ask(&running, "/v1/chat/completions", &body(&more)).await;
        assert_eq!(answer["choices"][0]["message"]["content"], "Done.", "{more}: {answer}");
        let answer = ask(&running, "/v1/messages", &body(&more)).await;
        assert_eq!(answer["content"][0]["text"], "Done.", "{more}: {answer}");
    }
    running.end().await;
}
