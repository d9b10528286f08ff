//! What the engine's thread does with the cache state: it looks up prefixes, explains misses, adds
//! chunks and sets references.

use std::ops::ControlFlow;
use std::sync::Arc;

use cairn_lm::LoadedModel;
use cairn_lm::cache::chunk_state::{CacheLayout, Checkpoint, EvaluatedLayers};
use cairn_lm::cache::{KvQuantization, LayerCache};

use super::chunk_file::{self, ChunkContents};
use super::index::{Needs, Prefix};
use super::namespace::{layout, needs};
use super::restore::{Source, restore};
use super::state::SharedCacheState;
use super::writer::Writer;
use super::{Query, miss, now_ms};
use crate::records::{CacheRef, ChunkKind, ChunkRecord, Namespace};

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
    pub(super) problem: Option<String>,
}

impl ChunkStore {
    /// The cache layout of the chunks in `namespace` that match `tokens`; none where such caches
    /// cannot be stored.
    fn layout(
        &self,
        namespace: &Namespace,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        tokens: &[u32],
    ) -> Option<CacheLayout> {
        if !namespace.is_opaque() {
            return layout(namespace, model, quantization);
        }
        // An imported file may be quantized in its own format, which its chunks name.
        let path = {
            let state = self.state.lock();
            let (prefix, _) = state.index.restorable_prefix(namespace, tokens, Needs::default());
            let on_disk =
                prefix.parts.into_iter().find(|part| !part.record.file_hash.is_empty())?;
            chunk_file::path(&state.folder, &namespace.model, &on_disk.record.key)
        };
        match chunk_file::layout(&path) {
            Ok(layout) => Some(layout),
            // With a guessed layout a sound chunk would look damaged.
            Err(error) if !error.is_lasting() => None,
            Err(_) => layout(namespace, model, None),
        }
    }

    pub(super) fn num_restorable(
        &self,
        namespace: &Namespace,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        tokens: &[u32],
    ) -> usize {
        let Some(layout) = self.layout(namespace, model, quantization, tokens) else { return 0 };
        self.state.lock().index.restorable_prefix(namespace, tokens, needs(&layout)).1
    }

    /// Restores the longest beginning of `tokens` that can be restored. Where a chunk cannot be
    /// used, the chunks before it are tried; it is removed unless a later attempt may succeed.
    pub(super) fn restore(
        &self,
        namespace: &Namespace,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        mut tokens: &[u32],
    ) -> Restored {
        let mut problem = None;
        let nothing = |problem| Restored { num_tokens: 0, caches: Vec::new(), problem };
        let Some(layout) = self.layout(namespace, model, quantization, tokens) else {
            return nothing(None);
        };
        loop {
            let (folder, sources, num_tokens) = {
                let state = self.state.lock();
                let (prefix, num_tokens) =
                    state.index.restorable_prefix(namespace, tokens, needs(&layout));
                let wanted = prefix
                    .parts
                    .into_iter()
                    .map(|part| part.record)
                    .filter(|record| record.start < num_tokens);
                let sources: Vec<Source> = wanted.map(|record| state.source(record)).collect();
                (state.folder.clone(), sources, num_tokens)
            };
            if num_tokens == 0 {
                return nothing(problem);
            }
            match restore(&folder, &sources, &layout, num_tokens) {
                Ok(caches) => {
                    self.state
                        .lock()
                        .touch(sources.into_iter().map(|source| source.record.key).collect());
                    return Restored { num_tokens, caches, problem };
                }
                Err(unusable) => {
                    let reason = unusable.error.to_string();
                    tracing::warn!(chunk = %unusable.key, %reason, "a stored prompt cache cannot be used");
                    match unusable.error.is_lasting() {
                        true => self.state.lock().forget(&unusable.key, &reason),
                        false => tokens = &tokens[..unusable.start],
                    }
                    problem = Some(reason);
                }
            }
        }
    }

    /// Records that the chunks of `tokens` were used, although a resident conversation supplied
    /// them.
    pub(super) fn touch(&self, namespace: &Namespace, tokens: &[u32]) {
        let mut state = self.state.lock();
        let prefix = state.index.best_prefix(namespace, tokens, |prefix| prefix.num_tokens);
        state.touch(prefix.parts.into_iter().map(|part| part.record.key).collect());
    }

    /// The reason why only `num_cached` tokens were reused; counts the lookup.
    pub(super) fn explain(
        &self,
        namespace: &Namespace,
        query: &Query<'_>,
        num_cached: usize,
        problem: Option<String>,
    ) -> Option<String> {
        let mut state = self.state.lock();
        state.figures.num_lookups += 1;
        state.figures.num_prompt_tokens += query.prompt.tokens.len() as u64;
        state.figures.num_cached_tokens += num_cached as u64;
        let cache_ref = query.owner.and_then(|owner| state.index.refs.get(owner));
        let tokens = |cache_ref: &CacheRef| {
            let path =
                cache_ref.chunk_key.as_deref().map_or(Vec::new(), |key| state.index.path(key));
            path.iter().flat_map(|entry| entry.record.token_ids.iter().copied()).collect()
        };
        let lookup = miss::Lookup {
            prompt: query.prompt,
            namespace,
            model: query.model_name,
            cache_ref: cache_ref.map(|cache_ref| (cache_ref, tokens(cache_ref))),
            limit: query.limit,
            not_written: state.problem.as_deref(),
            now_ms: now_ms(),
        };
        miss::note(&lookup, num_cached, problem)
    }

    /// Adds the missing chunks of `tokens` to the cache state, and queues them for the writer.
    pub(super) fn save(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        boundaries: Vec<(usize, ChunkKind)>,
        checkpoints: &[Checkpoint],
        caches: &[LayerCache],
    ) -> Result<(), cairn_lm::LmError> {
        let Some(layout) = CacheLayout::of(caches).map(Arc::new) else { return Ok(()) };
        // The positions at which every kind of cache can be restored.
        let needs = needs(&layout);
        let end = layout.needs_checkpoints().then_some(tokens.len());
        let positions: Vec<usize> =
            checkpoints.iter().map(Checkpoint::num_tokens).chain(end).collect();
        let boundaries = with_checkpoints(boundaries, checkpoints);
        let (planned, is_persisted) = {
            let state = self.state.lock();
            if state.index.disk.budget == 0 && state.index.memory.budget == 0 {
                return Ok(());
            }
            (
                state.index.plan(namespace, tokens, &boundaries, (needs, &positions)),
                state.index.disk.budget > 0,
            )
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
            let state = layers.chunk_state(
                &checkpoints,
                chunk.start,
                chunk.start + chunk.token_ids.len(),
            )?;
            let record = ChunkRecord {
                key: chunk.key,
                parent_key: chunk.parent_key,
                namespace: namespace.clone(),
                kind: chunk.kind,
                start: chunk.start,
                token_ids: chunk.token_ids,
                held_from: state.held_from,
                has_state: state.has_state,
                bytes: state.bytes.len() as u64,
                file_hash: String::new(),
                hits: 0,
                last_used_at_ms: used_at_ms,
            };
            let contents = Arc::new(ChunkContents::new(state));
            if self.add(record, contents, is_persisted.then_some(&layout)).is_break() {
                break;
            }
        }
        self.state.lock().enforce_memory_budget();
        Ok(())
    }

    /// Adds a planned chunk, and with a layout queues it for the writer. Breaks if its descendants
    /// cannot be added either.
    fn add(
        &self,
        record: ChunkRecord,
        contents: Arc<ChunkContents>,
        layout: Option<&Arc<CacheLayout>>,
    ) -> ControlFlow<()> {
        let (key, bytes) = (record.key.clone(), record.bytes);
        let most_pending = {
            let mut state = self.state.lock();
            // The parent was evicted since the plan was made: its descendants could not be reached.
            if record.parent_key.as_ref().is_some_and(|parent| !state.index.contains(parent)) {
                return ControlFlow::Break(());
            }
            // Another program added this chunk, or it is too short to be cut differently.
            if state.index.contains(&key) {
                return ControlFlow::Continue(());
            }
            state.add(record, contents, layout.is_some());
            state.index.memory.budget.max(MIN_PENDING_BYTES)
        };
        if let Some(layout) = layout {
            self.writer.write(key, bytes, Arc::clone(layout));
            self.state.wait_until_pending_is_at_most(most_pending);
        }
        ControlFlow::Continue(())
    }

    /// Moves the owner's reference to the end of `tokens`, as far as their chunks are stored.
    pub(super) fn cache_ref(
        &self,
        owner: String,
        namespace: &Namespace,
        model: &str,
        tokens: &[u32],
        caches: &[LayerCache],
        is_pinned: bool,
    ) {
        let needs = CacheLayout::of(caches).map_or_else(Needs::default, |layout| needs(&layout));
        let mut state = self.state.lock();
        // Among equally long paths, prefer one that can be restored at its end.
        let worth = |prefix: &Prefix| {
            let num_whole = prefix.last_whole().map_or(0, ChunkRecord::stop);
            num_whole - usize::from(prefix.num_restorable(needs, num_whole) < num_whole)
        };
        let prefix = state.index.best_prefix(namespace, tokens, worth);
        let (chunk_key, num_tokens) = prefix
            .last_whole()
            .map_or((None, 0), |record| (Some(record.key.clone()), record.stop()));
        let cache_ref = CacheRef {
            is_pinned: is_pinned || state.index.is_ref_pinned(&owner),
            owner,
            namespace: namespace.clone(),
            model: model.to_owned(),
            chunk_key,
            num_tokens,
            loss: None,
        };
        state.index.set_ref(cache_ref);
        state.emit_refs();
    }
}

/// The boundaries, with one at each checkpoint: it can be restored only where a chunk ends.
fn with_checkpoints(
    mut boundaries: Vec<(usize, ChunkKind)>,
    checkpoints: &[Checkpoint],
) -> Vec<(usize, ChunkKind)> {
    for position in checkpoints.iter().map(Checkpoint::num_tokens) {
        let at = boundaries.partition_point(|(boundary, _)| *boundary < position);
        if boundaries.get(at).is_none_or(|(boundary, _)| *boundary != position) {
            let kind = boundaries.get(at).map_or(ChunkKind::Assistant, |(_, kind)| *kind);
            boundaries.insert(at, (position, kind));
        }
    }
    boundaries
}
