//! The errors of the engine's jobs. Each displays as one sentence for the user.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use cairn_chat::ChatError;
use cairn_lm::LmError;

use crate::embedding::InputProblem;

/// An error of a job.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No model is loaded.
    #[error("no model is loaded: choose one first")]
    NoModel,
    /// The model that a request names is not loaded.
    #[error("the model {model} is not loaded: load it first")]
    NotLoaded {
        /// Its name.
        model: String,
    },
    /// A model could not be loaded.
    #[error("cannot load {name}: {source}")]
    Load {
        /// The model.
        name: String,
        /// Why.
        source: LmError,
    },
    /// The device cannot compute anything, so no model is loaded.
    #[error("{message}")]
    Device {
        /// Why, as one sentence.
        message: String,
    },
    /// The conversation could not be turned into a prompt.
    #[error("cannot build the prompt: {0}")]
    Prompt(ChatError),
    /// The model's tokenizer failed on a text or on tokens.
    #[error("{reason}")]
    Tokenizer {
        /// The tokenizer that failed, and why.
        reason: String,
    },
    /// The request does not suit the model.
    #[error(transparent)]
    Refused(LmError),
    /// A token that should end an answer is not in the vocabulary.
    #[error("the model's vocabulary has no token '{token}', which should end the answer")]
    UnknownToken {
        /// Its text.
        token: String,
    },
    /// A prompt-cache file cannot be read.
    #[error("cannot continue the prompt cache {path}: {source}")]
    PromptFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: LmError,
    },
    /// A prompt-cache file was made with another model.
    #[error("{path} does not fit the loaded model: {what}")]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// What differs, and what to do.
        what: String,
    },
    /// A prompt-cache file contradicts itself, or the model.
    #[error("{path} cannot be used: {what}")]
    NotImportable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// There is nothing in the prompt cache to export.
    #[error("there is nothing to export: {why}")]
    NothingToExport {
        /// Why.
        why: String,
    },
    /// The prefix of a conversation is gone, and cannot be computed again because its tokens are
    /// unknown.
    #[error(
        "this conversation starts from a file that was imported without its tokens and is no longer saved: import the file again"
    )]
    BeginningLost,
    /// The prefix of a conversation has tokens that the model does not know.
    #[error(
        "this conversation starts from a context of another model: choose that model to continue"
    )]
    OtherVocabulary,
    /// A prompt-cache file has one model's keys and values, and a draft model would need its own.
    #[error(
        "a draft model cannot continue a prompt-cache file, which has only the main model's keys and values: leave one of them out"
    )]
    DraftWithFile,
    /// A draft model reads all of a context of which tokens are to be dropped.
    #[error(
        "a draft model keeps the whole context, so nothing of it can be dropped: leave out the draft \
         model or SnapKV"
    )]
    SnapKvWithDraft,
    /// What continues a file that does not name its tokens is stored as that file's whole context.
    #[error(
        "this conversation starts from a file that does not name its tokens, so nothing of it can be \
         dropped: leave out SnapKV"
    )]
    SnapKvWithOpaque,
    /// An answer or score could not be computed.
    #[error("the model failed: {0}")]
    Model(LmError),
    /// The batch failed because of another request, and this one cannot start again.
    #[error("the answer was interrupted because another answer failed: ask again")]
    Interrupted,
    /// A job panicked. The engine keeps running.
    #[error("the engine hit a bug while {during}: {message}")]
    Panicked {
        /// What it was doing.
        during: &'static str,
        /// The panic's message.
        message: String,
    },
    /// The engine's thread has ended because of a bug. Loading a model starts it again.
    #[error("the engine stopped because of a bug ({message}): load a model to start it again")]
    Stopped {
        /// The panic's message.
        message: String,
    },
    /// A model or an answer needs more memory than there may be.
    #[error(
        "{what} needs {}, and {} of the {} for models are free{}", gb(.shortage.needed_bytes), gb(.shortage.free_bytes),
        gb(.shortage.limit_bytes), remedy(&.shortage.would_have_to_go, &.shortage.pinned)
    )]
    DoesNotFit {
        /// What needs it.
        what: NeedsMemory,
        /// What there is of it.
        shortage: MemoryShortage,
    },
    /// No answer can be given in the form that was asked for.
    #[error("no answer can be given in this form: {reason}")]
    Form {
        /// Why: what of a schema is not supported, or what the model cannot do.
        reason: String,
    },
    /// The load of a model was cancelled.
    #[error("loading {model} was cancelled")]
    LoadCancelled {
        /// The model.
        model: String,
    },
    /// A row of a request does not begin with the prefix that all rows share.
    #[error("it does not begin with the prefix that all rows share")]
    OutsidePrefix,
    /// An option has no text, or none that the tokenizer encodes.
    #[error("option {number} is empty")]
    EmptyOption {
        /// Its number, from 1.
        number: usize,
    },
    /// Two options cannot be told apart by their first tokens.
    #[error("“{first}” and “{second}” begin with the same token: choose others")]
    OptionsBeginAlike {
        /// The first option.
        first: String,
        /// The second.
        second: String,
    },
    /// A row with the same tokens has failed.
    #[error("{message}")]
    SameRow {
        /// Why that has failed.
        message: String,
    },
    /// A row of a request cannot be answered.
    #[error("row {number}: {source}")]
    Row {
        /// Its number, from 1.
        number: usize,
        /// Why.
        source: Box<EngineError>,
    },
    /// An input of a request has no vector.
    #[error("`input[{index}]` {problem}")]
    Input {
        /// Its number, from 0.
        index: usize,
        /// Why.
        problem: InputProblem,
    },
    /// An engine of one model could not start.
    #[error(transparent)]
    NotStarted(Arc<EngineError>),
    /// The queries of an [`AsyncLm`](crate::AsyncLm) were reset while this one waited.
    #[error("the query was dropped, because the waiting queries were reset: ask again")]
    QueryReset,
    /// A query of an [`AsyncLm`](crate::AsyncLm) failed together with others.
    #[error("the log-probabilities could not be computed: {why}")]
    QueryFailed {
        /// Why.
        why: String,
    },
    /// The engine has been shut down.
    #[error("the engine has been shut down")]
    Closed,
}

/// Less memory than is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryShortage {
    /// What is needed.
    pub needed_bytes: u64,
    /// What is left beside the models that are in use and their answers.
    pub free_bytes: u64,
    /// What all models and answers may take.
    pub limit_bytes: u64,
    /// The models that are in use, which would have to go.
    pub would_have_to_go: Vec<String>,
    /// The pinned models that are not in use.
    pub pinned: Vec<String>,
}

/// What needs memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NeedsMemory {
    /// The model of this name.
    Model(String),
    /// An answer.
    Answer,
    /// A pass over several texts at once, as scores and classifications take.
    Texts,
}

impl fmt::Display for NeedsMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            NeedsMemory::Model(name) => name,
            NeedsMemory::Answer => "the answer",
            NeedsMemory::Texts => "reading several texts at once",
        })
    }
}

fn gb(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

fn remedy(in_use: &[String], pinned: &[String]) -> String {
    let wait = || format!("wait until {} is no longer in use", in_use.join(" and "));
    let unpin = || format!("unpin {}", pinned.join(" and "));
    match (in_use, pinned) {
        ([], []) => ": choose a smaller model, or a shorter conversation".to_owned(),
        (_, []) => format!(": {}, or choose a smaller model", wait()),
        ([], _) => format!(": {}, or choose a smaller model", unpin()),
        (_, _) => format!(": {}, {}, or choose a smaller model", wait(), unpin()),
    }
}

impl EngineError {
    /// Whether the request is at fault: sending it again does not help.
    pub fn is_bad_request(&self) -> bool {
        use EngineError::{
            DraftWithFile, EmptyOption, Form, Input, OptionsBeginAlike, OutsidePrefix, Prompt,
            Refused, Row, SnapKvWithDraft, SnapKvWithOpaque, UnknownToken,
        };
        match self {
            Prompt(_)
            | Refused(_)
            | UnknownToken { .. }
            | DraftWithFile
            | SnapKvWithDraft
            | SnapKvWithOpaque
            | OutsidePrefix => true,
            EmptyOption { .. } | OptionsBeginAlike { .. } | Form { .. } => true,
            Input { problem, .. } => !matches!(problem, InputProblem::Tokenizer(_)),
            Row { source, .. } => source.is_bad_request(),
            _ => false,
        }
    }

    /// Whether a prompt was given up because it took too long or no one waits for it.
    pub(crate) fn is_interruption(&self) -> bool {
        use ChatError::{Cancelled, TemplateTimeOver};
        matches!(
            self,
            EngineError::Closed | EngineError::Prompt(Cancelled | TemplateTimeOver { .. })
        )
    }

    /// Whether the prompt does not fit into the context.
    pub fn is_too_long(&self) -> bool {
        matches!(
            self,
            EngineError::Refused(LmError::PromptTooLong { .. })
                | EngineError::Input { problem: InputProblem::TooLong { .. }, .. }
                | EngineError::Prompt(ChatError::OutputTooLong { .. })
        )
    }

    /// Whether the model has no chat template, so that it answers no messages.
    pub fn lacks_template(&self) -> bool {
        matches!(self, EngineError::Prompt(ChatError::NoTemplate))
    }

    /// The parameter that has a value that it cannot have.
    pub fn parameter(&self) -> Option<&'static str> {
        match self {
            EngineError::Refused(
                LmError::OutOfRange { name, .. }
                | LmError::ParameterToken { name, .. }
                | LmError::Parameter(ChatError::OutOfRange { name, .. }),
            ) => Some(name),
            EngineError::Input { .. } => Some("input"),
            _ => None,
        }
    }

    /// Why nothing answers any more: the bug that has ended the thread, or else its shutdown.
    pub(crate) fn ended(bug: &OnceLock<String>) -> Self {
        match bug.get() {
            Some(message) => EngineError::Stopped { message: message.clone() },
            None => EngineError::Closed,
        }
    }
}

impl From<ChatError> for EngineError {
    fn from(error: ChatError) -> Self {
        match error {
            // The model is at fault, not the request.
            ChatError::Encode { reason } | ChatError::Decode { reason } => {
                EngineError::Tokenizer { reason }
            }
            _ => EngineError::Prompt(error),
        }
    }
}

impl From<LmError> for EngineError {
    fn from(error: LmError) -> Self {
        match error {
            LmError::Encoding { .. } => EngineError::Tokenizer { reason: error.to_string() },
            // The request is at fault, not the model.
            LmError::EmptyPrompt
            | LmError::PromptTooLong { .. }
            | LmError::TokenOutOfRange { .. }
            | LmError::OutOfRange { .. }
            | LmError::Parameter(_)
            | LmError::ParameterToken { .. }
            | LmError::CacheSetting { .. }
            | LmError::CacheLayers { .. }
            | LmError::CacheFit { .. }
            | LmError::CachePrecision { .. }
            | LmError::CacheOffsets { .. }
            | LmError::PromptFile { .. }
            | LmError::PromptFileLayout { .. }
            | LmError::Write { .. }
            | LmError::DraftVocabulary { .. }
            | LmError::DraftTokenizer
            | LmError::NoOutputLayer
            | LmError::Embedding { .. }
            | LmError::NoDraftModel => EngineError::Refused(error),
            LmError::Grammar { reason } => EngineError::Form { reason },
            _ => EngineError::Model(error),
        }
    }
}
