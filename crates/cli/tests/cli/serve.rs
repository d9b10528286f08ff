//! `cairn serve`: which addresses and tokens it accepts.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::program::Program;

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
