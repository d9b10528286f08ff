//! Wire types of the monitor: figures of the last minutes and of the last day.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::cache::TimeSaved;

/// Figures at a moment, with what was done since the point before. Those of answers are of answers in
/// chats that have ended since then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct MonitorPoint {
    /// Greater than that of every point before it.
    pub number: u32,
    #[ts(type = "number")]
    pub at_ms: i64,
    /// The time since Cairn was opened, by a clock that does not jump.
    #[ts(type = "number")]
    pub elapsed_ms: u64,
    #[ts(type = "number")]
    pub process_bytes: u64,
    #[ts(type = "number")]
    pub mlx_active_bytes: u64,
    #[ts(type = "number")]
    pub mlx_cache_bytes: u64,
    /// Of all programs; none where the system does not say.
    #[ts(type = "number | null")]
    pub machine_used_bytes: Option<u64>,
    /// The most requests that have waited to begin.
    pub num_waiting: u32,
    /// Tokens a second of all requests together, while they were read: the tokens of the last few
    /// points divided by the time for them. None if none were read since the point before, or too
    /// few to tell.
    pub reading_tps: Option<f64>,
    /// The same of tokens that were written.
    pub writing_tps: Option<f64>,
    /// The mean of chats' answers.
    pub first_token_ms: Option<f64>,
    /// Tokens of all prompts that were read, with `cached_tokens`, which came from saved context.
    #[ts(type = "number")]
    pub prompt_tokens: u64,
    #[ts(type = "number")]
    pub cached_tokens: u64,
}

/// The least, the mean and the greatest of several values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, TS)]
pub struct Spread {
    pub least: f64,
    pub mean: f64,
    pub most: f64,
}

impl Spread {
    /// Of one value.
    pub(crate) fn one(value: f64) -> Spread {
        Spread { least: value, mean: value, most: value }
    }

    /// With those of another one, where this one is of so many times as many values.
    pub(crate) fn with(self, other: Spread, times: f64) -> Spread {
        Spread {
            least: self.least.min(other.least),
            mean: (self.mean * times + other.mean) / (times + 1.0),
            most: self.most.max(other.most),
        }
    }
}

/// Figures of ten minutes. Each is none where there was nothing of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct MonitorSpan {
    /// When it began.
    #[ts(type = "number")]
    pub at_ms: i64,
    /// Cairn was opened in it: what was before says nothing about the time in between.
    pub begins_run: bool,
    pub process_bytes: Option<Spread>,
    pub mlx_active_bytes: Option<Spread>,
    pub mlx_cache_bytes: Option<Spread>,
    pub machine_used_bytes: Option<Spread>,
    pub reading_tps: Option<Spread>,
    pub writing_tps: Option<Spread>,
    /// None where it was not noted.
    pub most_waiting: Option<u32>,
    pub first_token_ms: Option<Spread>,
    /// Tokens of all prompts that were read, with `cached_tokens`, which came from saved context.
    #[ts(type = "number")]
    pub prompt_tokens: u64,
    #[ts(type = "number")]
    pub cached_tokens: u64,
}

/// The work of one model or for one chat: answers, reading ahead, titles and summaries; for a model
/// also requests of jobs and other programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct MonitorRow {
    /// The name of the model, or the title of the chat.
    pub name: String,
    /// Of the chat.
    pub conversation_id: Option<String>,
    pub num_answers: u32,
    /// Tokens that were read, without `cached_tokens`.
    #[ts(type = "number")]
    pub read_tokens: u64,
    /// Tokens that came from saved context.
    #[ts(type = "number")]
    pub cached_tokens: u64,
    #[ts(type = "number")]
    pub written_tokens: u64,
    /// The sum of the answers' `saved_ms`; none if no answer has one.
    pub saved_ms: Option<f64>,
    /// The mean; none without a first token.
    pub first_token_ms: Option<f64>,
}

/// The last day. Deleted chats have no row; their work stays in the rows of models and in the spans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct MonitorDay {
    /// When it ends, which is now.
    #[ts(type = "number")]
    pub until_ms: i64,
    pub span_ms: u32,
    /// Those with figures, the oldest first; at most 145.
    pub spans: Vec<MonitorSpan>,
    /// Private chats included; the one with the newest answer first.
    pub models: Vec<MonitorRow>,
    /// The same order; at most 20.
    pub chats: Vec<MonitorRow>,
    /// How many more chats there are.
    pub num_more_chats: u32,
    /// All private chats together.
    pub private: Option<MonitorRow>,
    /// Of all days.
    pub time_saved: TimeSaved,
}
