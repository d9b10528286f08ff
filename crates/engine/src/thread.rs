//! The engine's thread: one loop, one match over the jobs.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::Receiver;

use cairn_chat::Encode;
use cairn_lm::{LmError, LoadOptions, LoadedModel, check_vocabularies, memory};
use tokio::sync::{mpsc, oneshot};

use crate::prompt::known_tokens;
use crate::prompt_file::{
    self, CachePromptRequest, CachedPrompt, ExportRequest, Import, PromptFileInfo,
};
use crate::request::{ModelInfo, PromptInput, Score};
use crate::scheduler::{Scheduler, guarded};
use crate::sequence::GenerateJob;
use crate::worker::{Loaded, Worker};
use crate::{EngineError, EngineState};

/// The jobs of the thread. The set is closed: it could be a protocol over a pipe.
#[derive(Debug)]
pub(crate) enum Job {
    Load {
        name: String,
        folder: PathBuf,
        reply: oneshot::Sender<Result<ModelInfo, EngineError>>,
    },
    LoadDraft {
        name: String,
        folder: PathBuf,
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
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
    FlushCache {
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    Shutdown,
}

/// Serves jobs until the engine is shut down, then drops everything here: MLX arrays must be freed
/// on the thread that made them.
///
/// Jobs start in their order. Requests for answers run at the same time; a job that changes the
/// model waits for those before it, and later jobs wait for it.
pub(crate) fn run(mut worker: Worker, mut scheduler: Scheduler, jobs: &Receiver<Job>) {
    worker.publish(EngineState::Empty);
    let mut waiting = VecDeque::new();
    loop {
        if scheduler.is_empty() && waiting.is_empty() {
            match jobs.recv() {
                Ok(job) => waiting.push_back(job),
                Err(_) => break,
            }
        }
        waiting.extend(jobs.try_iter());
        // Waiting jobs are dropped, and their callers receive [`EngineError::Closed`].
        if *worker.closing.borrow() {
            break;
        }
        while waiting.front().is_some_and(|job| may_begin(job, &scheduler)) {
            if let Some(job) = waiting.pop_front() {
                begin(&mut worker, &mut scheduler, job);
            }
        }
        waiting.retain(|job| !matches!(job, Job::Generate(job) if job.events.is_closed()));
        scheduler.step(&mut worker);
    }
    scheduler.cancel_all(&mut worker);
    drop(scheduler);
    worker.drop_model();
    worker.cache.close();
}

fn may_begin(job: &Job, scheduler: &Scheduler) -> bool {
    match job {
        Job::Generate(job) if job.request.is_unbatched() => scheduler.is_empty(),
        Job::Generate(_) => scheduler.has_room(),
        Job::Load { .. }
        | Job::LoadDraft { .. }
        | Job::Unload { .. }
        | Job::UnloadDraft { .. }
        | Job::CachePrompt { .. } => scheduler.is_empty(),
        // They take as much memory as a conversation, and some time.
        Job::ReadPromptFile { .. } | Job::ExportPrompt { .. } => scheduler.is_empty(),
        Job::ForgetConversations { .. } | Job::Decode { .. } => true,
        Job::Shutdown => true,
        Job::Tokenize { .. }
        | Job::Score { .. }
        | Job::SetCacheBudgets { .. }
        | Job::FlushCache { .. } => true,
    }
}

fn begin(worker: &mut Worker, scheduler: &mut Scheduler, job: Job) {
    match job {
        Job::Generate(job) => scheduler.begin(worker, job),
        Job::Load { name, folder, reply } => {
            let result =
                guarded(worker, "loading a model", |worker| load(worker, name.clone(), folder));
            if let Err(error) = &result {
                worker.publish(EngineState::Failed { model: name, message: error.to_string() });
            }
            let _ = reply.send(result);
        }
        Job::LoadDraft { name, folder, reply } => {
            let result = guarded(worker, "loading a draft model", |worker| {
                load_draft(worker, name, &folder)
            });
            let _ = reply.send(result);
            worker.publish_idle();
        }
        Job::UnloadDraft { reply } => {
            worker.drop_draft();
            worker.publish_idle();
            let _ = reply.send(Ok(()));
        }
        Job::CachePrompt { request, progress, reply } => {
            let closing = worker.closing.clone();
            let mut on_progress = |processed, total| {
                let _ = progress.send((processed, total));
                if reply.is_closed() || *closing.borrow() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let result = guarded(worker, "reading a prompt", |worker| {
                prompt_file::write(worker, &request, &mut on_progress)
            });
            let _ = reply.send(result);
            worker.publish_idle();
        }
        Job::Unload { reply } => {
            worker.drop_model();
            worker.publish(EngineState::Empty);
            let _ = reply.send(Ok(()));
        }
        Job::ReadPromptFile { path, import, reply } => {
            let closing = worker.closing.clone();
            let is_cancelled = || reply.is_closed() || *closing.borrow();
            let read = |worker: &mut Worker| {
                prompt_file::read(worker, &path, import.as_ref(), &is_cancelled)
            };
            let result = guarded(worker, "reading a prompt cache", read);
            let _ = reply.send(result);
            worker.publish_idle();
        }
        Job::ExportPrompt { request, reply } => {
            let _ = reply.send(guarded(worker, "exporting a prompt cache", |worker| {
                prompt_file::export(worker, &request)
            }));
            worker.publish_idle();
        }
        Job::ForgetConversations { reply } => {
            worker.forget_conversations();
            let _ = reply.send(Ok(()));
        }
        Job::Decode { token_ids, reply } => {
            let _ = reply.send(guarded(worker, "decoding", |worker| decode(worker, &token_ids)));
        }
        Job::Tokenize { text, reply } => {
            let _ = reply.send(guarded(worker, "tokenizing", |worker| tokenize(worker, text)));
        }
        Job::Score { prompt, num_top, reply } => {
            let result = guarded(worker, "scoring", |worker| score(worker, prompt, num_top));
            if scheduler.is_empty() {
                worker.publish_idle();
            }
            let _ = reply.send(result);
        }
        Job::SetCacheBudgets { disk_bytes, memory_bytes } => {
            worker.cache.set_budgets(disk_bytes, memory_bytes)
        }
        Job::FlushCache { reply } => worker.cache.flush(reply),
        // Only wakes the loop, which checks `closing`.
        Job::Shutdown => {}
    }
}

fn load(worker: &mut Worker, name: String, folder: PathBuf) -> Result<ModelInfo, EngineError> {
    // The old model is dropped first: memory may not suffice for two.
    worker.drop_model();
    worker.publish(EngineState::Loading { model: name.clone() });
    let options = LoadOptions { keep_quantized: worker.keep_quantized };
    let closing = worker.closing.clone();
    match LoadedModel::load_unless(&folder, options, move || *closing.borrow()) {
        Ok(model) => {
            let info = ModelInfo {
                name: name.clone(),
                model_type: model.model_type.clone(),
                context_length: model.model.context_length(),
                vocab_size: model.model.vocab_size(),
                weight_bytes: model.weight_bytes,
                has_chat_template: model.tokenizer.chat_template().is_some(),
                fingerprint: model.fingerprint.clone(),
            };
            worker.loaded = Some(Rc::new(Loaded { name: name.clone(), model: Rc::new(model) }));
            memory::clear_cache();
            worker.publish(EngineState::Ready { model: name });
            Ok(info)
        }
        Err(LmError::Cancelled) => Err(EngineError::Closed),
        Err(source) => Err(EngineError::Load { name, source }),
    }
}

fn load_draft(worker: &mut Worker, name: String, folder: &Path) -> Result<(), EngineError> {
    let loaded = worker.loaded.clone().ok_or(EngineError::NoModel)?;
    worker.drop_draft();
    let options = LoadOptions { keep_quantized: worker.keep_quantized };
    let closing = worker.closing.clone();
    let draft = LoadedModel::load_unless(folder, options, move || *closing.borrow());
    let draft = draft.map_err(|source| match source {
        LmError::Cancelled => EngineError::Closed,
        source => EngineError::Load { name, source },
    })?;
    check_vocabularies(&loaded.model.model, &draft.model)?;
    worker.draft = Some(Rc::new(draft));
    Ok(())
}

fn tokenize(worker: &Worker, text: String) -> Result<Vec<u32>, EngineError> {
    let loaded = worker.loaded.as_ref().ok_or(EngineError::NoModel)?;
    known_tokens(&loaded.model, &PromptInput::Text(text))
}

fn decode(worker: &Worker, token_ids: &[Vec<u32>]) -> Result<Vec<String>, EngineError> {
    let loaded = worker.loaded.as_ref().ok_or(EngineError::NoModel)?;
    let tokenizer = &loaded.model.tokenizer;
    Ok(token_ids.iter().map(|ids| tokenizer.decode(ids)).collect::<Result<_, _>>()?)
}

fn score(worker: &Worker, prompt: PromptInput, num_top: usize) -> Result<Score, EngineError> {
    let loaded = worker.loaded.as_ref().ok_or(EngineError::NoModel)?;
    let tokens = known_tokens(&loaded.model, &prompt)?;
    let (logprobs, next) = cairn_lm::score(&loaded.model.model, &tokens, num_top)?;
    Ok(Score { tokens, logprobs, next })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use tokio::sync::watch;

    use super::*;
    use crate::EngineStatus;

    #[test]
    fn a_model_is_not_loaded_to_its_end_by_an_engine_that_shuts_down() {
        let folder = cairn_tiny_models::tiny_model("llama/tiny-chat");
        let (closing, is_closing) = watch::channel(false);
        let (status, _watcher) = watch::channel(EngineStatus::default());
        let (events, _events) = mpsc::unbounded_channel();
        let (mut worker, _) = Worker::new(None, true, status, is_closing, events);
        assert!(load(&mut worker, "tiny".to_owned(), folder.clone()).is_ok());
        closing.send_replace(true);
        let cancelled = load(&mut worker, "tiny".to_owned(), folder);
        assert!(matches!(cancelled, Err(EngineError::Closed)), "{cancelled:?}");
        assert!(worker.loaded.is_none());
    }
}
