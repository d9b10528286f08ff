//! What the engine's thread can be asked for, and what each needs before it may begin.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cairn_chat::Thinking;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use crate::EngineError;
use crate::classify::{ClassifyEvent, ClassifyRequest, LogitsProcessorFactory};
use crate::embedding::Embeddings;
use crate::generate_job::GenerateJob;
use crate::lm_job::LmJob;
use crate::model_pool::Loaded;
use crate::outlook::Outlook;
use crate::prompt_file::{CachePromptRequest, CachedPrompt, ExportRequest, Import, PromptFileInfo};
use crate::request::{
    AnswerToken, GenerateRequest, MemoryPressure, ModelInfo, ModelOptions, PromptInput, Score,
    ScoreRequest,
};

/// The jobs of the thread. The set is closed: without [`InProcess`], which only callers in this
/// process have, it could be a protocol over a pipe.
#[derive(Debug)]
pub(crate) enum Job {
    Load(LoadJob),
    /// Ends the load under way.
    CancelLoad,
    UnloadDraft {
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    CachePrompt {
        request: Box<CachePromptRequest>,
        progress: mpsc::UnboundedSender<(usize, usize)>,
        reply: oneshot::Sender<Result<CachedPrompt, EngineError>>,
    },
    /// Replies with the names of the models that are in use, and go when they are not.
    Unload {
        reply: oneshot::Sender<Result<Vec<String>, EngineError>>,
    },
    /// Drops a model unless it was used after this time.
    UnloadUnused {
        name: String,
        unused_since: Instant,
    },
    /// The names of models that stay until a person unloads them.
    SetPinned(Vec<String>),
    Generate(Box<GenerateJob>),
    /// Replies with the file's contents, and with `import` adds them to the prompt cache.
    ReadPromptFile {
        path: PathBuf,
        import: Option<Import>,
        reply: oneshot::Sender<Result<PromptFileInfo, EngineError>>,
    },
    ExportPrompt {
        request: Box<ExportRequest>,
        reply: oneshot::Sender<Result<CachedPrompt, EngineError>>,
    },
    /// Drops the resident conversations.
    ForgetConversations {
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    Decode {
        model: Option<String>,
        token_ids: Vec<Vec<u32>>,
        reply: oneshot::Sender<Result<Vec<String>, EngineError>>,
    },
    Tokenize {
        model: Option<String>,
        prompt: PromptInput,
        template_variables: Map<String, Value>,
        thinking: Option<Thinking>,
        reply: oneshot::Sender<Result<Vec<u32>, EngineError>>,
    },
    /// Replies with what an answer to a request would find in the prompt cache.
    LookAhead {
        request: Box<GenerateRequest>,
        reply: oneshot::Sender<Result<Outlook, EngineError>>,
    },
    /// Replies with a score for each prompt.
    Score {
        request: ScoreRequest,
        reply: oneshot::Sender<Result<Vec<Score>, EngineError>>,
    },
    /// Replies with a vector for each row of tokens.
    Embed {
        model: Option<String>,
        rows: Vec<Vec<u32>>,
        dimensions: Option<usize>,
        reply: oneshot::Sender<Result<Embeddings, EngineError>>,
    },
    /// Replies with the tokens that an answer has already, and what could stand in their places.
    Probabilities {
        request: Box<GenerateRequest>,
        progress: mpsc::UnboundedSender<(usize, usize)>,
        reply: oneshot::Sender<Result<Vec<AnswerToken>, EngineError>>,
    },
    /// The token that follows each of many prompts.
    Classify {
        request: Box<ClassifyRequest>,
        processor: InProcess<LogitsProcessorFactory>,
        events: mpsc::UnboundedSender<ClassifyEvent>,
    },
    /// Runs a closure with a loaded model; the closure sends its own answer.
    Submit {
        model: Option<String>,
        run: InProcess<Submitted>,
    },
    /// What an [`AsyncLm`](crate::AsyncLm) asks.
    AsyncLm(LmJob),
    SetCacheBudgets {
        disk_bytes: u64,
        memory_bytes: u64,
    },
    /// Whether models are kept wired, from the next moment on at which nothing is computed.
    SetWiredMemory(bool),
    RelieveMemory(MemoryPressure),
    FlushCache {
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    Shutdown,
    /// Ends the thread with a panic that nothing catches.
    #[cfg(test)]
    Panic,
}

/// A model to load.
#[derive(Debug)]
pub(crate) struct LoadJob {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) options: ModelOptions,
    pub(crate) reply: LoadReply,
}

impl LoadJob {
    /// A model to load beside the others.
    pub(crate) fn model(
        name: &str,
        folder: &Path,
        reply: oneshot::Sender<Result<ModelInfo, EngineError>>,
    ) -> Self {
        let reply = LoadReply::Model(reply);
        let options = ModelOptions::default();
        LoadJob { name: name.to_owned(), folder: folder.to_owned(), options, reply }
    }
}

/// What is loaded, with the channel for the answer.
#[derive(Debug)]
pub(crate) enum LoadReply {
    Model(oneshot::Sender<Result<ModelInfo, EngineError>>),
    /// The draft model of the current one.
    Draft(oneshot::Sender<Result<(), EngineError>>),
}

impl LoadReply {
    pub(super) fn is_closed(&self) -> bool {
        match self {
            LoadReply::Model(reply) => reply.is_closed(),
            LoadReply::Draft(reply) => reply.is_closed(),
        }
    }
}

/// A closure that runs on the thread, with a model or the reason why there is none.
pub(crate) type Submitted = Box<dyn FnOnce(Result<&Loaded, EngineError>) + Send>;

/// Something that is no plain data, of a caller in this process; there may be none.
pub(crate) struct InProcess<T>(pub(crate) Option<T>);

impl<T> fmt::Debug for InProcess<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "a closure" } else { "none" })
    }
}

/// What a job needs before it may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobNeeds {
    /// Headers, rows, budgets, or the tokenizer of a loaded model: it is answered at once, even
    /// between two tokens.
    Nothing,
    /// A model to compute with: it becomes a run, beside others.
    Model,
    /// A turn of the loop without a load under way.
    Load,
}

impl Job {
    pub(super) fn needs(&self) -> JobNeeds {
        match self {
            Job::CancelLoad
            | Job::UnloadDraft { .. }
            | Job::Unload { .. }
            | Job::UnloadUnused { .. }
            | Job::SetPinned(_)
            | Job::ReadPromptFile { import: None, .. }
            | Job::ExportPrompt { .. }
            | Job::ForgetConversations { .. }
            | Job::Decode { .. }
            | Job::Tokenize { .. }
            | Job::LookAhead { .. }
            | Job::Submit { .. }
            | Job::SetCacheBudgets { .. }
            | Job::SetWiredMemory(_)
            | Job::RelieveMemory(_)
            | Job::FlushCache { .. }
            | Job::Shutdown => JobNeeds::Nothing,
            Job::Generate(_)
            | Job::CachePrompt { .. }
            | Job::Score { .. }
            | Job::Embed { .. }
            | Job::Probabilities { .. }
            | Job::Classify { .. }
            | Job::AsyncLm(_)
            | Job::ReadPromptFile { import: Some(_), .. } => JobNeeds::Model,
            Job::Load(_) => JobNeeds::Load,
            #[cfg(test)]
            Job::Panic => JobNeeds::Nothing,
        }
    }

    /// Whether the request names no model: then a load that came before it decides which it gets.
    pub(super) fn names_no_model(&self) -> bool {
        match self {
            Job::Generate(job) => job.request.model.is_none(),
            Job::Classify { request, .. } => request.model.is_none(),
            Job::Probabilities { request, .. } => request.model.is_none(),
            Job::Embed { model, .. } => model.is_none(),
            Job::Score { request, .. } => request.model.is_none(),
            Job::AsyncLm(_) => false,
            _ => true,
        }
    }

    /// Whether it is an answer that is to end.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self, Job::Generate(job) if job.is_stopped())
    }

    /// Whether nobody waits for its answer.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Job::Generate(job) => job.events.is_closed(),
            Job::CachePrompt { reply, .. } => reply.is_closed(),
            Job::ReadPromptFile { reply, .. } => reply.is_closed(),
            Job::Score { reply, .. } => reply.is_closed(),
            Job::Embed { reply, .. } => reply.is_closed(),
            Job::Probabilities { reply, .. } => reply.is_closed(),
            Job::Classify { events, .. } => events.is_closed(),
            _ => false,
        }
    }
}
