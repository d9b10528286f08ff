//! The engine's thread: one loop over jobs and slices.
//!
//! Each turn of the loop takes the jobs that have come, answers those that need nothing, and lets
//! the scheduler give one slice to one run. A model is loaded between turns; the load takes a turn
//! before each tensor.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock};

use cairn_chat::Encode;
use cairn_lm::batch::BatchOptions;
use cairn_lm::{LmError, LoadOptions, LoadedModel, ModelMemory, check_vocabularies};
use tokio::sync::{mpsc, oneshot, watch};

use crate::admission::Admission;
use crate::clock::SystemClock;
use crate::guard::{caught, guarded, panic_message};
use crate::model_pool::{Loaded, ModelFiles};
use crate::prompt::{known_tokens, prompt_tokens};
use crate::prompt_cache::{PromptCache, StoredCache};
use crate::prompt_file::{
    self, CachePromptRequest, CachedPrompt, ExportRequest, Import, PromptFileInfo,
};
use crate::request::{MemoryPressure, ModelInfo, PromptInput, Score};
use crate::scheduler::Scheduler;
use crate::sequence::{GenerateJob, SequenceNeeds};
use crate::task::Task;
use crate::worker::Worker;
use crate::{EngineError, EngineState, EngineStatus};

/// The jobs of the thread. The set is closed: it could be a protocol over a pipe.
#[derive(Debug)]
pub(crate) enum Job {
    Load(LoadJob),
    UnloadDraft {
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    CachePrompt {
        request: Box<CachePromptRequest>,
        progress: mpsc::UnboundedSender<(usize, usize)>,
        reply: oneshot::Sender<Result<CachedPrompt, EngineError>>,
    },
    Unload {
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
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
enum JobNeeds {
    /// Headers, rows, budgets, or the tokenizer of a loaded model: it is answered at once, even
    /// between two tokens.
    Nothing,
    /// A model to compute with: it becomes a run, beside others.
    Model,
    /// A turn of the loop without a load under way.
    Load,
    /// That its models are idle.
    IdleModels,
}

impl Job {
    fn needs(&self) -> JobNeeds {
        match self {
            Job::UnloadDraft { .. }
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
            Job::Unload { .. } => JobNeeds::IdleModels,
            #[cfg(test)]
            Job::Panic => JobNeeds::Nothing,
        }
    }

    /// Whether the request names no model: then a load that came before it decides which it gets.
    fn names_no_model(&self) -> bool {
        !matches!(self, Job::Generate(job) if job.request.model.is_some())
    }
}

/// A model to load.
#[derive(Debug)]
pub(crate) struct LoadJob {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) reply: LoadReply,
}

/// What is loaded, with the channel for the answer.
#[derive(Debug)]
pub(crate) enum LoadReply {
    Model(oneshot::Sender<Result<ModelInfo, EngineError>>),
    /// The draft model of the current one.
    Draft(oneshot::Sender<Result<(), EngineError>>),
}

impl LoadReply {
    fn is_closed(&self) -> bool {
        match self {
            LoadReply::Model(reply) => reply.is_closed(),
            LoadReply::Draft(reply) => reply.is_closed(),
        }
    }
}

/// A model is loaded if a conversation of so many tokens fits beside its weights, and an answer
/// begins by itself if so many tokens of it fit.
const SHORT_CONVERSATION_TOKENS: usize = 256;

/// Memory is reserved for at most so many tokens of an answer: most end before their limit.
const LONG_ANSWER_TOKENS: usize = 4096;

/// The models that an unload waits for, and the channel for its answer.
struct PendingUnload {
    names: Vec<String>,
    reply: oneshot::Sender<Result<(), EngineError>>,
}

/// The state of the loop. A load under way holds a second handle to it.
pub(crate) struct EngineLoop {
    pub(crate) worker: Worker,
    scheduler: Scheduler,
    jobs: Receiver<Job>,
    /// Jobs that compute, in the order in which they came.
    waiting: VecDeque<Job>,
    loads: VecDeque<LoadJob>,
    unloads: Vec<PendingUnload>,
    /// The load under way; its reply is closed when nobody waits for it.
    loading: Option<LoadReply>,
}

/// What the thread does after a turn of the loop.
enum Next {
    Turn,
    Load(LoadJob),
    End,
}

/// Serves jobs until the engine is shut down. What the device computes is cancelled then; the caller
/// drops the rest.
pub(crate) fn run(engine: &Rc<RefCell<EngineLoop>>) {
    engine.borrow_mut().worker.publish(EngineState::Empty);
    loop {
        let next = engine.borrow_mut().turn();
        match next {
            Next::Turn => {}
            Next::Load(job) => load(engine, job),
            Next::End => break,
        }
    }
    let EngineLoop { worker, scheduler, .. } = &mut *engine.borrow_mut();
    scheduler.cancel_all(worker);
    worker.drop_idle_models(|_| true);
}

impl EngineLoop {
    pub(crate) fn new(worker: Worker, scheduler: Scheduler, jobs: Receiver<Job>) -> Self {
        EngineLoop {
            worker,
            scheduler,
            jobs,
            waiting: VecDeque::new(),
            loads: VecDeque::new(),
            unloads: Vec::new(),
            loading: None,
        }
    }

    fn turn(&mut self) -> Next {
        // A load that has just ended may have taken the job that wakes the loop.
        if self.is_idle() && !self.is_closing() {
            match self.jobs.recv() {
                Ok(job) => self.accept(job),
                Err(_) => return Next::End,
            }
        }
        self.take_jobs();
        // Waiting jobs are dropped, and their callers receive [`EngineError::Closed`].
        if self.is_closing() {
            return Next::End;
        }
        self.advance();
        self.loads.pop_front().map_or(Next::Turn, Next::Load)
    }

    /// Makes room for a model and publishes that it is being loaded.
    fn begin_load(&mut self, name: &str, memory: Option<&ModelMemory>) -> Result<(), EngineError> {
        let reserved_bytes = self.scheduler.reserved_bytes();
        let worker = &mut self.worker;
        // A model of the same name is replaced, and need not fit beside the new one.
        worker.drop_idle_models(|loaded| loaded.name == name);
        if let (Some(memory), Some(used)) = (memory, worker.memory_use(reserved_bytes)) {
            let needed = memory.peak_bytes(SHORT_CONVERSATION_TOKENS, 1, SHORT_CONVERSATION_TOKENS);
            worker.make_room(used.admit_model(needed), name)?;
        }
        worker.models.clear_current();
        worker.loading = Some(name.to_owned());
        worker.publish(EngineState::Empty);
        Ok(())
    }

    /// What becomes of a request for an answer. It waits for memory behind others of its model.
    fn admit(&mut self, job: &mut GenerateJob, loaded: &Rc<Loaded>) -> Result<bool, EngineError> {
        let Some(used) = self.worker.memory_use(self.scheduler.reserved_bytes()) else {
            return Ok(true);
        };
        let needs = match job.needs {
            Some(needs) => needs,
            None => *job.needs.insert(self.needs(job, loaded)?),
        };
        let admission = used.admit_sequence(&loaded.name, needs.most_bytes, needs.least_bytes);
        if matches!(admission, Admission::Wait { .. }) {
            return Ok(false);
        }
        self.worker.make_room(admission, "the answer").map(|()| true)
    }

    /// What an answer takes besides the weights.
    fn needs(
        &mut self,
        job: &GenerateJob,
        loaded: &Rc<Loaded>,
    ) -> Result<SequenceNeeds, EngineError> {
        let request = &job.request;
        let prompt = guarded(&mut self.worker, "starting an answer", |_| {
            prompt_tokens(&loaded.model, &request.prompt, &request.template_variables)
        })?;
        let Some(memory) =
            self.worker.models.pooled(loaded).and_then(|pooled| pooled.memory.as_ref())
        else {
            return Ok(SequenceNeeds { most_bytes: 0, least_bytes: 0 });
        };
        let bytes = |num_answer: usize| {
            let num_tokens = prompt.tokens.len() + request.max_tokens.min(num_answer);
            memory.peak_bytes(num_tokens.min(memory.context_length), 1, SHORT_CONVERSATION_TOKENS)
                - memory.weight_bytes
        };
        Ok(SequenceNeeds {
            most_bytes: bytes(LONG_ANSWER_TOKENS),
            least_bytes: bytes(SHORT_CONVERSATION_TOKENS),
        })
    }

    /// A turn for others before the next tensor of a load. Breaks if the load is to end.
    fn between_tensors(&mut self) -> ControlFlow<()> {
        self.take_jobs();
        if self.is_closing() || self.loading.as_ref().is_none_or(LoadReply::is_closed) {
            return ControlFlow::Break(());
        }
        self.advance();
        ControlFlow::Continue(())
    }

    /// Begins what may begin, and gives one slice to one run.
    fn advance(&mut self) {
        self.begin_waiting();
        self.scheduler.turn(&mut self.worker);
        self.unload_idle();
    }

    fn is_closing(&self) -> bool {
        *self.worker.closing.borrow()
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_empty() && self.waiting.is_empty() && self.loads.is_empty()
    }

    fn take_jobs(&mut self) {
        while let Ok(job) = self.jobs.try_recv() {
            self.accept(job);
        }
    }

    /// Answers a job, or queues it.
    fn accept(&mut self, job: Job) {
        match (job.needs(), job) {
            (JobNeeds::Nothing, job) => answer(&mut self.worker, job),
            (_, Job::Load(job)) => self.loads.push_back(job),
            (_, Job::Unload { reply }) => {
                let names = self.worker.models.names();
                self.unloads.push(PendingUnload { names, reply });
                self.unload_idle();
            }
            (_, job) => self.waiting.push_back(job),
        }
    }

    /// Begins the waiting jobs for which there is room. Those of one model keep their order.
    fn begin_waiting(&mut self) {
        let is_loading = self.loading.is_some() || !self.loads.is_empty();
        let mut full: Vec<Rc<Loaded>> = Vec::new();
        for mut job in std::mem::take(&mut self.waiting) {
            if is_abandoned(&job) {
                continue;
            }
            let model = match &job {
                Job::Generate(job) => self.worker.models.get(job.request.model.as_deref()).ok(),
                _ => self.worker.models.get(None).ok(),
            };
            let is_full = model.as_ref().is_some_and(|model| {
                matches!(job, Job::Generate(_))
                    && (full.iter().any(|other| Rc::ptr_eq(other, model))
                        || !self.scheduler.has_room(model))
            });
            if is_full || (is_loading && job.names_no_model()) {
                full.extend(model);
                self.waiting.push_back(job);
                continue;
            }
            if let (Job::Generate(generate), Some(model)) = (&mut job, model) {
                match self.admit(generate, &model) {
                    Ok(true) => {}
                    Ok(false) => {
                        full.push(model);
                        self.waiting.push_back(job);
                        continue;
                    }
                    Err(error) => {
                        generate.fail(error);
                        continue;
                    }
                }
            }
            self.begin(job);
        }
    }

    fn begin(&mut self, job: Job) {
        let worker = &mut self.worker;
        let task = match job {
            Job::Generate(job) => return self.scheduler.begin(worker, job),
            Job::CachePrompt { request, progress, reply } => {
                Task::cache_prompt(worker, *request, progress, reply)
            }
            Job::ReadPromptFile { path, import: Some(import), reply } => {
                Task::import(worker, path, import, reply)
            }
            Job::Score { prompt, num_top, reply } => Task::score(worker, &prompt, num_top, reply),
            job => return answer(worker, job),
        };
        if let Some(task) = task {
            self.scheduler.begin_task(task);
        }
    }

    /// Drops the models that were to be unloaded and are idle, and answers who waited for the last
    /// of theirs.
    fn unload_idle(&mut self) {
        for mut unload in std::mem::take(&mut self.unloads) {
            let goes = |loaded: &Loaded| unload.names.contains(&loaded.name);
            if self.worker.models.iter().any(|pooled| !pooled.is_in_use() && goes(&pooled.loaded)) {
                self.worker.drop_idle_models(goes);
            }
            let names = self.worker.models.names();
            unload.names.retain(|name| names.contains(name));
            if !unload.names.is_empty() {
                self.unloads.push(unload);
                continue;
            }
            let state = match self.worker.models.current() {
                Some(model) => EngineState::Ready { model: model.to_owned() },
                None => EngineState::Empty,
            };
            self.worker.publish(state);
            let _ = unload.reply.send(Ok(()));
        }
    }
}

/// Whether nobody waits for the answer of a job.
fn is_abandoned(job: &Job) -> bool {
    match job {
        Job::Generate(job) => job.events.is_closed(),
        Job::CachePrompt { reply, .. } => reply.is_closed(),
        Job::ReadPromptFile { reply, .. } => reply.is_closed(),
        Job::Score { reply, .. } => reply.is_closed(),
        _ => false,
    }
}

/// Answers a job that needs nothing.
fn answer(worker: &mut Worker, job: Job) {
    match job {
        Job::UnloadDraft { reply } => {
            let _ = reply.send(guarded(worker, "dropping a draft model", |worker| {
                if let Ok(loaded) = worker.models.get(None) {
                    worker.set_draft(&loaded, None);
                }
                Ok(())
            }));
        }
        Job::ReadPromptFile { path, import: None, reply } => {
            let _ = reply.send(guarded(worker, "reading a prompt cache", |worker| {
                prompt_file::inspect(worker, &path)
            }));
        }
        Job::ExportPrompt { request, reply } => {
            let _ = reply.send(guarded(worker, "exporting a prompt cache", |worker| {
                prompt_file::export(worker, &request)
            }));
        }
        Job::ForgetConversations { reply } => {
            let _ = reply.send(guarded(worker, "dropping conversations", |worker| {
                worker.forget_conversations();
                Ok(())
            }));
        }
        Job::Decode { token_ids, reply } => {
            let _ = reply.send(guarded(worker, "decoding", |worker| decode(worker, &token_ids)));
        }
        Job::Tokenize { text, reply } => {
            let _ = reply.send(guarded(worker, "tokenizing", |worker| tokenize(worker, text)));
        }
        Job::SetCacheBudgets { disk_bytes, memory_bytes } => {
            let set = guarded(worker, "changing the budgets", |worker| {
                worker.cache.set_budgets(disk_bytes, memory_bytes);
                Ok(())
            });
            if let Err(error) = set {
                tracing::warn!(%error, "the budgets of the prompt cache are not changed");
            }
        }
        Job::RelieveMemory(pressure) => {
            let relieved = guarded(worker, "freeing memory", |worker| {
                worker.relieve(pressure);
                Ok(())
            });
            if let Err(error) = relieved {
                tracing::warn!(%error, "memory that the system is short of is not freed");
            }
        }
        Job::FlushCache { reply } => worker.cache.flush(reply),
        // Only wakes the loop, which checks `closing`.
        Job::Shutdown => {}
        #[cfg(test)]
        Job::Panic => panic!("a test ends the thread"),
        // These do not come here: see [`Job::needs`].
        Job::Load(_)
        | Job::Unload { .. }
        | Job::CachePrompt { .. }
        | Job::Generate(_)
        | Job::ReadPromptFile { .. }
        | Job::Score { .. } => {}
    }
}

/// Loads a model, with turns of the loop between its tensors.
fn load(engine: &Rc<RefCell<EngineLoop>>, job: LoadJob) {
    let LoadJob { name, folder, reply } = job;
    let is_draft = matches!(reply, LoadReply::Draft(_));
    engine.borrow_mut().loading = Some(reply);
    let result = match is_draft {
        true => load_draft(engine, name, &folder).map(|()| None),
        false => load_model(engine, name, &folder).map(Some),
    };
    match (engine.borrow_mut().loading.take(), result) {
        (Some(LoadReply::Model(reply)), Ok(Some(info))) => drop(reply.send(Ok(info))),
        (Some(LoadReply::Model(reply)), Err(error)) => drop(reply.send(Err(error))),
        (Some(LoadReply::Draft(reply)), result) => drop(reply.send(result.map(drop))),
        _ => {}
    }
}

fn load_model(
    engine: &Rc<RefCell<EngineLoop>>,
    name: String,
    folder: &Path,
) -> Result<ModelInfo, EngineError> {
    let files = ModelFiles::list(folder);
    let before = engine.borrow().worker.models.current().map(str::to_owned);
    let is_loaded = engine.borrow().worker.models.holds(&name, &files);
    let options = LoadOptions { keep_quantized: engine.borrow().worker.keep_quantized };
    // A folder that cannot be read is refused below, with its reason.
    let memory = ModelMemory::read(folder, options).ok();
    let read = match is_loaded {
        true => Ok(None),
        false => {
            let begun = engine.borrow_mut().begin_load(&name, memory.as_ref());
            begun.and_then(|()| read_model(engine, &name, folder)).map(Some)
        }
    };
    let worker = &mut engine.borrow_mut().worker;
    worker.loading = None;
    match read {
        Ok(model) => {
            if let Some(model) = model {
                worker.models.insert(name.clone(), model, files, memory);
            }
            worker.models.select(&name);
            let loaded = worker.models.get(None)?;
            // A draft model is loaded for each time that its model is.
            worker.set_draft(&loaded, None);
            worker.publish(EngineState::Ready { model: name });
            Ok(info(&loaded))
        }
        Err(
            error @ (EngineError::Closed
            | EngineError::LoadCancelled { .. }
            | EngineError::DoesNotFit { .. }),
        ) => {
            // The model before it stays the one of requests that name none.
            if let Some(before) = before.filter(|before| worker.models.names().contains(before)) {
                worker.models.select(&before);
            }
            worker.publish_idle();
            Err(error)
        }
        Err(error) => {
            worker.publish(EngineState::Failed { model: name, message: error.to_string() });
            Err(error)
        }
    }
}

fn load_draft(
    engine: &Rc<RefCell<EngineLoop>>,
    name: String,
    folder: &Path,
) -> Result<(), EngineError> {
    let loaded = engine.borrow().worker.models.get(None)?;
    engine.borrow_mut().worker.set_draft(&loaded, None);
    let draft = read_model(engine, &name, folder)?;
    check_vocabularies(&loaded.model.model, &draft.model)?;
    let worker = &mut engine.borrow_mut().worker;
    worker.set_draft(&loaded, Some(Rc::new(draft)));
    Ok(())
}

fn read_model(
    engine: &Rc<RefCell<EngineLoop>>,
    name: &str,
    folder: &Path,
) -> Result<LoadedModel, EngineError> {
    let keep_quantized = engine.borrow().worker.keep_quantized;
    let others = Rc::clone(engine);
    let is_cancelled = move || others.borrow_mut().between_tensors().is_break();
    let read = caught("loading a model", || {
        Ok(LoadedModel::load_unless(folder, LoadOptions { keep_quantized }, is_cancelled))
    })?;
    read.map_err(|source| match source {
        LmError::Cancelled if *engine.borrow().worker.closing.borrow() => EngineError::Closed,
        LmError::Cancelled => EngineError::LoadCancelled { model: name.to_owned() },
        source => EngineError::Load { name: name.to_owned(), source },
    })
}

fn info(loaded: &Loaded) -> ModelInfo {
    let Loaded { name, model } = loaded;
    ModelInfo {
        name: name.clone(),
        model_type: model.model_type.clone(),
        context_length: model.model.context_length(),
        vocab_size: model.model.vocab_size(),
        weight_bytes: model.weight_bytes,
        has_chat_template: model.tokenizer.chat_template().is_some(),
        fingerprint: model.fingerprint.clone(),
    }
}

fn tokenize(worker: &Worker, text: String) -> Result<Vec<u32>, EngineError> {
    known_tokens(&worker.models.get(None)?.model, &PromptInput::Text(text))
}

fn decode(worker: &Worker, token_ids: &[Vec<u32>]) -> Result<Vec<String>, EngineError> {
    let loaded = worker.models.get(None)?;
    let tokenizer = &loaded.model.tokenizer;
    Ok(token_ids.iter().map(|ids| tokenizer.decode(ids)).collect::<Result<_, _>>()?)
}

/// What the thread runs with.
pub(crate) struct ThreadParts {
    pub(crate) jobs: Receiver<Job>,
    pub(crate) stored: StoredCache,
    pub(crate) batching: BatchOptions,
    pub(crate) keep_quantized: bool,
    pub(crate) memory_limit_bytes: Option<u64>,
    pub(crate) status: watch::Sender<EngineStatus>,
    pub(crate) closing: watch::Receiver<bool>,
    /// Gets what is stored if the thread ends because of a bug.
    pub(crate) salvaged: Arc<Mutex<Option<StoredCache>>>,
    /// Gets the message of that bug.
    pub(crate) ended: Arc<OnceLock<String>>,
}

/// The whole life of the thread. MLX arrays are freed on the thread that made them, also after a
/// panic that nothing caught; then the status says why it ended.
pub(crate) fn serve(parts: ThreadParts) {
    let ThreadParts { jobs, stored, batching, status, salvaged, ended, .. } = parts;
    let worker = Worker::new(
        PromptCache::new(stored),
        parts.keep_quantized,
        parts.memory_limit_bytes,
        status.clone(),
        parts.closing,
    );
    let scheduler = Scheduler::new(batching, Rc::new(SystemClock));
    let engine = Rc::new(RefCell::new(EngineLoop::new(worker, scheduler, jobs)));
    let panic = catch_unwind(AssertUnwindSafe(|| run(&engine))).err();
    let worker = &mut engine.borrow_mut().worker;
    let cache = std::mem::replace(&mut worker.cache, PromptCache::new(StoredCache::none()));
    let Some(panic) = panic else { return cache.close() };
    let message = panic_message(panic.as_ref());
    tracing::error!(%message, "the engine's thread ends because of a bug");
    *salvaged.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(cache.into_stored());
    let model = worker.models.current().unwrap_or_default().to_owned();
    let _ = ended.set(message.clone());
    let state = EngineState::Failed { model, message };
    status.send_modify(|status| {
        *status =
            EngineStatus { state, models: Vec::new(), model_fingerprint: None, ..status.clone() }
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn a_model_is_not_loaded_to_its_end_by_an_engine_that_shuts_down() {
        let folder = cairn_tiny_models::tiny_model("llama/tiny-chat");
        let (closing, is_closing) = watch::channel(false);
        let (status, _watcher) = watch::channel(EngineStatus::default());
        let (_jobs, jobs) = std::sync::mpsc::channel();
        let cache = PromptCache::new(StoredCache::none());
        let worker = Worker::new(cache, true, None, status, is_closing);
        let scheduler = Scheduler::new(BatchOptions::default(), Rc::new(SystemClock));
        let engine = Rc::new(RefCell::new(EngineLoop::new(worker, scheduler, jobs)));
        let load = |name: &str| {
            let (reply, mut answer) = oneshot::channel();
            let reply = LoadReply::Model(reply);
            load(&engine, LoadJob { name: name.to_owned(), folder: folder.clone(), reply });
            answer.try_recv().unwrap()
        };
        assert!(load("tiny").is_ok());
        closing.send_replace(true);
        let cancelled = load("another");
        assert!(matches!(cancelled, Err(EngineError::Closed)), "{cancelled:?}");
        assert_eq!(engine.borrow().worker.models.names(), ["tiny"]);
    }
}
