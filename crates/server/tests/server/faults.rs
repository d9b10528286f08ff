//! What the API withstands: web pages, names that point here, clients that go away or read slowly,
//! requests that are too large, too deep or out of range. Many at once are in `parallel.rs`, a port
//! that is taken in `switch.rs`, an address that others can reach in `http.rs`.

use cairn_tiny_models::{SHOWS_NOTHING, copy_scripted_model};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

use crate::api::{ENDLESS, MODEL, ask, chat, engine, post, start_with};
use crate::running::{Running, TIMEOUT};

const CHAT: &str = "/v1/chat/completions";
const ROUTES: [&str; 6] =
    [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/decisions", "/v1/embeddings"];

#[tokio::test(flavor = "multi_thread")]
async fn a_web_pages_simple_post_is_refused_on_every_route() {
    let running = start_with(&[MODEL]).await;
    for route in ROUTES {
        let check = async |from: &str, to: &str, expected: u16| {
            let head = post(route).replace(from, to);
            let (status, headers, answer) = running.send(&head, b"{}").await;
            assert_eq!(status, expected, "{head}: {answer}");
            assert!(!headers.contains("access-control-allow"), "{headers}");
        };
        // What a form or a script of another page can send without being asked.
        check("authorization: Bearer TOKEN\r\n", "", 401).await;
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            check("application/json", kind, 415).await;
        }
        check("content-type", "origin: https://page.test\r\ncontent-type", 403).await;
        check("content-type", "origin: null\r\ncontent-type", 403).await;
        check("POST", "OPTIONS", 405).await;
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_pointed_at_this_machine_is_refused() {
    let running = start_with(&[MODEL]).await;
    for route in ROUTES.map(post).into_iter().chain([post("/health"), post("/openapi.json")]) {
        for host in ["evil.test:PORT", "evil.test", "192.168.0.1:PORT", "localhost.evil.test:PORT"]
        {
            let head = route.replace("host: HOST", &format!("host: {host}"));
            // The page that has done so has no key.
            let head = head.replace("\r\nauthorization: Bearer TOKEN", "");
            let (status, _, answer) = running.send(&head, b"{}").await;
            assert_eq!(status, 403, "{head}: {answer}");
            let guessed = format!("{head}\r\nauthorization: Bearer guessed");
            let (status, _, answer) = running.send(&guessed, b"{}").await;
            assert!(status == 401 || status == 403, "{guessed}: {status} {answer}");
        }
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_headers_are_refused() {
    let running = start_with(&[MODEL]).await;
    let many: String = (0..10_000).map(|number| format!("x-{number}: 1\r\n")).collect();
    let long = format!("x-long: {}\r\n", "1".repeat(4 << 20));
    for headers in [many, long] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let head = format!("GET /health HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", running.address);
        // The server answers and closes before it has read everything.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut status = [0; 12];
        let read = tokio::time::timeout(TIMEOUT, stream.read_exact(&mut status)).await;
        read.expect("the server answers").unwrap();
        assert_eq!(&status, b"HTTP/1.1 431");
    }
    assert_eq!(ask(&running, CHAT, &chat(json!({}))).await["object"], "chat.completion");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_beside_connections_without_a_request() {
    let running = start_with(&[MODEL]).await;
    let mut unfinished = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let head = format!("GET / HTTP/1.1\r\nhost: {}\r\nx-more: ", running.address);
        // The server may have closed it.
        let _ = stream.write_all(head.as_bytes()).await;
        unfinished.push(stream);
    }
    assert_eq!(ask(&running, CHAT, &chat(json!({}))).await["object"], "chat.completion");
    // More than 128 are never open.
    for stream in &mut unfinished[..72] {
        let mut rest = Vec::new();
        let closed = stream.read_to_end(&mut rest);
        let _ = tokio::time::timeout(TIMEOUT, closed).await.expect("the server closes it");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_64_mb_is_refused_on_every_route() {
    let running = start_with(&[MODEL]).await;
    let body = vec![b' '; 64 << 20];
    for route in ROUTES {
        let (status, _, answer) = running.send(&post(route), &body).await;
        assert_eq!(status, 413, "{route}: {answer}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_json_is_refused_or_answered_on_every_route() {
    let running = start_with(&[MODEL]).await;
    for route in ROUTES {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
            for body in [deep(100_000), format!("{{\"messages\":{}}}", deep(100_000))] {
                let (status, _, answer) = running.send(&post(route), body.as_bytes()).await;
                assert_eq!(status, 400, "{route}: {answer}");
            }
        }
    }
    // As deep as JSON may be, in each place that takes any.
    let mut schema = json!({ "type": "string" });
    let mut value = json!(1);
    for _ in 0..100 {
        schema = json!({ "type": "array", "items": schema });
        value = json!([value]);
    }
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let tool = json!({ "type": "function", "function": { "name": "x", "parameters": schema } });
    for more in [
        json!({ "response_format": format }),
        json!({ "tools": [tool], "tool_choice": "required" }),
        json!({ "chat_template_kwargs": { "x": value } }),
        json!({ "metadata": value }),
    ] {
        let (status, _, answer) =
            running.send(&post(CHAT), chat(more).to_string().as_bytes()).await;
        assert!([200, 400].contains(&status), "{status}: {answer}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_out_of_range_are_refused_by_name() {
    let running = start_with(&[MODEL]).await;
    let check = async |field: &str, number: &str| {
        // As text, because JSON values hold no such numbers.
        let body = chat(json!({ field: "NUMBER" })).to_string().replace("\"NUMBER\"", number);
        let (status, _, answer) = running.send(&post(CHAT), body.as_bytes()).await;
        assert_eq!(status, 400, "{field} {number}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        let is_json = serde_json::from_str::<Value>(number).is_ok();
        assert!(!is_json || message.contains(field), "{field} {number}: {message}");
    };
    for number in ["NaN", "Infinity", "1e400", "-1", "1e39"] {
        check("temperature", number).await;
    }
    for number in ["NaN", "-0.1", "1.5"] {
        check("top_p", number).await;
        check("min_p", number).await;
    }
    for number in ["-2", "4294967296", "1.5", "1e30"] {
        check("max_tokens", number).await;
        check("max_completion_tokens", number).await;
    }
    for number in ["0", "2", "1000", "-1", "2147483648"] {
        check("n", number).await;
    }
    check("seed", "1e30").await;
    check("presence_penalty", "1e39").await;
    check("frequency_penalty", "-1e39").await;
    check("top_k", "-1").await;
    check("top_logprobs", "21").await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_out_of_range_is_refused_where_nothing_is_sampled_too() {
    let running = start_with(&[MODEL]).await;
    for route in ROUTES.into_iter().chain(["/v1/messages/count_tokens"]) {
        for (field, number) in [("min_p", 2), ("repetition_penalty", -1)] {
            let body = json!({ field: number }).to_string();
            let (status, _, answer) = running.send(&post(route), body.as_bytes()).await;
            assert_eq!(status, 400, "{route}: {answer}");
            assert!(answer.contains(field), "{route}: {answer}");
        }
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_to_the_31_tokens_may_be_asked_for_and_take_no_memory() {
    let running = start_with(&[]).await;
    let folder = running.home.path().join("models/scripted");
    copy_scripted_model(&folder, "Q", "Yes.", SHOWS_NOTHING).unwrap();
    for max_tokens in [1_u64 << 31, u64::from(u32::MAX)] {
        let asked = chat(json!({ "model": "scripted", "max_tokens": max_tokens }));
        let answer = ask(&running, CHAT, &asked).await;
        assert_eq!(answer["choices"][0]["message"]["content"], "Yes.");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    running.end().await;
}

/// An answer without an end, whose events are lines.
async fn endless(running: &Running) -> Lines<BufReader<TcpStream>> {
    let body = chat(json!({ "stream": true, "max_tokens": ENDLESS })).to_string();
    let mut client = running.begin(&post(CHAT), body.len() as u64).await;
    client.write_all(body.as_bytes()).await.unwrap();
    BufReader::new(client).lines()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_at_any_token_ends_its_answer() {
    let running = start_with(&[MODEL]).await;
    // Three times as many as may run at once.
    for number in 0..192_u32 {
        let mut lines = endless(&running).await;
        // Before the answer has begun, too. A multiplier of a generator of pseudorandom numbers.
        let num_events = (number.wrapping_mul(0x9E37_79B1) >> 28) as usize;
        let mut seen = 0;
        while seen < num_events {
            let line = lines.next_line().await.unwrap().expect("the answer goes on");
            seen += usize::from(line.starts_with("data:"));
        }
        drop(lines);
    }
    let ended = async { while engine(&running).await.1 {} };
    tokio::time::timeout(TIMEOUT, ended).await.expect("the answers end with their clients");
    assert_eq!(ask(&running, CHAT, &chat(json!({}))).await["object"], "chat.completion");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_holds_up_nobody() {
    let running = start_with(&[MODEL]).await;
    let mut slow = endless(&running).await;
    while !slow.next_line().await.unwrap().unwrap().starts_with("data:") {}
    // It reads no further; others are answered.
    for _ in 0..3 {
        assert_eq!(ask(&running, CHAT, &chat(json!({}))).await["object"], "chat.completion");
    }
    // And it can go on.
    while !slow.next_line().await.unwrap().unwrap().starts_with("data:") {}
    drop(slow);
    let ended = async { while engine(&running).await.1 {} };
    tokio::time::timeout(TIMEOUT, ended).await.expect("the answer ends with its client");
    running.end().await;
}
