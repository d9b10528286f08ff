//! Clients that close their side after the request: some wait for the answer, others have gone.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::api::{ENDLESS, MODEL, chat, engine, post, start_with};
use crate::running::{Running, TIMEOUT};

const CHAT: &str = "/v1/chat/completions";

/// Sends a request and closes the client's side.
async fn send_and_close(running: &Running, head: &str, body: &str) -> TcpStream {
    let mut client = running.begin(head, body.len() as u64).await;
    client.write_all(body.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    client
}

/// The final response, after any interim ones.
async fn answer(mut client: TcpStream) -> String {
    let mut answer = String::new();
    timeout(TIMEOUT, client.read_to_string(&mut answer)).await.expect("an answer").unwrap();
    let mut rest = answer.as_str();
    while let Some(after) = rest.strip_prefix("HTTP/1.1 102 Processing\r\n\r\n") {
        rest = after;
    }
    rest.to_owned()
}

fn newer(head: String) -> String {
    head.replace("HTTP/1.0", "HTTP/1.1")
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_a_client_that_closed_its_side() {
    let running = start_with(&[MODEL]).await;
    for streams in [false, true] {
        let body =
            chat(json!({ "stream": streams, "max_tokens": 500, "ignore_eos": true })).to_string();
        let client = send_and_close(&running, &newer(post(CHAT)), &body).await;
        let answer = answer(client).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{answer}");
        if streams {
            assert!(body.contains("data: [DONE]"), "{body}");
        } else {
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["usage"]["completion_tokens"], 500);
        }
    }
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let head = format!("GET /health {version}\r\nhost: HOST");
        let answer = answer(send_and_close(&running, &head, "").await).await;
        assert!(answer.ends_with(r#"{"status":"ok"}"#), "{answer}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_the_answer_of_a_client_that_has_gone() {
    let running = start_with(&[MODEL]).await;
    for (head, streams) in [
        (newer(post(CHAT)), false),
        (newer(post(CHAT)), true),
        // Older clients know no interim responses: they have gone when they close their side.
        (post(CHAT), false),
    ] {
        let body = chat(json!({ "stream": streams, "max_tokens": ENDLESS })).to_string();
        let mut client = running.begin(&head, body.len() as u64).await;
        client.write_all(body.as_bytes()).await.unwrap();
        let begun = async { while !engine(&running).await.1 {} };
        timeout(TIMEOUT, begun).await.expect("the answer begins");
        drop(client);
        let ended = async { while engine(&running).await.1 {} };
        timeout(TIMEOUT, ended).await.expect("the answer ends with its client");
    }
    running.end().await;
}
