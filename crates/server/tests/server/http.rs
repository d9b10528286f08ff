//! The app's commands, its interface and file transfers.

use std::net::{IpAddr, Ipv4Addr};

use cairn_app::wire::{
    Command, Event, Failure, FailureCode, FailureKind, Frame, ImportPreview, MessageStatus,
    NamedCache, Reply,
};
use cairn_server::{ServeOptions, Server};
use cairn_tiny_models::copy_tiny_model;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::api::post;
use crate::running::{Running, TIMEOUT, open_app, start, start_allowing};

const CALL: &str = "POST /api/call HTTP/1.1\r\nhost: HOST\r\nauthorization: Bearer TOKEN\r\ncontent-type: application/json";
const STATUS: &[u8] = br#"{"type":"get_status"}"#;

fn frames(body: &str) -> Vec<Frame> {
    assert!(body.ends_with('\n'), "{body:?}");
    body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_needs_the_servers_host_its_own_origin_and_the_token() {
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
            assert!(
                headers.contains("content-type: application/x-ndjson")
                    && headers.contains("cache-control: no-store"),
                "{headers}"
            );
            match frames.as_slice() {
                [Frame::Reply(_)] => assert_eq!(status, 200),
                [Frame::Failure(failure)] => {
                    assert!(status != 200 && failure.code == FailureCode::Invalid, "{failure:?}")
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let with = |from: &str, to: &str| CALL.replace(from, to);
    check(CALL, STATUS, 200).await;
    check(&with("host: HOST", "host: localhost:PORT"), STATUS, 200).await;
    check(&with("host: HOST", "host: [::1]:PORT"), STATUS, 200).await;
    check(&with("host: HOST", "host: 127.0.0.1"), STATUS, 200).await;
    check(&with("host: HOST", "host: 127.0.0.1:1"), STATUS, 403).await;
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
    check(CALL, &vec![b' '; 64 << 20], 400).await;
    check(CALL, &vec![b' '; (64 << 20) + 1], 413).await;
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
    check(r#"{"type":"send_message","conversation_id":"x","text":" "}"#, 400, FailureCode::Invalid)
        .await;
    check(r#"{"type":"load_model","name":"no/such"}"#, 404, FailureCode::NotFound).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_paths_and_addresses_from_a_page() {
    let running = start(false).await;
    let folder = running.home.path().join("elsewhere");
    copy_tiny_model("llama/tiny-chat", &folder.join("stranger")).unwrap();
    let call = async |command: Command| {
        let body = serde_json::to_vec(&command).unwrap();
        let (status, _, answer) = running.send(CALL, &body).await;
        (status, frames(&answer).pop().unwrap())
    };
    let variable = |frame: Frame| match frame {
        Frame::Failure(Failure { kind: Some(kind), .. }) => match *kind {
            FailureKind::OnlyInApp { variable } => variable,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let set = |key: &str, value: &str| Command::set_for_all(key, value);
    for (key, value, expected) in [
        ("hub_endpoint", "https://hub.example", "HF_ENDPOINT"),
        ("hub_proxy", "http://proxy.example:8080", "HTTPS_PROXY"),
        ("download_folder", folder.to_str().unwrap(), "HF_HUB_CACHE"),
    ] {
        let (status, frame) = call(set(key, value)).await;
        assert_eq!((status, variable(frame)), (400, Some(expected.to_owned())), "{key}");
        assert_eq!(call(set(key, "")).await.0, 200, "{key}: the environment's value may come back");
    }
    let path = folder.to_str().unwrap().to_owned();
    for path in [path.clone(), "/etc".to_owned(), "/proc/self/root".to_owned()] {
        let (status, frame) = call(Command::AddModelFolder { path }).await;
        assert_eq!((status, variable(frame)), (400, None));
    }
    let stranger = folder.join("stranger");
    for name in [stranger.to_str().unwrap(), "../elsewhere/stranger", "elsewhere/stranger", "."] {
        assert_eq!(call(Command::LoadModel { name: name.to_owned() }).await.0, 404, "{name}");
    }

    // Taking a folder off the list can be undone.
    running.app.call(Command::AddModelFolder { path: path.clone() }).await.unwrap();
    assert_eq!(call(Command::RemoveModelFolder { path: path.clone() }).await.0, 200);
    assert_eq!(call(Command::AddModelFolder { path }).await.0, 200);
    let etc = || "/etc".to_owned();
    assert_eq!(call(Command::RemoveModelFolder { path: etc() }).await.0, 200);
    assert_eq!(call(Command::AddModelFolder { path: etc() }).await.0, 400, "it was never there");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_receives_events_until_the_server_stops() {
    let running = start(false).await;
    let stream = TcpStream::connect(running.address).await.unwrap();
    let mut stream = BufReader::new(stream);
    let body = r#"{"type":"subscribe"}"#;
    let head = CALL.replace("HOST", &running.address.to_string()).replace("TOKEN", &running.token);
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut lines = Vec::new();
    let mut next = async || {
        // Skips headers and chunk sizes; a frame is a line with a JSON object.
        loop {
            lines.clear();
            let length = tokio::time::timeout(TIMEOUT, stream.read_until(b'\n', &mut lines))
                .await
                .expect("a line comes")
                .unwrap();
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
    let [Frame::Reply(Reply::Conversation { conversation, .. })] = &frames(&answer)[..] else {
        panic!("{answer}")
    };
    loop {
        match next().await {
            Some(Frame::Event(Event::Conversation { conversation: received })) => {
                break assert_eq!(received.id, conversation.id);
            }
            Some(Frame::Event(Event::Status { .. })) => {}
            other => panic!("{other:?}"),
        }
    }
    running.end().await;
    while next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn the_interface_is_served_or_the_response_says_why_not() {
    let running = start(true).await;
    assert_eq!(running.url, format!("http://{}/#token={}", running.address, running.token));
    let (status, headers, body) = running.send("GET / HTTP/1.1\r\nhost: HOST", b"").await;
    match status {
        200 => {
            assert!(
                headers.contains("content-type: text/html")
                    && headers.contains("cache-control: no-cache"),
                "{headers}"
            );
            assert!(body.contains("<script"), "{body}");
        }
        404 => assert!(body.contains("not built"), "{body}"),
        other => panic!("{other}"),
    }
    assert!(
        !headers.contains(&running.token) && !body.contains(&running.token),
        "the page is no secret"
    );
    running.end().await;

    let running = start(false).await;
    let (status, _, body) = running.send("GET / HTTP/1.1\r\nhost: HOST", b"").await;
    assert!(status == 200 && body.contains("--ui"), "{status} {body}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_allowed_origins_call_the_api_and_nothing_else() {
    let running = start_allowing(ServeOptions {
        allowed_origins: vec!["app://notes".to_owned()],
        ..ServeOptions::default()
    })
    .await;
    let preflight = |path: &str, origin: &str| {
        format!(
            "OPTIONS {path} HTTP/1.1\r\nhost: HOST\r\norigin: {origin}\r\n\
             access-control-request-method: POST\r\naccess-control-request-headers: authorization"
        )
    };
    let (status, headers, _) = running.send(&preflight("/v1/models", "app://notes"), b"").await;
    assert_eq!(status, 204, "{headers}");
    for header in [
        "access-control-allow-origin: app://notes",
        "access-control-allow-headers: authorization",
        "vary: origin",
    ] {
        assert!(headers.contains(header), "{headers}");
    }
    for (path, origin) in [("/api/call", "app://notes"), ("/v1/models", "http://evil.test")] {
        let (status, headers, _) = running.send(&preflight(path, origin), b"").await;
        assert_eq!(status, 403, "{path} {origin}");
        assert!(!headers.contains("access-control"), "{headers}");
    }
    // It needs a key all the same, and may read that it has none.
    let asked = |key: &str| {
        format!("GET /v1/models HTTP/1.1\r\nhost: HOST\r\norigin: app://notes\r\nx-api-key: {key}")
    };
    for (key, expected) in [("TOKEN", 200), ("other", 401)] {
        let (status, headers, _) = running.send(&asked(key), b"").await;
        assert_eq!(status, expected, "{headers}");
        assert!(headers.contains("access-control-allow-origin: app://notes"), "{headers}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_takes_any_name_with_a_key() {
    let running = start(false).await;
    let asked = |path: &str, key: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nhost: host.docker.internal:1\r\nauthorization: Bearer {key}"
        )
    };
    for (path, key, expected) in [
        ("/v1/models", "TOKEN", 200),
        ("/v1/models/", "TOKEN", 200),
        ("//v1/models", "TOKEN", 200),
        ("/v1/models", "other", 401),
        ("/", "TOKEN", 403),
        ("/api/cache/export", "TOKEN", 403),
    ] {
        let (status, headers, body) = running.send(&asked(path, key), b"").await;
        assert_eq!(status, expected, "{path} {key}: {body}");
        assert_eq!(headers.contains("x-request-id: req_"), path != "/" && !path.contains("/api/"));
        assert_eq!(headers.contains("www-authenticate: bearer"), status == 401, "{headers}");
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_address_or_token_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let app = open_app(&home).await;
    let check = async |host: IpAddr, token: Option<&str>, is_served: bool| {
        let token = token.map(str::to_owned);
        let options =
            ServeOptions { host, port: 0, token: token.clone(), ui: false, ..Default::default() };
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
    check(everywhere, Some("s"), false).await;
    check(everywhere, Some("fifteen-letters"), false).await;
    check(everywhere, Some("sixteen--letters"), true).await;

    let first = Server::bind(app.clone(), ServeOptions { port: 0, ..ServeOptions::default() })
        .await
        .unwrap();
    let taken = ServeOptions { port: first.address().port(), ..ServeOptions::default() };
    let error = Server::bind(app.clone(), taken).await.unwrap_err().to_string();
    assert!(error.contains(&first.address().to_string()), "{error}");
    app.close().await;
}

pub const EXPORT: &str =
    "GET /api/cache/export?type=named&id=ID HTTP/1.1\r\nhost: HOST\r\nauthorization: Bearer TOKEN";
const IMPORT: &str = "POST /api/cache/import HTTP/1.1\r\nhost: HOST\r\nauthorization: Bearer TOKEN\r\nx-file-name: Caf%C3%A9.safetensors";

#[tokio::test(flavor = "multi_thread")]
async fn file_transfers_pass_the_same_checks_as_commands() {
    let running = start(false).await;
    let check =
        async |head: &str, content_length: u64, body: &[u8], expected: u16, code: FailureCode| {
            let (status, headers, answer) = running.send_bytes(head, content_length, body).await;
            let answer = String::from_utf8(answer).unwrap();
            assert_eq!(status, expected, "{head}\n{answer}");
            assert!(
                headers.contains("x-content-type-options: nosniff")
                    && !headers.contains("access-control-allow"),
                "{headers}"
            );
            match frames(&answer).as_slice() {
                [Frame::Failure(failure)] => assert_eq!(failure.code, code, "{failure:?}"),
                other => panic!("{other:?}"),
            }
            assert_eq!(running.num_transfers(), 0, "{head}");
        };
    for head in [EXPORT, IMPORT] {
        check(
            &head.replace("host: HOST", "host: evil.test:PORT"),
            0,
            b"",
            403,
            FailureCode::Invalid,
        )
        .await;
        check(
            &head.replace("host: HOST", "host: HOST\r\norigin: http://evil.test"),
            0,
            b"",
            403,
            FailureCode::Invalid,
        )
        .await;
        check(&head.replace("Bearer TOKEN", "Bearer TOKENx"), 0, b"", 401, FailureCode::Invalid)
            .await;
        check(
            &head.replace("\r\nauthorization: Bearer TOKEN", ""),
            0,
            b"",
            401,
            FailureCode::Invalid,
        )
        .await;
    }
    check(EXPORT, 0, b"", 404, FailureCode::NotFound).await;
    check(&EXPORT.replace("named", "conversation"), 0, b"", 404, FailureCode::NotFound).await;
    check(&EXPORT.replace("named", "all"), 0, b"", 400, FailureCode::Invalid).await;
    check(&EXPORT.replace("?type=named&id=ID", ""), 0, b"", 400, FailureCode::Invalid).await;
    check(&IMPORT.replace("x-file-name: ", "x-other: "), 1, b"x", 400, FailureCode::Invalid).await;
    check(&IMPORT.replace("Caf%C3%A9", "Caf%C3"), 1, b"x", 400, FailureCode::Invalid).await;
    check(IMPORT, (64 << 30) + 1, b"", 400, FailureCode::Invalid).await;
    let (status, ..) = running.send(&EXPORT.replace("GET", "POST"), b"").await;
    assert_eq!(status, 405);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_upload_leaves_no_file() {
    let running = start(false).await;
    let mut stream = running.begin(IMPORT, 1 << 20).await;
    stream.write_all(&[0; 1 << 16]).await.unwrap();
    let until = async |num_transfers: usize| {
        while running.num_transfers() != num_transfers {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, until(1)).await.expect("the file is being received");
    drop(stream);
    tokio::time::timeout(TIMEOUT, until(0)).await.expect("the file is removed");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_prompt_cache_can_be_imported() {
    let running = start(false).await;
    let named = named_cache(&running).await;
    let head = EXPORT.replace("ID", &named.id);
    let (status, headers, file) = running.send_bytes(&head, 0, b"").await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&file));
    assert!(
        headers.contains("content-type: application/octet-stream")
            && headers.contains("content-disposition: attachment;"),
        "{headers}"
    );
    assert!(
        headers.contains(&format!("content-length: {}", file.len())) && !file.is_empty(),
        "{headers}"
    );

    let preview = preview(&running, &file).await;
    assert_eq!(
        (preview.problem.as_deref(), preview.file_name.as_str(), preview.tokens),
        (None, "Café.safetensors", named.tokens)
    );
    assert_eq!((preview.title.as_deref(), preview.bytes), (Some("Stones"), file.len() as u64));
    assert_eq!(running.num_transfers(), 1, "the file waits for the decision");
    running.ask(Command::DeleteNamedCache { id: named.id }).await;
    let command =
        Command::ConfirmImport { token: preview.token, name: preview.suggested_name, check: true };
    let Reply::Named { named: again } = running.ask(command).await else {
        panic!("no prompt cache")
    };
    assert_eq!(
        (again.name.as_str(), again.tokens, again.imported_from.as_deref()),
        ("Stones", named.tokens, Some("Café.safetensors"))
    );
    assert_eq!(running.num_transfers(), 0, "the import is over");

    for damaged in [&file[..file.len() / 2], b"", b"no prompt cache at all"] {
        let preview = self::preview(&running, damaged).await;
        assert!(
            preview.problem.is_some_and(|problem| problem.contains("Café.safetensors")),
            "{} bytes",
            damaged.len()
        );
        running.ask(Command::CancelImport { token: preview.token }).await;
        assert_eq!(running.num_transfers(), 0);
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_chats_are_exported_than_an_address_can_name() {
    let running = start(false).await;
    let Reply::Conversation { conversation, .. } = running.ask(Command::NewConversation).await
    else {
        panic!("no chat")
    };
    let export = async |ids: &[String]| {
        let query = format!("format=json&ids={}", ids.join("%2C"));
        running.send(&post("/api/chats/export"), query.as_bytes()).await
    };
    let (status, _, file) = export(&[conversation.id]).await;
    assert_eq!(status, 200, "{file}");
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    assert_eq!(file["conversations"].as_array().map(Vec::len), Some(1), "{file}");
    // 3,000 that are gone are looked for, not refused for their number.
    let gone: Vec<String> =
        (0..3000).map(|number| format!("00000000-0000-0000-0000-{number:012}")).collect();
    let (status, _, answer) = export(&gone).await;
    assert_eq!(status, 404, "{answer}");
    running.end().await;
}

pub async fn preview(running: &Running, file: &[u8]) -> ImportPreview {
    let (status, _, answer) = running.send(IMPORT, file).await;
    match (status, frames(&answer).pop()) {
        (200, Some(Frame::Reply(Reply::ImportPreview { preview }))) => preview,
        other => panic!("{other:?}"),
    }
}

/// Loads the tiny model, sends it a message, and saves its prompt cache under a name.
async fn named_cache(running: &Running) -> NamedCache {
    const MODEL: &str = "tiny-chat";
    let folder = running.home.path().join("models").join(MODEL);
    copy_tiny_model("llama/tiny-chat", &folder).unwrap();
    running.ask(Command::set_for_all("max_tokens", 8)).await;
    running.ask(Command::set_for_all("cache_budget_bytes", 1_u64 << 30)).await;
    running.ask(Command::LoadModel { name: MODEL.to_owned() }).await;
    let Reply::Conversation { conversation, .. } = running.ask(Command::NewConversation).await
    else {
        panic!("no conversation")
    };
    let mut events = running.app.subscribe();
    running
        .ask(Command::SendMessage {
            conversation_id: conversation.id.clone(),
            text: "Hello, stones".to_owned(),
        })
        .await;
    let ends = async {
        let is_end = |event| matches!(event, Event::Message { message } if message.status == MessageStatus::Complete && message.stats.is_some());
        while !is_end(events.recv().await.unwrap()) {}
    };
    tokio::time::timeout(TIMEOUT, ends).await.expect("an answer");
    let command =
        Command::SaveNamedCache { conversation_id: conversation.id, name: "Stones".to_owned() };
    let Reply::Named { named } = running.ask(command).await else { panic!("no prompt cache") };
    named
}
