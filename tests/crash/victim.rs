//! The process that is killed, and the lines that it prints.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use crate::TIMEOUT;

/// A line that the victim prints.
pub enum Line {
    Conversation(String),
    Sent { question_id: String, question: String, answer_id: String },
    Delta(String, String),
    Complete(String, String),
    Rows(usize),
    Job { num_answered: u32, is_running: bool },
}

impl Line {
    pub fn parse(text: &str) -> Option<Line> {
        let mut words = serde_json::from_str::<Vec<String>>(text).ok()?.into_iter();
        let mut word = || words.next();
        Some(match word()?.as_str() {
            "conversation" => Line::Conversation(word()?),
            "sent" => Line::Sent { question_id: word()?, question: word()?, answer_id: word()? },
            "delta" => Line::Delta(word()?, word()?),
            "complete" => Line::Complete(word()?, word()?),
            "rows" => Line::Rows(word()?.parse().ok()?),
            "job" => {
                Line::Job { num_answered: word()?.parse().ok()?, is_running: word()? == "Running" }
            }
            _ => return None,
        })
    }
}

/// The victim's process, which is killed when this is dropped.
pub struct Victim {
    pub child: Child,
    lines: Receiver<Line>,
}

impl Victim {
    pub fn start(
        home: &Path,
        work: &str,
        conversation: &str,
        max_tokens: u32,
        question: &str,
    ) -> Victim {
        Victim::start_with(home, &[work, conversation, &max_tokens.to_string(), question])
    }

    /// Starts a victim with these arguments behind its data folder.
    pub fn start_with(home: &Path, arguments: &[&str]) -> Victim {
        let mut child = Command::new(env!("CARGO_BIN_EXE_crash_victim"))
            .arg(home)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        // A pipe can still be read after the process that wrote to it has died.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Only a line that the kill has cut short does not parse.
                let Some(line) = Line::parse(&line) else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Victim { child, lines }
    }

    pub fn next(&self) -> Option<Line> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the victim prints nothing"),
        }
    }

    /// The conversation that the victim names in its first line.
    pub fn conversation(&self) -> String {
        match self.next() {
            Some(Line::Conversation(id)) => id,
            _ => panic!("the victim does not name its conversation"),
        }
    }

    /// Lets a victim begin that waits for a line on stdin.
    pub fn begin(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    /// Kills the process and returns the lines that it had printed and that were not read yet.
    pub fn kill(mut self) -> Vec<Line> {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), None, "the victim ended before it was killed");
        std::iter::from_fn(|| self.next()).collect()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
