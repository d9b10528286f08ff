//! The handle to the engine's thread.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use cairn_chat::{Thinking, ThinkingChoices};
use cairn_lm::batch::BatchOptions;
use cairn_prompt_cache::CacheChange;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

use crate::classify::{Classification, ClassifyRequest, LogitsProcessorFactory};
use crate::embedding::{EmbedRequest, Embeddings, InputReader};
use crate::generate_job::GenerateJob;
use crate::guard::caught;
use crate::outlook::Outlook;
use crate::prompt_cache::{CacheHandle, CacheOptions, StoredCache};
use crate::prompt_file::{CachePromptRequest, CachedPrompt, ExportRequest, Import, PromptFileInfo};
use crate::request::{
    AnswerToken, GenerateRequest, Generation, MemoryPressure, ModelInfo, ModelOptions, PromptInput,
    Score, ScoreRequest, Speculation,
};
use crate::thread::{self, InProcess, Job, LoadJob, LoadReply, Submitted, ThreadParts};
use crate::work::WorkLog;
use crate::{EngineError, EngineStatus, LoadedModel};

/// The options of an engine.
#[derive(Debug)]
pub struct EngineOptions {
    /// Where prompt caches are stored; with none they are in memory only.
    pub cache: Option<CacheOptions>,
    /// Computes on quantized weights on a CPU device too.
    pub keep_quantized: bool,
    /// What models, conversations and computation may take together: idle models leave for others,
    /// and answers wait. With none, only the device is a limit.
    pub memory_limit_bytes: Option<u64>,
    /// Answers of one model that are decoded at once; more wait.
    pub completion_batch_size: usize,
    /// Prompts that are prefilled at once.
    pub prefill_batch_size: usize,
    /// Prefills waiting prompts before the running answers continue.
    pub prefer_prefill_when_pending: bool,
    /// Why the device cannot compute anything, as one sentence: then the state is
    /// [`EngineState::Failed`](crate::EngineState::Failed), and every load fails.
    pub device_failure: Option<String>,
    /// The name of the engine's thread.
    pub thread_name: String,
    /// Where the work of each request goes when it ends; with none it is only in the totals.
    pub work: Option<WorkLog>,
}

impl Default for EngineOptions {
    /// Prompt caches in memory only, and mlx-lm's batch sizes.
    fn default() -> Self {
        let BatchOptions {
            completion_batch_size,
            prefill_batch_size,
            prefer_prefill_when_pending,
            ..
        } = BatchOptions::default();
        EngineOptions {
            cache: None,
            keep_quantized: false,
            memory_limit_bytes: None,
            completion_batch_size,
            prefill_batch_size,
            prefer_prefill_when_pending,
            device_failure: None,
            thread_name: "cairn-engine".to_owned(),
            work: None,
        }
    }
}

/// A handle to the engine; clones share it. The thread ends with [`Engine::shutdown`] or when the
/// last handle is dropped.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connection: Mutex<Connection>,
    options: ThreadOptions,
    status: watch::Sender<EngineStatus>,
    /// Cancels running requests when the engine is shut down.
    closing: watch::Sender<bool>,
    device: &'static str,
    cache: Option<CacheHandle>,
    /// What a thread that ended because of a bug has left for the next one.
    salvaged: Arc<Mutex<Option<StoredCache>>>,
}

/// The thread and the way to it.
#[derive(Debug)]
struct Connection {
    jobs: std_mpsc::Sender<Job>,
    thread: Option<JoinHandle<()>>,
    /// The message of the bug that has ended the thread.
    ended: Arc<OnceLock<String>>,
}

/// What every thread of an engine starts with.
#[derive(Debug)]
struct ThreadOptions {
    name: String,
    batching: BatchOptions,
    keep_quantized: bool,
    memory_limit_bytes: Option<u64>,
    device_failure: Option<String>,
    work: Option<WorkLog>,
}

impl Engine {
    /// Starts the engine's thread. The receiver gets the changes of the stored prompt caches.
    pub fn start(options: EngineOptions) -> (Engine, mpsc::UnboundedReceiver<CacheChange>) {
        let (status, _) = watch::channel(EngineStatus::default());
        let (cache_events, cache_receiver) = mpsc::unbounded_channel();
        let (closing, _) = watch::channel(false);
        let stored = StoredCache::open(options.cache, cache_events, status.clone());
        let batching = BatchOptions {
            completion_batch_size: options.completion_batch_size,
            prefill_batch_size: options.prefill_batch_size,
            prefer_prefill_when_pending: options.prefer_prefill_when_pending,
            ..BatchOptions::default()
        };
        if let Some(limit_bytes) = options.memory_limit_bytes {
            cairn_lm::memory::set_limits(limit_bytes);
        }
        let options = ThreadOptions {
            name: options.thread_name,
            batching,
            keep_quantized: options.keep_quantized,
            memory_limit_bytes: options.memory_limit_bytes,
            device_failure: options.device_failure,
            work: options.work,
        };
        let (salvaged, cache) = (Arc::default(), stored.handle());
        let (connection, device) = options.start_thread(stored, &status, &closing, &salvaged);
        let shared = Shared {
            connection: Mutex::new(connection),
            options,
            status,
            closing,
            device,
            cache,
            salvaged,
        };
        (Engine { shared: Arc::new(shared) }, cache_receiver)
    }

    /// Loads the model in `folder` beside those that are loaded, and makes it the one of requests that
    /// name none. Does nothing more, except dropping its draft model, if its unchanged files are
    /// loaded under this name already. Starts the engine's thread again if that has ended because of
    /// a bug. Dropping the future cancels the load.
    ///
    /// Where the memory limit asks for it, idle models are unloaded, the least recently used first;
    /// if that is not enough, the error says what would have to go.
    pub async fn load(&self, name: &str, folder: &Path) -> Result<ModelInfo, EngineError> {
        self.load_with(name, folder, ModelOptions::default()).await
    }

    /// As [`Engine::load`]; a model that is loaded with other options is read again.
    pub async fn load_with(
        &self,
        name: &str,
        folder: &Path,
        options: ModelOptions,
    ) -> Result<ModelInfo, EngineError> {
        self.shared.restart_if_ended();
        let (reply, answer) = oneshot::channel();
        let job = LoadJob { options, ..LoadJob::model(name, folder, reply) };
        self.ask(Job::Load(job), answer).await
    }

    /// As [`Engine::load`], but returns at once; the receiver gets the result, and dropping it cancels
    /// the load.
    pub(crate) fn begin_load(
        &self,
        name: &str,
        folder: &Path,
    ) -> oneshot::Receiver<Result<ModelInfo, EngineError>> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Load(LoadJob::model(name, folder, reply)));
        answer
    }

    /// Ends the load under way, which then fails with [`EngineError::LoadCancelled`]. Does nothing
    /// while no model is being loaded.
    pub fn cancel_load(&self) {
        let _ = self.shared.lock().jobs.send(Job::CancelLoad);
    }

    /// Loads a smaller model of the same vocabulary as the draft model of the current one; it is
    /// dropped together with that.
    pub async fn load_draft(&self, name: &str, folder: &Path) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        let reply = LoadReply::Draft(reply);
        let options = ModelOptions::default();
        let job = LoadJob { name: name.to_owned(), folder: folder.to_owned(), options, reply };
        self.ask(Job::Load(job), answer).await
    }

    /// Drops the draft model, if there is one. Answers that it drafts for go on with it.
    pub async fn unload_draft(&self) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::UnloadDraft { reply }, answer).await
    }

    /// Prefills a prompt and saves its caches in a file; `on_progress(processed, total)` counts its
    /// tokens. Dropping the future cancels the work.
    pub async fn cache_prompt(
        &self,
        request: CachePromptRequest,
        mut on_progress: impl FnMut(usize, usize),
    ) -> Result<CachedPrompt, EngineError> {
        let (reply, answer) = oneshot::channel();
        let (progress, mut steps) = mpsc::unbounded_channel();
        let answer =
            self.ask(Job::CachePrompt { request: Box::new(request), progress, reply }, answer);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                biased;
                Some((processed, total)) = steps.recv() => on_progress(processed, total),
                result = &mut answer => return result,
            }
        }
    }

    /// Drops the loaded models, each when no answer and no other job uses it, unless it is loaded
    /// again before. Returns the names of those that are in use now; requests that come meanwhile are
    /// served.
    pub async fn unload(&self) -> Result<Vec<String>, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::Unload { reply }, answer).await
    }

    /// Drops a model, unless it is in use or was used after `unused_since`, which
    /// [`LoadedModelStatus::last_used`](crate::LoadedModelStatus) says. Its conversations are saved.
    pub fn unload_unused(&self, name: &str, unused_since: Instant) {
        let job = Job::UnloadUnused { name: name.to_owned(), unused_since };
        let _ = self.shared.lock().jobs.send(job);
    }

    /// Names the models that neither make room for others nor leave when the system is short of
    /// memory, instead of those that were named before.
    pub fn set_pinned(&self, names: Vec<String>) {
        let _ = self.shared.lock().jobs.send(Job::SetPinned(names));
    }

    /// Requests an answer. Requests start in their order and run at the same time.
    pub fn generate(&self, request: GenerateRequest) -> Generation {
        // Tokens of any form would be proposed.
        let speculation = match request.form {
            Some(_) => Speculation::Off,
            None => request.speculation,
        };
        let request = GenerateRequest { speculation, ..request };
        // From now on, also while it waits: a purge of its owner concerns it.
        let cache = self.shared.cache.as_ref();
        let permit = cache.map(|cache| cache.permit_for(request.owner.as_ref()));
        let (job, (events, stop)) =
            GenerateJob::new(request, permit, self.shared.closing.subscribe());
        let prompt = job.facts.clone();
        let ended = self.send(Job::Generate(Box::new(job)));
        Generation { events, stop, prompt, ended, has_ended: false }
    }

    /// The contents of a prompt-cache file, after checking by its header that the loaded model can
    /// continue from it. Its arrays are read only when it is imported.
    pub async fn inspect_prompt_file(&self, path: &Path) -> Result<PromptFileInfo, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::ReadPromptFile { path: path.to_owned(), import: None, reply }, answer).await
    }

    /// Imports a prompt-cache file into the prompt cache, pinned and referenced by `import.owner`.
    /// The status reports the progress of the check; dropping the future cancels it, and then
    /// nothing is imported.
    pub async fn import_prompt_file(
        &self,
        path: &Path,
        import: Import,
    ) -> Result<PromptFileInfo, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::ReadPromptFile { path: path.to_owned(), import: Some(import), reply }, answer)
            .await
    }

    /// Writes the chunks behind an owner's reference to a file that mlx-lm reads.
    pub async fn export_prompt(&self, request: ExportRequest) -> Result<CachedPrompt, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::ExportPrompt { request: Box::new(request), reply }, answer).await
    }

    /// Drops the resident conversations from memory; their chunks stay.
    pub async fn forget_conversations(&self) {
        let (reply, answer) = oneshot::channel();
        let _ = self.ask(Job::ForgetConversations { reply }, answer).await;
    }

    /// The texts of token ids, special tokens included; without a model's name those of the current
    /// one.
    pub async fn decode(
        &self,
        model: Option<&str>,
        token_ids: Vec<Vec<u32>>,
    ) -> Result<Vec<String>, EngineError> {
        let (reply, answer) = oneshot::channel();
        let model = model.map(str::to_owned);
        self.ask(Job::Decode { model, token_ids, reply }, answer).await
    }

    /// The tokens of `text`, as [`PromptInput::Text`] has them.
    pub async fn tokenize(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        self.prompt_tokens(None, PromptInput::Text(text.to_owned()), Map::new(), None).await
    }

    /// The tokens of a prompt for a loaded model; without its name those for the current one.
    pub async fn prompt_tokens(
        &self,
        model: Option<&str>,
        prompt: PromptInput,
        template_variables: Map<String, Value>,
        thinking: Option<Thinking>,
    ) -> Result<Vec<u32>, EngineError> {
        let (reply, answer) = oneshot::channel();
        let model = model.map(str::to_owned);
        let job = Job::Tokenize { model, prompt, template_variables, thinking, reply };
        self.ask(job, answer).await
    }

    /// What the prompt cache has of the prompt of a request; nothing is read or begun.
    pub async fn outlook(&self, request: GenerateRequest) -> Result<Outlook, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::LookAhead { request: Box::new(request), reply }, answer).await
    }

    /// The system prompt that the chat template of a loaded model writes where a conversation has none.
    pub async fn own_system_prompt(&self, model: &str) -> Result<Option<String>, EngineError> {
        let template = |loaded: &LoadedModel| loaded.tokenizer.chat_template().cloned();
        let template = self.submit(Some(model), template).await?;
        Ok(template.and_then(|template| template.own_system_prompt()))
    }

    /// How much a loaded model can be told to think; empty if it has no chat template. Without a
    /// name it asks the current model.
    pub async fn thinking(&self, model: Option<&str>) -> Result<ThinkingChoices, EngineError> {
        let template = |loaded: &LoadedModel| loaded.tokenizer.chat_template().cloned();
        let template = self.submit(model, template).await?;
        Ok(template.map(|template| template.thinking().clone()).unwrap_or_default())
    }

    /// Scores a prompt: the log-probability of each token, and the `num_top` likeliest next ones.
    pub async fn score(&self, prompt: PromptInput, num_top: usize) -> Result<Score, EngineError> {
        let mut scores = self.score_all(vec![prompt], num_top).await?;
        scores.pop().ok_or(EngineError::Closed)
    }

    /// As [`Engine::score`], for several prompts in the same passes; those of similar lengths cost
    /// least. Fails if one of them cannot be scored.
    pub async fn score_all(
        &self,
        prompts: Vec<PromptInput>,
        num_top: usize,
    ) -> Result<Vec<Score>, EngineError> {
        self.score_with(ScoreRequest { prompts, num_top, ..ScoreRequest::default() }).await
    }

    /// As [`Engine::score_all`], with the choices of a [`ScoreRequest`]. Dropping the future
    /// cancels the work.
    pub async fn score_with(&self, request: ScoreRequest) -> Result<Vec<Score>, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::Score { request, reply }, answer).await
    }

    /// Makes a vector of each input, as the model's files say. Inputs of similar lengths share a
    /// pass, and passes take turns with other work. Dropping the future cancels the work.
    ///
    /// Fails on an input that is empty, too long, or has unknown tokens, on more dimensions than
    /// the model has, and on a model that makes no vectors.
    pub async fn embed(&self, request: EmbedRequest) -> Result<Embeddings, EngineError> {
        let EmbedRequest { model, inputs, dimensions } = request;
        let reader = move |loaded: &LoadedModel| InputReader::new(loaded, dimensions);
        let rows = self.submit(model.as_deref(), reader).await??.read(inputs).await?;
        let (reply, answer) = oneshot::channel();
        self.ask(Job::Embed { model, rows, dimensions, reply }, answer).await
    }

    /// Reads the answer of a request again that has one (`answer_so_far`): each of its tokens with the
    /// `num_top_logprobs` likeliest in its place, before sampling filters. What is saved of the prompt is
    /// not read again, and nothing is generated or saved; quantized keys and values are used where they
    /// are saved. `on_progress(read, total)` counts the tokens of prompt and answer. Dropping the future
    /// cancels the work.
    pub async fn probabilities(
        &self,
        request: GenerateRequest,
        mut on_progress: impl FnMut(usize, usize),
    ) -> Result<Vec<AnswerToken>, EngineError> {
        let (reply, answer) = oneshot::channel();
        let (progress, mut steps) = mpsc::unbounded_channel();
        let job = Job::Probabilities { request: Box::new(request), progress, reply };
        let answer = self.ask(job, answer);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                biased;
                Some((num_read, total)) = steps.recv() => on_progress(num_read, total),
                result = &mut answer => return result,
            }
        }
    }

    /// Requests the token that follows each of many prompts.
    pub fn classify(&self, request: ClassifyRequest) -> Classification {
        self.classify_with(request, None)
    }

    /// As [`Engine::classify`], with a logits processor.
    pub(crate) fn classify_with(
        &self,
        request: ClassifyRequest,
        processor: Option<LogitsProcessorFactory>,
    ) -> Classification {
        let (sender, events) = mpsc::unbounded_channel();
        let (request, processor) = (Box::new(request), InProcess(processor));
        let ended = self.send(Job::Classify { request, processor, events: sender });
        Classification { events, ended, has_ended: false }
    }

    /// Runs `run` with a model on the engine's thread, between two slices of other work, and returns
    /// its result; without a name the model is the one that was loaded last.
    ///
    /// No MLX array may leave `run`. A panic in it is an error, and the engine keeps running.
    pub async fn submit<T: Send + 'static>(
        &self,
        model: Option<&str>,
        run: impl FnOnce(&LoadedModel) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        let submitted: Submitted = Box::new(move |loaded| {
            let result = loaded
                .and_then(|loaded| caught("running what was submitted", || Ok(run(&loaded.model))));
            let _ = reply.send(result);
        });
        let model = model.map(str::to_owned);
        self.ask(Job::Submit { model, run: InProcess(Some(submitted)) }, answer).await
    }

    /// Why a job got no answer.
    pub(crate) fn ended_error(&self) -> EngineError {
        EngineError::ended(&self.shared.lock().ended)
    }

    /// What the engine is doing, now and later.
    pub fn status(&self) -> watch::Receiver<EngineStatus> {
        self.shared.status.subscribe()
    }

    /// Changes the budgets of stored prompt caches on disk and in memory, and evicts at once what
    /// exceeds them.
    pub fn set_cache_budgets(&self, disk_bytes: u64, memory_bytes: u64) {
        let _ = self.shared.lock().jobs.send(Job::SetCacheBudgets { disk_bytes, memory_bytes });
    }

    /// Keeps models wired on a Mac, or no longer does, once nothing is computed. Without effect
    /// elsewhere.
    pub fn set_wired_memory(&self, is_wanted: bool) {
        let _ = self.shared.lock().jobs.send(Job::SetWiredMemory(is_wanted));
    }

    /// Frees memory that the system is short of. What answers need stays.
    pub fn relieve_memory(&self, pressure: MemoryPressure) {
        let _ = self.shared.lock().jobs.send(Job::RelieveMemory(pressure));
    }

    /// The prompt cache; none where it is not stored on disk. Never waits for requests.
    pub fn cache(&self) -> Option<&CacheHandle> {
        self.shared.cache.as_ref()
    }

    /// Waits until every prompt cache queued for writing is on disk.
    pub async fn flush_cache(&self) {
        let (reply, answer) = oneshot::channel();
        let _ = self.ask(Job::FlushCache { reply }, answer).await;
    }

    /// "cpu" or "gpu".
    pub fn device(&self) -> &'static str {
        self.shared.device
    }

    /// Cancels running requests, writes queued chunks, drops everything on the thread and waits for
    /// it.
    pub async fn shutdown(&self) {
        self.shared.closing.send_replace(true);
        let _ = self.shared.lock().jobs.send(Job::Shutdown);
        let thread = self.shared.lock().thread.take();
        if let Some(thread) = thread {
            // Joining blocks, and this may run on an async executor.
            let (done, wait) = oneshot::channel();
            std::thread::spawn(move || {
                let _ = thread.join();
                let _ = done.send(());
            });
            let _ = wait.await;
        }
    }

    /// Sends a job and returns where the bug will be found that ends the thread. If it has ended, the
    /// job and its sender are dropped, which the receiver reports.
    pub(crate) fn send(&self, job: Job) -> Arc<OnceLock<String>> {
        let connection = self.shared.lock();
        let _ = connection.jobs.send(job);
        Arc::clone(&connection.ended)
    }

    async fn ask<T>(
        &self,
        job: Job,
        answer: oneshot::Receiver<Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let ended = self.send(job);
        answer.await.unwrap_or_else(|_| Err(EngineError::ended(&ended)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Starts another thread after a bug has ended the last one. It begins with the stored prompt
    /// caches as that left them.
    fn restart_if_ended(&self) {
        let mut connection = self.lock();
        let salvaged = self.salvaged.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let Some(stored) = salvaged else { return };
        if let Some(thread) = connection.thread.take() {
            // It is dropping its arrays.
            let _ = thread.join();
        }
        (*connection, _) =
            self.options.start_thread(stored, &self.status, &self.closing, &self.salvaged);
    }
}

impl ThreadOptions {
    /// Starts a thread; also returns the device that it computes on.
    fn start_thread(
        &self,
        stored: StoredCache,
        status: &watch::Sender<EngineStatus>,
        closing: &watch::Sender<bool>,
        salvaged: &Arc<Mutex<Option<StoredCache>>>,
    ) -> (Connection, &'static str) {
        let (jobs, job_receiver) = std_mpsc::channel();
        let (ready, device) = std_mpsc::channel();
        let ended = Arc::new(OnceLock::new());
        let parts = ThreadParts {
            jobs: job_receiver,
            own_jobs: jobs.clone(),
            stored,
            batching: self.batching.clone(),
            keep_quantized: self.keep_quantized,
            memory_limit_bytes: self.memory_limit_bytes,
            device_failure: self.device_failure.clone(),
            work: self.work.clone(),
            status: status.clone(),
            closing: closing.subscribe(),
            salvaged: Arc::clone(salvaged),
            ended: Arc::clone(&ended),
        };
        let thread = std::thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                let _ = ready.send(cairn_lm::device::ComputeDevice::current().as_str());
                thread::serve(parts);
            })
            .expect("the system starts a thread");
        (Connection { jobs, thread: Some(thread), ended }, device.recv().unwrap_or("cpu"))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        let connection = self.connection.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = connection.jobs.send(Job::Shutdown);
        if let Some(thread) = connection.thread.take() {
            // MLX must be idle before the process exits: leaving work in flight aborts in its
            // allocator.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_prompt_cache::Owner;

    use super::*;
    use crate::EngineState;
    use crate::request::{GenerateEvent, PromptInput};
    use crate::scripted_model::write_scripted;

    const SCRIPT: &str = r#"{"script": [97], "max_position_embeddings": 1000000}"#;

    /// The last event of a request.
    async fn end(generation: &mut Generation) -> GenerateEvent {
        let mut last = None;
        while let Some(event) = generation.recv().await {
            last = Some(event);
        }
        last.unwrap()
    }

    fn request(max_tokens: usize) -> GenerateRequest {
        let owner = Some(Owner::Conversation("1".to_owned()));
        let prompt = PromptInput::Tokens(vec![7; 300]);
        GenerateRequest { owner, max_tokens, ..GenerateRequest::new(prompt) }
    }

    #[tokio::test]
    async fn the_next_load_starts_a_thread_that_a_bug_has_ended() {
        let (model, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_scripted(model.path(), SCRIPT);
        let cache = CacheOptions {
            folder: folder.path().to_owned(),
            disk_budget_bytes: 1 << 30,
            memory_budget_bytes: 0,
            chunks: Vec::new(),
            refs: Vec::new(),
            old_folders: Vec::new(),
            cleanup_lock: None,
        };
        let options = EngineOptions { cache: Some(cache), ..EngineOptions::default() };
        let (engine, _events) = Engine::start(options);
        engine.load("scripted", model.path()).await.unwrap();
        for _ in 0..3 {
            assert!(matches!(
                end(&mut engine.generate(request(3))).await,
                GenerateEvent::Finished(_)
            ));
            engine.flush_cache().await;
            let mut running = engine.generate(request(1_000_000));
            while !matches!(running.recv().await, Some(GenerateEvent::Delta { .. })) {}

            assert!(engine.shared.lock().jobs.send(Job::Panic).is_ok());
            let stopped = "the engine stopped because of a bug (a test ends the thread): load a model to start it again";
            for mut generation in [running, engine.generate(request(3))] {
                let GenerateEvent::Failed(error) = end(&mut generation).await else { panic!() };
                assert_eq!(error.to_string(), stopped);
            }
            let error = engine.tokenize("a").await.unwrap_err();
            assert_eq!(error.to_string(), stopped);
            let is_failed = |status: &EngineStatus| match &status.state {
                EngineState::Failed { model, message } => {
                    model == "scripted" && message == "a test ends the thread"
                }
                _ => false,
            };
            engine.status().wait_for(is_failed).await.unwrap();

            engine.load("scripted", model.path()).await.unwrap();
            let GenerateEvent::Finished(finished) = end(&mut engine.generate(request(3))).await
            else {
                panic!()
            };
            assert_eq!(finished.token_ids, [97; 3]);
            // What was stored is found, although the conversation in memory is lost.
            assert!(finished.stats.num_cached_tokens >= 256, "{:?}", finished.stats);
        }
        engine.shutdown().await;
    }
}
