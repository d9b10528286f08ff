//! Requests to the engine and their results: plain data, which could be sent through a pipe.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use cairn_chat::{
    AnswerForm, AnswerFormat, GenerationStats, Message, OfferedTool, Prompt, SamplingParams,
    SegmentEvent, Thinking, TurnsPrompt,
};
use cairn_formats::cache_file::PromptKind;
use cairn_lm::cache::QuantizedKvCache;
use cairn_lm::{Acceptance, OwnDrafter, PromptLookup, check_prefill_step_size};
use cairn_prompt_cache::{KvFormat, Miss, Owner, Provenance};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};

use crate::EngineError;
use crate::kv_format::KvCacheOptions;
use crate::prompt_facts::PromptFacts;
use crate::work::WorkFor;

/// The prompt of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptInput {
    /// A conversation, rendered with the model's chat template.
    Messages(Vec<Message>),
    /// A conversation in which tools are offered and called.
    Turns(TurnsPrompt),
    /// A prompt that was assembled before with this model's tokenizer and template, or a beginning of
    /// one.
    Assembled(Prompt),
    /// Messages that follow a stored prompt cache: its tokens unchanged, then the messages, of
    /// which the first is the user's.
    After {
        /// The stored tokens.
        prefix: PromptPrefix,
        /// What follows.
        messages: Vec<Message>,
    },
    /// A conversation whose last message stays open, for a prompt cache that a
    /// [`PromptInput::Continuation`] continues.
    OpenTurn(Vec<Message>),
    /// The rest of a conversation from the text of its last message on, after a prompt cache that
    /// ends in an open turn.
    Continuation(Vec<Message>),
    /// Text, encoded with the tokenizer's own special tokens.
    Text(String),
    /// Text that continues other text, encoded without special tokens.
    MoreText(String),
    /// Token ids, used unchanged.
    Tokens(Vec<u32>),
}

/// The prefix of a conversation that was started from a stored prompt cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPrefix {
    /// The tokens. None if the file that they came from did not name them: then their chunks must
    /// still be in the prompt cache, or the request fails with [`EngineError::BeginningLost`].
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
    /// The format in which a request must store its keys and values to find these.
    pub fn kv_cache(&self) -> KvCacheOptions {
        KvCacheOptions::of_format(self.kv_format)
    }
}

impl PromptInput {
    /// How many of the prompt's first tokens are unknown.
    pub(crate) fn num_opaque(&self) -> usize {
        self.opaque_prefix().map_or(0, |prefix| prefix.num_tokens)
    }

    /// The prefix, if its tokens are unknown.
    pub(crate) fn opaque_prefix(&self) -> Option<&PromptPrefix> {
        match self {
            PromptInput::After { prefix, .. } if prefix.token_ids.is_none() => Some(prefix),
            _ => None,
        }
    }
}

/// What proposes tokens, of which the model checks several in one pass. The answer is the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Nothing does.
    #[default]
    Off,
    /// The draft model, so many tokens at once.
    Draft {
        /// At least 1.
        num_tokens: usize,
    },
    /// What followed the same tokens in the prompt or the answer, so many tokens at once.
    Lookup {
        /// At least 1.
        num_tokens: usize,
    },
    /// The model's head that predicts further tokens, so many at once. Fails where the model has none.
    Mtp {
        /// At least 1.
        num_tokens: usize,
    },
    /// The draft model, or else the head, where the model has one, or what is looked up, as was measured to
    /// pay, and while no other answer is computed: answers that share their passes gain more. The draft
    /// model only where [`Speculation::Draft`] would not be refused.
    Auto,
}

impl Speculation {
    pub(crate) fn draft_tokens(self) -> Option<usize> {
        match self {
            Speculation::Draft { num_tokens } => Some(num_tokens),
            Speculation::Off
            | Speculation::Lookup { .. }
            | Speculation::Mtp { .. }
            | Speculation::Auto => None,
        }
    }

    /// How many tokens the draft model proposes at a time, if it may: none where as many as pay.
    pub(crate) fn wanted_draft(self) -> Option<Option<usize>> {
        match self {
            Speculation::Draft { num_tokens } => Some(Some(num_tokens)),
            Speculation::Auto => Some(None),
            Speculation::Off | Speculation::Lookup { .. } | Speculation::Mtp { .. } => None,
        }
    }

    /// Whether tokens are looked up in the prompt, the answer and a prediction of it.
    pub(crate) fn looks_up(self) -> bool {
        match self {
            Speculation::Lookup { .. } | Speculation::Auto => true,
            Speculation::Off | Speculation::Draft { .. } | Speculation::Mtp { .. } => false,
        }
    }

    /// What proposes without a draft model.
    pub(crate) fn own_drafter(self) -> Option<OwnDrafter> {
        match self {
            Speculation::Lookup { num_tokens } => {
                Some(OwnDrafter::PromptLookup(PromptLookup::Always(num_tokens)))
            }
            Speculation::Mtp { num_tokens } => Some(OwnDrafter::MtpHead(num_tokens)),
            Speculation::Auto => Some(OwnDrafter::WhereItPays),
            Speculation::Off | Speculation::Draft { .. } => None,
        }
    }
}

/// A request for an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// The name of a loaded model; with none the one that was loaded last.
    pub model: Option<String>,
    /// What to continue.
    pub prompt: PromptInput,
    /// The tokens that the answer has already, because an earlier request for it was stopped: it goes
    /// on behind them. [`GenerateEvent::SoFar`] has what they say, and the token ids of the end begin
    /// with them; `max_tokens` counts new ones. Not with a `form`.
    pub answer_so_far: Vec<u32>,
    /// More variables for the chat template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// How much the model thinks, as its chat template allows; `None` leaves the template as it is,
    /// and a level that the variables ask for counts instead.
    pub thinking: Option<Thinking>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The most tokens to sample; the answer also ends at the end of the context.
    pub max_tokens: usize,
    /// The most tokens of prompt and answer together; with none, and at most, the model's own.
    pub context_length: Option<usize>,
    /// The most prompt tokens in one prefill step. The engine takes fewer where its device or other
    /// answers ask for it; requests in one batch use the smallest of theirs.
    pub prefill_step_size: usize,
    /// Whether to reuse the caches of earlier requests, and to save those of this one.
    pub use_prompt_cache: bool,
    /// Who computed the stored keys and values that the prompt begins with; that of the prefix of a
    /// [`PromptInput::After`] counts instead. If they are an import's, the prompt's first tokens
    /// must be known to be those of that import.
    pub provenance: Provenance,
    /// The conversation: the [`CacheRef`](cairn_prompt_cache::CacheRef) of this owner moves to its
    /// end.
    pub owner: Option<Owner>,
    /// The purpose under which its work is recorded; see [`WorkLog`](crate::WorkLog).
    pub work_for: WorkFor,
    /// Texts that end the answer; it stops before them.
    pub stop: Vec<String>,
    /// Whether special tokens are left out of the answer's text, as in a chat. Stop strings always
    /// match the text with special tokens.
    pub skip_special_tokens: bool,
    /// Tokens, by their text, that end an answer in addition to the model's own.
    pub extra_eos_tokens: Vec<String>,
    /// How keys and values are stored.
    pub kv_cache: KvCacheOptions,
    /// A prompt-cache file whose tokens precede the prompt; it is only read.
    pub prompt_cache_file: Option<PathBuf>,
    /// What proposes tokens; nothing does for an answer in a form.
    pub speculation: Speculation,
    /// What the answer is expected to say, which may be wrong: what is looked up to be proposed is looked
    /// up here too.
    pub prediction: Option<String>,
    /// Cuts the answer into segments as well, which come beside its text.
    pub segments: Option<SegmentOptions>,
    /// What the answer may consist of; none: any tokens. A form that cannot be kept is
    /// [`EngineError::Form`] before the first token, and an answer that ends by itself has kept it.
    pub form: Option<AnswerForm>,
    /// Continues after an end-of-sequence token.
    pub ignore_eos: bool,
    /// How many tokens the answer has before a token may end it. An answer in a form ends where that
    /// does.
    pub min_tokens: usize,
    /// How many alternatives to report with each token's log-probability; none: no
    /// log-probabilities.
    pub num_top_logprobs: Option<usize>,
}

/// How an answer is cut into segments.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SegmentOptions {
    /// Whether tool calls are looked for; otherwise they are text.
    pub reads_calls: bool,
    /// The tools that the prompt offers.
    pub tools: Vec<OfferedTool>,
    /// Whether the answer ends behind its first complete tool call.
    pub ends_after_call: bool,
}

impl GenerateRequest {
    /// Checks what can be checked without the model.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        self.sampling.validate()?;
        check_prefill_step_size(self.prefill_step_size)?;
        if let Some(quantization) = self.kv_cache.quantization {
            QuantizedKvCache::new(quantization.group_size, quantization.bits)?;
        }
        if let Some(snapkv) = self.kv_cache.snapkv {
            snapkv.check_beside(self.kv_cache.quantization.as_ref())?;
            if self.speculation.draft_tokens().is_some() {
                return Err(EngineError::SnapKvWithDraft);
            }
            if self.prompt.opaque_prefix().is_some() {
                return Err(EngineError::SnapKvWithOpaque);
            }
        }
        let asks_draft = self.speculation.draft_tokens().is_some();
        if asks_draft && !self.suits_draft() {
            return Err(EngineError::DraftWithFile);
        }
        if self.form.is_some() && !self.answer_so_far.is_empty() {
            let reason = "the answer has begun without it".to_owned();
            return Err(EngineError::Form { reason });
        }
        Ok(())
    }

    /// Whether the prompt cache is used. Caches that drop old tokens are not saved.
    pub(crate) fn uses_prompt_cache(&self) -> bool {
        let is_bounded = self.kv_cache.effective_max_size().is_some();
        self.use_prompt_cache && !is_bounded && self.prompt_cache_file.is_none()
    }

    /// Whether a draft model can read what the model does: all of it, token by token.
    pub(crate) fn suits_draft(&self) -> bool {
        self.kv_cache.snapkv.is_none()
            && self.prompt_cache_file.is_none()
            && self.prompt.opaque_prefix().is_none()
    }

    /// Whether a draft model may propose, if there is one.
    pub(crate) fn may_draft(&self) -> bool {
        self.speculation.wanted_draft().is_some() && self.suits_draft()
    }

    /// Whether its prompt is looked up in the prompt cache, if only for the beginning that cannot be
    /// computed.
    pub(crate) fn looks_up(&self) -> bool {
        self.uses_prompt_cache() || self.prompt.opaque_prefix().is_some()
    }

    /// Who computed the stored keys and values that the prompt begins with.
    pub(crate) fn prefix_provenance(&self) -> &Provenance {
        match &self.prompt {
            PromptInput::After { prefix, .. } => &prefix.provenance,
            _ => &self.provenance,
        }
    }

    /// The most tokens of prompt and answer together, with a model that can read `own`.
    pub(crate) fn context_length(&self, own: usize) -> usize {
        self.context_length.map_or(own, |length| length.min(own))
    }

    /// Whether this request cannot share a batch with others.
    pub(crate) fn is_unbatched(&self) -> bool {
        self.kv_cache.quantization.is_some()
            || match self.speculation {
                Speculation::Draft { .. }
                | Speculation::Lookup { .. }
                | Speculation::Mtp { .. } => true,
                Speculation::Off | Speculation::Auto => false,
            }
    }

    /// A request with mlx-lm's defaults (256 tokens at most, 2,048 prompt tokens at once) that uses
    /// the prompt cache.
    pub fn new(prompt: PromptInput) -> Self {
        GenerateRequest {
            model: None,
            prompt,
            answer_so_far: Vec::new(),
            template_variables: Map::new(),
            thinking: None,
            sampling: SamplingParams::default(),
            max_tokens: 256,
            context_length: None,
            prefill_step_size: 2048,
            use_prompt_cache: true,
            provenance: Provenance::Computed,
            owner: None,
            work_for: WorkFor::default(),
            stop: Vec::new(),
            skip_special_tokens: true,
            extra_eos_tokens: Vec::new(),
            kv_cache: KvCacheOptions::default(),
            prompt_cache_file: None,
            speculation: Speculation::Off,
            prediction: None,
            segments: None,
            form: None,
            ignore_eos: false,
            min_tokens: 0,
            num_top_logprobs: None,
        }
    }
}

/// The log-probability of a sampled token, and those of the most likely tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The sampled token.
    pub token: u32,
    /// Its text, with a leading space where it has one.
    pub text: String,
    /// Its bytes, which are not UTF-8 if it ends within a character. `None` if they are unknown.
    pub bytes: Option<Vec<u8>>,
    /// Natural logarithm of its probability before sampling filters.
    pub logprob: f32,
    /// The most likely tokens with theirs, best first.
    pub top: Vec<TopLogprob>,
}

/// A likely token.
#[derive(Debug, Clone, PartialEq)]
pub struct TopLogprob {
    /// Its id.
    pub token: u32,
    /// Its text, with a leading space where it has one.
    pub text: String,
    /// Its bytes, as in [`TokenLogprob::bytes`].
    pub bytes: Option<Vec<u8>>,
    /// Natural logarithm of its probability before sampling filters.
    pub logprob: f32,
}

/// A token of an answer that exists, among all that could have stood in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerToken {
    /// Its id.
    pub token: u32,
    /// The text that it completed: empty while a character is still in pieces.
    pub text: String,
    /// Natural logarithm of its probability before sampling filters.
    pub logprob: f32,
    /// How many tokens were likelier.
    pub rank: usize,
    /// The entropy over the whole vocabulary, in bits.
    pub entropy_bits: f32,
    /// Whether it ends an answer.
    pub ends: bool,
    /// The likeliest tokens, best first.
    pub top: Vec<LikelyToken>,
}

/// A token that could stand in the place of an [`AnswerToken`].
#[derive(Debug, Clone, PartialEq)]
pub struct LikelyToken {
    /// Its id.
    pub token: u32,
    /// Its text, with a leading space where it has one.
    pub text: String,
    /// Natural logarithm of its probability before sampling filters.
    pub logprob: f32,
    /// Whether it ends an answer.
    pub ends: bool,
}

/// What the tokens of [`GenerateRequest::answer_so_far`] say, as far as that is clear: what is still
/// held back comes with the tokens behind them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SoFar {
    /// The text of the answer.
    pub text: String,
    /// Its segments, where asked for.
    pub segments: Vec<SegmentEvent>,
}

/// The events of a request, in order: for an answer that goes on one `SoFar`, then `Prefill`s,
/// `Delta`s, and one `Finished` or `Failed`.
#[derive(Debug)]
pub enum GenerateEvent {
    /// What the answer has already.
    SoFar(Box<SoFar>),
    /// The progress of prefill; `processed` includes the cached tokens.
    Prefill {
        /// Tokens processed so far, cached ones included.
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
        /// The segments that became clear, where asked for.
        segments: Vec<SegmentEvent>,
    },
    /// The answer has ended.
    Finished(Box<FinishedGeneration>),
    /// The request failed; the events before remain valid.
    Failed(EngineError),
}

/// A finished answer.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedGeneration {
    /// Text that was held back until now; append it.
    pub text: String,
    /// The last segments, where asked for; they end with [`SegmentEvent::Ended`].
    pub segments: Vec<SegmentEvent>,
    /// Which of the request's stop strings ended the answer.
    pub stop_string: Option<String>,
    /// The ids that the newest messages of the prompt added to the model's input (see
    /// [`Message::token_ids`]).
    pub new_prompt_ids: Vec<u32>,
    /// The sampled ids, a final end-of-sequence token included (see [`Message::token_ids`]).
    pub token_ids: Vec<u32>,
    /// The figures, without a note about the prompt cache.
    pub stats: GenerationStats,
    /// The reason why not more of the prompt was read from the prompt cache; none when everything
    /// that could be was.
    pub miss: Option<Miss>,
    /// How many tokens were proposed, and how many of these accepted.
    pub acceptance: Acceptance,
}

/// A running request. Dropping it cancels the work; so does [`Generation::stop`], after which the
/// figures still arrive.
#[derive(Debug)]
pub struct Generation {
    pub(crate) events: mpsc::UnboundedReceiver<GenerateEvent>,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) prompt: Arc<OnceLock<PromptFacts>>,
    /// The message of the bug that has ended the engine's thread.
    pub(crate) ended: Arc<OnceLock<String>>,
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

    /// An engine that shuts down drops the requests that still wait, and a bug that ends its thread
    /// drops all; this reports them as failed.
    fn pass(&mut self, event: Option<GenerateEvent>) -> Option<GenerateEvent> {
        let event = event.or_else(|| {
            (!self.has_ended).then(|| GenerateEvent::Failed(EngineError::ended(&self.ended)))
        });
        self.has_ended |=
            matches!(event, Some(GenerateEvent::Finished(_) | GenerateEvent::Failed(_)));
        event
    }

    /// Facts about its prompt, which are there once the first `Prefill` was received.
    pub fn prompt(&self) -> Option<&PromptFacts> {
        self.prompt.get()
    }

    /// Asks the engine to stop the answer; `Finished` follows.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

/// The log-probabilities of a prompt.
pub type Score = cairn_lm::RowScore;

/// A request for the log-probabilities of prompts, which are read in the same passes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScoreRequest {
    /// The name of a loaded model; without one the model that was loaded last.
    pub model: Option<String>,
    /// The prompts. Prompts of similar lengths cost least.
    pub prompts: Vec<PromptInput>,
    /// How many of the likeliest next tokens to report after each prompt.
    pub num_top: usize,
    /// How many of the likeliest tokens to report in the place of each token.
    pub num_top_of_each: usize,
}

/// How a model is loaded, where it is not loaded as every other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// See [`LoadOptions::bf16_state`](cairn_lm::LoadOptions::bf16_state). What was saved without it is
    /// not continued with it, nor the other way round.
    pub bf16_state: bool,
    /// See [`LoadOptions::traces_steps`](cairn_lm::LoadOptions::traces_steps).
    pub traces_steps: bool,
}

/// Properties of a loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// The name it was loaded under.
    pub name: String,
    /// config.json's `model_type`.
    pub model_type: String,
    /// The most tokens of one conversation, prompt and answers together.
    pub context_length: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Bytes of its weights in memory.
    pub weight_bytes: u64,
    /// Whether its folder has a chat template. Base models have none: they take plain text only.
    pub has_chat_template: bool,
    /// How its answers mark reasoning and tool calls.
    pub answer_format: AnswerFormat,
    /// Identifies the weights and the precision they are computed in; prompt caches are only valid
    /// with the same one.
    pub fingerprint: String,
}

/// How short of memory the system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Not at all.
    Normal,
    /// What MLX holds for reuse is freed, and conversations leave memory; what is saved of them is
    /// on disk.
    Warning,
    /// Saved context that is also on disk leaves memory too, and so do idle models.
    Critical,
}
