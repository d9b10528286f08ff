//! The server as a client meets it: bytes over a socket, so that nothing is polite on our behalf.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cairn_app::wire::{Event, FailureCode, Frame, Reply};
use cairn_app::{App, CacheVariables, Options, Places};
use cairn_server::{ServeError, ServeOptions, Server};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    _home: TempDir,
    app: Arc<App>,
    address: SocketAddr,
    token: String,
    url: String,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), ServeError>>,
}

async fn open_app(home: &TempDir) -> Arc<App> {
    App::open(Options { places: Places::new(home.path()), hub_variables: CacheVariables::default(), autoload: false }).await.unwrap()
}

async fn start(ui: bool) -> Running {
    let home = tempfile::tempdir().unwrap();
    let app = open_app(&home).await;
    let options = ServeOptions { port: 0, ui, ..ServeOptions::default() };
    let server = Server::bind(app.clone(), options).await.unwrap();
    let (address, url, token) = (server.address(), server.url(), server.token().to_owned());
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    Running { _home: home, app, address, token, url, stop, server }
}

impl Running {
    async fn end(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.server).await.expect("the server ends").unwrap().unwrap();
        self.app.close().await;
    }

    /// Sends a request as it stands and returns status, headers (lower case) and body. `HOST` and `TOKEN` are filled in.
    async fn send(&self, head: &str, body: &[u8]) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = head.replace("HOST", &self.address.to_string()).replace("PORT", &self.address.port().to_string());
        let head = format!("{}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", head.replace("TOKEN", &self.token), body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server may refuse and leave while a large body is still on its way.
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server answers");
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_owned())
    }
}

const CALL: &str = "POST /api/call HTTP/1.1\r\nhost: HOST\r\nauthorization: Bearer TOKEN\r\ncontent-type: application/json";
const STATUS: &[u8] = br#"{"type":"get_status"}"#;

fn frames(body: &str) -> Vec<Frame> {
    assert!(body.ends_with('\n'), "{body:?}");
    body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_own_page_with_the_token_may_command() {
    let running = start(true).await;
    let check = async |head: &str, body: &[u8], expected: u16| {
        let (status, headers, answer) = running.send(head, body).await;
        assert_eq!(status, expected, "{head}\n{answer}");
        assert!(headers.contains("content-security-policy: default-src 'none';"), "{headers}");
        assert!(headers.contains("x-content-type-options: nosniff"), "{headers}");
        assert!(headers.contains("referrer-policy: no-referrer"), "{headers}");
        assert!(!headers.contains("access-control-allow"), "{headers}");
        if head.starts_with("POST /api/call ") {
            let frames = frames(&answer);
            assert!(headers.contains("content-type: application/x-ndjson") && headers.contains("cache-control: no-store"), "{headers}");
            match frames.as_slice() {
                [Frame::Reply(_)] => assert_eq!(status, 200),
                [Frame::Failure(failure)] => assert!(status != 200 && failure.code == FailureCode::Invalid, "{failure:?}"),
                other => panic!("{other:?}"),
            }
        }
    };
    let with = |from: &str, to: &str| CALL.replace(from, to);
    check(CALL, STATUS, 200).await;
    check(&with("host: HOST", "host: localhost:PORT"), STATUS, 200).await;
    check(&with("host: HOST", "host: [::1]:PORT"), STATUS, 200).await;
    check(&with("host: HOST", "host: 127.0.0.1"), STATUS, 403).await;
    check(&with("host: HOST", "host: evil.test:PORT"), STATUS, 403).await;
    check(&with("host: HOST", "host: HOST\r\nhost: evil.test:PORT"), STATUS, 403).await;
    check(&with("/api/call ", "http://evil.test/api/call "), STATUS, 403).await;
    check(&with("host: HOST", "host: HOST\r\norigin: http://HOST"), STATUS, 200).await;
    check(&with("host: HOST", "host: HOST\r\norigin: http://evil.test"), STATUS, 403).await;
    check(&with("host: HOST", "host: HOST\r\norigin: null"), STATUS, 403).await;
    check(&with("authorization: Bearer TOKEN\r\n", ""), STATUS, 401).await;
    check(&with("Bearer TOKEN", "Bearer TOKENx"), STATUS, 401).await;
    check(&with("Bearer TOKEN", "Basic TOKEN"), STATUS, 401).await;
    check(&with("application/json", "text/plain"), STATUS, 415).await;
    check(&with("\r\ncontent-type: application/json", ""), STATUS, 415).await;
    check(&with("POST", "GET"), STATUS, 405).await;
    check(CALL, b"", 400).await;
    check(CALL, b"{}", 400).await;
    check(CALL, br#"{"type":"format_disk"}"#, 400).await;
    check(CALL, br#"{"type":"get_conversation"}"#, 400).await;
    check(CALL, "[".repeat(100_000).as_bytes(), 400).await;
    check(CALL, &[b' '; 1 << 20], 400).await;
    check(CALL, &vec![b' '; (1 << 20) + 1], 413).await;
    check("GET / HTTP/1.1\r\nhost: evil.test:PORT", b"", 403).await;
    check("GET /etc/passwd HTTP/1.1\r\nhost: HOST", b"", 404).await;
    check("GET /../../../Cargo.toml HTTP/1.1\r\nhost: HOST", b"", 404).await;
    check("GET /%2e%2e/package.json HTTP/1.1\r\nhost: HOST", b"", 404).await;
    check("POST / HTTP/1.1\r\nhost: HOST", b"", 405).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_the_status_of_their_code() {
    let running = start(false).await;
    let check = async |body: &str, expected: u16, code: FailureCode| {
        let (status, _, answer) = running.send(CALL, body.as_bytes()).await;
        assert_eq!(status, expected, "{answer}");
        match frames(&answer).as_slice() {
            [Frame::Failure(failure)] => assert_eq!(failure.code, code),
            other => panic!("{other:?}"),
        }
    };
    check(r#"{"type":"get_conversation","id":"x"}"#, 404, FailureCode::NotFound).await;
    check(r#"{"type":"send_message","conversation_id":"x","text":" "}"#, 400, FailureCode::Invalid).await;
    check(r#"{"type":"load_model","name":"no/such"}"#, 404, FailureCode::NotFound).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_hears_of_everything_until_the_server_ends() {
    let running = start(false).await;
    let stream = TcpStream::connect(running.address).await.unwrap();
    let mut stream = BufReader::new(stream);
    let body = r#"{"type":"subscribe"}"#;
    let head = CALL.replace("HOST", &running.address.to_string()).replace("TOKEN", &running.token);
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut lines = Vec::new();
    let mut next = async || {
        // Chunk sizes and headers stand between the frames; a frame is a line that is an object.
        loop {
            lines.clear();
            let length = tokio::time::timeout(PATIENCE, stream.read_until(b'\n', &mut lines)).await.expect("a line comes").unwrap();
            if length == 0 {
                return None;
            }
            if lines.starts_with(b"{") {
                return Some(serde_json::from_slice::<Frame>(&lines).unwrap());
            }
        }
    };
    assert!(matches!(next().await, Some(Frame::Reply(Reply::Done))));
    let (_, _, answer) = running.send(CALL, br#"{"type":"new_conversation"}"#).await;
    let [Frame::Reply(Reply::Conversation { conversation, .. })] = &frames(&answer)[..] else { panic!("{answer}") };
    loop {
        match next().await {
            Some(Frame::Event(Event::Conversation { conversation: told })) => break assert_eq!(told.id, conversation.id),
            Some(Frame::Event(Event::Status { .. })) => {}
            other => panic!("{other:?}"),
        }
    }
    running.end().await;
    while next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn the_interface_is_served_or_its_absence_explained() {
    let running = start(true).await;
    assert_eq!(running.url, format!("http://{}/#token={}", running.address, running.token));
    let (status, headers, body) = running.send("GET / HTTP/1.1\r\nhost: HOST", b"").await;
    match status {
        200 => {
            assert!(headers.contains("content-type: text/html") && headers.contains("cache-control: no-cache"), "{headers}");
            assert!(body.contains("<script"), "{body}");
        }
        404 => assert!(body.contains("not built"), "{body}"),
        other => panic!("{other}"),
    }
    assert!(!headers.contains(&running.token) && !body.contains(&running.token), "the page is no secret");
    running.end().await;

    let running = start(false).await;
    let (status, _, body) = running.send("GET / HTTP/1.1\r\nhost: HOST", b"").await;
    assert!(status == 404 && body.contains("--ui"), "{status} {body}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_or_token_that_would_be_unsafe_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let app = open_app(&home).await;
    let check = async |host: IpAddr, token: Option<&str>, is_served: bool| {
        let options = ServeOptions { host, port: 0, token: token.map(str::to_owned), ui: false };
        let server = Server::bind(app.clone(), options).await;
        assert_eq!(server.is_ok(), is_served, "{host} with {token:?}: {:?}", server.err());
    };
    let everywhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let here = IpAddr::from(Ipv4Addr::LOCALHOST);
    check(here, None, true).await;
    check(here, Some("secret"), true).await;
    check(here, Some(""), false).await;
    check(here, Some("two words"), false).await;
    check(here, Some("line\nbreak"), false).await;
    check(everywhere, None, false).await;
    check(everywhere, Some("secret"), true).await;

    let first = Server::bind(app.clone(), ServeOptions { port: 0, ..ServeOptions::default() }).await.unwrap();
    let taken = ServeOptions { port: first.address().port(), ..ServeOptions::default() };
    let error = Server::bind(app.clone(), taken).await.unwrap_err().to_string();
    assert!(error.contains(&first.address().to_string()), "{error}");
    app.close().await;
}
