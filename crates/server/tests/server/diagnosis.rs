//! Why a prompt was read again, in each vendor's form.

use serde_json::{Value, json};

use crate::api::{MODEL, ask, events, post, start_with};
use crate::keys::make_key;

const MESSAGES: &str = "/v1/messages";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// Long enough for what differs to be no end of a prompt.
fn long(text: &str) -> String {
    text.repeat(100)
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn assistant(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

/// A request in Anthropic's form.
fn message(previous: Option<&str>, more: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "max_tokens": 2, "temperature": 0, "system": long("Be brief. "),
        "messages": [user(&long("One? "))], "diagnostics": { "previous_message_id": previous },
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn names_what_changed_in_anthropics_form() {
    let running = start_with(&[MODEL, "other"]).await;
    let first = ask(&running, MESSAGES, &message(None, json!({}))).await;
    assert_eq!(first["diagnostics"], Value::Null);
    let id = first["id"].as_str().unwrap();
    let check = async |more: Value, kind: &str| {
        let answer = ask(&running, MESSAGES, &message(Some(id), more.clone())).await;
        let reason = &answer["diagnostics"]["cache_miss_reason"];
        assert_eq!(reason["type"], kind, "{more}: {answer}");
        reason.clone()
    };
    let next = [user(&long("One? ")), assistant("Yes."), user(&long("Two? "))];
    let longer = message(Some(id), json!({ "messages": next }));
    assert_eq!(ask(&running, MESSAGES, &longer).await["diagnostics"], Value::Null);
    let reason = check(json!({ "system": long("Be kind. ") }), "system_changed").await;
    assert!(reason["cache_missed_input_tokens"].as_u64().unwrap() > 1_000, "{reason}");
    let tools = json!([{ "name": "look", "input_schema": { "type": "object" } }]);
    check(json!({ "tools": tools }), "tools_changed").await;
    check(json!({ "model": "other" }), "model_changed").await;
    let edited = [user(&long("Who? ")), assistant("Yes."), user(&long("Two? "))];
    let reason = check(json!({ "messages": edited }), "messages_changed").await;
    assert_eq!(reason["cairn"]["first_changed"], "messages[0]");

    let unknown = ask(&running, MESSAGES, &message(Some("msg_none"), json!({}))).await;
    let expected = json!({ "cache_miss_reason": { "type": "previous_message_not_found" } });
    assert_eq!(unknown["diagnostics"], expected);
    // A request that does not ask is told nothing.
    let mut silent = message(None, json!({}));
    silent.as_object_mut().unwrap().remove("diagnostics");
    assert_eq!(ask(&running, MESSAGES, &silent).await.get("diagnostics"), None);
    let wrong = message(None, json!({ "diagnostics": { "previous_message_id": 5 } }));
    let (status, _, answer) = running.send(&post(MESSAGES), wrong.to_string().as_bytes()).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("diagnostics.previous_message_id"), "{answer}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn begins_streams_with_counts_and_reason() {
    let running = start_with(&[MODEL]).await;
    let first = ask(&running, MESSAGES, &message(None, json!({}))).await;
    let usage = &first["usage"];
    let id = first["id"].as_str().unwrap();
    let (asked, other) = (json!({ "stream": true }), long("Be kind. "));
    let start = async |more: Value| {
        let events = events(&running, MESSAGES, &message(Some(id), more)).await;
        assert_eq!(events[0].0, "message_start");
        let event: Value = serde_json::from_str(&events[0].1).unwrap();
        event["message"].clone()
    };
    let same = start(asked).await;
    assert_eq!(same["diagnostics"], Value::Null);
    let read = |usage: &Value| {
        ["input_tokens", "cache_read_input_tokens"].map(|name| usage[name].as_u64().unwrap())
    };
    let ([input, cached], [num_tokens, _]) = (read(&same["usage"]), read(usage));
    assert!(cached > 0, "{same}");
    assert_eq!(input + cached, num_tokens);
    let changed = start(json!({ "stream": true, "system": other })).await;
    assert_eq!(changed["diagnostics"]["cache_miss_reason"]["type"], "system_changed");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_what_changed_in_openais_form() {
    let running = start_with(&[MODEL, "other"]).await;
    let system = json!({ "role": "system", "content": long("Be brief. ") });
    for (path, list) in [(CHAT, "messages"), (RESPONSES, "input")] {
        // Each route has texts of its own, which the other one has not read.
        let asking = |word: &str| [system.clone(), user(&long(&format!("{word} {list}? ")))];
        let (conversation, changed) = (asking("One"), asking("Who"));
        let body = |messages: &[Value], earlier: Option<&Value>| {
            let mut body = json!({ "model": MODEL, "temperature": 0, list: messages });
            // A response takes no `max_tokens`, a chat no `max_output_tokens`: each is ignored there.
            body["max_tokens"] = 2.into();
            body["max_output_tokens"] = 2.into();
            if let Some(earlier) = earlier {
                body["prompt_cache_options"] = json!({ "comparison_response_id": earlier });
            }
            body
        };
        let field = "prompt_cache_diagnostics";
        let first = ask(&running, path, &body(&conversation, None)).await;
        assert_eq!(first.get(field), None);
        let check = |diagnosis: &Value| {
            assert_eq!(diagnosis["type"], "cache_miss", "{diagnosis}");
            assert_eq!(diagnosis["reason"], "input_changed");
            assert_eq!(diagnosis["cairn"]["first_changed"], format!("{list}[1]"));
            assert!(diagnosis["cache_missed_tokens"].as_u64().unwrap() > 400, "{diagnosis}");
        };
        let id = &first["id"];
        check(&ask(&running, path, &body(&changed, Some(id))).await[field]);
        let same = ask(&running, path, &body(&conversation, Some(id))).await;
        assert_eq!(same[field], json!({ "type": "cache_hit" }));
        let unknown = ask(&running, path, &body(&conversation, Some(&json!("none")))).await;
        assert_eq!(unknown[field], json!({ "type": "comparison_response_not_found" }));
        let mut other = body(&conversation, Some(id));
        other["model"] = "other".into();
        assert_eq!(ask(&running, path, &other).await[field]["reason"], "model_changed");

        let mut streamed = body(&asking("Why"), Some(id));
        streamed["stream"] = true.into();
        let events = events(&running, path, &streamed).await;
        let told: Vec<Value> = events
            .iter()
            .filter_map(|(_, data)| serde_json::from_str::<Value>(data).ok())
            .map(|data| data.get("response").unwrap_or(&data)[field].clone())
            .filter(|diagnosis| !diagnosis.is_null())
            .collect();
        assert_eq!(told.len(), 1, "{events:?}");
        check(&told[0]);
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_answers_of_other_keys_apart() {
    let running = start_with(&[MODEL]).await;
    let first = ask(&running, MESSAGES, &message(None, json!({}))).await;
    let (_, secret) = make_key(&running.app, "other").await;
    let body = message(first["id"].as_str(), json!({})).to_string();
    let head = post(MESSAGES).replace("TOKEN", &secret);
    let (status, _, answer) = running.send(&head, body.as_bytes()).await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("previous_message_not_found"), "{answer}");
    running.end().await;
}
