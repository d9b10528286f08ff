//! A thousand requests at once, in a process of their own: its memory is measured.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use cairn_api_recordings::Reply;
use cairn_app::{App, DataFolder, Options};
use cairn_server::{ServeOptions, Server};
use cairn_tiny_models::copy_api_models;
use futures_util::future::join_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

const NUM_REQUESTS: usize = 1000;
/// As many answers as may run at once.
const MAX_ANSWERS: usize = 64;
/// What freed memory may stay with the allocator: a fraction of what a thousand requests take.
const MAX_GROWTH_KB: u64 = 48 << 10;
/// A limit that only a failing test reaches.
const TIMEOUT: Duration = Duration::from_secs(120);
const KEY: &str = "secret";

/// Sends a chat, and returns the connection.
async fn send(address: SocketAddr, more: Value) -> TcpStream {
    let mut body = json!({ "model": "tiny-tools", "messages": [{ "role": "user", "content": "x" }],
        "logit_bias": { "256": -100, "258": -100 } });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let body = body.to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    stream
}

/// The replies to a thousand chats that are sent at once.
async fn thousand(address: SocketAddr) -> Vec<Reply> {
    let ask = |_| async {
        let mut raw = Vec::new();
        let mut stream = send(address, json!({ "max_tokens": 2 })).await;
        // A server that refuses may close before it has read everything.
        let end = timeout(TIMEOUT, stream.read_to_end(&mut raw)).await.expect("a reply");
        Reply::parse(&raw).unwrap_or_else(|| panic!("no reply ({end:?}): {raw:?}"))
    };
    join_all((0..NUM_REQUESTS).map(ask)).await
}

/// This process's memory, as the system counts it.
fn resident_kb() -> u64 {
    let id = std::process::id().to_string();
    let output = Command::new("ps").args(["-o", "rss=", "-p", &id]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Both ends of each connection are here.
fn allow_many_connections() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let wanted = most.min(8192);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, most).unwrap();
    assert!(wanted as usize > 2 * NUM_REQUESTS + 500, "this system allows only {most} open files");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_parallel_requests_are_answered_or_told_to_wait_and_memory_stays_flat() {
    allow_many_connections();
    let home = tempfile::tempdir().unwrap();
    copy_api_models(&home.path().join("models")).unwrap();
    let app = App::open(Options::new(DataFolder::new(home.path()))).await.unwrap();
    let options = ServeOptions { port: 0, token: Some(KEY.to_owned()), ..Default::default() };
    let server = Server::bind(app.clone(), options).await.unwrap();
    let address = server.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));

    let running = join_all((0..MAX_ANSWERS).map(|_| async {
        let mut stream = send(address, json!({ "stream": true, "max_tokens": 1_000_000 })).await;
        let mut first = [0; 12];
        timeout(TIMEOUT, stream.read_exact(&mut first)).await.expect("begins").unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        stream
    }))
    .await;
    for reply in thousand(address).await {
        assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    }
    drop(running);

    let mut memory = Vec::new();
    for _ in 0..4 {
        let mut num_answered = 0;
        while num_answered == 0 {
            for reply in thousand(address).await {
                assert!([200, 429].contains(&reply.status), "{reply:?}");
                num_answered += usize::from(reply.status == 200);
            }
        }
        memory.push(resident_kb());
    }
    let (first, last) = (memory[1], memory[3]);
    assert!(last < first + MAX_GROWTH_KB, "{memory:?} KiB");

    stop.send(()).unwrap();
    timeout(TIMEOUT, server).await.expect("the server ends").unwrap();
    app.close().await;
}
