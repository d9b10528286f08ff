//! The engine's thread: one loop, one match over the jobs, everything of MLX owned here.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use cairn_lm::{LoadOptions, LoadedModel, ffi, memory};
use tokio::sync::{mpsc, oneshot, watch};

use crate::engine::EngineOptions;
use crate::prompt_cache::{CacheEvent, PromptCache};
use crate::request::{GenerateEvent, GenerateRequest, ModelInfo, PromptInput, Score};
use crate::{EngineError, EngineState, EngineStatus, answer};

/// What the thread can be asked. The set is closed: it could as well be a pipe's messages.
#[derive(Debug)]
pub(crate) enum Job {
    Load { name: String, folder: PathBuf, reply: oneshot::Sender<Result<ModelInfo, EngineError>> },
    Unload { reply: oneshot::Sender<Result<(), EngineError>> },
    Generate { request: Box<GenerateRequest>, events: mpsc::UnboundedSender<GenerateEvent>, stop: watch::Receiver<bool>, arrived: Instant },
    Score { prompt: PromptInput, num_top: usize, reply: oneshot::Sender<Result<Score, EngineError>> },
    SetCacheBudget { bytes: u64 },
    FlushCache { reply: oneshot::Sender<Result<(), EngineError>> },
    Shutdown,
}

/// Everything that lives on the thread.
pub(crate) struct Worker {
    /// Shared with the job that is using it, so that the job can change the rest of the worker.
    pub(crate) loaded: Option<Rc<Loaded>>,
    pub(crate) cache: PromptCache,
    pub(crate) closing: watch::Receiver<bool>,
    status: watch::Sender<EngineStatus>,
    last_status: Option<Instant>,
    keep_quantized: bool,
}

/// A model and the name it was loaded under.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) model: LoadedModel,
}

/// Watchers redraw at most this often; per-token updates would only wake them.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

impl Worker {
    pub(crate) fn new(
        options: EngineOptions,
        status: watch::Sender<EngineStatus>,
        closing: watch::Receiver<bool>,
        cache_events: mpsc::UnboundedSender<CacheEvent>,
    ) -> Self {
        Worker {
            loaded: None,
            cache: PromptCache::new(options.cache, cache_events, status.clone()),
            closing,
            status,
            last_status: None,
            keep_quantized: options.keep_quantized,
        }
    }

    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        self.publish(EngineState::Empty);
        while let Ok(job) = jobs.recv() {
            // What still waits is dropped, and whoever asked for it hears that the engine is closed.
            if *self.closing.borrow() {
                break;
            }
            match job {
                Job::Load { name, folder, reply } => {
                    let result = self.guarded("loading a model", |worker| worker.load(name.clone(), folder));
                    if let Err(error) = &result {
                        self.publish(EngineState::Failed { model: name, message: error.to_string() });
                    }
                    let _ = reply.send(result);
                }
                Job::Unload { reply } => {
                    self.drop_model();
                    self.publish(EngineState::Empty);
                    let _ = reply.send(Ok(()));
                }
                Job::Generate { request, events, stop, arrived } => {
                    let result = self.guarded("answering", |worker| answer::run(worker, &request, &events, &stop, arrived));
                    if let Err(error) = result {
                        let _ = events.send(GenerateEvent::Failed(error));
                    }
                    self.publish_idle();
                }
                Job::Score { prompt, num_top, reply } => {
                    let result = self.guarded("scoring", |worker| worker.score(prompt, num_top));
                    self.publish_idle();
                    let _ = reply.send(result);
                }
                Job::SetCacheBudget { bytes } => self.cache.set_budget(bytes),
                Job::FlushCache { reply } => self.cache.flush(reply),
                Job::Shutdown => break,
            }
        }
        self.drop_model();
        self.cache.close();
    }

    /// Publishes `state` with the memory figures of now.
    pub(crate) fn publish(&mut self, state: EngineState) {
        self.last_status = Some(Instant::now());
        let cache = &self.cache;
        self.status.send_modify(|status| {
            *status = EngineStatus {
                state,
                mlx_active_bytes: memory::active_bytes(),
                mlx_peak_bytes: memory::peak_bytes(),
                mlx_cache_bytes: memory::cache_bytes(),
                // Asked while no one else can publish, so that an older figure never replaces a newer one.
                cache_disk_bytes: cache.disk_bytes(),
            };
        });
    }

    /// As [`Worker::publish`], but at most ten times a second.
    pub(crate) fn publish_progress(&mut self, state: impl FnOnce() -> EngineState) {
        if self.last_status.is_none_or(|last| last.elapsed() >= STATUS_INTERVAL) {
            self.publish(state());
        }
    }

    fn publish_idle(&mut self) {
        let state = match &self.loaded {
            Some(loaded) => EngineState::Ready { model: loaded.name.clone() },
            // Empty or failed; a request that found no model does not change which.
            None => self.status.borrow().state.clone(),
        };
        self.publish(state);
    }

    fn load(&mut self, name: String, folder: PathBuf) -> Result<ModelInfo, EngineError> {
        // The old model goes first: two in memory at once may be one too many.
        self.drop_model();
        self.publish(EngineState::Loading { model: name.clone() });
        let options = LoadOptions { keep_quantized: self.keep_quantized };
        match LoadedModel::load(&folder, options) {
            Ok(model) => {
                let info = ModelInfo {
                    name: name.clone(),
                    model_type: model.model_type.clone(),
                    context_length: model.model.context_length(),
                    vocab_size: model.model.vocab_size(),
                    weight_bytes: model.weight_bytes,
                    fingerprint: model.fingerprint.clone(),
                };
                self.loaded = Some(Rc::new(Loaded { name: name.clone(), model }));
                memory::clear_cache();
                self.publish(EngineState::Ready { model: name });
                Ok(info)
            }
            Err(source) => Err(EngineError::Load { name, source }),
        }
    }

    fn score(&mut self, prompt: PromptInput, num_top: usize) -> Result<Score, EngineError> {
        let loaded = self.loaded.as_ref().ok_or(EngineError::NoModel)?;
        let tokens = answer::prompt_tokens(&loaded.model, &prompt)?.tokens;
        let (logprobs, next) = cairn_lm::score(&loaded.model.model, &tokens, num_top)?;
        Ok(Score { tokens, logprobs, next })
    }

    fn drop_model(&mut self) {
        // Nothing may still run on arrays that are about to go.
        let _ = ffi::synchronize();
        self.cache.forget_hot();
        self.loaded = None;
        memory::clear_cache();
    }

    /// Runs one job; a panic becomes its error.
    fn guarded<T>(&mut self, during: &'static str, job: impl FnOnce(&mut Worker) -> Result<T, EngineError>) -> Result<T, EngineError> {
        // Unwinding out of a job can leave no half-changed state behind that matters: caches in use are dropped with it, and the
        // model is only ever read.
        catch_unwind(AssertUnwindSafe(|| job(self))).unwrap_or_else(|panic| {
            self.cache.forget_hot();
            let _ = ffi::synchronize();
            Err(EngineError::Panicked { during, message: panic_message(panic.as_ref()) })
        })
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}
