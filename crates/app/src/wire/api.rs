//! Wire types of the server that other programs ask: whether it runs, its keys, its last requests.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// All that the page about the server shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ApiOverview {
    pub server: ApiServer,
    /// In the order in which they were made.
    pub keys: Vec<ApiKey>,
    /// The last 100 since Cairn was opened, the newest first.
    pub requests: Vec<ApiRequest>,
}

/// Whether the API is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "state", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum ApiServer {
    Off {
        /// Why it could not be switched on, or has stopped; one sentence.
        problem: Option<String>,
    },
    Running {
        /// `http://` and where it listens, without a path.
        address: String,
        /// It follows the setting `api_is_on`. One that `cairn serve` started does not.
        is_switched: bool,
    },
}

/// A key for programs. The key itself is told once, when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ApiKey {
    pub id: String,
    pub name: String,
    #[ts(type = "number")]
    pub created_at_ms: i64,
    /// None if it was never used; else right to the minute.
    #[ts(type = "number | null")]
    pub last_used_at_ms: Option<i64>,
}

/// A request of a program that has ended. What of it was asked or answered is not here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ApiRequest {
    /// Larger than that of every request that ended before it.
    pub number: u32,
    /// When it came.
    #[ts(type = "number")]
    pub at_ms: i64,
    /// The key's name; none for the token of `cairn serve`, and where the key was wrong.
    pub key: Option<String>,
    /// Method and path.
    pub route: String,
    pub model: Option<String>,
    /// These are of an answer that has ended.
    pub figures: Option<ApiFigures>,
    /// HTTP's; of an answer that failed after its first byte, that of its failure, and 499 if the
    /// program went away before its end.
    pub status: u16,
}

/// The figures of a program's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ApiFigures {
    /// The whole prompt, `cached_tokens` included.
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub generation_tokens: u32,
    pub time_to_first_token_ms: f64,
    /// 0 if the tokens are too few to tell.
    pub generation_tps: f64,
}
