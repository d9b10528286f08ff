//! What the vendors' clients sent, sent again: the answers have the form that the clients could
//! read, and the one that the API's document says.

use cairn_api_recordings::{Answer, Exchange, Recording, Reply, Sent};
use cairn_app::wire::Command;
use cairn_tiny_models::copy_api_models;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::document::Document;
use crate::running::{Running, TIMEOUT, start};

/// As many answers as may run at once.
const MAX_ANSWERS: usize = 64;

/// A server with the models that the clients were recorded with.
pub async fn start_with_api_models() -> Running {
    let running = start(false).await;
    copy_api_models(&running.home.path().join("models")).unwrap();
    running.ask(Command::LoadModel { name: "tiny-chat".to_owned() }).await;
    running
}

/// Sends a request over a connection of its own.
async fn send(running: &Running, sent: &Sent) -> TcpStream {
    let body = sent.body.as_ref().map(Value::to_string).unwrap_or_default();
    let mut head = format!("{} {} HTTP/1.1\r\n", sent.method, sent.path);
    head.push_str(&format!("host: {}\r\nconnection: close\r\n", running.address));
    for (name, value) in &sent.headers {
        head.push_str(&format!("{name}: {}\r\n", value.replace("KEY", &running.token)));
    }
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads a reply until `is_enough`, at most to its end.
async fn read(stream: &mut TcpStream, is_enough: impl Fn(&Reply) -> bool) -> Reply {
    let mut raw = Vec::new();
    let reading = async {
        while !Reply::parse(&raw).is_some_and(|reply| is_enough(&reply)) {
            if stream.read_buf(&mut raw).await.unwrap_or(0) == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, reading).await.expect("the server answers");
    Reply::parse(&raw).expect("a reply")
}

/// The answer to a recorded request, and what it was made of.
async fn answer(running: &Running, exchange: &Exchange) -> (Answer, Reply) {
    let normal = |reply: &Reply| reply.normalized(exchange.sent.detail(exchange.got.status));
    let mut stream = send(running, &exchange.sent).await;
    let is_cut = exchange.got.is_cut;
    let is_enough = |reply: &Reply| is_cut && normal(reply).matches(&exchange.got);
    let reply = read(&mut stream, is_enough).await;
    (normal(&reply), reply)
}

/// Answers that run until they are dropped.
async fn endless_answers(running: &Running) -> Vec<TcpStream> {
    let headers = [("authorization", "Bearer KEY"), ("content-type", "application/json")];
    let sent = Sent {
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        body: Some(json!({ "model": "tiny-tools", "stream": true, "max_tokens": 1_000_000,
            "logit_bias": { "256": -100, "258": -100 },
            "messages": [{ "role": "user", "content": "x" }] })),
    };
    let begin = |_| async {
        let mut stream = send(running, &sent).await;
        read(&mut stream, |reply| reply.events().is_some_and(|events| !events.is_empty())).await;
        stream
    };
    join_all((0..MAX_ANSWERS).map(begin)).await
}

async fn check(running: &Running, document: &Document, client: &str, exchange: &Exchange) {
    let is_busy = exchange.got.status == 429;
    let others = if is_busy { endless_answers(running).await } else { Vec::new() };
    let (found, reply) = answer(running, exchange).await;
    drop(others);
    let about = format!("{client}, “{}”", exchange.case);
    assert!(
        found.matches(&exchange.got),
        "{about}: the answer has changed; if that is meant, run `make interop`\n{}\n{}",
        serde_json::to_string(&exchange.got).unwrap(),
        serde_json::to_string(&found).unwrap(),
    );
    document.check_reply(&exchange.sent, &reply, &about);
    // Room for the next one.
    while is_busy && answer(running, &first_chat()).await.0.status == 429 {}
}

/// A request that is answered if there is room.
fn first_chat() -> Exchange {
    let sent = json!({ "method": "POST", "path": "/v1/completions", "headers": [
        ["authorization", "Bearer KEY"], ["content-type", "application/json"],
    ], "body": { "model": "scripted", "prompt": "Q", "max_tokens": 1 } });
    let got = json!({ "status": 200, "content_type": "" });
    serde_json::from_value(json!({ "case": "", "sent": sent, "got": got })).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendors_clients_get_what_they_could_read() {
    let running = start_with_api_models().await;
    let document = Document::of(&running).await;
    let recordings = Recording::all().unwrap();
    let clients: Vec<&str> = recordings.iter().map(|recording| &*recording.client).collect();
    assert_eq!(clients, ["anthropic-python", "openai-node", "openai-python"]);
    for Recording { client, exchanges } in &recordings {
        assert!(exchanges.len() > 10, "{client}");
        for exchange in exchanges {
            check(&running, &document, client, exchange).await;
        }
    }
    running.end().await;
}

#[test]
fn a_changed_answer_is_noticed() {
    let recordings = Recording::all().unwrap();
    let exchanges = recordings.iter().flat_map(|recording| &recording.exchanges);
    for exchange in exchanges.filter(|exchange| exchange.got.body.is_some()) {
        let body = exchange.got.body.clone().unwrap();
        for key in body.as_object().unwrap().keys() {
            let mut changed = exchange.got.clone();
            changed.body.as_mut().unwrap().as_object_mut().unwrap().remove(key);
            assert!(!changed.matches(&exchange.got), "{}: {key}", exchange.case);
        }
    }
}
