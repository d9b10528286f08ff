//! The server that follows the settings of the app.

use std::net::SocketAddr;
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{ApiServer, Command, Event, Reply};
use cairn_server::ApiSwitch;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::broadcast::Receiver;

use crate::api::{ENDLESS, add_models, chat};
use crate::keys::make_key;
use crate::running::{TIMEOUT, open_app};

async fn set(app: &Arc<App>, key: &str, value: impl Into<serde_json::Value>) {
    app.call(Command::set_for_all(key, value)).await.unwrap();
}

/// What the server is, once it is another than it was.
async fn next_state(events: &mut Receiver<Event>) -> ApiServer {
    let state = async {
        loop {
            if let Event::ApiServer { server } = events.recv().await.unwrap() {
                return server;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, state).await.expect("the server starts or stops")
}

async fn is_on(app: &Arc<App>) -> bool {
    match app.call(Command::Bootstrap).await.unwrap() {
        Reply::Bootstrap { settings, .. } => settings.api_is_on,
        other => panic!("{other:?}"),
    }
}

/// Switches the API on, on a port that was free a moment ago; on another one if it is not any more.
async fn switch_on(app: &Arc<App>) -> SocketAddr {
    let mut events = app.subscribe();
    loop {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        set(app, "api_port", free.port()).await;
        set(app, "api_is_on", true).await;
        let mut state = next_state(&mut events).await;
        while state == (ApiServer::Off { problem: None }) {
            state = next_state(&mut events).await;
        }
        if let ApiServer::Running { address, is_switched } = state {
            assert_eq!((address, is_switched), (format!("http://{free}"), true));
            return free;
        }
    }
}

async fn send(address: SocketAddr, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head = format!("{head}\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn post(path: &str, key: &str) -> String {
    format!("POST {path} HTTP/1.0\r\nauthorization: Bearer {key}\r\ncontent-type: application/json")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_is_served_while_the_setting_says_so() {
    let home = tempfile::tempdir().unwrap();
    add_models(&home, &["tiny-chat"]);
    let app = open_app(&home).await;
    let switch = ApiSwitch::follow(app.clone());
    let (_, key) = make_key(&app, "Editor").await;
    let address = switch_on(&app).await;

    let (head, body) = (post("/v1/chat/completions", &key), chat(json!({})).to_string());
    let answer = send(address, &head, &body).await;
    assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("chat.completion"), "{answer}");
    let refused = send(address, &post("/v1/chat/completions", "wrong"), "{}").await;
    assert!(refused.starts_with("HTTP/1.0 401"), "{refused}");
    // The app's own commands are not there, with any key.
    let call = send(address, &post("/api/call", &key), r#"{"type":"get_api"}"#).await;
    assert!(call.starts_with("HTTP/1.0 404") || call.starts_with("HTTP/1.0 405"), "{call}");
    assert!(!call.contains("reply"), "{call}");

    let mut events = app.subscribe();
    set(&app, "api_is_on", false).await;
    assert_eq!(next_state(&mut events).await, ApiServer::Off { problem: None });
    assert!(TcpStream::connect(address).await.is_err());
    // On again, on the same port.
    set(&app, "api_is_on", true).await;
    let address = format!("http://{address}");
    assert_eq!(next_state(&mut events).await, ApiServer::Running { address, is_switched: true });
    switch.stop().await;
    assert!(is_on(&app).await, "the setting stays for the next start");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_named_and_the_switch_goes_back_off() {
    let home = tempfile::tempdir().unwrap();
    let app = open_app(&home).await;
    let switch = ApiSwitch::follow(app.clone());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut events = app.subscribe();
    set(&app, "api_port", port).await;
    set(&app, "api_is_on", true).await;
    let problem = format!("Port {port} is in use by another program: choose another port.");
    let off = ApiServer::Off { problem: Some(problem) };
    assert_eq!(next_state(&mut events).await, off);
    assert!(!is_on(&app).await);
    let Ok(Reply::Api { api }) = app.call(Command::GetApi).await else { panic!("no overview") };
    assert_eq!(api.server, off);
    drop(taken);
    switch_on(&app).await;
    assert!(is_on(&app).await);
    switch.stop().await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_answer_gets_an_error_when_the_switch_is_stopped() {
    let home = tempfile::tempdir().unwrap();
    add_models(&home, &["tiny-chat"]);
    let app = open_app(&home).await;
    let switch = ApiSwitch::follow(app.clone());
    let (_, key) = make_key(&app, "Editor").await;
    let address = switch_on(&app).await;
    let body = chat(json!({ "stream": true, "max_tokens": ENDLESS })).to_string();
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = post("/v1/chat/completions", &key);
    let request =
        format!("{head}\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.write_all(request.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(client).lines();
    while !lines.next_line().await.unwrap().unwrap().starts_with("data:") {}
    switch.stop().await;
    let mut last = String::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.starts_with("data:") {
            last = line;
        }
    }
    assert!(last.contains("\"error\""), "{last}");
    app.close().await;
}
