//! Wire types of conversations and their messages.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::{AnswerSegment, Command, ConversationCache, ConversationPrefix};

impl Command {
    /// Answers the last user message again.
    pub fn regenerate(conversation_id: &str) -> Command {
        let conversation_id = conversation_id.to_owned();
        Command::Regenerate { conversation_id, message_id: None, model: None }
    }
}

/// A row of the conversation list, newest activity first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Conversation {
    pub id: String,
    /// Empty until the first message names it.
    pub title: String,
    /// Empty when there is none.
    pub system_prompt: String,
    #[ts(type = "number")]
    pub created_at_ms: i64,
    #[ts(type = "number")]
    pub updated_at_ms: i64,
    /// An answer is being written.
    pub is_streaming: bool,
    /// It exists only in memory.
    pub is_private: bool,
    /// It stands above the others.
    pub is_pinned: bool,
    /// It is out of the list, but still found.
    pub is_archived: bool,
    /// The folder it is in; a folder that is not listed is none.
    pub folder_id: Option<String>,
    /// Its saved context; none if nothing of it was ever saved.
    pub cache: Option<ConversationCache>,
    /// The starting point that it begins with.
    pub prefix: Option<ConversationPrefix>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
}

/// How far a message has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum MessageStatus {
    /// Being written.
    Streaming,
    /// Finished: end of sequence, or the token limit (see `stats.finish_reason`).
    Complete,
    /// Stopped by the user; it has the text until then.
    Stopped,
    /// The app ended abruptly while it was written; it has the text until the last save.
    Interrupted,
    /// Failed; `error` says why, and it has the text until then.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Message {
    pub id: String,
    pub conversation_id: String,
    /// The message this one follows in the tree; none for the first.
    pub parent_id: Option<String>,
    pub role: Role,
    pub status: MessageStatus,
    /// What a person reads of it: of an answer its text without reasoning and tool calls. Events about
    /// a part of an answer name its segments only.
    pub text: String,
    /// Of an answer.
    pub segments: Vec<AnswerSegment>,
    /// It is being written, but waits for `Stop` or `GoOn`, because it repeats itself.
    pub is_held: bool,
    pub error: Option<String>,
    #[ts(type = "number")]
    pub created_at_ms: i64,
    /// Of an assistant message, once it has finished.
    pub stats: Option<MessageStats>,
    /// The model that wrote an answer, where that is known.
    pub model: Option<String>,
    /// The messages that follow the same one as this, itself included, oldest first; empty where there
    /// is no other.
    pub versions: Vec<String>,
    /// `ContinueAnswer` can let it go on, if nothing follows it.
    pub can_continue: bool,
}

/// The figures under an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct MessageStats {
    pub model: String,
    /// "stop" (end of sequence), "length" (token limit), "context" (end of the context), "cancelled".
    pub finish_reason: String,
    /// The whole prompt, `cached_tokens` included.
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// Why more tokens had to be read again than were new, as text; none if only new ones were
    /// read.
    pub cache_note: Option<String>,
    pub generation_tokens: u32,
    /// How long it waited for other work of the engine before its own began.
    pub queue_ms: f64,
    /// Prefill speed: newly read prompt tokens a second.
    pub prompt_tps: f64,
    pub generation_tps: f64,
    pub time_to_first_token_ms: f64,
    /// Process memory when it finished, and the most since the process started.
    #[ts(type = "number")]
    pub process_bytes: u64,
    #[ts(type = "number")]
    pub process_peak_bytes: u64,
    /// MLX memory when it finished, and the most during this answer.
    #[ts(type = "number")]
    pub mlx_active_bytes: u64,
    #[ts(type = "number")]
    pub mlx_peak_bytes: u64,
}
