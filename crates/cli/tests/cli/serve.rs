//! `cairn serve`: which addresses and tokens it accepts, and how it stops.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::program::{MODEL, Program};

const SIGINT: i32 = 2;
/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
pub struct Server {
    child: Child,
    pub address: String,
    pub token: String,
    log: BufReader<std::process::ChildStderr>,
    /// What was read of it.
    said: String,
}

impl Server {
    pub fn start(program: &Program) -> Server {
        Server::start_with(program.command(&["serve", "--port", "0"]))
    }

    fn start_with(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let (address, token) =
            url.trim().strip_prefix("http://").unwrap().split_once("/#token=").unwrap();
        let (address, token) = (address.to_owned(), token.to_owned());
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut server = Server { child, address, token, log, said: String::new() };
        server.wait_for_line("Ctrl-C stops the server");
        server
    }

    /// Reads stderr up to a line that contains `text`.
    fn wait_for_line(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "no line says {text:?}");
            self.said += &line;
        }
    }

    /// The answer to a request of a program.
    pub fn post(&self, path: &str, body: &str) -> String {
        let Server { address, token, .. } = self;
        let mut connection = TcpStream::connect(address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    /// What Ctrl-C in a terminal does.
    pub fn interrupt(&self) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-INT", &pid]).status().unwrap();
        assert!(status.success());
    }

    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

#[tokio::test]
async fn a_short_or_missing_token_is_refused_where_other_machines_can_reach_the_server() {
    let program = Program::new().await;
    let serve = ["serve", "--host", "0.0.0.0", "--port", "0"];
    let check_refused = |token: &[&str], expected: &str| {
        let mut command = program.command(&[&serve, token].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        if !url.is_empty() {
            child.kill().unwrap();
            panic!("{token:?} is served at {url}");
        }
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{token:?}: {stderr}");
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{token:?}: {stderr}");
    };
    check_refused(&["--token", "x"], "16 characters");
    check_refused(&["--token", "fifteen-letters"], "16 characters");
    check_refused(&[], "--token");
    check_refused(&["--token", "a space in the token"], "spaces");
    let file = program.file("token");
    std::fs::write(&file, "x\n").unwrap();
    check_refused(&["--token-file", &file], "16 characters");
}

#[tokio::test]
async fn wrong_arguments_are_refused_before_the_data_folder_is_opened() {
    let program = Program::new().await;
    let home = program.file("never-made");
    let check = |flags: &[&str], code: i32, expected: &str| {
        let mut command = program.command(&[&["serve"], flags].concat());
        let output = command.env("CAIRN_HOME", &home).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {stderr}");
        assert_eq!(stderr.matches(expected).count(), 1, "{flags:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{flags:?}: {stderr}");
        assert!(!std::path::Path::new(&home).exists(), "{flags:?} made the data folder");
    };
    check(&["--host", "0.0.0.0", "--port", "0", "--token", "short"], 2, "16 characters");
    check(&["--speculate", "draft"], 2, "--draft-model");
    check(&["--speculate", "lookup", "--draft-model", "m"], 2, "leave one");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    check(&["--port", &port], 1, "Address already in use");
}

#[tokio::test]
async fn the_only_name_to_listen_on_is_localhost() {
    let program = Program::new().await;
    let expected = "give an IP address such as 127.0.0.1, or localhost";
    program.check_fails(&["serve", "--host", "a-name"], 2, expected);
    // The address is read, and the next mistake is named.
    let missing = program.file("missing");
    let serve = ["serve", "--host", "localhost", "--port", "0", "--token-file", &missing];
    program.check_fails(&serve, 1, "cannot read the token");
}

#[tokio::test]
async fn a_draft_model_that_is_missing_is_refused_before_it_listens() {
    let program = Program::new().await;
    let serve = ["serve", "--port", "0", "--draft-model", "a-slip"];
    program.check_fails(&serve, 1, "a-slip");
}

#[tokio::test]
async fn one_interrupt_stops_the_server() {
    let program = Program::new().await;
    let server = Server::start(&program);
    server.interrupt();
    assert_eq!(server.wait().code(), Some(0));
}

#[tokio::test]
async fn a_second_interrupt_ends_the_program_at_once() {
    let program = Program::new().await;
    // Shutdown gives this connection a second to finish its request. The second interrupt comes
    // within that second, unless this test is not scheduled for so long; then it is tried again.
    let was_killed = (0..10).any(|_| {
        let mut server = Server::start(&program);
        let mut connection = TcpStream::connect(&server.address).unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        server.interrupt();
        server.wait_for_line("again");
        server.interrupt();
        server.wait().signal() == Some(SIGINT)
    });
    assert!(was_killed);
}

#[tokio::test]
async fn a_damaged_database_is_told_in_sentences_without_colours() {
    let program = Program::new().await;
    std::fs::write(program.home().join("cairn.db"), "no database".repeat(1000)).unwrap();
    let recovers = "start the Cairn app or `cairn serve`, which recover what can be read";
    program.check_fails(&["cache", "list"], 1, recovers);
    let server = Server::start(&program);
    let said = server.said.clone();
    server.interrupt();
    assert_eq!(server.wait().code(), Some(0));
    assert!(said.contains("The database was damaged. "), "{said}");
    assert!(!said.contains("Recovery {") && !said.contains('\u{1b}'), "{said:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn raises_the_limit_of_open_files() {
    let program = Program::new().await;
    let command = program.command(&["serve", "--port", "0"]);
    let mut limited = Command::new("sh");
    limited.stdin(Stdio::null()).args(["-c", "ulimit -Sn 256 && exec \"$0\" \"$@\""]);
    limited.arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let server = Server::start_with(limited);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let open_files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut columns = open_files.split_whitespace();
    let (soft, hard) = (columns.next().unwrap(), columns.next().unwrap());
    assert_eq!(soft, hard);
    assert_ne!(soft, "256");
    server.interrupt();
    assert!(server.wait().success());
}

#[tokio::test]
async fn answers_with_defaults_of_its_flags() {
    let program = Program::new().await;
    let flags = ["serve", "--port", "0", "--model", MODEL, "--max-tokens", "3", "--temp", "0"];
    let server = Server::start_with(program.command(&flags));
    let num_tokens = |path: &str, body: Value| {
        let answer = server.post(path, &body.to_string());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let answer: Value = serde_json::from_str(body).unwrap();
        answer["usage"]["completion_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    let mut chat = json!({ "messages": [{ "role": "user", "content": "x" }], "ignore_eos": true });
    assert_eq!(num_tokens("/v1/chat/completions", chat.clone()), 3);
    chat["max_tokens"] = 2.into();
    assert_eq!(num_tokens("/v1/chat/completions", chat), 2);
    assert_eq!(num_tokens("/v1/completions", json!({ "prompt": "x", "ignore_eos": true })), 3);
    server.interrupt();
    assert_eq!(server.wait().code(), Some(0));
}

#[tokio::test]
async fn lets_pages_of_listed_origins_call() {
    let program = Program::new().await;
    for origins in
        [&["https://a.example,https://b.example"][..], &["https://a.example", "https://b.example"]]
    {
        let flags = [&["serve", "--port", "0", "--allowed-origins"], origins].concat();
        let server = Server::start_with(program.command(&flags));
        for origin in ["https://a.example", "https://b.example", "https://c.example"] {
            let mut connection = TcpStream::connect(&server.address).unwrap();
            let head = format!(
                "OPTIONS /v1/models HTTP/1.0\r\nhost: {}\r\norigin: {origin}\r\n\
                 access-control-request-method: GET\r\n\r\n",
                server.address
            );
            connection.write_all(head.as_bytes()).unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            let is_allowed = answer.to_lowercase().contains("access-control-allow-origin");
            assert_eq!(is_allowed, origin != "https://c.example", "{origin}: {answer}");
        }
        server.interrupt();
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[tokio::test]
async fn saves_no_context_when_told_so() {
    let program = Program::new().await;
    let body = json!({ "prompt": "Stones upon stones. ".repeat(20), "max_tokens": 2 }).to_string();
    // Chunks are written after the answer, and closing waits for them at most two seconds.
    let serve_until_saved = |more: &[&str], saves: bool| {
        let flags = [&["serve", "--port", "0", "--model", MODEL], more].concat();
        let server = Server::start_with(program.command(&flags));
        assert!(server.post("/v1/completions", &body).contains("200 OK"), "{more:?}");
        let began = Instant::now();
        while saves && program.num_chunk_files() == 0 {
            assert!(began.elapsed() < PATIENCE, "nothing is saved");
            std::thread::yield_now();
        }
        server.interrupt();
        assert_eq!(server.wait().code(), Some(0));
        program.num_chunk_files()
    };
    assert_eq!(serve_until_saved(&["--no-saved-context"], false), 0);
    assert_eq!(serve_until_saved(&["--cache-budget", "0"], false), 0);
    let num_saved = serve_until_saved(&["--cache-budget", "1GB"], true);
    assert_eq!(serve_until_saved(&["--no-saved-context"], false), num_saved);
}

#[tokio::test]
async fn logs_what_its_level_says() {
    let program = Program::new().await;
    let logs = |level: &str| {
        let flags = ["serve", "--port", "0", "--model", MODEL, "--log-level", level];
        let mut server = Server::start_with(program.command(&flags));
        server.interrupt();
        server.log.read_to_string(&mut server.said).unwrap();
        let said = std::mem::take(&mut server.said);
        assert_eq!(server.wait().code(), Some(0));
        said
    };
    assert!(logs("INFO").contains("INFO cairn_"));
    assert!(!logs("WARNING").contains("INFO"));
}
