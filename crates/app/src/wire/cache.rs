//! Wire types of saved context: what is saved of conversations, starting points, prompt-cache files.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::misses::CacheMiss;

/// The saved context of a conversation: the beginning of its prompt whose keys and values are in
/// the prompt cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ConversationCache {
    pub cached_tokens: u32,
    #[ts(type = "number")]
    pub cached_bytes: u64,
    /// The part of `cached_bytes` that no other conversation or starting point shares.
    #[ts(type = "number")]
    pub own_bytes: u64,
    pub tier: CacheTier,
    pub is_pinned: bool,
    /// Name of the model that computed it.
    pub model: String,
    /// Fingerprint of that model. Only while it is loaded (`Status::model_fingerprint`) the
    /// conversation can continue from its saved context.
    pub fingerprint: String,
    /// All that the model has read is still saved.
    pub is_whole: bool,
    /// Titles of other conversations, and names of starting points, of folders and of keys of the API,
    /// with the same beginning, at most 5.
    pub shared_with: Vec<String>,
    /// How many tokens are no longer saved and why, as text.
    pub loss: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CacheTier {
    Memory,
    Disk,
}

/// What the next turn of a conversation would find saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ChatOutlook {
    /// The model that would answer.
    pub model: String,
    /// What it can have read before, of the prompt as it would be now.
    pub known_tokens: u32,
    /// How many of the prompt's tokens it would not read.
    pub cached_tokens: u32,
    /// Why it would read more than what is new; none where it would not.
    pub miss: Option<CacheMiss>,
}

/// The starting point that a conversation begins with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ConversationPrefix {
    pub name: String,
    pub tokens: u32,
    pub start_text: String,
    pub end_text: String,
    pub is_imported: bool,
}

/// A named prompt cache, which the window calls a starting point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct NamedCache {
    pub id: String,
    pub name: String,
    pub model: String,
    pub tokens: u32,
    #[ts(type = "number")]
    pub bytes: u64,
    /// None if a part is no longer saved: it is computed again at the next use.
    pub tier: Option<CacheTier>,
    pub start_text: String,
    pub end_text: String,
    /// Name of the file it was imported from.
    pub imported_from: Option<String>,
    /// Fingerprint of the model that computed it, as in `ConversationCache`.
    pub fingerprint: String,
    #[ts(type = "number")]
    pub created_at_ms: i64,
    #[ts(type = "number")]
    pub last_used_at_ms: i64,
    /// Conversations that begin with it.
    pub num_conversations: u32,
    /// Why no conversation can begin with it: a part is no longer saved, and its tokens are not
    /// known, so that it cannot be computed again.
    pub problem: Option<String>,
}

/// A row of the stored pieces: chunks of the prompt cache that continue each other without a
/// branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct CacheNode {
    pub key: String,
    /// Key of the node it continues.
    pub parent_key: Option<String>,
    pub start: u32,
    pub tokens: u32,
    #[ts(type = "number")]
    pub bytes: u64,
    pub kind: CacheKind,
    pub tier: CacheTier,
    pub hits: u32,
    #[ts(type = "number")]
    pub last_used_at_ms: i64,
    /// The beginning of its text; none unless the model that computed it is loaded.
    pub text: Option<String>,
    pub model: String,
    /// Ids of the conversations that end in it.
    pub conversations: Vec<String>,
    /// Ids of the starting points that end in it.
    pub named: Vec<String>,
    /// Ids of the folders whose documents end in it.
    pub folders: Vec<String>,
    pub is_pinned: bool,
}

/// The role of the message that the tokens belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    System,
    User,
    Assistant,
}

/// The content of the saved-context page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct CacheOverview {
    #[ts(type = "number")]
    pub disk_bytes: u64,
    #[ts(type = "number")]
    pub disk_budget_bytes: u64,
    #[ts(type = "number")]
    pub memory_bytes: u64,
    #[ts(type = "number")]
    pub memory_budget_bytes: u64,
    pub num_chunks: u32,
    /// How many prompts were looked up in the cache since the start.
    pub lookups: u32,
    /// Tokens of all prompts that were read since the start, with `cached_tokens`.
    #[ts(type = "number")]
    pub prompt_tokens: u64,
    /// How many of these tokens came from saved context.
    #[ts(type = "number")]
    pub cached_tokens: u64,
    /// Depth first, runs of chunks without a branch merged, most recently used first among
    /// siblings, at most 500.
    pub nodes: Vec<CacheNode>,
    pub num_hidden_nodes: u32,
    pub named: Vec<NamedCache>,
    /// Why the newest context could not be saved to disk, if it could not.
    pub problem: Option<String>,
    pub time_saved: TimeSaved,
}

/// How much reading saved context has spared, since this is counted. Private chats are not in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct TimeSaved {
    /// Of all chats, also of those that were deleted.
    pub all_ms: f64,
    /// When the first of these answers was asked for; none where there was none.
    #[ts(type = "number | null")]
    pub since_ms: Option<i64>,
    /// Of each chat that is not deleted; the one that saved most first.
    pub chats: Vec<ChatTimeSaved>,
}

/// How much reading the saved context of one chat has spared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ChatTimeSaved {
    pub conversation_id: String,
    pub saved_ms: f64,
}

/// The description of a prompt-cache file, shown before it is imported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ImportPreview {
    pub token: String,
    pub file_name: String,
    pub suggested_name: String,
    pub title: Option<String>,
    pub model: String,
    /// "prompt" or "conversation".
    pub kind: String,
    pub tokens: u32,
    #[ts(type = "number")]
    pub bytes: u64,
    pub start_text: Option<String>,
    pub end_text: Option<String>,
    pub made_by: Option<String>,
    #[ts(type = "number | null")]
    pub created_at_ms: Option<i64>,
    /// Why it cannot be imported, one sentence.
    pub problem: Option<String>,
    /// What could not be checked, one sentence each.
    pub warnings: Vec<String>,
    /// Whether `ConfirmImport` can compute sample positions again and compare them.
    pub can_check: bool,
}

/// The saved context that is exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum CacheSource {
    Conversation { id: String },
    Named { id: String },
}

/// The mlx-lm version whose layout an exported file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
pub enum CacheFileLayout {
    /// mlx-lm 0.32 and newer.
    #[serde(rename = "0.32")]
    V0_32,
    /// mlx-lm 0.30 and 0.31.
    #[serde(rename = "0.30")]
    V0_30,
}
