//! Requests as coding agents send them, with texts of our own: what asks for nothing that changes an
//! answer's meaning is accepted, and what was said earlier reaches the model as text.

use cairn_tiny_models::SHOWS_NOTHING;
use serde_json::{Value, json};

use crate::api::{ask, events};
use crate::running::start;
use crate::tools::{SHOWS_ALL, given, start_saying};

/// The structure of a request of Claude Code 2.1.
fn claude_code(messages: Value) -> Value {
    json!({
        "model": "scripted",
        "max_tokens": 400,
        "temperature": 0,
        "stream": false,
        "thinking": { "type": "adaptive" },
        "output_config": { "effort": "high" },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "metadata": { "user_id": "user_0" },
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.1.a1; cch=00;" },
            { "type": "text", "text": "You work in a terminal.", "cache_control": { "type": "ephemeral" } },
        ],
        "tools": [
            { "name": "Glob", "description": "Finds files.", "eager_input_streaming": true,
              "input_schema": { "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object", "properties": { "pattern": { "type": "string" } } } },
            { "type": "web_search_20250305", "name": "web_search", "max_uses": 8 },
        ],
        "messages": messages,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_is_answered_with_its_defaults() {
    let running = start_saying("Done.", SHOWS_NOTHING).await;
    let question = json!([{ "role": "user", "content": "Say done." }]);
    let mut body = claude_code(question);
    for thinking in ["adaptive", "enabled", "disabled", "between_tools"] {
        body["thinking"] = json!({ "type": thinking, "budget_tokens": 2048 });
        let answer = ask(&running, "/v1/messages?beta=true", &body).await;
        assert_eq!(answer["content"][0]["text"], "Done.", "{thinking}: {answer}");
    }
    let counted = ask(&running, "/v1/messages/count_tokens?beta=true", &body).await;
    assert!(counted["input_tokens"].as_u64() > Some(0), "{counted}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_finds_a_server_without_an_interface() {
    let running = start(false).await;
    let (status, _, body) = running.send("HEAD / HTTP/1.0\r\nhost: HOST", b"").await;
    assert_eq!((status, body.as_str()), (200, ""));
    let (status, _, body) = running.send("GET / HTTP/1.0\r\nhost: HOST", b"").await;
    assert_eq!(status, 200);
    assert!(body.contains("/v1"), "{body}");
    let (status, _, _) = running.send("GET /other HTTP/1.0\r\nhost: HOST", b"").await;
    assert_eq!(status, 404);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_that_come_later_reach_every_template() {
    let running = start_saying("", SHOWS_ALL).await;
    let messages = json!([
        { "role": "user", "content": "Which files are here?" },
        { "role": "assistant", "content": [
            { "type": "tool_use", "id": "toolu_1", "name": "Glob", "input": { "pattern": "*" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "toolu_1", "content": [
                { "type": "text", "text": "README.md" },
                { "type": "image", "source": { "type": "base64", "data": "" } },
            ] },
        ] },
        { "role": "system", "content": [{ "type": "text", "text": "The folder is x now." }] },
    ]);
    let shown = given(&running, "/v1/messages", claude_code(messages)).await;
    for part in [
        r#"[{"role": "system", "content": "You work in a terminal."}"#,
        r#""content": "README.md[A picture is left out: this model reads text only.]""#,
        r#"{"role": "user", "content": "The folder is x now."}"#,
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    for part in ["billing", "web_search"] {
        assert!(!shown.contains(part), "{part} is in {shown}");
    }
    running.end().await;
}

/// The structure of a request of Codex CLI.
fn codex(input: Value) -> Value {
    let search = json!({ "type": "function", "name": "search", "strict": false,
        "parameters": { "type": "object", "properties": { "q": { "type": "string" } } } });
    json!({
        "model": "scripted",
        "instructions": "You work in a terminal.",
        "store": false,
        "temperature": 0,
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "include": ["reasoning.encrypted_content"],
        "reasoning": { "effort": "medium", "summary": "auto" },
        "text": { "verbosity": "low" },
        "input": input,
        "tools": [
            { "type": "function", "name": "exec_command", "strict": false,
              "parameters": { "type": "object", "properties": { "cmd": { "type": "string" } } } },
            { "type": "custom", "name": "apply_patch", "format": { "type": "grammar" } },
            { "type": "web_search", "external_web_access": false },
            { "type": "image_generation", "output_format": "png" },
            { "type": "namespace", "name": "mcp__notes", "description": "Notes.", "tools": [search] },
        ],
    })
}

const CALLS_NOTES: &str =
    "<tool_call>\n{\"name\": \"mcp__notes__search\", \"arguments\": {\"q\": \"x\"}}\n</tool_call>";

#[tokio::test(flavor = "multi_thread")]
async fn codex_calls_functions_of_namespaces() {
    let running = start_saying(CALLS_NOTES, SHOWS_NOTHING).await;
    let question = json!([{ "type": "message", "role": "user", "content": [
        { "type": "input_text", "text": "Look it up." },
    ] }]);
    let mut body = codex(question);
    let answer = ask(&running, "/v1/responses", &body).await;
    let check = |call: &Value| {
        assert_eq!(call["type"], "function_call", "{call}");
        assert_eq!(call["name"], "search", "{call}");
        assert_eq!(call["namespace"], "mcp__notes", "{call}");
        assert_eq!(call["arguments"], "{\"q\": \"x\"}", "{call}");
    };
    check(&answer["output"][0]);
    body["stream"] = true.into();
    let streamed = events(&running, "/v1/responses", &body).await;
    let done = streamed.iter().find(|(name, _)| name == "response.output_item.done");
    let done: Value = serde_json::from_str(&done.unwrap().1).unwrap();
    check(&done["item"]);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_codex_did_earlier_reaches_the_template() {
    let running = start_saying("", SHOWS_ALL).await;
    let input = json!([
        { "type": "message", "role": "user", "content": "Change it." },
        { "type": "function_call", "call_id": "c1", "name": "search", "namespace": "mcp__notes",
          "arguments": "{\"q\": \"x\"}" },
        { "type": "function_call_output", "call_id": "c1", "output": [
            { "type": "input_text", "text": "Two notes." },
            { "type": "input_image", "image_url": "data:," },
        ] },
        { "type": "web_search_call", "id": "ws_1", "status": "completed" },
        { "type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin" },
        { "type": "custom_tool_call_output", "call_id": "c2", "output": "Done!" },
        { "type": "message", "role": "developer", "content": "Now be brief." },
    ]);
    let shown = given(&running, "/v1/responses", codex(input)).await;
    for part in [
        r#""name": "mcp__notes__search", "arguments": {"q": "x"}"#,
        r#""content": "Two notes.[A picture is left out: this model reads text only.]""#,
        r#""name": "apply_patch", "arguments": {"input": "*** Begin"}"#,
        r#""content": "Done!", "tool_call_id": "c2", "name": "apply_patch""#,
        r#"{"role": "user", "content": "Now be brief."}"#,
        r#""function": {"name": "exec_command""#,
        r#""function": {"name": "mcp__notes__search""#,
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    running.end().await;
}
