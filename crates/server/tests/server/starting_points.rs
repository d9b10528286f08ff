//! Starting points that a program names: its prompt has to begin with their tokens.

use cairn_app::wire::{Command, Event, Message, MessageStatus, NamedCache, Reply};
use serde_json::{Value, json};

use crate::api::{MODEL, chat, post, start_with};
use crate::http::{EXPORT, preview};
use crate::running::{Running, TIMEOUT};

const QUESTION: &str = "What is a cairn, and who builds one?";

/// A server that saves context, whatever is free on this disk, and answers greedily, its model
/// loaded.
async fn start_to_save() -> Running {
    let running = start_with(&[MODEL]).await;
    let budget = ("cache_budget_bytes", json!(1_u64 << 30));
    for (key, value) in [budget, ("temperature", json!(0)), ("max_tokens", json!(1))] {
        running.ask(Command::set_for_all(key, value)).await;
    }
    running.ask(Command::LoadModel { name: MODEL.to_owned() }).await;
    running
}

/// Asks in a chat, and saves it as the starting point “Stones”.
async fn save_stones(running: &Running) -> (Message, NamedCache) {
    let created = running.ask(Command::NewConversation).await;
    let Reply::Conversation { conversation, .. } = created else { panic!("{created:?}") };
    let (conversation_id, text) = (conversation.id, QUESTION.to_owned());
    let mut events = running.app.subscribe();
    let send = Command::SendMessage { conversation_id: conversation_id.clone(), text };
    running.ask(send).await;
    let answer = async {
        loop {
            if let Event::Message { message } = events.recv().await.unwrap()
                && message.status == MessageStatus::Complete
                && message.stats.is_some()
            {
                return message;
            }
        }
    };
    let answer = tokio::time::timeout(TIMEOUT, answer).await.expect("an answer comes");
    let save = Command::SaveNamedCache { conversation_id, name: "Stones".to_owned() };
    match running.ask(save).await {
        Reply::Named { named } => (answer, named),
        other => panic!("{other:?}"),
    }
}

async fn send(running: &Running, body: &Value) -> (u16, Value) {
    let head = post("/v1/chat/completions");
    let (status, _, answer) = running.send(&head, body.to_string().as_bytes()).await;
    (status, serde_json::from_str(&answer).unwrap())
}

async fn cached(running: &Running, body: &Value) -> u64 {
    let (status, answer) = send(running, body).await;
    assert_eq!(status, 200, "{answer}");
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// A chat that begins with the starting point “Stones”.
fn from_stones(messages: Value) -> Value {
    chat(json!({ "messages": messages, "cairn": { "start_from": "Stones" } }))
}

fn after(answer: &Message) -> Value {
    let assistant = json!({ "role": "assistant", "content": answer.text });
    from_stones(json!([user(QUESTION), assistant, user("And why?")]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_begins_with_the_starting_point_that_it_names() {
    let running = start_to_save().await;
    let (answer, _) = save_stones(&running).await;
    let same = after(&answer);
    assert!(cached(&running, &same).await > 30);

    let check = async |body: &Value, status: u16, named: &[&str]| {
        let (found, answer) = send(&running, body).await;
        let error = &answer["error"];
        assert_eq!((found, &error["param"]), (status, &json!("cairn.start_from")), "{answer}");
        let message = error["message"].as_str().unwrap();
        assert!(named.iter().all(|named| message.contains(named)), "{message}");
    };
    let others = from_stones(json!([user("What is a dune?"), user("And why?")]));
    check(&others, 400, &["“Stones”", "from token"]).await;
    check(&from_stones(json!([user("What")])), 400, &["“Stones”", "from token"]).await;
    let mut unknown = same.clone();
    unknown["cairn"]["start_from"] = "Pebbles".into();
    check(&unknown, 404, &["“Pebbles”"]).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_begins_with_a_starting_point_that_was_imported() {
    let running = start_to_save().await;
    let (answer, named) = save_stones(&running).await;
    let (status, _, file) = running.send_bytes(&EXPORT.replace("ID", &named.id), 0, b"").await;
    assert_eq!(status, 200);
    running.end().await;

    let running = start_to_save().await;
    let token = preview(&running, &file).await.token;
    let name = "Stones".to_owned();
    running.ask(Command::ConfirmImport { token, name, check: false }).await;
    // Nothing but the import has these tokens here, and without its name it is not trusted.
    let mut unnamed = after(&answer);
    unnamed["cairn"] = Value::Null;
    assert_eq!(cached(&running, &unnamed).await, 0);
    running.ask(Command::ClearCache).await;
    assert!(cached(&running, &after(&answer)).await > 30);
    running.end().await;
}
