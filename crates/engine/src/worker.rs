//! Everything that the engine's thread owns: the model, the prompt cache, and what others see of
//! it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use cairn_lm::{LmError, LoadedModel, ModelKit, ModelKitOptions, ffi, memory};
use tokio::sync::{mpsc, watch};

use crate::prompt_cache::{CacheHandle, PromptCache};
use crate::records::{CacheEvent, CacheOptions};
use crate::{EngineState, EngineStatus};

/// Everything that lives on the thread.
pub(crate) struct Worker {
    /// Shared with the job that is using it, so that the job can change the rest of the worker.
    pub(crate) loaded: Option<Rc<Loaded>>,
    /// Proposes tokens for the model above.
    pub(crate) draft: Option<Rc<LoadedModel>>,
    /// That of the last answer which could not share a batch, with that conversation's caches.
    pub(crate) kit: Option<ModelKit>,
    pub(crate) cache: PromptCache,
    pub(crate) closing: watch::Receiver<bool>,
    status: watch::Sender<EngineStatus>,
    last_status: Option<Instant>,
    pub(crate) keep_quantized: bool,
}

/// A model and the name it was loaded under.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) model: Rc<LoadedModel>,
}

/// Watchers redraw at most this often; per-token updates would only wake them.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

impl Worker {
    /// Also returns a way to look at the prompt cache, where it is stored.
    pub(crate) fn new(
        cache: Option<CacheOptions>,
        keep_quantized: bool,
        status: watch::Sender<EngineStatus>,
        closing: watch::Receiver<bool>,
        cache_events: mpsc::UnboundedSender<CacheEvent>,
    ) -> (Self, Option<CacheHandle>) {
        let (cache, window) = PromptCache::new(cache, cache_events, status.clone());
        (
            Worker {
                loaded: None,
                draft: None,
                kit: None,
                cache,
                closing,
                status,
                last_status: None,
                keep_quantized,
            },
            window,
        )
    }

    /// Publishes `state` with the memory figures of now.
    pub(crate) fn publish(&mut self, state: EngineState) {
        self.last_status = Some(Instant::now());
        let (cache, loaded) = (&self.cache, &self.loaded);
        self.status.send_modify(|status| {
            let (cache_disk_bytes, cache_memory_bytes) = cache.bytes();
            *status = EngineStatus {
                state,
                model_fingerprint: loaded.as_ref().map(|loaded| loaded.model.fingerprint.clone()),
                mlx_active_bytes: memory::active_bytes(),
                mlx_peak_bytes: memory::peak_bytes(),
                mlx_cache_bytes: memory::cache_bytes(),
                // Asked while no one else can publish, so that an older figure never replaces a
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

    /// Publishes that nothing runs.
    pub(crate) fn publish_idle(&mut self) {
        let state = match &self.loaded {
            Some(loaded) => EngineState::Ready { model: loaded.name.clone() },
            // Empty or failed; a request that found no model does not change which.
            None => self.status.borrow().state.clone(),
        };
        self.publish(state);
    }

    /// A kit for an answer of `loaded`. One that `may_continue` is that of the last such answer,
    /// where it has the same `options`.
    pub(crate) fn take_kit(
        &mut self,
        loaded: &Loaded,
        options: ModelKitOptions,
        may_continue: bool,
    ) -> Result<ModelKit, LmError> {
        let kept = if may_continue { self.kit.take() } else { None };
        let mut kit = match kept.filter(|kit| *kit.options() == options) {
            Some(kit) => kit,
            None => ModelKit::new(Rc::clone(&loaded.model), options)?,
        };
        if let (Some(draft), None) = (&self.draft, kit.draft_model()) {
            kit.set_draft_model(Rc::clone(draft))?;
        }
        Ok(kit)
    }

    /// Drops the draft model, if there is one, and what it has read.
    pub(crate) fn drop_draft(&mut self) {
        self.draft = None;
        if let Some(kit) = &mut self.kit {
            kit.unload_draft_model();
        }
        memory::clear_cache();
    }

    /// Drops the conversations that are kept in memory.
    pub(crate) fn forget_conversations(&mut self) {
        self.cache.forget_conversations();
        self.kit = None;
    }

    /// Drops the loaded model, its draft model and the conversations with them that are in memory.
    pub(crate) fn drop_model(&mut self) {
        // Nothing may still run on arrays that are about to go.
        let _ = ffi::synchronize();
        self.forget_conversations();
        self.cache.demote();
        self.loaded = None;
        self.draft = None;
        memory::clear_cache();
    }
}
