//! What the engine's thread does with the cache state: it looks up prefixes, explains misses, adds
//! chunks and sets references.

use std::sync::Arc;

use cairn_chat::Role;
use cairn_lm::LoadedModel;
use cairn_lm::cache::chunk_state::{CacheLayout, Checkpoint, EvaluatedLayers};
use cairn_lm::cache::{KvQuantization, LayerCache};
use cairn_prompt_cache::{
    CacheRef, ChunkKey, ChunkKind, ChunkProblem, ChunkRecord, Lookup, Miss, Namespace, Owner,
    PlannedChunk, PromptTokens, RestoreNeeds, RestorePlan,
};

use super::chunk_file::{self, ChunkContents};
use super::namespace::{layout, needs, quantization};
use super::restore::{Source, Unusable, restore};
use super::state::SharedCacheState;
use super::writer::Writer;
use super::{Query, now_ms};

/// The bytes that may wait to be written even where the memory budget is smaller.
const MIN_PENDING_BYTES: u64 = 256 << 20;

/// The cache state, and the thread that writes its chunks.
#[derive(Debug)]
pub(super) struct ChunkStore {
    pub(super) state: SharedCacheState,
    pub(super) writer: Writer,
}

/// The caches that were restored.
pub(super) struct Restored {
    pub(super) num_tokens: usize,
    pub(super) caches: Vec<LayerCache>,
    /// The reason why some chunks could not be used.
    pub(super) problem: Option<ChunkProblem>,
}

impl ChunkStore {
    /// The cache layout of the chunks in `namespace` that match `tokens`; none where such caches
    /// cannot be stored.
    fn layout(
        &self,
        namespace: &Namespace,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        tokens: &PromptTokens,
    ) -> Option<CacheLayout> {
        if !namespace.provenance.is_opaque() {
            return layout(namespace, model, quantization);
        }
        // An imported file may be quantized in its own format, which its chunks name.
        let path = {
            let state = self.state.lock();
            let plan = state.index.restore_plan(namespace, tokens, RestoreNeeds::default());
            let on_disk = plan.chunks.into_iter().find(|record| record.file.is_some())?;
            chunk_file::path(&state.folder, &namespace.model, &on_disk.key)
        };
        match chunk_file::layout(&path) {
            Ok(layout) => Some(layout),
            // With a guessed layout a sound chunk would look damaged.
            Err(error) if !error.is_lasting() => None,
            Err(_) => layout(namespace, model, None),
        }
    }

    /// The cache layout of what a reference to `target` covers. It is read from a chunk file, so
    /// that no model has to be loaded for it; without a file `model` must be the one it belongs to.
    pub(super) fn stored_layout(
        &self,
        cache_ref: &CacheRef,
        target: &ChunkKey,
        model: Option<&LoadedModel>,
    ) -> Option<CacheLayout> {
        let namespace = &cache_ref.namespace;
        let path = {
            let state = self.state.lock();
            let on_disk = state.index.path(target).into_iter().find(|chunk| chunk.is_on_disk());
            on_disk.map(|chunk| chunk_file::path(&state.folder, &namespace.model, &chunk.key()))
        };
        match path.map(|path| chunk_file::layout(&path)) {
            Some(Ok(layout)) => Some(layout),
            _ => {
                let model = model.filter(|model| model.fingerprint == namespace.model.as_str())?;
                layout(namespace, model, quantization(namespace.kv_format))
            }
        }
    }

    pub(super) fn num_restorable(
        &self,
        namespace: &Namespace,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        tokens: &PromptTokens,
    ) -> usize {
        let Some(layout) = self.layout(namespace, model, quantization, tokens) else { return 0 };
        self.state.lock().index.restore_plan(namespace, tokens, needs(&layout)).num_tokens
    }

    /// Restores the longest beginning of `tokens` that can be restored. Where a chunk cannot be
    /// used, the chunks before it are tried; it is removed unless a later attempt may succeed.
    pub(super) fn restore(
        &self,
        namespace: &Namespace,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        tokens: &PromptTokens,
    ) -> Restored {
        let (mut tokens, mut problem) = (tokens.clone(), None);
        let nothing = |problem| Restored { num_tokens: 0, caches: Vec::new(), problem };
        let Some(layout) = self.layout(namespace, model, quantization, &tokens) else {
            return nothing(None);
        };
        loop {
            let (folder, sources, num_tokens) = {
                let state = self.state.lock();
                let RestorePlan { chunks, num_tokens } =
                    state.index.restore_plan(namespace, &tokens, needs(&layout));
                let sources: Vec<Source> =
                    chunks.into_iter().map(|record| state.source(record)).collect();
                (state.folder.clone(), sources, num_tokens)
            };
            if num_tokens == 0 {
                return nothing(problem);
            }
            match restore(&folder, &sources, &layout, num_tokens) {
                Ok(caches) => {
                    self.state
                        .lock()
                        .used(sources.into_iter().map(|source| source.record.key).collect());
                    return Restored { num_tokens, caches, problem };
                }
                Err(Unusable { key, start, error }) => {
                    tracing::warn!(chunk = %key, %error, "a stored prompt cache cannot be used");
                    match error.is_lasting() {
                        true => self.state.lock().forget(&key, error.loss()),
                        false => tokens.truncate(start),
                    }
                    problem = Some(error.problem());
                }
            }
        }
    }

    /// Records that the chunks of `tokens` were used, although a resident conversation supplied
    /// them.
    pub(super) fn used(&self, namespace: &Namespace, tokens: &PromptTokens) {
        let mut state = self.state.lock();
        let keys = state.index.keys_of(namespace, tokens);
        state.used(keys);
    }

    /// The reason why only `num_cached` tokens were reused; counts the lookup.
    pub(super) fn explain(
        &self,
        namespace: &Namespace,
        query: &Query<'_>,
        num_cached: usize,
        problem: Option<ChunkProblem>,
    ) -> Option<Miss> {
        let mut state = self.state.lock();
        state.figures.num_lookups += 1;
        state.figures.num_prompt_tokens += query.prompt.tokens.len() as u64;
        state.figures.num_cached_tokens += num_cached as u64;
        let mut messages = query.prompt.boundaries.iter().zip(&query.prompt.roles);
        let lookup = Lookup {
            namespace,
            model_name: query.model_name,
            owner: query.owner,
            tokens: &query.tokens(query.prompt.tokens.len()),
            new_from: query.prompt.new_from,
            system_end: messages
                .find(|(_, role)| **role == Role::System)
                .map_or(0, |(end, _)| *end),
            limit: query.limit,
            problem,
            not_written: state.problem.as_deref(),
        };
        state.index.explain(&lookup, num_cached)
    }

    /// Adds the missing chunks of `tokens` to the cache state, and queues them for the writer.
    pub(super) fn save(
        &self,
        namespace: &Namespace,
        tokens: &PromptTokens,
        boundaries: &[(usize, ChunkKind)],
        checkpoints: &[Checkpoint],
        caches: &[LayerCache],
    ) -> Result<(), cairn_lm::LmError> {
        let Some(layout) = CacheLayout::of(caches).map(Arc::new) else { return Ok(()) };
        let positions: Vec<usize> = checkpoints.iter().map(Checkpoint::num_tokens).collect();
        let planned = {
            let state = self.state.lock();
            let budgets = state.index.budgets();
            if budgets.disk_bytes == 0 && budgets.memory_bytes == 0 {
                return Ok(());
            }
            state.index.write_plan(namespace, tokens, boundaries, &positions, needs(&layout))
        };
        if planned.is_empty() {
            return Ok(());
        }
        let layers = EvaluatedLayers::of(caches)?;
        let checkpoints = checkpoints
            .iter()
            .map(EvaluatedLayers::of_checkpoint)
            .collect::<Result<Vec<_>, _>>()?;
        let used_at_ms = self.state.lock().index.next_use_ms(now_ms());
        for chunk in planned {
            let stop = chunk.start + chunk.tokens.len();
            let cut = layers.chunk_state(&checkpoints, chunk.start, stop)?;
            let record = new_record(namespace, chunk, (cut.held_from, cut.has_state), used_at_ms);
            if !self.add(record, ChunkContents::new(cut), &layout) {
                break;
            }
        }
        self.state.lock().enforce_memory_budget();
        Ok(())
    }

    /// Adds one chunk and queues it for the writer. False if its parent was evicted since the plan
    /// was made: its descendants could not be reached.
    fn add(&self, record: ChunkRecord, contents: ChunkContents, layout: &Arc<CacheLayout>) -> bool {
        let (key, bytes) = (record.key, contents.num_bytes());
        let (is_persisted, most_pending) = {
            let mut state = self.state.lock();
            if record.parent.is_some_and(|parent| !state.index.contains(&parent)) {
                return false;
            }
            // Another program added this chunk, or it is too short to be cut differently.
            if state.index.contains(&key) {
                return true;
            }
            let budgets = state.index.budgets();
            let is_persisted = budgets.disk_bytes > 0;
            state.add(record, Arc::new(contents), is_persisted);
            (is_persisted, budgets.memory_bytes.max(MIN_PENDING_BYTES))
        };
        if is_persisted {
            self.writer.write(key, bytes, Arc::clone(layout));
            self.state.wait_until_pending_is_at_most(most_pending);
        }
        true
    }

    /// Moves the owner's reference to the end of `tokens`, as far as their chunks are stored.
    pub(super) fn set_ref(
        &self,
        owner: &Owner,
        namespace: &Namespace,
        model_name: &str,
        tokens: &PromptTokens,
        caches: &[LayerCache],
        is_pinned: bool,
    ) {
        let needs =
            CacheLayout::of(caches).map_or_else(RestoreNeeds::default, |layout| needs(&layout));
        let mut state = self.state.lock();
        let target = state.index.end_of(namespace, tokens, needs);
        let was_pinned = state.index.is_ref_pinned(owner);
        let changes = state.index.set_ref(CacheRef {
            name: owner.clone().into(),
            namespace: namespace.clone(),
            model_name: model_name.to_owned(),
            target,
            num_tokens: 0, // follows from the target
            is_pinned: is_pinned || was_pinned,
            loss: None,
        });
        state.apply(changes);
    }
}

/// The record of a planned chunk: `(held_from, has_state)` of what was cut for it.
fn new_record(
    namespace: &Namespace,
    chunk: PlannedChunk,
    (held_from, has_state): (usize, bool),
    used_at_ms: i64,
) -> ChunkRecord {
    ChunkRecord {
        key: chunk.key,
        parent: chunk.parent,
        namespace: namespace.clone(),
        kind: chunk.kind,
        start: chunk.start,
        tokens: chunk.tokens,
        held_from,
        has_state,
        file: None,
        hits: 0,
        created_at_ms: used_at_ms,
        last_used_at_ms: used_at_ms,
    }
}
