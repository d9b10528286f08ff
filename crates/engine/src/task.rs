//! Tasks: work on a loaded model that is no answer, done in slices so that nobody waits for it. A
//! task whose caller has gone is dropped.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use cairn_lm::ModelMemory;
use tokio::sync::{mpsc, oneshot};

use crate::EngineError;
use crate::classify::{Classifier, ClassifyEvent, ClassifyRequest, LogitsProcessorFactory};
use crate::embedding::{Embedding, Embeddings};
use crate::model_pool::Loaded;
use crate::next_tokens::LmState;
use crate::probabilities::Probabilities;
use crate::prompt::known_tokens;
use crate::prompt_file::{
    CachePromptRequest, CachedPrompt, Import, PendingImport, PromptFileInfo, PromptFileWriter,
};
use crate::request::{AnswerToken, GenerateRequest, Score, ScoreRequest};
use crate::scoring::Scoring;
use crate::slice_limits::SliceLimits;
use crate::work::{OpenWork, WorkFor};
use crate::worker::Worker;

/// A task with the channel for its answer.
pub(crate) struct Task {
    loaded: Rc<Loaded>,
    /// What passes take; none where the model's folder does not say.
    memory: Option<Rc<ModelMemory>>,
    work: TaskWork,
    /// Its work so far.
    done: OpenWork,
}

/// The tokens of a slice.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Slice {
    /// Tokens that passed through the model, padding included: what it cost.
    pub(crate) num_tokens: usize,
    /// Tokens of texts that were read.
    pub(crate) num_read: usize,
}

enum TaskWork {
    Score {
        scoring: Box<Scoring>,
        reply: oneshot::Sender<Result<Vec<Score>, EngineError>>,
    },
    Embed {
        embedding: Box<Embedding>,
        reply: oneshot::Sender<Result<Embeddings, EngineError>>,
    },
    Probabilities {
        answer: Box<Probabilities>,
        on_progress: mpsc::UnboundedSender<(usize, usize)>,
        reply: oneshot::Sender<Result<Vec<AnswerToken>, EngineError>>,
    },
    CachePrompt {
        writer: Box<PromptFileWriter>,
        on_progress: mpsc::UnboundedSender<(usize, usize)>,
        reply: oneshot::Sender<Result<CachedPrompt, EngineError>>,
    },
    Import {
        import: Box<PendingImport>,
        reply: oneshot::Sender<Result<PromptFileInfo, EngineError>>,
    },
    Classify(Box<Classifier>),
    /// All queries of one [`AsyncLm`](crate::AsyncLm), also those that come meanwhile. Each is
    /// answered when it is computed.
    NextTokens(Rc<RefCell<LmState>>),
}

/// Begins a task, or answers the request that cannot become one.
fn begin<T>(
    worker: &mut Worker,
    during: &'static str,
    model: Option<&str>,
    reply: oneshot::Sender<Result<T, EngineError>>,
    work_for: WorkFor,
    work: impl FnOnce(&mut Worker, &Rc<Loaded>) -> Result<WorkOf<T>, EngineError>,
) -> Option<Task> {
    let begun = worker.guarded(during, |worker| {
        let loaded = worker.models.get(model)?;
        let work = work(worker, &loaded)?;
        Ok((loaded, work))
    });
    match begun {
        Ok((loaded, work)) => Some(Task::of(worker, loaded, work_for, work(reply))),
        Err(error) => {
            let _ = reply.send(Err(error));
            None
        }
    }
}

/// Makes the work of a task whose answer goes to a channel.
type WorkOf<T> = Box<dyn FnOnce(oneshot::Sender<Result<T, EngineError>>) -> TaskWork>;

impl Task {
    fn of(worker: &mut Worker, loaded: Rc<Loaded>, work_for: WorkFor, work: TaskWork) -> Self {
        let memory = worker.models.pooled(&loaded).and_then(|pooled| pooled.memory.clone());
        let done = worker.work.open(work_for, &loaded.name);
        Task { loaded, memory, work, done }
    }

    /// Scores prompts, as many at once as there is memory for.
    pub(crate) fn score(
        worker: &mut Worker,
        request: &ScoreRequest,
        reply: oneshot::Sender<Result<Vec<Score>, EngineError>>,
    ) -> Option<Self> {
        let model = request.model.as_deref();
        begin(worker, "scoring", model, reply, WorkFor::default(), |worker, loaded| {
            let cancel = worker.cancel(|| false);
            let tokens = |prompt| known_tokens(&loaded.model, prompt, cancel.clone());
            let rows = request.prompts.iter().map(tokens).collect::<Result<Vec<_>, _>>()?;
            let scoring = Box::new(Scoring::new(&loaded.model.model, rows, request)?);
            Ok(Box::new(move |reply| TaskWork::Score { scoring, reply }))
        })
    }

    /// Makes a vector of each row, of as many at once as there is memory for.
    pub(crate) fn embed(
        worker: &mut Worker,
        model: Option<&str>,
        rows: Vec<Vec<u32>>,
        dimensions: Option<usize>,
        reply: oneshot::Sender<Result<Embeddings, EngineError>>,
    ) -> Option<Self> {
        begin(worker, "embedding", model, reply, WorkFor::default(), |_, loaded| {
            let embedding = Box::new(Embedding::new(&loaded.model, rows, dimensions)?);
            Ok(Box::new(move |reply| TaskWork::Embed { embedding, reply }))
        })
    }

    /// Computes the probabilities of an answer's tokens.
    pub(crate) fn probabilities(
        worker: &mut Worker,
        request: Box<GenerateRequest>,
        on_progress: mpsc::UnboundedSender<(usize, usize)>,
        reply: oneshot::Sender<Result<Vec<AnswerToken>, EngineError>>,
    ) -> Option<Self> {
        let (model, work_for) = (request.model.clone(), request.work_for.clone());
        let during = "reading an answer";
        begin(worker, during, model.as_deref(), reply, work_for, |worker, loaded| {
            let progress = on_progress.clone();
            let cancel = worker.cancel(move || progress.is_closed());
            let answer = Box::new(Probabilities::new(worker, loaded, request, cancel)?);
            Ok(Box::new(move |reply| TaskWork::Probabilities { answer, on_progress, reply }))
        })
    }

    /// Prefills a prompt and saves its caches in a file.
    pub(crate) fn cache_prompt(
        worker: &mut Worker,
        request: CachePromptRequest,
        on_progress: mpsc::UnboundedSender<(usize, usize)>,
        reply: oneshot::Sender<Result<CachedPrompt, EngineError>>,
    ) -> Option<Self> {
        begin(worker, "reading a prompt", None, reply, WorkFor::default(), |worker, loaded| {
            let progress = on_progress.clone();
            let cancel = worker.cancel(move || progress.is_closed());
            let writer = Box::new(PromptFileWriter::new(loaded, request, cancel)?);
            let _ = on_progress.send(writer.progress());
            Ok(Box::new(move |reply| TaskWork::CachePrompt { writer, on_progress, reply }))
        })
    }

    /// Imports a prompt-cache file into the prompt cache.
    pub(crate) fn import(
        worker: &mut Worker,
        path: PathBuf,
        import: Import,
        reply: oneshot::Sender<Result<PromptFileInfo, EngineError>>,
    ) -> Option<Self> {
        let during = "reading a prompt cache";
        begin(worker, during, None, reply, WorkFor::default(), |worker, _| {
            let import = Box::new(PendingImport::new(worker, path, import)?);
            Ok(Box::new(move |reply| TaskWork::Import { import, reply }))
        })
    }

    /// Computes what follows each of many prompts.
    pub(crate) fn classify(
        worker: &mut Worker,
        request: ClassifyRequest,
        processor: Option<&LogitsProcessorFactory>,
        events: mpsc::UnboundedSender<ClassifyEvent>,
    ) -> Option<Self> {
        let begun = worker.guarded("classifying", |worker| {
            let loaded = worker.models.get(request.model.as_deref())?;
            let (events, work_for) = (events.clone(), request.work_for.clone());
            let work = Classifier::new(worker, &loaded, request, processor, events)?;
            Ok(Task::of(worker, loaded, work_for, TaskWork::Classify(Box::new(work))))
        });
        match begun {
            Ok(task) => Some(task),
            Err(error) => {
                let _ = events.send(ClassifyEvent::Failed(error));
                None
            }
        }
    }

    /// Computes the queries of an [`AsyncLm`](crate::AsyncLm).
    pub(crate) fn next_tokens(
        worker: &Worker,
        loaded: Rc<Loaded>,
        memory: Option<Rc<ModelMemory>>,
        state: Rc<RefCell<LmState>>,
    ) -> Self {
        let done = worker.work.open(WorkFor::default(), &loaded.name);
        Task { loaded, memory, work: TaskWork::NextTokens(state), done }
    }

    pub(crate) fn loaded(&self) -> &Rc<Loaded> {
        &self.loaded
    }

    /// Whether nobody waits for the answer.
    pub(crate) fn is_cancelled(&self) -> bool {
        match &self.work {
            TaskWork::Score { reply, .. } => reply.is_closed(),
            TaskWork::Embed { reply, .. } => reply.is_closed(),
            TaskWork::Probabilities { reply, .. } => reply.is_closed(),
            TaskWork::CachePrompt { reply, .. } => reply.is_closed(),
            TaskWork::Import { reply, .. } => reply.is_closed(),
            TaskWork::Classify(work) => work.is_cancelled(),
            TaskWork::NextTokens(state) => state.borrow_mut().drop_abandoned(),
        }
    }

    /// How many tokens have been read, of how many.
    pub(crate) fn progress(&self) -> (usize, usize) {
        match &self.work {
            TaskWork::Score { scoring, .. } => scoring.progress(),
            TaskWork::Embed { embedding, .. } => embedding.progress(),
            TaskWork::Probabilities { answer, .. } => answer.progress(),
            TaskWork::CachePrompt { writer, .. } => writer.progress(),
            TaskWork::Import { import, .. } => import.progress(),
            TaskWork::Classify(work) => work.progress(),
            TaskWork::NextTokens(state) => (0, state.borrow().num_unread_tokens()),
        }
    }

    /// How many tokens are not read yet; at least 1 while there is work.
    pub(crate) fn num_unread_tokens(&self) -> usize {
        let (num_read, num_tokens) = self.progress();
        (num_tokens - num_read).max(1)
    }

    /// The most tokens of a slice, where the request limits them.
    pub(crate) fn prefill_step_size(&self) -> Option<usize> {
        match &self.work {
            TaskWork::CachePrompt { writer, .. } => Some(writer.step_size()),
            TaskWork::NextTokens(state) => Some(state.borrow().prefill_step_size()),
            TaskWork::Score { .. }
            | TaskWork::Embed { .. }
            | TaskWork::Probabilities { .. }
            | TaskWork::Import { .. }
            | TaskWork::Classify(_) => None,
        }
    }

    /// Bytes that the pass under way takes beside the weights, and what was read for the next one.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        match &self.work {
            TaskWork::Score { scoring, .. } => scoring.reserved_bytes(),
            TaskWork::Embed { embedding, .. } => embedding.reserved_bytes(),
            TaskWork::Probabilities { answer, .. } => answer.reserved_bytes(),
            TaskWork::Classify(work) => work.reserved_bytes(),
            TaskWork::NextTokens(state) => state.borrow().reserved_bytes(),
            TaskWork::CachePrompt { .. } | TaskWork::Import { .. } => 0,
        }
    }

    /// The part of the reserved bytes that stays reserved until the task has room for its next pass.
    pub(crate) fn held_bytes(&self) -> u64 {
        if let TaskWork::Classify(work) = &self.work { work.held_bytes() } else { 0 }
    }

    /// Frees what it holds for another task, and reads it again later.
    pub(crate) fn give_way(&mut self) {
        if let TaskWork::Classify(work) = &mut self.work {
            work.give_way();
        }
    }

    /// Whether it has given way, and still waits for that; `holds_any`: another task holds memory.
    pub(crate) fn waits_for_tasks(&mut self, holds_any: bool) -> bool {
        let TaskWork::Classify(work) = &mut self.work else { return false };
        work.waits_for_tasks(holds_any)
    }

    /// Bytes without which nothing more can be computed: none while a pass is under way.
    pub(crate) fn least_bytes(&mut self, max_tokens: usize) -> u64 {
        let Some(memory) = &self.memory else { return 0 };
        match &mut self.work {
            TaskWork::Score { scoring, .. } => scoring.least_bytes(memory, max_tokens),
            TaskWork::Embed { embedding, .. } => embedding.least_bytes(memory, max_tokens),
            TaskWork::Probabilities { answer, .. } => answer.least_bytes(memory, max_tokens),
            TaskWork::Classify(work) => work.least_bytes(memory, max_tokens),
            TaskWork::NextTokens(state) => state.borrow_mut().least_bytes(memory, max_tokens),
            TaskWork::CachePrompt { .. } | TaskWork::Import { .. } => 0,
        }
    }

    /// Answers what cannot be computed because [`Task::least_bytes`] cannot be had. An error ends the
    /// task.
    pub(crate) fn refuse(&mut self, error: EngineError) -> Result<(), EngineError> {
        match &mut self.work {
            TaskWork::Classify(work) => work.refuse(error),
            TaskWork::NextTokens(state) => {
                state.borrow_mut().refuse(error);
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Reads at most `max_tokens`. `free_bytes` are what passes that
    /// begin may take, if there is a limit. After an error the task is of no further use.
    pub(crate) fn advance(
        &mut self,
        worker: &mut Worker,
        max_tokens: usize,
        free_bytes: Option<u64>,
    ) -> Result<Slice, EngineError> {
        let memory = self.memory.clone();
        let limits = SliceLimits { max_tokens, memory: memory.as_deref().zip(free_bytes) };
        let (before, _) = self.progress();
        let read_before = self.num_read_tokens();
        let mut computed = 0;
        let (during, done) = (self.during(), &mut self.done);
        worker.guarded(during, |worker| match &mut self.work {
            TaskWork::NextTokens(state) => {
                computed = state.borrow_mut().advance(limits);
                Ok(())
            }
            TaskWork::Score { scoring, .. } => scoring.advance(limits),
            TaskWork::Embed { embedding, .. } => {
                computed = embedding.advance(limits)?;
                Ok(())
            }
            TaskWork::Probabilities { answer, on_progress, .. } => {
                computed = answer.advance(worker, limits, done)?;
                let (num_read, num_tokens) = answer.progress();
                let _ = on_progress.send((num_read, num_tokens));
                Ok(())
            }
            TaskWork::CachePrompt { writer, on_progress, .. } => {
                writer.advance(max_tokens)?;
                let _ = on_progress.send(writer.progress());
                Ok(())
            }
            TaskWork::Import { import, .. } => import.advance(worker, max_tokens),
            TaskWork::Classify(work) => work.advance(worker, limits),
        })?;
        let computed = match &self.work {
            // Nothing was computed in this slice, only read and stored.
            TaskWork::Import { import, .. } if import.is_done() => 0,
            TaskWork::NextTokens(_) | TaskWork::Probabilities { .. } | TaskWork::Embed { .. } => {
                computed
            }
            _ => self.progress().0 - before,
        };
        let num_read = match read_before {
            Some(before) => self.num_read_tokens().unwrap_or(before) - before,
            None => computed,
        };
        self.done.read(num_read);
        Ok(Slice { num_tokens: computed, num_read })
    }

    /// How many tokens have been read without padding, where the progress has it.
    fn num_read_tokens(&self) -> Option<usize> {
        match &self.work {
            TaskWork::Classify(work) => Some(work.num_read_tokens()),
            TaskWork::Embed { embedding, .. } => Some(embedding.progress().0),
            _ => None,
        }
    }

    /// Whether all work is done, so that the task can be answered.
    pub(crate) fn is_done(&self) -> bool {
        match &self.work {
            TaskWork::Score { scoring, .. } => scoring.is_done(),
            TaskWork::Embed { embedding, .. } => embedding.is_done(),
            TaskWork::Probabilities { answer, .. } => answer.is_done(),
            TaskWork::CachePrompt { writer, .. } => writer.written().is_some(),
            TaskWork::Import { import, .. } => import.is_done(),
            TaskWork::Classify(work) => work.is_done(),
            TaskWork::NextTokens(state) => state.borrow().is_idle(),
        }
    }

    /// Frees what the task has computed with, and returns what sends its answer, or why it failed.
    pub(crate) fn answer(self, result: Result<(), EngineError>) -> Box<dyn FnOnce()> {
        match self.work {
            TaskWork::Score { scoring, reply } => {
                let scores = result.map(|()| scoring.finish());
                Box::new(move || drop(reply.send(scores)))
            }
            TaskWork::Embed { embedding, reply } => {
                let embeddings = result.map(|()| embedding.finish());
                Box::new(move || drop(reply.send(embeddings)))
            }
            TaskWork::Probabilities { answer, reply, .. } => {
                let tokens = result.and_then(|()| answer.finish());
                Box::new(move || drop(reply.send(tokens)))
            }
            TaskWork::CachePrompt { writer, reply, .. } => {
                let written = result.and_then(|()| writer.written().ok_or(EngineError::Closed));
                Box::new(move || drop(reply.send(written)))
            }
            TaskWork::Import { import, reply } => {
                let info = result.map(|()| import.into_info());
                Box::new(move || drop(reply.send(info)))
            }
            TaskWork::Classify(work) => Box::new(move || work.end(result)),
            TaskWork::NextTokens(state) => {
                if let Err(error) = result {
                    let text = error.to_string();
                    state.borrow_mut().fail_all(|| EngineError::QueryFailed { why: text.clone() });
                }
                Box::new(|| ())
            }
        }
    }

    fn during(&self) -> &'static str {
        match &self.work {
            TaskWork::Score { .. } => "scoring",
            TaskWork::Embed { .. } => "embedding",
            TaskWork::Probabilities { .. } => "reading an answer",
            TaskWork::CachePrompt { .. } => "reading a prompt",
            TaskWork::Import { .. } => "reading a prompt cache",
            TaskWork::Classify(_) => "classifying",
            TaskWork::NextTokens(_) => "computing log-probabilities",
        }
    }
}
