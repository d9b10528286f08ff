//! What the engine is asked and what it answers: plain data, so that the engine could stand behind
//! a pipe.

use std::path::PathBuf;

use cairn_chat::{GenerationStats, Message, SamplingParams};
use cairn_formats::cache_file::PromptKind;
use cairn_lm::cache::KvQuantization;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};

use crate::EngineError;
use crate::records::{KvFormat, Provenance};

/// What an answer is to continue.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptInput {
    /// A conversation, rendered with the model's chat template.
    Messages(Vec<Message>),
    /// What follows a named prompt cache: its tokens as they are, then the messages, of which the
    /// first is a user's.
    After {
        /// What stands before the messages.
        prefix: PromptPrefix,
        /// What follows.
        messages: Vec<Message>,
    },
    /// A conversation whose last message stays open, for a prompt cache that a
    /// [`PromptInput::Continuation`] goes on with.
    OpenTurn(Vec<Message>),
    /// The rest of a conversation from its last message's words on, after a prompt cache that ends
    /// in an open turn.
    Continuation(Vec<Message>),
    /// Text as it stands, encoded with the tokenizer's own special tokens.
    Text(String),
    /// Text that continues other text: nothing is added.
    MoreText(String),
    /// Token ids as they stand.
    Tokens(Vec<u32>),
}

/// The tokens that a conversation begins with, where it was started from a prompt cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPrefix {
    /// The tokens. None where the file that they came from did not say them: then they must be in
    /// the prompt cache still, or the answer fails with [`EngineError::BeginningLost`].
    pub token_ids: Option<Vec<u32>>,
    /// How many there are.
    pub num_tokens: usize,
    /// Where they end.
    pub kind: PromptKind,
    /// How their keys and values are stored.
    pub kv_format: KvFormat,
    /// Who computed their keys and values.
    pub provenance: Provenance,
}

impl PromptPrefix {
    /// How an answer must keep its keys and values to find these.
    pub fn kv_cache(&self) -> KvCacheOptions {
        KvCacheOptions { quantization: self.kv_format.quantization(), ..KvCacheOptions::default() }
    }
}

impl PromptInput {
    /// Who computed the keys and values that the prompt begins with.
    pub(crate) fn prefix_provenance(&self) -> &Provenance {
        match self {
            PromptInput::After { prefix, .. } => &prefix.provenance,
            _ => &Provenance::Computed,
        }
    }

    /// What it begins with, where that is only known as keys and values.
    pub(crate) fn opaque_prefix(&self) -> Option<&PromptPrefix> {
        match self {
            PromptInput::After { prefix, .. } if prefix.token_ids.is_none() => Some(prefix),
            _ => None,
        }
    }
}

/// How an answer's keys and values are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvCacheOptions {
    /// Keeps the first four tokens and the latest, this many in all; none keeps every token.
    /// Without effect where they are quantized.
    pub max_size: Option<usize>,
    /// Quantizes them; none keeps them as they are.
    pub quantization: Option<KvQuantization>,
}

impl KvCacheOptions {
    /// The bound as it applies: quantized caches hold every token.
    pub(crate) fn effective_max_size(&self) -> Option<usize> {
        if self.quantization.is_some() { None } else { self.max_size }
    }
}

/// One request for an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// What to continue.
    pub prompt: PromptInput,
    /// More variables for the chat template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The most tokens to sample; the answer also ends where the model's context does.
    pub max_tokens: usize,
    /// Prompt tokens read at once; cancellation is seen between two steps. Answers made beside each
    /// other read as the first of them does.
    pub prefill_step_size: usize,
    /// Whether what earlier answers computed is read, and what this one computes is kept.
    pub use_prompt_cache: bool,
    /// Whose conversation it is, by a name of the caller's choice: the [`crate::CacheRef`] of that
    /// name moves to its end.
    pub owner: Option<String>,
    /// Texts that end the answer; it stops before them.
    pub stop: Vec<String>,
    /// Whether special tokens are left out of the answer's text, as in a chat. Stop strings always
    /// match the text with special tokens.
    pub skip_special_tokens: bool,
    /// Tokens, by their text, that end an answer beside the model's own.
    pub extra_eos_tokens: Vec<String>,
    /// How keys and values are kept.
    pub kv_cache: KvCacheOptions,
    /// A prompt-cache file whose tokens stand before the prompt; it is only read.
    pub prompt_cache_file: Option<PathBuf>,
    /// Tokens that the draft model proposes at once; none answers without it.
    pub num_draft_tokens: Option<usize>,
    /// Goes on after an end-of-sequence token, as measurements do.
    pub ignore_eos: bool,
    /// How many alternatives to report with each token's log-probability; none: no
    /// log-probabilities.
    pub num_top_logprobs: Option<usize>,
}

impl GenerateRequest {
    /// Whether the prompt cache is used. Caches that give up old tokens are not kept, and a draft
    /// model's kit keeps its own.
    pub(crate) fn uses_prompt_cache(&self) -> bool {
        let is_bounded = self.kv_cache.effective_max_size().is_some();
        self.use_prompt_cache
            && !is_bounded
            && self.prompt_cache_file.is_none()
            && self.num_draft_tokens.is_none()
    }

    /// Whether this answer cannot share a batch with others.
    pub(crate) fn is_unbatched(&self) -> bool {
        self.kv_cache.quantization.is_some() || self.num_draft_tokens.is_some()
    }

    /// A request with mlx-lm's defaults (256 tokens at most, 2,048 prompt tokens at once) that uses
    /// the prompt cache.
    pub fn new(prompt: PromptInput) -> Self {
        GenerateRequest {
            prompt,
            template_variables: Map::new(),
            sampling: SamplingParams::default(),
            max_tokens: 256,
            prefill_step_size: 2048,
            use_prompt_cache: true,
            owner: None,
            stop: Vec::new(),
            skip_special_tokens: true,
            extra_eos_tokens: Vec::new(),
            kv_cache: KvCacheOptions::default(),
            prompt_cache_file: None,
            num_draft_tokens: None,
            ignore_eos: false,
            num_top_logprobs: None,
        }
    }
}

/// The log-probability of a sampled token, and the most likely ones beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The sampled token.
    pub token: u32,
    /// Natural logarithm of its probability before sampling filters.
    pub logprob: f32,
    /// The most likely tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
}

/// What happens while an answer is made, in order: `Prefill`s, `Delta`s, then one `Finished` or
/// `Failed`.
#[derive(Debug)]
pub enum GenerateEvent {
    /// How much of the prompt has been read; `processed` counts the cached tokens too.
    Prefill {
        /// Tokens read so far, cached ones included.
        processed: usize,
        /// Length of the prompt.
        total: usize,
        /// How many came from the prompt cache.
        cached: usize,
    },
    /// A sampled token, and the text that it completed: empty while a character is still in pieces.
    Delta {
        /// The text to append.
        text: String,
        /// The sampled token's id.
        token: u32,
        /// Its log-probability, where asked for.
        logprob: Option<TokenLogprob>,
    },
    /// The answer has ended.
    Finished(Box<FinishedGeneration>),
    /// The answer could not be made; what was sent before stands.
    Failed(EngineError),
}

/// An answer as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedGeneration {
    /// Text that was held back until now; append it.
    pub text: String,
    /// Which of the request's stop strings ended the answer.
    pub stop_string: Option<String>,
    /// The ids that the newest messages of the prompt added to the model's input (see
    /// [`Message::token_ids`]).
    pub new_prompt_ids: Vec<u32>,
    /// The sampled ids, a final end-of-sequence token included (see [`Message::token_ids`]).
    pub token_ids: Vec<u32>,
    /// The figures.
    pub stats: GenerationStats,
}

/// An answer being made. Dropping it cancels the work; so does [`Generation::stop`], which still
/// lets the figures arrive.
#[derive(Debug)]
pub struct Generation {
    pub(crate) events: mpsc::UnboundedReceiver<GenerateEvent>,
    pub(crate) stop: watch::Sender<bool>,
    /// Whether `Finished` or `Failed` has been received.
    pub(crate) has_ended: bool,
}

impl Generation {
    /// The next event; none after the last.
    pub async fn recv(&mut self) -> Option<GenerateEvent> {
        let event = self.events.recv().await;
        self.pass(event)
    }

    /// The next event, for callers that are not async.
    pub fn blocking_recv(&mut self) -> Option<GenerateEvent> {
        let event = self.events.blocking_recv();
        self.pass(event)
    }

    /// An engine that shuts down drops the requests that still wait; their callers hear of it like
    /// of any other failure.
    fn pass(&mut self, event: Option<GenerateEvent>) -> Option<GenerateEvent> {
        let event = event
            .or_else(|| (!self.has_ended).then_some(GenerateEvent::Failed(EngineError::Closed)));
        self.has_ended |=
            matches!(event, Some(GenerateEvent::Finished(_) | GenerateEvent::Failed(_)));
        event
    }

    /// Asks the engine to end the answer where it is; `Finished` follows.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

/// The log-probabilities of a token sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The tokens scored.
    pub tokens: Vec<u32>,
    /// For each token the natural logarithm of its probability given those before it; none for the
    /// first.
    pub logprobs: Vec<Option<f32>>,
    /// The most likely next tokens, best first.
    pub next: Vec<(u32, f32)>,
}

/// What is known about a loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// The name it was loaded under.
    pub name: String,
    /// config.json's `model_type`.
    pub model_type: String,
    /// The most tokens it can read and write in one conversation.
    pub context_length: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Bytes of its weights in memory.
    pub weight_bytes: u64,
    /// Whether its folder has a chat template. Base models have none: they take plain text only.
    pub has_chat_template: bool,
    /// Identifies the weights and the precision they are computed in; prompt caches are only valid
    /// with the same one.
    pub fingerprint: String,
}
