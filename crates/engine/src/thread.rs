//! The engine's thread: one loop over jobs and slices.
//!
//! Each turn of the loop takes the jobs that have come, answers those that need nothing, and lets
//! the scheduler give one slice to one run. A model is loaded between turns; the load takes a turn
//! before each tensor, and before each part of a large one.

mod grammars;
mod job;
mod loading;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cairn_chat::Encode;
use cairn_lm::batch::BatchOptions;
use cairn_lm::{ModelMemory, memory};
use tokio::sync::{oneshot, watch};

use crate::admission::Admission;
use crate::clock::SystemClock;
use crate::generate_job::{GenerateJob, SequenceNeeds};
use crate::guard::panic_message;
use crate::lm_job;
use crate::model_pool::Loaded;
use crate::outlook::look_ahead;
use crate::prompt::prompt_tokens;
use crate::prompt_cache::{Blocking, PromptCache, StoredCache};
use crate::prompt_file;
use crate::scheduler::Scheduler;
use crate::task::Task;
use crate::work::{WorkCounter, WorkLog};
use crate::worker::Worker;
use crate::{EngineError, EngineState, EngineStatus, NeedsMemory};
use grammars::GrammarQueue;
use job::JobNeeds;
use loading::load;

pub(crate) use job::{InProcess, Job, LoadJob, LoadReply, Submitted};

/// A model is loaded if a conversation of so many tokens fits beside its weights, and an answer
/// begins by itself if so many tokens of it fit.
const SHORT_CONVERSATION_TOKENS: usize = 256;

/// Memory is reserved for at most so many tokens of an answer: most end before their limit.
const LONG_ANSWER_TOKENS: usize = 4096;

/// After so long without work, freed memory goes back to the system. Whoever asks again sooner would
/// have to get it from there again.
const IDLE_BEFORE_TRIM: Duration = Duration::from_secs(2);

/// The state of the loop. A load under way holds a second handle to it.
pub(crate) struct EngineLoop {
    pub(crate) worker: Worker,
    scheduler: Scheduler,
    jobs: Receiver<Job>,
    /// Where requests go whose grammars are to be compiled.
    grammars: GrammarQueue,
    /// Jobs that compute, in the order in which they came.
    waiting: VecDeque<Job>,
    loads: VecDeque<LoadJob>,
    /// Callers that wait until what was computed before is on disk.
    flushes: Vec<oneshot::Sender<Result<(), EngineError>>>,
    /// Models that are unloaded when they are no longer in use.
    unloading: Vec<String>,
    /// The load under way; its reply is closed when nobody waits for it.
    loading: Option<LoadReply>,
    /// Whether that is to end.
    is_load_cancelled: bool,
    /// Whether a job has come since freed memory last went back to the system.
    has_worked: bool,
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
    fn new(
        worker: Worker,
        scheduler: Scheduler,
        jobs: Receiver<Job>,
        grammars: GrammarQueue,
    ) -> Self {
        EngineLoop {
            worker,
            scheduler,
            jobs,
            grammars,
            waiting: VecDeque::new(),
            loads: VecDeque::new(),
            flushes: Vec::new(),
            unloading: Vec::new(),
            loading: None,
            is_load_cancelled: false,
            has_worked: false,
        }
    }

    fn turn(&mut self) -> Next {
        // A load that has just ended may have taken the job that wakes the loop.
        if self.is_idle() && !self.is_closing() {
            match self.next_job() {
                Some(job) => self.accept(job),
                None => return Next::End,
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

    /// Waits for a job, and gives memory back meanwhile; `None` when no more can come.
    fn next_job(&mut self) -> Option<Job> {
        if std::mem::take(&mut self.has_worked) {
            match self.jobs.recv_timeout(IDLE_BEFORE_TRIM) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Timeout) => memory::trim(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        self.jobs.recv().ok()
    }

    /// What becomes of a request for an answer. It waits for memory behind others of its model.
    fn admit(&mut self, job: &mut GenerateJob, loaded: &Rc<Loaded>) -> Result<bool, EngineError> {
        let Some(used) = self.worker.memory_use(self.scheduler.reserved_bytes()) else {
            return Ok(true);
        };
        let needs = match job.needs {
            Some(needs) => needs,
            None => {
                let needs = self.needs(job, loaded)?;
                *job.needs.insert(needs)
            }
        };
        let admission = used.admit_sequence(&loaded.name, needs.most_bytes, needs.least_bytes);
        if matches!(admission, Admission::Wait { .. }) {
            return Ok(false);
        }
        self.worker.make_room(admission, NeedsMemory::Answer).map(|()| true)
    }

    /// What an answer takes besides the weights.
    fn needs(
        &mut self,
        job: &mut GenerateJob,
        loaded: &Rc<Loaded>,
    ) -> Result<SequenceNeeds, EngineError> {
        let num_prompt_tokens =
            self.worker.guarded("starting an answer", |_| Ok(job.prompt(loaded)?.tokens.len()))?;
        let request = &job.request;
        let Some(pooled) = self.worker.models.pooled(loaded) else {
            return Ok(SequenceNeeds { most_bytes: 0, least_bytes: 0 });
        };
        let draft = pooled.draft.as_ref().filter(|_| request.may_draft());
        let of_draft = draft.and_then(|draft| draft.memory.as_ref());
        // What only may propose is no reason to refuse an answer.
        let of_needed_draft = of_draft.filter(|_| request.speculation.draft_tokens().is_some());
        let bytes = |num_answer: usize, of_draft: Option<&ModelMemory>| -> u64 {
            let num_tokens = num_prompt_tokens + request.max_tokens.min(num_answer);
            let models = pooled.memory.as_deref().into_iter().chain(of_draft);
            let beside_weights = models.map(|memory| {
                let num_tokens = num_tokens.min(request.context_length(memory.context_length));
                memory.peak_bytes(num_tokens, 1, SHORT_CONVERSATION_TOKENS) - memory.weight_bytes
            });
            beside_weights.sum()
        };
        Ok(SequenceNeeds {
            most_bytes: bytes(LONG_ANSWER_TOKENS, of_draft),
            least_bytes: bytes(SHORT_CONVERSATION_TOKENS, of_needed_draft),
        })
    }

    /// Begins what may begin, gives one slice to one run, and cuts one chunk of a finished sequence.
    fn advance(&mut self) {
        self.begin_waiting();
        self.worker.num_waiting = self.waiting.len();
        self.scheduler.turn(&mut self.worker);
        self.save();
        self.unload_idle();
        if self.scheduler.is_empty() && self.loading.is_none() {
            self.worker.wired.settle();
        }
    }

    /// Cuts one chunk. When the last is cut, those who wait for that wait for the writer.
    fn save(&mut self) {
        let EngineLoop { worker, scheduler, flushes, .. } = self;
        if worker.cache.is_saving() {
            let is_idle = scheduler.is_empty();
            attempt(worker, "saving a conversation", |worker| {
                worker.cache.save_next(Blocking::if_idle(is_idle));
            });
            if is_idle && !worker.cache.is_saving() {
                worker.publish_idle();
            }
        }
        if !worker.cache.is_saving() {
            flushes.drain(..).for_each(|reply| worker.cache.flush(reply));
        }
    }

    fn is_closing(&self) -> bool {
        *self.worker.closing.borrow()
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_empty()
            && self.waiting.is_empty()
            && self.loads.is_empty()
            && !self.worker.cache.is_saving()
    }

    fn take_jobs(&mut self) {
        while let Ok(job) = self.jobs.try_recv() {
            self.accept(job);
        }
    }

    /// Answers a job, or queues it.
    fn accept(&mut self, job: Job) {
        self.has_worked = true;
        match (job.needs(), job) {
            (_, Job::Load(job)) => self.loads.push_back(job),
            (_, Job::FlushCache { reply }) => self.flushes.push(reply),
            (_, Job::CancelLoad) => self.is_load_cancelled = self.loading.is_some(),
            (_, Job::Unload { reply }) => {
                self.unloading = self.worker.models.names();
                self.unload_idle();
                if self.unloading.is_empty() {
                    self.publish_unloaded();
                }
                let _ = reply.send(Ok(self.unloading.clone()));
            }
            (_, Job::UnloadUnused { name, unused_since }) => {
                if self.worker.drop_unused(&name, unused_since) {
                    self.publish_unloaded();
                }
            }
            (JobNeeds::Nothing, job) => run_at_once(&mut self.worker, job),
            (_, job) => self.waiting.push_back(job),
        }
    }

    /// Begins the waiting jobs for which there is room. Those of one model keep their order.
    fn begin_waiting(&mut self) {
        let is_loading = self.loading.is_some() || !self.loads.is_empty();
        let mut full: Vec<Rc<Loaded>> = Vec::new();
        for mut job in std::mem::take(&mut self.waiting) {
            if job.is_abandoned() {
                continue;
            }
            let model = match &job {
                Job::Generate(job) => self.worker.models.get(job.request.model.as_deref()).ok(),
                _ => self.worker.models.get(None).ok(),
            };
            // One that was stopped ends now, whatever it waits for.
            if model.is_some() && job.is_stopped() {
                self.begin(job);
                continue;
            }
            let waits_for_load = is_loading && job.names_no_model();
            if let (Some(model), false) = (&model, waits_for_load) {
                match self.with_grammar(job, model) {
                    Some(compiled) => job = compiled,
                    None => continue,
                }
            }
            let is_full = model.as_ref().is_some_and(|model| {
                matches!(job, Job::Generate(_))
                    && (full.iter().any(|other| Rc::ptr_eq(other, model))
                        || !self.scheduler.has_room(model))
            });
            if is_full || waits_for_load {
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

    /// The job, unless its grammar is still to be compiled: then it comes back with it.
    fn with_grammar(&mut self, job: Job, model: &Rc<Loaded>) -> Option<Job> {
        let Job::Generate(mut generate) = job else { return Some(job) };
        let lark = self.worker.guarded("starting an answer", |_| generate.missing_grammar(model));
        match lark {
            // It ends without a grammar.
            Ok(_) if generate.is_stopped() => return Some(Job::Generate(generate)),
            Ok(None) => return Some(Job::Generate(generate)),
            Ok(Some(lark)) => self.grammars.push(generate, lark, model),
            Err(error) => generate.fail(error),
        }
        None
    }

    fn begin(&mut self, job: Job) {
        let worker = &mut self.worker;
        let task = match job {
            Job::Generate(job) => return self.scheduler.begin(worker, *job),
            Job::CachePrompt { request, progress, reply } => {
                Task::cache_prompt(worker, *request, progress, reply)
            }
            Job::ReadPromptFile { path, import: Some(import), reply } => {
                Task::import(worker, path, import, reply)
            }
            Job::Score { request, reply } => Task::score(worker, &request, reply),
            Job::Embed { model, rows, dimensions, reply } => {
                Task::embed(worker, model.as_deref(), rows, dimensions, reply)
            }
            Job::Probabilities { request, progress, reply } => {
                Task::probabilities(worker, request, progress, reply)
            }
            Job::Classify { request, processor, events } => {
                Task::classify(worker, *request, processor.0.as_ref(), events)
            }
            Job::AsyncLm(job) => lm_job::begin(worker, job),
            job => return run_at_once(worker, job),
        };
        if let Some(task) = task {
            self.scheduler.begin_task(task);
        }
    }

    /// Drops the models that were to be unloaded and are idle.
    fn unload_idle(&mut self) {
        let EngineLoop { worker, unloading, .. } = self;
        let goes = |loaded: &Loaded| unloading.contains(&loaded.name);
        if !worker.models.iter().any(|pooled| !pooled.is_in_use() && goes(&pooled.loaded)) {
            return;
        }
        worker.drop_idle_models(goes);
        let names = worker.models.names();
        unloading.retain(|name| names.contains(name));
        self.publish_unloaded();
    }

    fn publish_unloaded(&mut self) {
        let state = match self.worker.models.current() {
            Some(model) => EngineState::Ready { model: model.to_owned() },
            None => EngineState::Empty,
        };
        self.worker.publish(state);
    }
}

/// Runs a job that is done in one step, and replies.
fn run_at_once(worker: &mut Worker, job: Job) {
    match job {
        Job::UnloadDraft { reply } => respond(worker, reply, "dropping a draft model", |worker| {
            if let Ok(loaded) = worker.models.get(None) {
                worker.set_draft(&loaded, None);
            }
            Ok(())
        }),
        Job::ReadPromptFile { path, import: None, reply } => {
            respond(worker, reply, "reading a prompt cache", |worker| {
                prompt_file::inspect(worker, &path)
            });
        }
        Job::ExportPrompt { request, reply } => {
            respond(worker, reply, "exporting a prompt cache", |worker| {
                prompt_file::export(worker, &request)
            });
        }
        Job::ForgetConversations { reply } => {
            respond(worker, reply, "dropping conversations", |worker| {
                worker.forget_conversations();
                Ok(())
            });
        }
        Job::Submit { model, run } => {
            if let Some(run) = run.0 {
                match worker.models.get(model.as_deref()) {
                    Ok(loaded) => run(Ok(&loaded)),
                    Err(error) => run(Err(error)),
                }
            }
        }
        Job::Decode { model, token_ids, reply } => {
            let model = model.as_deref();
            respond(worker, reply, "decoding", |worker| decode(worker, model, &token_ids));
        }
        Job::LookAhead { request, reply } => {
            respond(worker, reply, "looking up a prompt", |worker| look_ahead(worker, &request));
        }
        Job::Tokenize { model, prompt, template_variables, thinking, reply } => {
            respond(worker, reply, "tokenizing", |worker| {
                let loaded = worker.models.get(model.as_deref())?;
                let cancel = worker.cancel(|| false);
                let variables = &template_variables;
                Ok(prompt_tokens(&loaded.model, &prompt, variables, thinking, cancel)?.tokens)
            });
        }
        Job::SetWiredMemory(is_wanted) => worker.wired.want(is_wanted),
        Job::SetCacheBudgets { disk_bytes, memory_bytes } => {
            attempt(worker, "changing the prompt cache's budgets", |worker| {
                worker.cache.set_budgets(disk_bytes, memory_bytes);
            });
        }
        Job::RelieveMemory(pressure) => {
            attempt(worker, "freeing memory", |worker| worker.relieve(pressure));
        }
        Job::SetPinned(names) => worker.pinned = names,
        // Only wakes the loop, which checks `closing`.
        Job::Shutdown => {}
        #[cfg(test)]
        Job::Panic => panic!("a test ends the thread"),
        // These do not come here: see [`EngineLoop::accept`].
        Job::Load(_)
        | Job::AsyncLm(_)
        | Job::CancelLoad
        | Job::Unload { .. }
        | Job::UnloadUnused { .. }
        | Job::CachePrompt { .. }
        | Job::FlushCache { .. }
        | Job::Generate(_)
        | Job::ReadPromptFile { .. }
        | Job::Score { .. }
        | Job::Embed { .. }
        | Job::Probabilities { .. }
        | Job::Classify { .. } => {}
    }
}

/// Does some work and replies with its result.
fn respond<T>(
    worker: &mut Worker,
    reply: oneshot::Sender<Result<T, EngineError>>,
    what: &'static str,
    work: impl FnOnce(&mut Worker) -> Result<T, EngineError>,
) {
    let _ = reply.send(worker.guarded(what, work));
}

/// Does some work for which nobody waits.
fn attempt(worker: &mut Worker, what: &'static str, work: impl FnOnce(&mut Worker)) {
    let done = worker.guarded(what, |worker| {
        work(worker);
        Ok(())
    });
    if let Err(error) = done {
        tracing::warn!(%error, "{what} has failed");
    }
}

fn decode(
    worker: &Worker,
    model: Option<&str>,
    token_ids: &[Vec<u32>],
) -> Result<Vec<String>, EngineError> {
    let loaded = worker.models.get(model)?;
    let tokenizer = &loaded.model.tokenizer;
    Ok(token_ids.iter().map(|ids| tokenizer.decode(ids)).collect::<Result<_, _>>()?)
}

/// What the thread runs with.
pub(crate) struct ThreadParts {
    pub(crate) jobs: Receiver<Job>,
    /// The other end of `jobs`.
    pub(crate) own_jobs: Sender<Job>,
    pub(crate) stored: StoredCache,
    pub(crate) batching: BatchOptions,
    pub(crate) keep_quantized: bool,
    pub(crate) memory_limit_bytes: Option<u64>,
    pub(crate) device_failure: Option<String>,
    pub(crate) work: Option<WorkLog>,
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
    let ThreadParts { jobs, own_jobs, stored, batching, status, salvaged, ended, .. } = parts;
    let mut worker = Worker::new(
        PromptCache::new(stored),
        parts.keep_quantized,
        parts.memory_limit_bytes,
        status.clone(),
        parts.closing,
    );
    worker.device_failure = parts.device_failure;
    worker.work = WorkCounter::new(parts.work);
    let scheduler = Scheduler::new(batching, Rc::new(SystemClock));
    let grammars = GrammarQueue::start(own_jobs).expect("the system starts a thread");
    let engine = Rc::new(RefCell::new(EngineLoop::new(worker, scheduler, jobs, grammars)));
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
