//! Requests of clients with their answers, and the files that have them.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::{Answer, Detail};

/// Why a recording cannot be read or written.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A line is no exchange.
    #[error("{path}, line {line}: {source}; run `make interop`")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// What a client sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// The method.
    pub method: String,
    /// The path, with the query.
    pub path: String,
    /// The headers that say something to the API, with `KEY` for the right key.
    pub headers: Vec<(String, String)>,
    /// The body, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

/// A request of a client, and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// What the client did, in words.
    pub case: String,
    /// What it sent.
    pub sent: Sent,
    /// What it got.
    pub got: Answer,
}

impl Sent {
    /// How much of the answer is the same every time: all of it, unless a random model says
    /// something.
    pub fn detail(&self, status: u16) -> Detail {
        let model = self.body.as_ref().and_then(|body| body["model"].as_str());
        let is_random = model.is_some_and(|model| model.starts_with("tiny-"));
        if is_random && status == 200 { Detail::Shape } else { Detail::Values }
    }
}

/// What one client sent and got.
#[derive(Debug)]
pub struct Recording {
    /// The client: the name of the file.
    pub client: String,
    /// Its exchanges, by name.
    pub exchanges: Vec<Exchange>,
}

impl Recording {
    /// Every recording, by the client's name.
    pub fn all() -> Result<Vec<Recording>, RecordingError> {
        let folder = folder();
        let io = |source| RecordingError::Io { path: folder.clone(), source };
        let entries = fs::read_dir(&folder).map_err(io)?;
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| Ok(entry?.path())).collect::<Result<_, _>>().map_err(io)?;
        paths.sort();
        paths.iter().map(|path| Recording::read(path)).collect()
    }

    fn read(path: &Path) -> Result<Recording, RecordingError> {
        let text = fs::read_to_string(path)
            .map_err(|source| RecordingError::Io { path: path.to_owned(), source })?;
        let exchange = |(index, line)| {
            serde_json::from_str(line).map_err(|source| RecordingError::Line {
                path: path.to_owned(),
                line: index + 1,
                source,
            })
        };
        let exchanges = text.lines().enumerate().map(exchange).collect::<Result<_, _>>()?;
        let client = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Recording { client, exchanges })
    }

    /// Writes the client's file.
    pub fn write(&self) -> Result<PathBuf, RecordingError> {
        let path = folder().join(&self.client).with_extension("jsonl");
        let mut text = String::new();
        for exchange in &self.exchanges {
            // Serializing cannot fail: all keys are strings.
            text.push_str(&serde_json::to_string(exchange).unwrap_or_default());
            text.push('\n');
        }
        fs::write(&path, text)
            .map_err(|source| RecordingError::Io { path: path.clone(), source })?;
        Ok(path)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings")
}
