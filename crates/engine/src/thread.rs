//! The engine's thread: one loop, one match over the jobs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use cairn_lm::{LoadOptions, LoadedModel, ffi, memory};
use tokio::sync::{mpsc, oneshot, watch};

use crate::request::{GenerateEvent, GenerateRequest, ModelInfo, PromptInput, Score};
use crate::worker::{Loaded, Worker};
use crate::{EngineError, EngineState, answer};

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

/// Serves jobs until the engine is shut down, then drops everything here: MLX arrays must go on the thread that made them.
pub(crate) fn run(mut worker: Worker, jobs: &Receiver<Job>) {
    worker.publish(EngineState::Empty);
    while let Ok(job) = jobs.recv() {
        // What still waits is dropped, and whoever asked for it hears that the engine is closed.
        if *worker.closing.borrow() {
            break;
        }
        match job {
            Job::Load { name, folder, reply } => {
                let result = guarded(&mut worker, "loading a model", |worker| load(worker, name.clone(), folder));
                if let Err(error) = &result {
                    worker.publish(EngineState::Failed { model: name, message: error.to_string() });
                }
                let _ = reply.send(result);
            }
            Job::Unload { reply } => {
                worker.drop_model();
                worker.publish(EngineState::Empty);
                let _ = reply.send(Ok(()));
            }
            Job::Generate { request, events, stop, arrived } => {
                let result = guarded(&mut worker, "answering", |worker| answer::run(worker, &request, &events, &stop, arrived));
                if let Err(error) = result {
                    let _ = events.send(GenerateEvent::Failed(error));
                }
                worker.publish_idle();
            }
            Job::Score { prompt, num_top, reply } => {
                let result = guarded(&mut worker, "scoring", |worker| score(worker, prompt, num_top));
                worker.publish_idle();
                let _ = reply.send(result);
            }
            Job::SetCacheBudget { bytes } => worker.cache.set_budget(bytes),
            Job::FlushCache { reply } => worker.cache.flush(reply),
            Job::Shutdown => break,
        }
    }
    worker.drop_model();
    worker.cache.close();
}

fn load(worker: &mut Worker, name: String, folder: PathBuf) -> Result<ModelInfo, EngineError> {
    // The old model goes first: two in memory at once may be one too many.
    worker.drop_model();
    worker.publish(EngineState::Loading { model: name.clone() });
    let options = LoadOptions { keep_quantized: worker.keep_quantized };
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
            worker.loaded = Some(Rc::new(Loaded { name: name.clone(), model }));
            memory::clear_cache();
            worker.publish(EngineState::Ready { model: name });
            Ok(info)
        }
        Err(source) => Err(EngineError::Load { name, source }),
    }
}

fn score(worker: &Worker, prompt: PromptInput, num_top: usize) -> Result<Score, EngineError> {
    let loaded = worker.loaded.as_ref().ok_or(EngineError::NoModel)?;
    let tokens = answer::prompt_tokens(&loaded.model, &prompt)?.tokens;
    let (logprobs, next) = cairn_lm::score(&loaded.model.model, &tokens, num_top)?;
    Ok(Score { tokens, logprobs, next })
}

/// Runs one job; a panic becomes its error.
fn guarded<T>(
    worker: &mut Worker,
    during: &'static str,
    job: impl FnOnce(&mut Worker) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    // Unwinding out of a job can leave no half-changed state behind that matters: caches in use are dropped with it, and the
    // model is only ever read.
    catch_unwind(AssertUnwindSafe(|| job(worker))).unwrap_or_else(|panic| {
        worker.cache.forget_hot();
        let _ = ffi::synchronize();
        Err(EngineError::Panicked { during, message: panic_message(panic.as_ref()) })
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}
