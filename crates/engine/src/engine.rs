//! The handle to the engine's thread.

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use cairn_lm::batch::BatchOptions;
use tokio::sync::{mpsc, oneshot, watch};

use crate::prompt_cache::CacheHandle;
use crate::prompt_file::{CachePromptRequest, CachedPrompt, ExportRequest, Import, PromptFileInfo};
use crate::records::{CacheEvent, CacheOptions};
use crate::request::{GenerateRequest, Generation, ModelInfo, PromptInput, Score};
use crate::scheduler::Scheduler;
use crate::sequence::GenerateJob;
use crate::thread::{self, Job};
use crate::worker::Worker;
use crate::{EngineError, EngineStatus};

/// The options of an engine.
#[derive(Debug)]
pub struct EngineOptions {
    /// Where prompt caches are stored; with none they are in memory only.
    pub cache: Option<CacheOptions>,
    /// Computes on quantized weights on a CPU device too.
    pub keep_quantized: bool,
    /// Answers that are decoded at once; more wait.
    pub completion_batch_size: usize,
    /// Prompts that are prefilled at once.
    pub prefill_batch_size: usize,
    /// Prefills waiting prompts before the running answers continue.
    pub prefer_prefill_when_pending: bool,
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
            completion_batch_size,
            prefill_batch_size,
            prefer_prefill_when_pending,
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
    jobs: std_mpsc::Sender<Job>,
    status: watch::Receiver<EngineStatus>,
    /// Cancels running requests when the engine is shut down.
    closing: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    device: &'static str,
    cache: Option<CacheHandle>,
}

impl Engine {
    /// Starts the engine's thread. The receiver gets the changes of the stored prompt caches.
    pub fn start(options: EngineOptions) -> (Engine, mpsc::UnboundedReceiver<CacheEvent>) {
        let (jobs, job_receiver) = std_mpsc::channel();
        let (status_sender, status) = watch::channel(EngineStatus::default());
        let (cache_events, cache_receiver) = mpsc::unbounded_channel();
        let (closing, closing_receiver) = watch::channel(false);
        let (ready, ready_receiver) = std_mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("cairn-engine".to_owned())
            .spawn(move || {
                let batching = BatchOptions {
                    completion_batch_size: options.completion_batch_size,
                    prefill_batch_size: options.prefill_batch_size,
                    prefer_prefill_when_pending: options.prefer_prefill_when_pending,
                    ..BatchOptions::default()
                };
                let (worker, cache) = Worker::new(
                    options.cache,
                    options.keep_quantized,
                    status_sender,
                    closing_receiver,
                    cache_events,
                );
                let _ = ready.send((cairn_lm::device::ComputeDevice::current().as_str(), cache));
                thread::run(worker, Scheduler::new(batching), &job_receiver);
            })
            .expect("the system starts a thread");
        let (device, cache) = ready_receiver.recv().unwrap_or(("cpu", None));
        let shared =
            Shared { jobs, status, closing, thread: Mutex::new(Some(thread)), device, cache };
        (Engine { shared: Arc::new(shared) }, cache_receiver)
    }

    /// Loads the model in `folder`, after dropping the one loaded before. Waits for the requests
    /// before it.
    pub async fn load(&self, name: &str, folder: &Path) -> Result<ModelInfo, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::Load { name: name.to_owned(), folder: folder.to_owned(), reply }, answer)
            .await
    }

    /// Loads a smaller model of the same vocabulary as the draft model; it is dropped together with
    /// the loaded one.
    pub async fn load_draft(&self, name: &str, folder: &Path) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::LoadDraft { name: name.to_owned(), folder: folder.to_owned(), reply }, answer)
            .await
    }

    /// Drops the draft model, if there is one. Waits for the requests before it.
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

    /// Drops the loaded model, if there is one.
    pub async fn unload(&self) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::Unload { reply }, answer).await
    }

    /// Requests an answer. Requests start in their order and run at the same time.
    pub fn generate(&self, request: GenerateRequest) -> Generation {
        let (sender, events) = mpsc::unbounded_channel();
        let (stop, stop_receiver) = watch::channel(false);
        let job = Job::Generate(GenerateJob {
            request: Box::new(request),
            events: sender,
            stop: stop_receiver,
            arrived: Instant::now(),
        });
        // If the engine has shut down, the job and its sender are dropped, which the receiver
        // reports.
        let _ = self.shared.jobs.send(job);
        Generation { events, stop, has_ended: false }
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

    /// The texts of token ids, special tokens included.
    pub async fn decode(&self, token_ids: Vec<Vec<u32>>) -> Result<Vec<String>, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::Decode { token_ids, reply }, answer).await
    }

    /// The tokens of `text`, as [`PromptInput::Text`] has them.
    pub async fn tokenize(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::Tokenize { text: text.to_owned(), reply }, answer).await
    }

    /// Scores a prompt: the log-probability of each token, and the `num_top` likeliest next ones.
    pub async fn score(&self, prompt: PromptInput, num_top: usize) -> Result<Score, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Job::Score { prompt, num_top, reply }, answer).await
    }

    /// What the engine is doing, now and later.
    pub fn status(&self) -> watch::Receiver<EngineStatus> {
        self.shared.status.clone()
    }

    /// Changes the budgets of stored prompt caches on disk and in memory, and evicts at once what
    /// exceeds them.
    pub fn set_cache_budgets(&self, disk_bytes: u64, memory_bytes: u64) {
        let _ = self.shared.jobs.send(Job::SetCacheBudgets { disk_bytes, memory_bytes });
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

    /// The prefill step size for programs that may stop an answer or close meanwhile: both wait for
    /// the current step, which on a CPU must not take ten seconds.
    pub fn interactive_prefill_step_size(&self) -> usize {
        if self.device() == "cpu" { 256 } else { 2048 }
    }

    /// Cancels running requests, writes queued chunks, drops everything on the thread and waits for
    /// it.
    pub async fn shutdown(&self) {
        self.shared.closing.send_replace(true);
        let _ = self.shared.jobs.send(Job::Shutdown);
        let thread =
            self.shared.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
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

    async fn ask<T>(
        &self,
        job: Job,
        answer: oneshot::Receiver<Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        self.shared.jobs.send(job).map_err(|_| EngineError::Closed)?;
        answer.await.unwrap_or(Err(EngineError::Closed))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        let _ = self.jobs.send(Job::Shutdown);
        let thread = self.thread.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(thread) = thread {
            // MLX must be idle before the process exits: leaving work in flight aborts in its
            // allocator.
            let _ = thread.join();
        }
    }
}
