//! How many tokens were proposed for an answer, and what became of them.

use cairn_app::ForcedSpeculation;
use cairn_tiny_models::{SHOWS_NOTHING, copy_scripted_model};
use serde_json::{Value, json};

use crate::api::{ask, events, post};
use crate::running::{Running, start_with_speculation};

const CHAT: &str = "/v1/chat/completions";
const LOOKUP: ForcedSpeculation = ForcedSpeculation::Lookup { num_tokens: 5 };

/// A server with a model that gives this answer to the one prompt of [`SHOWS_NOTHING`].
async fn start_saying(answer: &str, speculation: ForcedSpeculation) -> Running {
    let running = start_with_speculation(speculation).await;
    let folder = running.home.path().join("models/scripted");
    copy_scripted_model(&folder, "Q", answer, SHOWS_NOTHING).unwrap();
    running
}

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "scripted", "temperature": 0, "max_tokens": 400,
        "messages": [{ "role": "user", "content": "Where is it?" }],
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// How many proposed tokens an answer's `usage` says were accepted, and how many rejected.
fn accepted_and_rejected(answer: &Value) -> (u64, u64) {
    let details = &answer["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().unwrap_or_else(|| panic!("{name}: {answer}"));
    (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
}

async fn streamed(running: &Running, more: Value) -> Value {
    let mut body = chat(more);
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let events = events(running, CHAT, &body).await;
    let [.., (_, usage), (_, done)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(done, "[DONE]");
    serde_json::from_str(usage).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_says_how_many_proposed_tokens_were_accepted() {
    let answer = "cairn on a ridge, cairn on a summit. ".repeat(3);
    let running = start_saying(&answer, LOOKUP).await;
    let whole = ask(&running, CHAT, &chat(json!({}))).await;
    assert_eq!(whole["choices"][0]["message"]["content"], answer);
    let (accepted, rejected) = accepted_and_rejected(&whole);
    // From the second sentence on most of it stood there before, and "ridge" follows "a " once.
    assert!(accepted > answer.len() as u64 / 2 && accepted < answer.len() as u64, "{whole}");
    assert!(rejected > 0, "{whole}");
    // Those that were rejected are no tokens of the answer.
    assert_eq!(whole["usage"]["completion_tokens"], answer.len());
    assert_eq!(accepted_and_rejected(&streamed(&running, json!({})).await), (accepted, rejected));
    let body = json!({ "model": "scripted", "prompt": "Q", "max_tokens": 400, "temperature": 0 });
    let continued = ask(&running, "/v1/completions", &body).await;
    assert_eq!(continued["choices"][0]["text"], answer);
    assert_eq!(accepted_and_rejected(&continued), (accepted, rejected));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_proposes_both_numbers_are_zero() {
    let answer = "cairn, ".repeat(9);
    let running = start_saying(&answer, ForcedSpeculation::Off).await;
    assert_eq!(accepted_and_rejected(&ask(&running, CHAT, &chat(json!({}))).await), (0, 0));
    assert_eq!(accepted_and_rejected(&streamed(&running, json!({})).await), (0, 0));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prediction_is_proposed_and_changes_nothing() {
    // No three letters of it stand anywhere before.
    let answer = "abcdefghijklmnopqrstuvwxyz";
    let running = start_saying(answer, LOOKUP).await;
    let content = |text: &str| json!({ "prediction": { "type": "content", "content": text } });
    let parts = [&answer[..13], &answer[13..]].map(|text| json!({ "type": "text", "text": text }));
    let in_parts = json!({ "prediction": { "type": "content", "content": parts } });
    let cases = [
        (json!({}), (0, 0)),
        (content("0123456789"), (0, 0)),
        (content("abcdef0123456789"), (3, 2)),
        // 23 letters follow the first three; each pass adds five that were proposed and one of the
        // model's own.
        (content(answer), (20, 0)),
        (in_parts, (20, 0)),
    ];
    for (more, expected) in cases {
        let whole = ask(&running, CHAT, &chat(more.clone())).await;
        assert_eq!(whole["choices"][0]["message"]["content"], answer);
        assert_eq!(accepted_and_rejected(&whole), expected, "{more}");
        assert_eq!(accepted_and_rejected(&streamed(&running, more).await), expected);
    }
    let wrong = chat(json!({ "prediction": { "type": "content", "content": 5 } }));
    let (status, _, answer) = running.send(&post(CHAT), wrong.to_string().as_bytes()).await;
    assert_eq!(status, 400, "{answer}");
    let error: Value = serde_json::from_str(&answer).unwrap();
    assert!(error["error"]["param"].as_str().unwrap().starts_with("prediction"), "{error}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prediction_keeps_to_a_schema_and_to_its_own_answer() {
    let answer = r#"{"from":"abcdefghijklm","to":"nopqrstuvwxyz"}"#;
    let running = start_saying(answer, LOOKUP).await;
    let content = |text: &str| json!({ "prediction": { "type": "content", "content": text } });
    let schema = json!({
        "type": "object",
        "properties": { "from": { "type": "string" }, "to": { "type": "string" } },
        "required": ["from", "to"], "additionalProperties": false,
    });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "way", "schema": schema } });
    let mut with_schema = content(answer);
    with_schema["response_format"] = format;
    let whole = ask(&running, CHAT, &chat(with_schema)).await;
    assert_eq!(whole["choices"][0]["message"]["content"], answer);
    // Others are answered at the same time, with another prediction or none.
    let others = [content(answer), content("0123456789"), json!({}), content(&answer[..20])];
    let [right, wrong, none, begun] = others.map(chat);
    let (right, wrong, none, begun) = tokio::join!(
        ask(&running, CHAT, &right),
        ask(&running, CHAT, &wrong),
        ask(&running, CHAT, &none),
        ask(&running, CHAT, &begun),
    );
    for whole in [&right, &wrong, &none, &begun] {
        assert_eq!(whole["choices"][0]["message"]["content"], answer, "{whole}");
    }
    assert!(accepted_and_rejected(&right).0 > accepted_and_rejected(&begun).0, "{right} {begun}");
    assert!(accepted_and_rejected(&begun).0 > accepted_and_rejected(&none).0, "{begun} {none}");
    running.end().await;
}
