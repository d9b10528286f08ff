//! What the engine's thread does with the cache state: it looks up prefixes, explains misses, adds
//! chunks and sets references.

use std::sync::Arc;

use cairn_chat::Role;
use cairn_lm::LoadedModel;
use cairn_lm::cache::CacheSpec;
use cairn_lm::cache::chunk_state::{CacheLayout, ChunkState};
use cairn_prompt_cache::{
    CacheRef, ChunkKey, ChunkProblem, ChunkRecord, KvFormat, Lookup, Miss, Namespace, Owner,
    PlannedChunk, PromptTokens, RestoreNeeds,
};

use super::chunk_file::{self, ChunkContents};
use super::namespace::{needs, spec_like_own, stored_spec};
use super::query::Query;
use super::save_permit::{SavePermit, is_purged};
use super::state::SharedCacheState;
use super::writer::Writer;
use crate::kv_format::kv_format_of;

/// The cache state, and the thread that writes its chunks.
#[derive(Debug)]
pub(super) struct ChunkStore {
    pub(super) state: SharedCacheState,
    pub(super) writer: Writer,
}

/// The reference that is moved to the end of what is saved.
pub(super) struct NewRef {
    pub(super) owner: Owner,
    /// The name under which the model was loaded.
    pub(super) model_name: String,
    /// A reference that is pinned already stays so.
    pub(super) is_pinned: bool,
    /// What a draft model has read gets a stale reference, with which it is deleted, and the owner's own
    /// stays where it is.
    pub(super) is_draft: bool,
}

impl ChunkStore {
    /// What the caches are whose chunks in `namespace` match `tokens`; none where such caches cannot
    /// be stored.
    pub(super) fn spec(
        &self,
        namespace: &Namespace,
        model: &LoadedModel,
        tokens: &PromptTokens,
    ) -> Option<CacheSpec> {
        if !namespace.provenance.is_opaque() {
            return stored_spec(namespace, model);
        }
        // An imported file may be quantized in its own format, which its chunks name.
        let path = {
            let state = self.state.lock();
            let plan = state.index.restore_plan(namespace, tokens, RestoreNeeds::default());
            let on_disk = plan.chunks.into_iter().find(|record| record.file.is_some())?;
            chunk_file::path(&state.folder, &namespace.model, &on_disk.key)
        };
        match chunk_file::layout(&path) {
            Ok(layout) => spec_like_own(model, kv_format_of(&layout.spec())),
            // With a guessed spec a sound chunk would look damaged.
            Err(error) if !error.is_lasting() => None,
            Err(_) => spec_like_own(model, KvFormat::Plain),
        }
    }

    /// What the caches are that a reference to `target` covers. Where `model` is not the one they
    /// belong to, their kinds are read from a chunk file, so that no model has to be loaded for it;
    /// none without such a file.
    pub(super) fn spec_of_ref(
        &self,
        cache_ref: &CacheRef,
        target: &ChunkKey,
        model: Option<&LoadedModel>,
    ) -> Option<CacheSpec> {
        let namespace = &cache_ref.namespace;
        let path = {
            let state = self.state.lock();
            let on_disk = state.index.path(target).into_iter().find(|chunk| chunk.is_on_disk());
            on_disk.map(|chunk| chunk_file::path(&state.folder, &namespace.model, &chunk.key()))
        };
        match path.map(|path| chunk_file::layout(&path)) {
            Some(Ok(layout)) => Some(layout.spec()),
            _ => {
                let model = model.filter(|model| model.fingerprint == namespace.model.as_str())?;
                stored_spec(namespace, model)
            }
        }
    }

    pub(super) fn num_restorable(
        &self,
        namespace: &Namespace,
        model: &LoadedModel,
        tokens: &PromptTokens,
    ) -> usize {
        let Some(spec) = self.spec(namespace, model, tokens) else { return 0 };
        self.state.lock().index.restore_plan(namespace, tokens, needs(&spec)).num_tokens
    }

    /// Records that the chunks of `tokens` were used, although a resident conversation supplied
    /// them.
    pub(super) fn used(&self, namespace: &Namespace, tokens: &PromptTokens) {
        let mut state = self.state.lock();
        let keys = state.index.keys_of(namespace, tokens);
        state.used(keys);
    }

    /// Counts a lookup.
    pub(super) fn count_lookup(&self) {
        self.state.lock().figures.num_lookups += 1;
    }

    /// The reason why only `num_cached` tokens were reused.
    pub(super) fn explain(
        &self,
        namespace: &Namespace,
        query: &Query<'_>,
        num_cached: usize,
        problem: Option<ChunkProblem>,
    ) -> Option<Miss> {
        let state = self.state.lock();
        let mut messages = query.prompt.boundaries.iter().zip(&query.prompt.roles);
        let lookup = Lookup {
            namespace,
            model_name: query.model_name,
            owner: query.owner,
            tokens: &query.tokens(query.prompt.tokens.len()),
            new_from: query.prompt.new_from,
            last_from: query.prompt.last_from,
            system_end: messages
                .find(|(_, role)| **role == Role::System)
                .map_or(0, |(end, _)| *end),
            limit: query.limit,
            problem,
            not_written: state.problem.as_deref(),
        };
        state.index.explain(&lookup, num_cached)
    }

    /// Adds one chunk and queues it for the writer. False if it was purged, or its parent evicted,
    /// since the plan was made: its descendants could not be reached.
    pub(super) fn add(
        &self,
        record: ChunkRecord,
        contents: ChunkContents,
        layout: &Arc<CacheLayout>,
        permit: Option<&SavePermit>,
    ) -> bool {
        let (key, bytes) = (record.key, contents.num_bytes());
        let is_persisted = {
            let mut state = self.state.lock();
            if is_purged(permit)
                || record.parent.is_some_and(|parent| !state.index.contains(&parent))
            {
                return false;
            }
            // Another program added this chunk, or it is too short to be cut differently.
            if state.index.contains(&key) {
                return true;
            }
            let is_persisted = state.index.budgets().disk_bytes > 0;
            state.add(record, Arc::new(contents), is_persisted);
            is_persisted
        };
        if is_persisted {
            self.writer.write(key, bytes, Arc::clone(layout));
        }
        true
    }

    /// The keys of the chunks that cover a beginning of `tokens`.
    pub(super) fn keys(&self, namespace: &Namespace, tokens: &PromptTokens) -> Vec<ChunkKey> {
        self.state.lock().index.keys_of(namespace, tokens)
    }

    /// Counts the tokens of chunks, which are in order from the root, that an owner's references
    /// cover. Without an owner the prompt is covered as a whole.
    pub(super) fn num_owned(&self, owner: Option<&Owner>, keys: &[ChunkKey]) -> usize {
        owner.map_or(usize::MAX, |owner| self.state.lock().index.num_owned(owner, keys))
    }

    /// Moves the owner's reference to the end of `tokens`, as far as their chunks are stored, unless
    /// they were purged.
    pub(super) fn set_ref(
        &self,
        new_ref: &NewRef,
        namespace: &Namespace,
        tokens: &PromptTokens,
        spec: Option<&CacheSpec>,
        permit: Option<&SavePermit>,
    ) {
        let NewRef { owner, model_name, is_pinned, is_draft } = new_ref;
        let needs = spec.map_or_else(RestoreNeeds::default, needs);
        let mut state = self.state.lock();
        if is_purged(permit) {
            return;
        }
        let target = state.index.end_of(namespace, tokens, needs);
        if *is_draft {
            let changes = state.index.refer_beside(owner, namespace, model_name, target);
            return state.apply(changes);
        }
        let was_pinned = state.index.is_ref_pinned(owner);
        let changes = state.index.set_ref(CacheRef {
            name: owner.clone().into(),
            namespace: namespace.clone(),
            model_name: model_name.clone(),
            target,
            num_tokens: 0, // follows from the target
            is_pinned: *is_pinned || was_pinned,
            loss: None,
        });
        state.apply(changes);
    }
}

/// The record of a planned chunk, for which `cut` was cut.
pub(super) fn new_record(
    namespace: &Namespace,
    chunk: PlannedChunk,
    cut: &ChunkState,
    used_at_ms: i64,
) -> ChunkRecord {
    ChunkRecord {
        key: chunk.key,
        parent: chunk.parent,
        namespace: namespace.clone(),
        kind: chunk.kind,
        start: chunk.start,
        tokens: chunk.tokens,
        held_from: cut.held_from,
        has_state: cut.has_state,
        file: None,
        hits: 0,
        created_at_ms: used_at_ms,
        last_used_at_ms: used_at_ms,
    }
}
