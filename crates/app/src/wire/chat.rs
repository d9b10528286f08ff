//! Wire types of conversations and their messages.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::answers::AnswerSegment;
use super::cache::{ConversationCache, ConversationPrefix};
use super::documents::Document;
use super::failures::FailureKind;
use super::misses::CacheMiss;
use super::setting_values::{AtOverflow, Thinking};

/// Who writes one of two answers that are compared, and with what. What is not set is as in other answers
/// of the conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct CompareColumn {
    /// None: the one that answers next in the conversation.
    pub model: Option<String>,
    pub temperature: Option<f64>,
    #[ts(type = "number | null")]
    pub seed: Option<u64>,
    /// None: what holds in the conversation.
    #[serde(default)]
    pub thinking: Option<Thinking>,
}

/// A row of the conversation list, newest activity first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Conversation {
    pub id: String,
    /// Empty until the first message names it, and where that has no word.
    pub title: String,
    /// Whether the branch on screen has any messages.
    pub has_messages: bool,
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
    /// The persona that it was begun with; one that is not listed is none.
    pub persona_id: Option<String>,
    /// What the conversation was called of which it is a branch, while its own title says that.
    pub branch_of: Option<String>,
    /// Which model answers next.
    pub model: ChatModel,
    /// Its saved context; none if nothing of it was ever saved.
    pub cache: Option<ConversationCache>,
    /// The starting point that it begins with.
    pub prefix: Option<ConversationPrefix>,
}

/// Which model answers next in a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ChatModel {
    /// None: whichever is loaded, or would be.
    pub name: Option<String>,
    /// What names it.
    pub source: ChatModelSource,
    /// The one that would answer instead if it were on this machine; none once another has answered since it was
    /// chosen.
    pub missing: Option<String>,
}

/// [`Conversation::model`] of one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ModelOfChat {
    pub conversation_id: String,
    pub model: ChatModel,
}

/// What names the model of a conversation, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ChatModelSource {
    /// It was chosen in the conversation, or the persona that began it has it.
    Chat,
    /// It wrote the last answer on the branch on screen.
    Answer,
    /// The folder has it.
    Folder,
    /// It is loaded.
    App,
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
    /// Cairn was closed or ended abruptly while it was written; it has the text until then, or until
    /// the last save.
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
    /// Of a question: what stands before it.
    pub documents: Vec<Document>,
    /// It is being written, but waits for `Stop` or `GoOn`, because it repeats itself.
    pub is_held: bool,
    pub error: Option<String>,
    /// What `error` says, where that is common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub error_kind: Option<Box<FailureKind>>,
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
    /// The model reads the branch from this message on, because what is before it had outgrown its
    /// context. Of several in a branch the last one counts.
    pub cut: Option<ContextCut>,
}

/// What is read in the place of the messages before one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ContextCut {
    /// The model's own summary of them; none: they are forgotten.
    pub summary: Option<String>,
}

/// A conversation whose context is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContextOf {
    Conversation { id: String },
    New(NewChat),
}

/// A conversation that its first message will make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct NewChat {
    /// The folder that it will be in.
    pub folder_id: Option<String>,
    /// Its own system prompt, or its persona's; none to use its folder's, or else the prompt that
    /// is set for the model.
    pub system_prompt: Option<String>,
    /// The model that will answer; none to use the loaded one.
    pub model: Option<String>,
}

/// How much of a model's context a conversation takes, in tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ChatContext {
    /// The model that would answer now.
    pub model: String,
    /// The most tokens of prompt and answer together.
    pub limit_tokens: u32,
    /// What is read now, without what a next message adds.
    pub used_tokens: u32,
    /// The system prompt or the starting point, with what the template writes around it: what all
    /// conversations with that begin with.
    pub beginning_tokens: u32,
    /// The documents of the beginning and of the messages that are read: the sum of
    /// [`Document::tokens`].
    pub document_tokens: u32,
    /// The summary of earlier messages.
    pub summary_tokens: u32,
    /// What is kept free for the next answer, wherever something may be cut off for it.
    pub answer_tokens: u32,
    /// What happens when less is left.
    pub at_overflow: AtOverflow,
    /// The system prompt that the conversation has, or a new one will have; empty if it has none.
    pub system_prompt: String,
    /// The system prompt that the model's template writes where a conversation has none.
    pub own_system_prompt: Option<String>,
}

/// How many tokens of an answer were guessed ahead, and what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Guesses {
    pub proposed: u32,
    pub accepted: u32,
    /// Tokens of the answer that the model chose in a pass over several, accepted or not.
    pub checked: u32,
}

/// Where the prompt tokens that were not read again came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct CachedFrom {
    /// The chat's own context, which was still in memory.
    pub in_memory: u32,
    /// The chat's saved context, read back after a restart, a change of the model or an eviction.
    pub restored: u32,
    /// Context that another chat, the folder or a starting point has read.
    pub shared: u32,
    /// Context that was read for this very question before it was sent.
    pub read_ahead: u32,
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
    /// Where `cached_tokens` came from; its parts add up to them. None in answers of an earlier
    /// version.
    pub cached_from: Option<CachedFrom>,
    /// How many of the prompt's tokens were kept, where others were dropped once all had been read.
    pub kept_tokens: Option<u32>,
    /// Why more tokens had to be read again than were new, as text; none if only new ones were
    /// read.
    pub cache_note: Option<String>,
    /// The same in parts; none in answers of an earlier version.
    pub miss: Option<CacheMiss>,
    /// How much longer the answer would have taken without what was restored or shared; none if nothing
    /// was, or if the model has read too little to tell. Answers of an earlier version count all of
    /// `cached_tokens`.
    pub saved_ms: Option<f64>,
    pub generation_tokens: u32,
    /// What was guessed ahead; none where nothing was, and in answers of an earlier version.
    pub guesses: Option<Guesses>,
    /// How long it waited for other work of the engine before its own began.
    pub queue_ms: f64,
    /// Prefill speed: newly read prompt tokens a second; 0 if they are too few to tell.
    pub prompt_tps: f64,
    /// 0 if the tokens are too few to tell.
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
