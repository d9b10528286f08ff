//! Requests for the next token of many prompts, and their results: plain data.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cairn_chat::Thinking;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::EngineError;
use crate::request::PromptInput;
use crate::work::WorkFor;

/// Asks for the token that follows each of many prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassifyRequest {
    /// The name of a loaded model; with none the one that was loaded last.
    pub model: Option<String>,
    /// What every row begins with, which is read once: messages, an open turn, text or tokens. With
    /// none it is what the rows have in common.
    pub prefix: Option<PromptInput>,
    /// The rows.
    pub rows: Vec<ClassifyRow>,
    /// How a row's options are scored.
    pub option_scoring: OptionScoring,
    /// The most rows that share a pass.
    pub batch_size: usize,
    /// How many of the likeliest tokens are returned for each row.
    pub num_top: usize,
    /// More variables for the chat template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// As in [`GenerateRequest`](crate::GenerateRequest).
    pub thinking: Option<Thinking>,
    /// Whether the prefix stays in memory for the next request that has the same.
    pub keep_prefix: bool,
    /// The purpose under which its work is recorded; see [`WorkLog`](crate::WorkLog).
    pub work_for: WorkFor,
}

/// One prompt, prefix included.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassifyRow {
    /// Messages, text or tokens.
    pub prompt: PromptInput,
    /// The answers to choose from; with none, every token.
    pub options: Arc<[String]>,
}

/// How options are scored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OptionScoring {
    /// By their first tokens, which have to differ.
    #[default]
    FirstToken,
    /// By the joint probability of all of their tokens.
    Joint,
}

impl ClassifyRequest {
    /// How many rows share a pass unless the request says otherwise.
    pub const BATCH_SIZE: usize = 32;

    /// A request without a prefix.
    pub fn new(rows: Vec<ClassifyRow>) -> Self {
        ClassifyRequest {
            model: None,
            prefix: None,
            rows,
            option_scoring: OptionScoring::default(),
            batch_size: ClassifyRequest::BATCH_SIZE,
            num_top: 0,
            template_variables: Map::new(),
            thinking: None,
            keep_prefix: false,
            work_for: WorkFor::default(),
        }
    }
}

/// What follows one row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowAnswer {
    /// The likeliest token; with options, the first token of the likeliest one.
    pub token: u32,
    /// Its text; with options, the likeliest one.
    pub text: String,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// Those of the options, in their order.
    pub option_logprobs: Vec<f32>,
    /// The likeliest tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
    /// Length of the prompt, prefix included.
    pub num_prompt_tokens: usize,
    /// How many of these were read once for all rows.
    pub num_cached_tokens: usize,
}

/// The events of a request: `Prefix`es, `Row`s in the order in which they are computed, then one
/// `Finished` or `Failed`.
#[derive(Debug)]
pub enum ClassifyEvent {
    /// How much of the prefix has been read.
    Prefix {
        /// Tokens read so far.
        processed: usize,
        /// Length of the prefix.
        total: usize,
    },
    /// A row has been answered, or cannot be.
    Row {
        /// Its place in the request.
        index: usize,
        /// What follows it.
        answer: Result<RowAnswer, EngineError>,
    },
    /// Every row has had its event.
    Finished,
    /// The request failed; the events before remain valid.
    Failed(EngineError),
}

/// A running request. Dropping it cancels the work.
#[derive(Debug)]
pub struct Classification {
    pub(crate) events: mpsc::UnboundedReceiver<ClassifyEvent>,
    /// The message of the bug that has ended the engine's thread.
    pub(crate) ended: Arc<OnceLock<String>>,
    /// Whether `Finished` or `Failed` has been received.
    pub(crate) has_ended: bool,
}

impl Classification {
    /// The next event; none after the last.
    pub async fn recv(&mut self) -> Option<ClassifyEvent> {
        let event = self.events.recv().await;
        // An engine that shuts down drops the requests that still wait.
        let event = event.or_else(|| {
            (!self.has_ended).then(|| ClassifyEvent::Failed(EngineError::ended(&self.ended)))
        });
        self.has_ended |= matches!(event, Some(ClassifyEvent::Finished | ClassifyEvent::Failed(_)));
        event
    }

    /// The answers of all rows, in their order; calls `on_row` for each that has come.
    pub async fn answers(
        mut self,
        mut on_row: impl FnMut(),
    ) -> Result<Vec<Result<RowAnswer, EngineError>>, EngineError> {
        let mut answers = BTreeMap::new();
        while let Some(event) = self.recv().await {
            match event {
                ClassifyEvent::Prefix { .. } | ClassifyEvent::Finished => {}
                ClassifyEvent::Row { index, answer } => {
                    answers.insert(index, answer);
                    on_row();
                }
                ClassifyEvent::Failed(error) => return Err(error),
            }
        }
        Ok(answers.into_values().collect())
    }
}
