//! A segment of an answer, as it is shown and stored.

use serde::{Deserialize, Serialize};

/// A segment of an answer, as it is shown and stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum AnswerSegment {
    /// Text for the reader.
    Text { text: String },
    /// What the model wrote for itself. `began_at_ms` is shifted by pauses, so that the time since
    /// then is how long it has thought; `duration_ms` is none while it goes on.
    Reasoning { text: String, began_at_ms: i64, duration_ms: Option<u32> },
    /// A tool call.
    ToolCall {
        /// None if no name was found.
        name: Option<String>,
        /// JSON text; of a call that is not complete its beginning.
        arguments: String,
        /// None while it is being written.
        outcome: Option<Outcome>,
        /// What the model wrote, once that is known.
        raw: String,
    },
}

/// How a tool call ended: [`cairn_chat::CallOutcome`] as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Complete,
    Unfinished,
    Malformed,
}

impl AnswerSegment {
    /// The text that grows.
    pub(crate) fn growing(&self) -> &str {
        match self {
            AnswerSegment::Text { text } | AnswerSegment::Reasoning { text, .. } => text,
            AnswerSegment::ToolCall { arguments, .. } => arguments,
        }
    }

    /// What a stored answer says to its reader, without reasoning and calls.
    pub(crate) fn said(segments: Option<&str>, text: &str) -> String {
        let texts = AnswerSegment::stored(segments, text).into_iter().filter_map(|one| match one {
            AnswerSegment::Text { text } => Some(text.trim().to_owned()),
            AnswerSegment::Reasoning { .. } | AnswerSegment::ToolCall { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n\n")
    }

    /// The segments of a stored answer; those that cannot be read are its text.
    pub(crate) fn stored(segments: Option<&str>, text: &str) -> Vec<AnswerSegment> {
        let stored = segments.and_then(|segments| serde_json::from_str(segments).ok());
        stored.unwrap_or_else(|| match text.trim().is_empty() {
            true => Vec::new(),
            false => vec![AnswerSegment::Text { text: text.to_owned() }],
        })
    }
}
