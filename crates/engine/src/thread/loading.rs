//! Loads models between turns of the loop. A load pauses before each tensor, and before each part of
//! a large one: then the loop takes a turn.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

use cairn_lm::{LmError, LoadOptions, LoadProgress, LoadedModel, ModelMemory, check_vocabularies};

use super::job::{LoadJob, LoadReply};
use super::{EngineLoop, SHORT_CONVERSATION_TOKENS};
use crate::guard::caught;
use crate::model_pool::{Loaded, ModelFiles, PooledDraft};
use crate::request::{ModelInfo, ModelOptions};
use crate::worker::Worker;
use crate::{EngineError, EngineState, NeedsMemory};

impl EngineLoop {
    /// Makes room for a model and publishes that it is being loaded.
    fn begin_load(&mut self, name: &str, memory: Option<&ModelMemory>) -> Result<(), EngineError> {
        let reserved_bytes = self.scheduler.reserved_bytes();
        let worker = &mut self.worker;
        // A model of the same name is replaced, and need not fit beside the new one.
        worker.drop_idle_models(|loaded| loaded.name == name);
        if let (Some(memory), Some(used)) = (memory, worker.memory_use(reserved_bytes)) {
            let needed = memory.peak_bytes(SHORT_CONVERSATION_TOKENS, 1, SHORT_CONVERSATION_TOKENS);
            worker.make_room(used.admit_model(needed), NeedsMemory::Model(name.to_owned()))?;
        }
        worker.models.clear_current();
        worker.loading = Some((name.to_owned(), LoadProgress::default()));
        worker.publish(EngineState::Empty);
        Ok(())
    }

    /// Drops the draft model before, and makes room for another. Returns what that takes.
    fn make_room_for_draft(
        &mut self,
        loaded: &Rc<Loaded>,
        name: &str,
        folder: &Path,
    ) -> Result<Option<ModelMemory>, EngineError> {
        let reserved_bytes = self.scheduler.reserved_bytes();
        let worker = &mut self.worker;
        worker.set_draft(loaded, None);
        let options = load_options(worker, ModelOptions::default());
        // A folder that cannot be read is refused when it is loaded, with its reason.
        let memory = ModelMemory::read(folder, options).ok();
        if let (Some(memory), Some(used)) = (&memory, worker.memory_use(reserved_bytes)) {
            let what = NeedsMemory::Model(name.to_owned());
            worker.make_room(used.admit_model(memory.weight_bytes), what)?;
        }
        Ok(memory)
    }

    /// Makes a model that is loaded the current one.
    fn end_load(&mut self, name: String) -> Result<ModelInfo, EngineError> {
        let EngineLoop { worker, unloading, .. } = self;
        // Whoever loads a model again has changed their mind about unloading it.
        unloading.retain(|unloaded| *unloaded != name);
        worker.models.select(&name);
        let loaded = worker.models.get(None)?;
        // A draft model is loaded for each time that its model is.
        worker.set_draft(&loaded, None);
        if let Some(warning) = worker.wired.warning(loaded.model.weight_bytes) {
            tracing::warn!(model = %name, "{warning}");
        }
        worker.publish(EngineState::Ready { model: name });
        Ok(info(&loaded))
    }

    /// Publishes that a model was not loaded. The current one was `before`.
    fn fail_load(&mut self, name: String, before: Option<String>, error: &EngineError) {
        let worker = &mut self.worker;
        let names = worker.models.names();
        let before = before.filter(|before| names.contains(before));
        // One that answers was to be loaded in another way, and goes on as it is.
        let is_still_there = names.contains(&name);
        let says_nothing_of_the_model = matches!(
            error,
            EngineError::Closed
                | EngineError::LoadCancelled { .. }
                | EngineError::DoesNotFit { .. }
        );
        if !is_still_there && !says_nothing_of_the_model {
            worker.publish(EngineState::Failed { model: name, message: error.to_string() });
            return;
        }
        // The model before it stays the one of requests that name none.
        if let Some(before) = before {
            worker.models.select(&before);
        }
        worker.publish_idle();
    }

    /// A turn for others before the next part of a load. Breaks if the load is to end.
    fn between_parts(&mut self, progress: LoadProgress) -> ControlFlow<()> {
        self.worker.publish_loading(progress);
        self.take_jobs();
        let is_abandoned = self.loading.as_ref().is_none_or(LoadReply::is_closed);
        if self.is_closing() || is_abandoned || self.is_load_cancelled {
            return ControlFlow::Break(());
        }
        self.advance();
        ControlFlow::Continue(())
    }
}

/// Loads a model, with turns of the loop between its parts.
pub(super) fn load(engine: &Rc<RefCell<EngineLoop>>, job: LoadJob) {
    let LoadJob { name, folder, options, reply } = job;
    let is_draft = matches!(reply, LoadReply::Draft(_));
    {
        let mut engine = engine.borrow_mut();
        (engine.loading, engine.is_load_cancelled) = (Some(reply), false);
    }
    let device_failure = engine.borrow().worker.device_failure.clone();
    let result = if let Some(message) = device_failure {
        Err(EngineError::Device { message })
    } else if is_draft {
        load_draft(engine, name, &folder).map(|()| None)
    } else {
        load_model(engine, name, &folder, options).map(Some)
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
    model_options: ModelOptions,
) -> Result<ModelInfo, EngineError> {
    let files = ModelFiles::list(folder, model_options);
    let before = engine.borrow().worker.models.current().map(str::to_owned);
    let is_loaded = engine.borrow().worker.models.holds(&name, &files);
    let options = load_options(&engine.borrow().worker, model_options);
    // A folder that cannot be read is refused below, with its reason.
    let memory = ModelMemory::read(folder, options).ok();
    let read = match is_loaded {
        true => Ok(None),
        false => {
            let begun = engine.borrow_mut().begin_load(&name, memory.as_ref());
            begun.and_then(|()| read_model(engine, &name, folder, options)).map(Some)
        }
    };
    let engine = &mut *engine.borrow_mut();
    engine.worker.loading = None;
    match read {
        Ok(model) => {
            if let Some(model) = model {
                engine.worker.models.insert(name.clone(), model, files, memory);
            }
            engine.end_load(name)
        }
        Err(error) => {
            engine.fail_load(name, before, &error);
            Err(error)
        }
    }
}

fn load_draft(
    engine: &Rc<RefCell<EngineLoop>>,
    name: String,
    folder: &Path,
) -> Result<(), EngineError> {
    // Held, so that the model stays while room is made for its draft model.
    let loaded = engine.borrow().worker.models.get(None)?;
    let memory = engine.borrow_mut().make_room_for_draft(&loaded, &name, folder)?;
    let options = load_options(&engine.borrow().worker, ModelOptions::default());
    let draft = read_model(engine, &name, folder, options)?;
    check_vocabularies(&loaded.model.model, &draft.model)?;
    let worker = &mut engine.borrow_mut().worker;
    let draft = Rc::new(Loaded { name, model: Rc::new(draft) });
    worker.set_draft(&loaded, Some(PooledDraft { loaded: draft, memory }));
    Ok(())
}

fn read_model(
    engine: &Rc<RefCell<EngineLoop>>,
    name: &str,
    folder: &Path,
    options: LoadOptions,
) -> Result<LoadedModel, EngineError> {
    let others = Rc::clone(engine);
    let on_part = move |progress| others.borrow_mut().between_parts(progress);
    let read = caught("loading a model", || {
        Ok(LoadedModel::load_with_progress(folder, options, on_part))
    })?;
    read.map_err(|source| match source {
        LmError::Cancelled if *engine.borrow().worker.closing.borrow() => EngineError::Closed,
        LmError::Cancelled => EngineError::LoadCancelled { model: name.to_owned() },
        source => EngineError::Load { name: name.to_owned(), source },
    })
}

/// How a model is loaded on this engine.
fn load_options(worker: &Worker, options: ModelOptions) -> LoadOptions {
    LoadOptions::new()
        .keep_quantized(worker.keep_quantized)
        .bf16_state(options.bf16_state)
        .traces_steps(options.traces_steps)
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
        answer_format: model.answer_format,
        fingerprint: model.fingerprint.clone(),
    }
}
