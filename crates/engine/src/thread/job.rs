//! What the engine's thread can be asked for, and what each needs before it may begin.

use std::path::PathBuf;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::loading::LoadJob;
use crate::EngineError;
use crate::prompt_file::{CachePromptRequest, CachedPrompt, ExportRequest, Import, PromptFileInfo};
use crate::request::{MemoryPressure, PromptInput, Score};
use crate::sequence::GenerateJob;

/// The jobs of the thread. The set is closed: it could be a protocol over a pipe.
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
    Generate(GenerateJob),
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
        text: String,
        reply: oneshot::Sender<Result<Vec<u32>, EngineError>>,
    },
    Score {
        prompt: PromptInput,
        num_top: usize,
        reply: oneshot::Sender<Result<Score, EngineError>>,
    },
    SetCacheBudgets {
        disk_bytes: u64,
        memory_bytes: u64,
    },
    RelieveMemory(MemoryPressure),
    FlushCache {
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    Shutdown,
    /// Ends the thread with a panic that nothing catches.
    #[cfg(test)]
    Panic,
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
            | Job::SetCacheBudgets { .. }
            | Job::RelieveMemory(_)
            | Job::FlushCache { .. }
            | Job::Shutdown => JobNeeds::Nothing,
            Job::Generate(_)
            | Job::CachePrompt { .. }
            | Job::Score { .. }
            | Job::ReadPromptFile { import: Some(_), .. } => JobNeeds::Model,
            Job::Load(_) => JobNeeds::Load,
            #[cfg(test)]
            Job::Panic => JobNeeds::Nothing,
        }
    }

    /// Whether the request names no model: then a load that came before it decides which it gets.
    pub(super) fn names_no_model(&self) -> bool {
        !matches!(self, Job::Generate(job) if job.request.model.is_some())
    }

    /// Whether nobody waits for its answer.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Job::Generate(job) => job.events.is_closed(),
            Job::CachePrompt { reply, .. } => reply.is_closed(),
            Job::ReadPromptFile { reply, .. } => reply.is_closed(),
            Job::Score { reply, .. } => reply.is_closed(),
            _ => false,
        }
    }
}
