//! The state of the engine's thread: the model, the prompt cache, and the published status.

use std::rc::Rc;
use std::time::{Duration, Instant};

use cairn_lm::{LmError, LoadedModel, ModelKit, ModelKitOptions, ffi, memory};
use tokio::sync::{mpsc, watch};

use crate::prompt_cache::{CacheHandle, PromptCache};
use crate::records::{CacheEvent, CacheOptions};
use crate::{EngineState, EngineStatus};

/// The state of the engine's thread.
pub(crate) struct Worker {
    /// Reference-counted, so that a job can use it while it changes the rest of the worker.
    pub(crate) loaded: Option<Rc<Loaded>>,
    /// The draft model of `loaded`.
    pub(crate) draft: Option<Rc<LoadedModel>>,
    /// The kit of the last unbatched request, with the caches of its conversation.
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
    /// Also returns the handle to the prompt cache, where it is stored on disk.
    pub(crate) fn new(
        cache: Option<CacheOptions>,
        keep_quantized: bool,
        status: watch::Sender<EngineStatus>,
        closing: watch::Receiver<bool>,
        cache_events: mpsc::UnboundedSender<CacheEvent>,
    ) -> (Self, Option<CacheHandle>) {
        let (cache, handle) = PromptCache::new(cache, cache_events, status.clone());
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
            handle,
        )
    }

    /// Publishes `state` with current memory figures.
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
        let state = match &self.loaded {
            Some(loaded) => EngineState::Ready { model: loaded.name.clone() },
            // Empty or failed; a request that finds no model does not change which.
            None => self.status.borrow().state.clone(),
        };
        self.publish(state);
    }

    /// A kit for a request. With `may_continue` it is the last request's kit, if that has the same
    /// `options`.
    pub(crate) fn take_kit(
        &mut self,
        loaded: &Loaded,
        options: ModelKitOptions,
        may_continue: bool,
    ) -> Result<ModelKit, LmError> {
        let previous = if may_continue { self.kit.take() } else { None };
        let mut kit = match previous.filter(|kit| *kit.options() == options) {
            Some(kit) => kit,
            None => ModelKit::new(Rc::clone(&loaded.model), options)?,
        };
        if let (Some(draft), None) = (&self.draft, kit.draft_model()) {
            kit.set_draft_model(Rc::clone(draft))?;
        }
        Ok(kit)
    }

    /// Drops the draft model and its caches, if there is one.
    pub(crate) fn drop_draft(&mut self) {
        self.draft = None;
        if let Some(kit) = &mut self.kit {
            kit.unload_draft_model();
        }
        memory::clear_cache();
    }

    /// Drops the conversations that are resident in memory.
    pub(crate) fn forget_conversations(&mut self) {
        self.cache.drop_residents();
        self.kit = None;
    }

    /// Drops the loaded model, its draft model and their resident conversations.
    pub(crate) fn drop_model(&mut self) {
        // No work may still run on arrays that are about to be freed.
        let _ = ffi::synchronize();
        self.forget_conversations();
        self.cache.demote();
        self.loaded = None;
        self.draft = None;
        memory::clear_cache();
    }
}
