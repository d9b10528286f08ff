//! Named keys: who asks, what is saved for each, and the list of requests.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{ApiKey, ApiRequest, Command, Event, Reply, SettingTarget};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::api::{ENDLESS, MODEL, ask, chat, post, start_with};
use crate::running::{Running, TIMEOUT};

const CHAT: &str = "/v1/chat/completions";

pub async fn make_key(app: &Arc<App>, name: &str) -> (ApiKey, String) {
    match app.call(Command::MakeApiKey { name: name.to_owned() }).await.unwrap() {
        Reply::ApiKeyMade { key, secret } => (key, secret),
        other => panic!("{other:?}"),
    }
}

/// The status and the body of a chat that a key asks.
async fn ask_with(running: &Running, key: &str, body: &Value) -> (u16, Value) {
    let head = post(CHAT).replace("TOKEN", key);
    let (status, _, answer) = running.send(&head, body.to_string().as_bytes()).await;
    (status, serde_json::from_str(&answer).unwrap())
}

async fn cached(running: &Running, key: &str, body: &Value) -> u64 {
    let (status, answer) = ask_with(running, key, body).await;
    assert_eq!(status, 200, "{answer}");
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn about(text: &str) -> Value {
    chat(json!({ "messages": [{ "role": "user", "content": text }] }))
}

/// The requests of programs, the last one first.
pub async fn requests(running: &Running) -> Vec<ApiRequest> {
    match running.ask(Command::GetApi).await {
        Reply::Api { api } => api.requests,
        other => panic!("{other:?}"),
    }
}

/// A limit for saved context that no test reaches, whatever is free on this disk.
async fn allow_saving(running: &Running) {
    let (scope, key) = (SettingTarget::App, "cache_budget_bytes".to_owned());
    running.ask(Command::SetSetting { scope, key, value: json!(1_u64 << 30) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_answers_until_it_is_revoked() {
    let running = start_with(&[MODEL]).await;
    let (key, secret) = make_key(&running.app, "Editor").await;
    assert!(secret.starts_with("cairn-") && secret.len() == 70, "{secret}");
    assert_eq!(ask_with(&running, &secret, &chat(json!({}))).await.0, 200);
    let models = format!("GET /v1/models HTTP/1.0\r\nhost: HOST\r\nx-api-key: {secret}");
    assert_eq!(running.send(&models, b"").await.0, 200);
    // A key is for the API alone.
    let call = post("/api/call").replace("TOKEN", &secret);
    assert_eq!(running.send(&call, br#"{"type":"get_api"}"#).await.0, 401);

    // An answer that runs ends with the key.
    let body = chat(json!({ "stream": true, "max_tokens": ENDLESS })).to_string();
    let head = post(CHAT).replace("TOKEN", &secret);
    let mut client = running.begin(&head, body.len() as u64).await;
    client.write_all(body.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(client).lines();
    while !lines.next_line().await.unwrap().unwrap().starts_with("data:") {}
    running.ask(Command::RevokeApiKey { id: key.id, deletes_saved: false }).await;
    let mut last = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.starts_with("data:") {
            last = line;
        }
    }
    assert!(last.contains("The key was revoked."), "{last}");

    let (status, error) = ask_with(&running, &secret, &chat(json!({}))).await;
    assert_eq!((status, &error["error"]["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(error["error"]["type"], "authentication_error");
    let head = post("/v1/messages").replace("TOKEN", &secret);
    let (status, _, error) = running.send(&head, b"{}").await;
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!((status, &error["type"]), (401, &json!("error")));
    assert_eq!(error["error"]["type"], "authentication_error");
    assert_eq!(running.send(&models, b"").await.0, 401);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_saved_for_a_key_is_deleted_with_it_if_asked_and_nothing_else() {
    let running = start_with(&[MODEL]).await;
    allow_saving(&running).await;
    let (editor, editor_key) = make_key(&running.app, "Editor").await;
    let (agent, agent_key) = make_key(&running.app, "Agent").await;
    let words = |first: &str| about(&format!("{first} {}", "of stones and moss ".repeat(40)));
    let (mut one, mut two, three) = (words("Tell me"), words("Sing"), words("A poem"));
    one["prompt_cache_key"] = "one".into();
    two["prompt_cache_key"] = "two".into();
    for (key, body) in [(&editor_key, &one), (&editor_key, &two), (&agent_key, &three)] {
        cached(&running, key, body).await;
        assert!(cached(&running, key, body).await > 500);
    }

    running.ask(Command::RevokeApiKey { id: editor.id, deletes_saved: true }).await;
    assert!(cached(&running, &agent_key, &three).await > 500, "that of another key stays");
    let token = running.token.clone();
    assert!(cached(&running, &token, &one).await < 100, "with each prompt_cache_key");
    assert!(cached(&running, &token, &two).await < 100);

    running.ask(Command::RevokeApiKey { id: agent.id, deletes_saved: false }).await;
    assert!(cached(&running, &token, &three).await > 500, "what is not deleted stays");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_names_the_key_that_shares_its_beginning() {
    let running = start_with(&[MODEL]).await;
    allow_saving(&running).await;
    for (key, value) in [("temperature", json!(0)), ("max_tokens", json!(4))] {
        running.ask(Command::set_for_all(key, value)).await;
    }
    running.ask(Command::LoadModel { name: MODEL.to_owned() }).await;
    let (_, secret) = make_key(&running.app, "Editor").await;
    let question = "What is a cairn, and who builds one?";
    for part in ["one", "two"] {
        let mut body = about(question);
        body["prompt_cache_key"] = part.into();
        cached(&running, &secret, &body).await;
    }
    let created = running.ask(Command::NewConversation).await;
    let Reply::Conversation { conversation, .. } = created else { panic!("{created:?}") };
    let (id, text) = (conversation.id, question.to_owned());
    let mut events = running.app.subscribe();
    running.ask(Command::SendMessage { conversation_id: id.clone(), text }).await;
    let named = async {
        loop {
            if let Event::Conversation { conversation } = events.recv().await.unwrap()
                && let Some(cache) = conversation.cache
                && !cache.shared_with.is_empty()
            {
                return cache.shared_with;
            }
        }
    };
    let named = tokio::time::timeout(TIMEOUT, named).await.expect("the chat shares its beginning");
    assert_eq!(named, ["Editor"], "once, whatever its parts are");
    let bootstrap = running.ask(Command::Bootstrap).await;
    let Reply::Bootstrap { conversations, .. } = bootstrap else { panic!("{bootstrap:?}") };
    assert_eq!(conversations[0].cache.clone().unwrap().shared_with, ["Editor"]);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_requests_say_who_asked_what() {
    let running = start_with(&[MODEL]).await;
    let (_, secret) = make_key(&running.app, "Editor").await;
    ask_with(&running, &secret, &chat(json!({}))).await;
    ask(&running, CHAT, &chat(json!({ "stream": false, "max_tokens": 3 }))).await;
    ask_with(&running, "wrong", &chat(json!({}))).await;
    ask_with(&running, &secret, &chat(json!({ "model": "nobody/none" }))).await;
    running.send("GET /health HTTP/1.0\r\nhost: HOST", b"").await;

    let list = requests(&running).await;
    let told = |request: &ApiRequest| (request.key.clone(), request.status, request.model.clone());
    let (editor, model) = (Some("Editor".to_owned()), Some(MODEL.to_owned()));
    assert_eq!(
        list.iter().map(told).collect::<Vec<_>>(),
        [
            (editor.clone(), 404, Some("nobody/none".to_owned())),
            (None, 401, None),
            (None, 200, model.clone()),
            (editor, 200, model),
        ]
    );
    assert!(list.iter().all(|request| request.route == "POST /v1/chat/completions"));
    let figures = list[3].figures.clone().unwrap();
    assert_eq!((figures.generation_tokens, figures.cached_tokens), (12, 0));
    assert!(figures.prompt_tokens > 0 && figures.time_to_first_token_ms > 0.0);
    assert!(list[2].figures.clone().unwrap().cached_tokens > 0);
    assert_eq!((list[0].figures.clone(), list[1].figures.clone()), (None, None));

    // A stream is one when it has ended.
    let mut events = running.app.subscribe();
    let body = chat(json!({ "stream": true, "max_tokens": ENDLESS })).to_string();
    let mut client = running.begin(&post(CHAT), body.len() as u64).await;
    client.write_all(body.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(client).lines();
    while !lines.next_line().await.unwrap().unwrap().starts_with("data:") {}
    assert_eq!(requests(&running).await.len(), 4);
    drop(lines);
    let ended = async {
        loop {
            // Earlier requests may be reported only now, after their sockets have closed.
            if let Event::ApiRequest { request } = events.recv().await.unwrap()
                && request.status == 499
            {
                return request;
            }
        }
    };
    let ended = tokio::time::timeout(TIMEOUT, ended).await.expect("the request ends");
    assert_eq!(ended.figures, None);
    running.end().await;
}
