//! The state of the engine's thread: the models, the prompt cache, and the published status.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use cairn_chat::Cancel;
use cairn_lm::{LoadProgress, ffi, memory};
use tokio::sync::watch;

use crate::admission::{Admission, HeldModel, MemoryUse};
use crate::guard::panic_message;
use crate::model_pool::{Loaded, ModelPool, PooledDraft, PooledModel};
use crate::prefix_pool::PrefixPool;
use crate::prompt_cache::PromptCache;
use crate::request::GenerateRequest;
use crate::wired_memory::WiredMemory;
use crate::work::WorkCounter;
use crate::{EngineError, EngineState, EngineStatus, MemoryPressure, NeedsMemory};

/// The state of the engine's thread.
pub(crate) struct Worker {
    pub(crate) models: ModelPool,
    /// The model that is being loaded, and how much of it has been read.
    pub(crate) loading: Option<(String, LoadProgress)>,
    pub(crate) cache: PromptCache,
    pub(crate) prefixes: PrefixPool,
    pub(crate) closing: watch::Receiver<bool>,
    status: watch::Sender<EngineStatus>,
    last_status: Option<Instant>,
    pub(crate) keep_quantized: bool,
    /// The names of models that only a person unloads.
    pub(crate) pinned: Vec<String>,
    /// Jobs that wait to begin.
    pub(crate) num_waiting: usize,
    /// The work of all requests.
    pub(crate) work: WorkCounter,
    /// What models and sequences may take together.
    pub(crate) memory_limit_bytes: Option<u64>,
    pub(crate) wired: WiredMemory,
    /// Why the device cannot compute anything.
    pub(crate) device_failure: Option<String>,
}

/// What is freed when the system is short of memory, from what costs least to what costs most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relief {
    /// What MLX holds for reuse.
    AllocatorCache,
    /// They are read from disk when they continue.
    ResidentConversations,
    /// Contents of chunks that are on disk too.
    StoredContents,
    /// They are loaded when somebody asks them.
    IdleModels,
}

impl Relief {
    fn of(pressure: MemoryPressure) -> &'static [Relief] {
        use Relief::{AllocatorCache, IdleModels, ResidentConversations, StoredContents};
        match pressure {
            MemoryPressure::Normal => &[],
            MemoryPressure::Warning => &[AllocatorCache, ResidentConversations],
            MemoryPressure::Critical => {
                &[AllocatorCache, ResidentConversations, StoredContents, IdleModels]
            }
        }
    }
}

/// Watchers redraw at most this often; per-token updates would only wake them.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

impl Worker {
    pub(crate) fn new(
        cache: PromptCache,
        keep_quantized: bool,
        memory_limit_bytes: Option<u64>,
        status: watch::Sender<EngineStatus>,
        closing: watch::Receiver<bool>,
    ) -> Self {
        Worker {
            models: ModelPool::default(),
            loading: None,
            cache,
            prefixes: PrefixPool::default(),
            closing,
            status,
            last_status: None,
            keep_quantized,
            pinned: Vec::new(),
            num_waiting: 0,
            work: WorkCounter::default(),
            memory_limit_bytes,
            wired: WiredMemory::of_system(),
            device_failure: None,
        }
    }

    /// Ends the building of a prompt if the engine closes, or if `is_abandoned` says that no one waits for
    /// it.
    pub(crate) fn cancel(&self, is_abandoned: impl Fn() -> bool + Send + Sync + 'static) -> Cancel {
        let closing = self.closing.clone();
        Cancel::new(move || *closing.borrow() || is_abandoned())
    }

    /// Runs a part of a job and turns a panic into an error.
    pub(crate) fn guarded<T>(
        &mut self,
        during: &'static str,
        part: impl FnOnce(&mut Worker) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        // Unwinding leaves no half-changed state that matters: caches in use are dropped with their
        // sequences, and the model is only read.
        catch_unwind(AssertUnwindSafe(|| part(self))).unwrap_or_else(|panic| {
            self.forget_conversations();
            let _ = ffi::synchronize();
            Err(EngineError::Panicked { during, message: panic_message(panic.as_ref()) })
        })
    }

    /// Publishes `state` with current memory figures. A load in progress takes the place of
    /// `state`, and a device that cannot compute takes the place of both.
    pub(crate) fn publish(&mut self, state: EngineState) {
        self.last_status = Some(Instant::now());
        let state = match (&self.device_failure, &self.loading) {
            (Some(message), _) => {
                EngineState::Failed { model: String::new(), message: message.clone() }
            }
            (None, Some((model, progress))) => {
                EngineState::Loading { model: model.clone(), progress: *progress }
            }
            (None, None) => state,
        };
        self.models.note_use(Instant::now());
        let (cache, models) = (&self.cache, &self.models);
        let (num_waiting, work) = (self.num_waiting, self.work.total());
        self.status.send_modify(|status| {
            let (cache_disk_bytes, cache_memory_bytes) = cache.bytes();
            *status = EngineStatus {
                state,
                num_waiting,
                work,
                model_fingerprint: models
                    .get(None)
                    .ok()
                    .map(|loaded| loaded.model.fingerprint.clone()),
                models: models.iter().map(PooledModel::status).collect(),
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

    /// What was published last.
    #[cfg(test)]
    pub(crate) fn status(&self) -> EngineStatus {
        self.status.borrow().clone()
    }

    /// Publishes how far the load under way has come; a draft model's is not reported.
    pub(crate) fn publish_loading(&mut self, progress: LoadProgress) {
        if let Some((_, reported)) = &mut self.loading {
            *reported = progress;
            self.publish_progress(|| EngineState::Empty);
        }
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

    /// The draft model that proposes for a request, if it may.
    pub(crate) fn draft_for(
        &mut self,
        loaded: &Rc<Loaded>,
        request: &GenerateRequest,
    ) -> Option<Rc<Loaded>> {
        let pooled = self.models.pooled(loaded).filter(|_| request.may_draft())?;
        pooled.draft.as_ref().map(|draft| Rc::clone(&draft.loaded))
    }

    /// Sets or drops the draft model of a model.
    pub(crate) fn set_draft(&mut self, loaded: &Rc<Loaded>, draft: Option<PooledDraft>) {
        if let Some(pooled) = self.models.pooled(loaded) {
            pooled.draft = draft;
        }
        memory::clear_cache();
        let state = self.status.borrow().state.clone();
        self.publish(state);
    }

    /// Drops the conversations that are resident in memory, and what `AsyncLm`s have computed.
    pub(crate) fn forget_conversations(&mut self) {
        self.cache.drop_residents();
        self.forget_computed();
    }

    /// Drops what `AsyncLm`s have computed, and the prefixes that requests asked to keep.
    fn forget_computed(&mut self) {
        self.prefixes.clear();
        for pooled in self.models.iter_mut() {
            pooled.async_lms.values().for_each(|state| state.borrow_mut().clear());
        }
        memory::clear_cache();
    }

    /// Bytes of what [`Worker::forget_computed`] drops.
    fn held_bytes(&self) -> u64 {
        let states = self.models.iter().flat_map(|pooled| pooled.async_lms.values());
        let computed: u64 = states.map(|state| state.borrow().held_bytes()).sum();
        computed + self.prefixes.num_bytes()
    }

    /// The models, and the limit for them; none if there is no limit.
    pub(crate) fn memory_use(&self, reserved_bytes: u64) -> Option<MemoryUse> {
        let held = |pooled: &PooledModel| HeldModel {
            name: pooled.loaded.name.clone(),
            bytes: pooled.weight_bytes(),
            is_in_use: pooled.is_in_use(),
            is_pinned: self.pinned.contains(&pooled.loaded.name),
        };
        let limit_bytes = self.memory_limit_bytes?;
        let models = self.models.iter().map(held).collect();
        Some(MemoryUse { limit_bytes, models, reserved_bytes, held_bytes: self.held_bytes() })
    }

    /// Makes room as an admission says; fails for one that is refused. `what` asked.
    pub(crate) fn make_room(
        &mut self,
        admission: Admission,
        what: NeedsMemory,
    ) -> Result<(), EngineError> {
        match admission {
            Admission::Admit | Admission::Wait { .. } => Ok(()),
            Admission::AdmitAfterForgetting => {
                self.forget_computed();
                Ok(())
            }
            Admission::AdmitAfterUnloading(names) => {
                self.forget_computed();
                self.drop_idle_models(|loaded| names.contains(&loaded.name));
                Ok(())
            }
            Admission::Refuse(shortage) => Err(EngineError::DoesNotFit { what, shortage }),
        }
    }

    /// Frees memory that the system is short of. What sequences and tasks use stays.
    pub(crate) fn relieve(&mut self, pressure: MemoryPressure) {
        for relief in Relief::of(pressure) {
            match relief {
                Relief::AllocatorCache => {}
                Relief::ResidentConversations => self.forget_conversations(),
                Relief::StoredContents => self.cache.drop_stored_contents(),
                Relief::IdleModels => {
                    let pinned = self.pinned.clone();
                    self.drop_idle_models(|loaded| !pinned.contains(&loaded.name));
                }
            }
            // What was dropped is in MLX's allocator cache now.
            memory::clear_cache();
        }
        let state = match self.status.borrow().state.clone() {
            EngineState::Ready { .. } if self.models.current().is_none() => EngineState::Empty,
            state => state,
        };
        self.publish(state);
    }

    /// Drops a model that has not been used after `unused_since`. Returns whether it did.
    pub(crate) fn drop_unused(&mut self, name: &str, unused_since: Instant) -> bool {
        let is_unused = |pooled: &PooledModel| {
            pooled.loaded.name == name && !pooled.is_in_use() && pooled.last_used <= unused_since
        };
        self.models.iter().any(is_unused) && self.drop_idle_models(|loaded| loaded.name == name)
    }

    /// Drops the idle models for which `goes` holds, with their resident conversations. Returns
    /// whether there were any.
    pub(crate) fn drop_idle_models(&mut self, goes: impl Fn(&Loaded) -> bool) -> bool {
        // No work may still run on arrays that are about to be freed.
        let _ = ffi::synchronize();
        let gone = self.models.take_idle(goes);
        for loaded in &gone {
            self.cache.drop_residents_of(&loaded.model.fingerprint);
            self.prefixes.drop_of(&loaded.model.fingerprint);
        }
        if self.models.names().is_empty() {
            self.cache.drop_residents();
            self.cache.drop_stored_contents();
        }
        let has_dropped = !gone.is_empty();
        drop(gone);
        memory::clear_cache();
        has_dropped
    }
}
