//! The messages of a conversation and the figures of an answer: plain types that the other crates
//! share.

use serde::{Deserialize, Serialize};

/// The role of a message's author.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions before the conversation.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name that chat templates and databases use.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The role of its author.
    pub role: Role,
    /// The text, without anything the chat template adds.
    pub content: String,
    /// The token ids that this message added to the model's input when it was first used: for a
    /// user message everything between the message before it and the answer (template pieces
    /// included), for an assistant message the sampled ids. Text that a model sampled often encodes
    /// differently, so these are reused as long as they still decode to what the template renders.
    pub token_ids: Option<Vec<u32>>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token.
    Stop,
    /// The token limit, or the end of the context where nobody looks which of the two.
    Length,
    /// The end of the context.
    Context,
    /// The caller dropped the request or asked to stop.
    Cancelled,
}

/// Why tokens were read again that had been read before, as it is stored with an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMiss {
    /// How many.
    pub num_tokens: usize,
    /// The app's name for the cause.
    pub cause: String,
    /// What the cause names: a model, the system prompt before, a reason of the operating system.
    pub detail: Option<String>,
    /// When it happened, in milliseconds since the Unix epoch, where that is known.
    pub at_ms: Option<i64>,
}

/// How many tokens of an answer a drafter proposed, and what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuessCounts {
    /// Tokens proposed.
    pub num_proposed: usize,
    /// Tokens proposed, accepted and part of the answer.
    pub num_accepted: usize,
    /// Tokens of the answer that the model chose in a pass over several, accepted or not.
    pub num_checked: usize,
}

impl GuessCounts {
    /// The counts of two parts of an answer together.
    pub fn together(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(GuessCounts {
                num_proposed: one.num_proposed + other.num_proposed,
                num_accepted: one.num_accepted + other.num_accepted,
                num_checked: one.num_checked + other.num_checked,
            }),
            (one, other) => one.or(other),
        }
    }
}

/// Where the prompt tokens that were not read again came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CachedFrom {
    /// The same owner's caches, which were still in memory.
    pub num_in_memory: usize,
    /// The same owner's saved context, read back after a restart, a change of the model or an
    /// eviction.
    pub num_restored: usize,
    /// Context of another owner: another chat, a folder, a starting point.
    pub num_shared: usize,
    /// Context that was read for this very question before it was sent.
    pub num_read_ahead: usize,
}

impl CachedFrom {
    /// Returns the sum over all sources.
    pub fn num_tokens(&self) -> usize {
        self.num_in_memory + self.num_restored + self.num_shared + self.num_read_ahead
    }

    /// Takes away the last `num_tokens` of the prompt's cached beginning: what another owner has read
    /// follows what the same owner has.
    pub fn shorten(&mut self, num_tokens: usize) {
        let mut left = num_tokens;
        let Self { num_in_memory, num_restored, num_shared, num_read_ahead } = self;
        for source in [num_read_ahead, num_shared, num_restored, num_in_memory] {
            let taken = left.min(*source);
            *source -= taken;
            left -= taken;
        }
    }
}

/// The figures of one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerationStats {
    /// Name of the model that answered.
    pub model: String,
    /// Why the answer ended.
    pub finish_reason: FinishReason,
    /// Length of the whole prompt, cached part included.
    pub num_prompt_tokens: usize,
    /// How many prompt tokens were read from the prompt cache.
    pub num_cached_tokens: usize,
    /// Where those came from; none in older answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_from: Option<CachedFrom>,
    /// How many of the prompt's tokens were kept, where others were dropped once all had been read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_kept_tokens: Option<usize>,
    /// The reason why not more was read from the cache, as a sentence; none when everything that
    /// could be was, and until the app fills it in.
    pub cache_note: Option<String>,
    /// The same in parts, so that an interface can offer what prevents it; none in older answers too.
    #[serde(default)]
    pub miss: Option<CacheMiss>,
    /// How much longer the answer would have taken without what was restored or shared, in
    /// milliseconds; none if neither was, if the model has read too little to tell, and until the app
    /// fills it in. Older answers count all cached tokens.
    #[serde(default)]
    pub saved_ms: Option<f64>,
    /// Tokens sampled, without an end-of-sequence token.
    pub num_generation_tokens: usize,
    /// What was guessed ahead; none where nothing was, and in older answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guesses: Option<GuessCounts>,
    /// From the request's arrival until work on it began, in milliseconds.
    #[serde(default)]
    pub queue_ms: f64,
    /// Newly processed prompt tokens per second.
    pub prompt_tps: f64,
    /// Sampled tokens per second, after the first.
    pub generation_tps: f64,
    /// From the request's arrival to the first sampled token, in milliseconds.
    pub time_to_first_token_ms: f64,
    /// MLX memory in use when the answer ended.
    pub mlx_active_bytes: u64,
    /// The most MLX memory in use during this answer.
    pub mlx_peak_bytes: u64,
    /// Process memory when the answer ended; 0 until the app fills it in.
    pub process_bytes: u64,
    /// The most process memory since the process started; 0 until the app fills it in.
    pub process_peak_bytes: u64,
}
