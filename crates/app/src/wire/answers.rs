//! What an answer consists of.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// A part of an answer. Markers and special tokens are in none of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum AnswerSegment {
    /// Text for the reader.
    Text { text: String },
    /// What the model wrote for itself. While it does, `duration_ms` is none, and the time since
    /// `began_at_ms` is how long it has been doing so.
    Reasoning {
        text: String,
        #[ts(type = "number")]
        began_at_ms: i64,
        duration_ms: Option<u32>,
    },
    /// A tool that the model wants to have called. Nothing calls it.
    ToolCall {
        /// None if no name was found.
        name: Option<String>,
        /// JSON text; of a call that is not complete its beginning.
        arguments: String,
        /// None while it is being written.
        outcome: Option<CallOutcome>,
        /// What the model wrote, once the call has ended.
        raw: String,
    },
}

/// How a tool call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// Its arguments are one JSON object.
    Complete,
    /// The answer ended within it.
    Unfinished,
    /// It is not in the form that the model was trained on.
    Malformed,
}
