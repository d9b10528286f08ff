//! What crosses to a user interface: one closed set of commands, replies and events, as plain data.
//!
//! These are wire types, not domain types: `commands.rs` converts by hand. The TypeScript twin in
//! `ui/src/platform/wire.ts` is generated from this file (`cargo xtask bindings`) and a test keeps
//! the two equal. Ids are UUID v7 strings, times are milliseconds since the Unix epoch, sizes are
//! bytes. All numbers stay below 2^53, so they are plain `number`s in TypeScript.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// Everything a user interface can ask for.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Command {
    /// The state to draw first: conversations, models, settings, status, named prompt caches.
    Bootstrap,
    /// Sends every [`Event`] from now on, until the caller goes away. Answers [`Reply::Done`]
    /// first, and once more whenever events were lost to a slow caller, who then asks for
    /// everything again.
    Subscribe,
    /// One conversation with the messages of its current branch.
    GetConversation { id: String },
    /// An empty conversation without a title; the first message names it.
    NewConversation,
    /// An empty conversation that only memory holds: nothing of it is written anywhere, and it is
    /// gone when the app closes.
    NewPrivateConversation,
    /// Sets the title; an empty one is refused.
    RenameConversation { id: String, title: String },
    /// Sets the system prompt of a conversation; an empty one removes it.
    SetSystemPrompt { id: String, system_prompt: String },
    /// Hides a conversation; `RestoreConversation` brings it back for ten minutes, or until the
    /// app is closed. Then it is gone with all that is kept of it.
    DeleteConversation { id: String },
    /// Undoes `DeleteConversation`.
    RestoreConversation { id: String },
    /// Appends a user message and starts the answer. Answers when both rows are saved; the text
    /// comes as events.
    SendMessage { conversation_id: String, text: String },
    /// Answers the last user message again, beside the earlier answer (a sibling in the message
    /// tree).
    Regenerate { conversation_id: String },
    /// Stops the answer being written; what is there is kept.
    Stop { conversation_id: String },
    /// Looks again at the model folders.
    ListModels,
    /// Loads a model by name; the one loaded before is dropped. Progress comes as `Status`.
    LoadModel { name: String },
    /// Drops the loaded model from memory.
    UnloadModel,
    /// Replaces the settings.
    UpdateSettings { settings: Settings },
    /// The status now (the same as the `Status` event).
    GetStatus,
    /// What a report of a problem needs, as one text without secrets and texts of conversations.
    /// Answers [`Reply::Diagnostics`].
    GetDiagnostics,
    /// What the prompt cache keeps.
    GetCache,
    /// Removes all of it but what is named or pinned.
    ClearCache,
    /// Keeps what is kept of a conversation whatever the budgets say, or no longer.
    PinConversation { id: String, is_pinned: bool },
    /// Removes what is kept of a conversation and of no other; its messages stay.
    PurgeConversation { id: String },
    /// Keeps what the model has read of a conversation under a name, to begin other conversations
    /// with. Answers [`Reply::Named`].
    SaveNamedCache { conversation_id: String, name: String },
    /// Gives a named prompt cache another name.
    RenameNamedCache { id: String, name: String },
    /// Forgets a named prompt cache; `RestoreNamedCache` brings it back until the app is closed.
    DeleteNamedCache { id: String },
    /// Undoes `DeleteNamedCache`.
    RestoreNamedCache { id: String },
    /// A conversation that begins with a named prompt cache. Answers [`Reply::Conversation`].
    NewConversationFrom { named_id: String },
    /// Imports the file of a preview under a name, perhaps recomputing sample positions of it
    /// first. Answers [`Reply::Named`].
    ConfirmImport { token: String, name: String, check: bool },
    /// Forgets a preview and its file.
    CancelImport { token: String },
}

/// The answer to a [`Command`] that worked.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Reply {
    Done,
    Bootstrap {
        conversations: Vec<Conversation>,
        models: Vec<Model>,
        settings: Settings,
        status: Status,
        named: Vec<NamedCache>,
    },
    Conversation {
        conversation: Conversation,
        messages: Vec<Message>,
    },
    /// The two rows that `SendMessage` saved, or the one that `Regenerate` did.
    Sent {
        conversation: Conversation,
        messages: Vec<Message>,
    },
    Models {
        models: Vec<Model>,
    },
    Settings {
        settings: Settings,
    },
    Status {
        status: Status,
    },
    Diagnostics {
        text: String,
    },
    Cache {
        cache: CacheOverview,
    },
    Named {
        named: NamedCache,
    },
    ImportPreview {
        preview: ImportPreview,
    },
}

/// The answer to a [`Command`] that failed: one clear sentence, and a code where the interface acts
/// on it.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
pub struct Failure {
    pub code: FailureCode,
    pub message: String,
}

/// Why a command failed, as far as the interface behaves differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// No model is loaded and none can be: the interface shows the model chooser.
    NoModel,
    /// The thing named does not exist (any more).
    NotFound,
    /// The request itself is wrong (empty title, empty message, already answering).
    Invalid,
    /// The data folder cannot be written or is full.
    Storage,
    /// The model could not be loaded, or generation failed.
    Engine,
}

/// What the interface is told without asking.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Event {
    /// A conversation was made, renamed, restored or has a new message.
    Conversation {
        conversation: Conversation,
    },
    /// A conversation was hidden.
    ConversationDeleted {
        id: String,
    },
    /// A message was saved or has changed as a whole: replaces what the interface holds.
    Message {
        message: Message,
    },
    /// Text to append to a message that is being written. `offset` is the length in UTF-16 code
    /// units of the text before it; after a gap the interface asks for the conversation again. At
    /// most 30 of these a second.
    Delta {
        conversation_id: String,
        message_id: String,
        offset: u32,
        text: String,
    },
    /// How far the prompt of a message has been read.
    Prefill {
        conversation_id: String,
        message_id: String,
        processed_tokens: u32,
        total_tokens: u32,
        cached_tokens: u32,
    },
    Models {
        models: Vec<Model>,
    },
    Settings {
        settings: Settings,
    },
    /// At most four a second while something runs, one every two seconds otherwise, none while
    /// nothing changes.
    Status {
        status: Status,
    },
    /// Something to tell the person that no command asked for.
    Notice {
        level: NoticeLevel,
        text: String,
    },
    /// What the prompt cache keeps has changed; at most one a second.
    CacheChanged,
    /// The named prompt caches as they are now.
    NamedCaches {
        named: Vec<NamedCache>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum NoticeLevel {
    Info,
    Warning,
    Error,
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
    /// Only memory holds it.
    pub is_private: bool,
    /// What is kept of it; none while nothing is.
    pub cache: Option<ConversationCache>,
    /// The named prompt cache that it begins with.
    pub prefix: Option<ConversationPrefix>,
}

/// What is kept of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ConversationCache {
    pub kept_tokens: u32,
    #[ts(type = "number")]
    pub kept_bytes: u64,
    /// Bytes that no other conversation or named prompt cache shares.
    #[ts(type = "number")]
    pub own_bytes: u64,
    pub tier: CacheTier,
    pub is_pinned: bool,
    /// Name of the model that read it.
    pub model: String,
    /// That model itself: with this one loaded (`Status::model_fingerprint`) what is kept is of
    /// use.
    pub fingerprint: String,
    /// Nothing of what was read is missing.
    pub is_whole: bool,
    /// Titles of other conversations and names of named prompt caches with the same beginning, at
    /// most 5.
    pub shared_with: Vec<String>,
    /// What was lost and why, in words.
    pub lost: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CacheTier {
    Memory,
    Disk,
}

/// The named prompt cache that a conversation begins with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ConversationPrefix {
    pub name: String,
    pub tokens: u32,
    pub start_text: String,
    pub end_text: String,
    pub is_imported: bool,
}

/// A prompt cache that was saved under a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct NamedCache {
    pub id: String,
    pub name: String,
    pub model: String,
    pub tokens: u32,
    #[ts(type = "number")]
    pub bytes: u64,
    /// None: lost, it would be read anew.
    pub tier: Option<CacheTier>,
    pub start_text: String,
    pub end_text: String,
    /// File it was imported from.
    pub imported_from: Option<String>,
    /// The model that read it, as in `ConversationCache`.
    pub fingerprint: String,
    #[ts(type = "number")]
    pub created_at_ms: i64,
    #[ts(type = "number")]
    pub last_used_at_ms: i64,
    /// Conversations that begin with it.
    pub num_conversations: u32,
    /// Why no conversation can begin with it: something was lost that cannot be read again.
    pub problem: Option<String>,
}

/// A run of kept tokens without a branch.
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
    /// Decoded, shortened; none where the loaded model is another.
    pub text: Option<String>,
    pub model: String,
    /// Ids of the conversations that end in it.
    pub conversations: Vec<String>,
    /// Ids of the named prompt caches that end in it.
    pub named: Vec<String>,
    pub is_pinned: bool,
}

/// Whose words kept tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    System,
    User,
    Assistant,
}

/// The cache page.
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
    /// Prompts looked up since start.
    pub lookups: u32,
    /// Tokens of those prompts.
    #[ts(type = "number")]
    pub prompt_tokens: u64,
    /// How many of them were read from cache.
    #[ts(type = "number")]
    pub cached_tokens: u64,
    /// Depth first, runs of chunks without a branch merged, most recently used first among
    /// siblings, at most 500.
    pub nodes: Vec<CacheNode>,
    pub num_hidden_nodes: u32,
    pub named: Vec<NamedCache>,
    /// Why something could not be written to disk lately.
    pub problem: Option<String>,
}

/// What a file holds, shown before it is imported.
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
    /// What could not be checked.
    pub warnings: Vec<String>,
    /// Sample positions can be recomputed and compared.
    pub can_check: bool,
}

/// What is exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum CacheSource {
    Conversation { id: String },
    Named { id: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
}

/// Where a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum MessageStatus {
    /// Being written.
    Streaming,
    /// Finished: end of sequence, or the token limit (see `stats.finish_reason`).
    Complete,
    /// Stopped by the person; the text until then is kept.
    Stopped,
    /// The app died while it was written; the text until the last save is kept.
    Interrupted,
    /// Failed; `error` says why, the text until then is kept.
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
    pub text: String,
    pub error: Option<String>,
    #[ts(type = "number")]
    pub created_at_ms: i64,
    /// Of an assistant message, once it has finished.
    pub stats: Option<MessageStats>,
}

/// The figures that stand under an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct MessageStats {
    pub model: String,
    /// "stop" (end of sequence), "length" (token limit), "cancelled".
    pub finish_reason: String,
    /// The whole prompt, what was read from cache included.
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// Why not more was read from cache, in words; none when everything that could be was.
    pub cache_note: Option<String>,
    pub generation_tokens: u32,
    /// How long it waited behind other work before its own began.
    pub queue_ms: f64,
    /// Newly read prompt tokens a second.
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

/// A model folder found on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Model {
    pub name: String,
    pub path: String,
    /// config.json's `model_type`.
    pub model_type: String,
    #[ts(type = "number")]
    pub bytes: u64,
    /// Why this model cannot be loaded (unknown architecture, missing file); none when it can.
    pub problem: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Settings {
    /// The model loaded at start and for new conversations; empty: the last one used, or the
    /// starter.
    pub default_model: String,
    /// 0 is greedy.
    pub temperature: f64,
    /// In (0, 1]; 1 turns it off.
    pub top_p: f64,
    /// The longest answer, in tokens.
    pub max_tokens: u32,
    /// A fixed seed makes sampled answers repeat; none: a new one every time.
    #[ts(type = "number | null")]
    pub seed: Option<u64>,
    /// Most bytes of prompt caches kept on disk.
    #[ts(type = "number")]
    pub cache_budget_bytes: u64,
    /// Most bytes of prompt caches kept in memory.
    #[ts(type = "number")]
    pub cache_ram_budget_bytes: u64,
    pub appearance: Appearance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Appearance {
    System,
    Light,
    Dark,
}

/// What the engine does now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "state", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum EngineState {
    /// No model is loaded.
    Empty,
    Loading {
        model: String,
    },
    /// Waits for work.
    Ready {
        model: String,
    },
    /// Reads a prompt.
    Prefilling {
        model: String,
        processed_tokens: u32,
        total_tokens: u32,
    },
    /// Writes an answer.
    Generating {
        model: String,
        generation_tokens: u32,
        generation_tps: f64,
    },
    /// The last load failed.
    Failed {
        model: String,
        message: String,
    },
}

/// The status bar and the menu-bar item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Status {
    pub engine: EngineState,
    /// Which model is loaded, whatever it is called; none while none is.
    pub model_fingerprint: Option<String>,
    /// "cpu" or "gpu".
    pub device: String,
    #[ts(type = "number")]
    pub process_bytes: u64,
    #[ts(type = "number")]
    pub process_peak_bytes: u64,
    #[ts(type = "number")]
    pub mlx_active_bytes: u64,
    #[ts(type = "number")]
    pub mlx_peak_bytes: u64,
    #[ts(type = "number")]
    pub mlx_cache_bytes: u64,
    /// What the stored prompt caches hold on disk.
    #[ts(type = "number")]
    pub cache_disk_bytes: u64,
    /// What they hold in memory, beside the conversation that ran last.
    #[ts(type = "number")]
    pub cache_ram_bytes: u64,
}

/// One line of the HTTP door's answer (newline-delimited JSON) and one message on the Tauri
/// channel.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Frame {
    Reply(Reply),
    Failure(Failure),
    Event(Event),
}
