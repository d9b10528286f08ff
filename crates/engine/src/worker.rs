//! The state of the engine's thread: the models, the prompt cache, and the published status.

use std::rc::Rc;
use std::time::{Duration, Instant};

use cairn_lm::{LmError, LoadedModel, ModelKit, ModelKitOptions, ffi, memory};
use tokio::sync::watch;

use crate::model_pool::{Loaded, ModelPool};
use crate::prompt_cache::PromptCache;
use crate::status::LoadedModelStatus;
use crate::{EngineState, EngineStatus};

/// The state of the engine's thread.
pub(crate) struct Worker {
    pub(crate) models: ModelPool,
    /// The model that is being loaded.
    pub(crate) loading: Option<String>,
    pub(crate) cache: PromptCache,
    pub(crate) closing: watch::Receiver<bool>,
    status: watch::Sender<EngineStatus>,
    last_status: Option<Instant>,
    pub(crate) keep_quantized: bool,
}

/// Watchers redraw at most this often; per-token updates would only wake them.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

impl Worker {
    pub(crate) fn new(
        cache: PromptCache,
        keep_quantized: bool,
        status: watch::Sender<EngineStatus>,
        closing: watch::Receiver<bool>,
    ) -> Self {
        Worker {
            models: ModelPool::default(),
            loading: None,
            cache,
            closing,
            status,
            last_status: None,
            keep_quantized,
        }
    }

    /// Publishes `state` with current memory figures.
    pub(crate) fn publish(&mut self, state: EngineState) {
        self.last_status = Some(Instant::now());
        let state = match &self.loading {
            Some(model) => EngineState::Loading { model: model.clone() },
            None => state,
        };
        let (cache, models) = (&self.cache, &self.models);
        self.status.send_modify(|status| {
            let (cache_disk_bytes, cache_memory_bytes) = cache.bytes();
            *status = EngineStatus {
                state,
                model_fingerprint: models
                    .get(None)
                    .ok()
                    .map(|loaded| loaded.model.fingerprint.clone()),
                models: models.iter().map(LoadedModelStatus::of).collect(),
                mlx_active_bytes: memory::active_bytes(),
                mlx_peak_bytes: memory::peak_bytes(),
                mlx_cache_bytes: memory::cache_bytes(),
                // Read while no other thread can publish, so that an older figure never replaces a
                // newer one.
                cache_disk_bytes,
                cache_memory_bytes,
            };
        });
    }

    /// As [`Worker::publish`], but at most ten times a second.
    pub(crate) fn publish_progress(&mut self, state: impl FnOnce() -> EngineState) {
        if self.last_status.is_none_or(|last| last.elapsed() >= STATUS_INTERVAL) {
            self.publish(state());
        }
    }

    /// Publishes that no request runs.
    pub(crate) fn publish_idle(&mut self) {
        let state = match self.models.current() {
            Some(model) => EngineState::Ready { model: model.to_owned() },
            None => match &self.status.borrow().state {
                // A request that finds no model does not change why there is none.
                state @ EngineState::Failed { .. } => state.clone(),
                _ => EngineState::Empty,
            },
        };
        self.publish(state);
    }

    /// A kit for a request. With `may_continue` it is the last request's kit, if that has the same
    /// `options`.
    pub(crate) fn take_kit(
        &mut self,
        loaded: &Rc<Loaded>,
        options: ModelKitOptions,
        may_continue: bool,
    ) -> Result<ModelKit, LmError> {
        let pooled = self.models.pooled(loaded);
        let (previous, draft) = match pooled {
            Some(pooled) if may_continue => (pooled.kit.take(), pooled.draft.clone()),
            Some(pooled) => (None, pooled.draft.clone()),
            None => (None, None),
        };
        let mut kit = match previous.filter(|kit| *kit.options() == options) {
            Some(kit) => kit,
            None => ModelKit::new(Rc::clone(&loaded.model), options)?,
        };
        if let (Some(draft), None) = (draft, kit.draft_model()) {
            kit.set_draft_model(draft)?;
        }
        Ok(kit)
    }

    /// Keeps the kit of a request that has ended for the next one. It is dropped if its draft model
    /// is no longer the model's.
    pub(crate) fn keep_kit(&mut self, loaded: &Rc<Loaded>, kit: ModelKit) {
        let Some(pooled) = self.models.pooled(loaded) else { return };
        let is_same = match (kit.draft_model(), &pooled.draft) {
            (Some(own), Some(draft)) => Rc::ptr_eq(own, draft),
            (own, draft) => own.is_none() && draft.is_none(),
        };
        pooled.kit = is_same.then_some(kit);
    }

    /// Sets or drops the draft model of the current model, with the caches of the one before.
    pub(crate) fn set_draft(&mut self, loaded: &Rc<Loaded>, draft: Option<Rc<LoadedModel>>) {
        if let Some(pooled) = self.models.pooled(loaded) {
            pooled.draft = draft;
            if let Some(kit) = &mut pooled.kit {
                kit.unload_draft_model();
            }
        }
        memory::clear_cache();
    }

    /// Drops the conversations that are resident in memory.
    pub(crate) fn forget_conversations(&mut self) {
        self.cache.drop_residents();
        self.models.iter_mut().for_each(|pooled| pooled.kit = None);
    }

    /// Drops the idle models for which `goes` holds, with their resident conversations. Returns
    /// whether there were any.
    pub(crate) fn drop_idle_models(&mut self, goes: impl Fn(&Loaded) -> bool) -> bool {
        // No work may still run on arrays that are about to be freed.
        let _ = ffi::synchronize();
        let gone = self.models.take_idle(goes);
        for loaded in &gone {
            self.cache.drop_residents_of(&loaded.model.fingerprint);
        }
        if self.models.names().is_empty() {
            self.cache.demote();
        }
        let has_dropped = !gone.is_empty();
        drop(gone);
        memory::clear_cache();
        has_dropped
    }
}
