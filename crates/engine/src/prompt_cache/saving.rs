//! Saves finished sequences. Their missing chunks are cut one by one, so that other sequences get
//! turns between, and not faster than the writer takes them: a chunk that waits to be written is in
//! memory beside the resident conversation that it was cut from.

use std::collections::VecDeque;
use std::sync::Arc;

use cairn_lm::LmError;
use cairn_lm::cache::chunk_state::{CacheLayout, Checkpoint, EvaluatedLayers};
use cairn_lm::cache::{CacheSpec, LayerCache};
use cairn_prompt_cache::{ChunkKey, ChunkKind, Namespace, Owner, PlannedChunk, PromptTokens};

use super::blocking::Blocking;
use super::chunk_file::ChunkContents;
use super::chunk_store::{ChunkStore, NewRef, new_record};
use super::namespace::needs;
use super::save_permit::{SavePermit, is_purged};
use super::unix_time::now_ms;

/// The bytes of chunks that may wait to be written. One chunk may wait whatever it takes.
const MAX_QUEUED_BYTES: u64 = 50_000_000;

/// The most finished sequences that wait to be cut: each keeps its caches alive.
const MAX_PENDING: usize = 4;

/// What is saved: the chunks that cover `tokens`, and whose reference moves to their end.
pub(super) struct ToSave<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) tokens: &'a PromptTokens,
    /// The position at which each message ends, with the role of what ends there.
    pub(super) boundaries: &'a [(usize, ChunkKind)],
    pub(super) checkpoints: &'a [Checkpoint],
    pub(super) caches: &'a [LayerCache],
    /// None where nobody refers to the chunks.
    pub(super) new_ref: Option<NewRef>,
    /// None where no purge concerns it.
    pub(super) permit: Option<Arc<SavePermit>>,
}

/// A finished sequence whose chunks are not all cut.
pub(super) struct PendingSave {
    namespace: Namespace,
    tokens: PromptTokens,
    new_ref: Option<NewRef>,
    permit: Option<Arc<SavePermit>>,
    spec: Option<CacheSpec>,
    /// None where such caches cannot be stored.
    layout: Option<Arc<CacheLayout>>,
    /// None where no chunk is missing.
    layers: Option<EvaluatedLayers>,
    checkpoints: Vec<EvaluatedLayers>,
    /// From the root on.
    planned: VecDeque<PlannedChunk>,
    /// About what a token takes.
    token_bytes: u64,
    used_at_ms: i64,
}

/// The finished sequences that are being saved, the first one first. Owned by the engine's thread.
#[derive(Default)]
pub(super) struct PendingSaves(VecDeque<PendingSave>);

impl PendingSave {
    /// Plans the chunks that are missing.
    pub(super) fn new(store: &ChunkStore, save: ToSave<'_>) -> Result<Self, LmError> {
        let ToSave { namespace, tokens, caches, .. } = save;
        let spec = CacheSpec::of(caches);
        let layout = spec.as_ref().and_then(CacheSpec::layout).map(Arc::new);
        let positions: Vec<usize> = save.checkpoints.iter().map(Checkpoint::num_tokens).collect();
        let (planned, used_at_ms) = {
            let mut state = store.state.lock();
            let budgets = state.index.budgets();
            let is_stored = budgets.disk_bytes > 0 || budgets.memory_bytes > 0;
            let planned = match spec.as_ref().filter(|_| is_stored && layout.is_some()) {
                Some(spec) => state.index.write_plan(
                    namespace,
                    tokens,
                    save.boundaries,
                    &positions,
                    needs(spec),
                ),
                None => Vec::new(),
            };
            (VecDeque::from(planned), state.index.next_use_ms(now_ms()))
        };
        let (mut layers, mut checkpoints) = (None, Vec::new());
        if !planned.is_empty() {
            layers = Some(EvaluatedLayers::of(caches)?);
            let taken = save.checkpoints.iter();
            checkpoints = taken.map(EvaluatedLayers::of_checkpoint).collect::<Result<_, _>>()?;
        }
        let num_bytes: usize = caches.iter().map(LayerCache::nbytes).sum();
        Ok(PendingSave {
            namespace: namespace.clone(),
            tokens: tokens.clone(),
            new_ref: save.new_ref,
            permit: save.permit,
            spec,
            layout,
            layers,
            checkpoints,
            planned,
            token_bytes: (num_bytes / tokens.len().max(1)) as u64,
            used_at_ms,
        })
    }

    /// The keys of the chunks that are not cut yet.
    pub(super) fn planned_keys(&self) -> impl Iterator<Item = ChunkKey> {
        self.planned.iter().map(|chunk| chunk.key)
    }

    /// Whether everything has been saved.
    pub(super) fn is_done(&self) -> bool {
        self.planned.is_empty()
    }

    /// Saves everything, at the writer's speed.
    pub(super) fn finish(mut self, store: &ChunkStore) -> Result<(), LmError> {
        while !self.is_done() {
            self.wait_for_writer(store);
            if let Err(error) = self.cut(store) {
                self.set_ref(store);
                return Err(error);
            }
        }
        self.set_ref(store);
        Ok(())
    }

    /// The bytes that may wait to be written before the next chunk is cut.
    fn most_queued(&self) -> u64 {
        let next = self.planned.front().map_or(0, |chunk| chunk.tokens.len() as u64);
        MAX_QUEUED_BYTES.saturating_sub(next * self.token_bytes)
    }

    fn has_room(&self, store: &ChunkStore) -> bool {
        store.state.lock().pending_bytes <= self.most_queued()
    }

    fn wait_for_writer(&self, store: &ChunkStore) {
        store.state.wait_until_pending_is_at_most(self.most_queued());
    }

    /// Cuts the next chunk and queues it for the writer. After an error, or if it was purged or the
    /// chunk before it evicted meanwhile, the rest is not saved.
    fn cut(&mut self, store: &ChunkStore) -> Result<(), LmError> {
        let (Some(chunk), Some(layers), Some(layout)) =
            (self.planned.pop_front(), &self.layers, &self.layout)
        else {
            return Ok(());
        };
        // Another sequence may have begun alike.
        if store.state.lock().index.contains(&chunk.key) {
            return Ok(());
        }
        let stop = chunk.start + chunk.tokens.len();
        let cut = layers.chunk_state(&self.checkpoints, chunk.start, stop);
        let cut = cut.inspect_err(|_| self.planned.clear())?;
        let record = new_record(&self.namespace, chunk, &cut, self.used_at_ms);
        if !store.add(record, ChunkContents::new(cut), layout, self.permit.as_deref()) {
            self.planned.clear();
        }
        store.state.lock().enforce_memory_budget();
        Ok(())
    }

    /// Gives an owner without a reference one, which can be pinned while chunks are being cut.
    fn begin_ref(&self, store: &ChunkStore) {
        let is_main = self.new_ref.as_ref().is_some_and(|new_ref| !new_ref.is_draft);
        if is_main
            && self.owner().is_some_and(|owner| store.state.lock().index.ref_of(owner).is_none())
        {
            self.set_ref(store);
        }
    }

    /// Moves the owner's reference to the end of what is stored.
    fn set_ref(&self, store: &ChunkStore) {
        if let Some(new_ref) = &self.new_ref {
            let permit = self.permit.as_deref();
            store.set_ref(new_ref, &self.namespace, &self.tokens, self.spec.as_ref(), permit);
        }
    }

    fn owner(&self) -> Option<&Owner> {
        self.new_ref.as_ref().map(|new_ref| &new_ref.owner)
    }

    /// Whether a prompt of `owner` may take the caches that this is cut from: the next write to them
    /// would copy them.
    fn may_lose_caches_to(&self, owner: Option<&Owner>, num_shared: usize) -> bool {
        (owner.is_some() && self.owner() == owner) || num_shared > self.tokens.len() / 2
    }
}

impl PendingSaves {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a finished sequence.
    pub(super) fn push(&mut self, store: &ChunkStore, save: PendingSave) {
        save.begin_ref(store);
        self.0.push_back(save);
        if self.0.len() > MAX_PENDING {
            self.finish_first(store);
        }
    }

    /// Cuts the next chunk; without blocking only if the writer has room for it.
    pub(super) fn advance(&mut self, store: &ChunkStore, blocking: Blocking) {
        let Some(save) = self.0.front() else { return };
        match blocking {
            Blocking::Allowed => save.wait_for_writer(store),
            Blocking::Forbidden if !save.has_room(store) => return,
            Blocking::Forbidden => {}
        }
        // Not in the queue meanwhile: one that panics is not tried again.
        let Some(mut save) = self.0.pop_front() else { return };
        report(save.cut(store));
        match save.is_done() {
            true => save.set_ref(store),
            false => self.0.push_front(save),
        }
    }

    /// Saves what a lookup of `tokens` may find, and all of what its owner continues.
    pub(super) fn settle_for(
        &mut self,
        store: &ChunkStore,
        namespaces: &[&Namespace],
        tokens: &PromptTokens,
        owner: Option<&Owner>,
    ) {
        for mut save in std::mem::take(&mut self.0) {
            let is_searched = namespaces.contains(&&save.namespace);
            let num_shared = if is_searched { save.tokens.num_shared(tokens) } else { 0 };
            if save.may_lose_caches_to(owner, num_shared) {
                report(save.finish(store));
                continue;
            }
            while save.planned.front().is_some_and(|chunk| chunk.start < num_shared) {
                save.wait_for_writer(store);
                report(save.cut(store));
            }
            match save.is_done() {
                true => save.set_ref(store),
                false => self.0.push_back(save),
            }
        }
    }

    /// Saves everything.
    pub(super) fn finish_all(&mut self, store: &ChunkStore) {
        while !self.0.is_empty() {
            self.finish_first(store);
        }
    }

    /// Drops what was purged.
    pub(super) fn drop_purged(&mut self) {
        self.0.retain(|save| !is_purged(save.permit.as_deref()));
    }

    fn finish_first(&mut self, store: &ChunkStore) {
        if let Some(save) = self.0.pop_front() {
            report(save.finish(store));
        }
    }
}

/// A failure in the prompt cache is a miss later.
pub(super) fn report(saved: Result<(), LmError>) {
    if let Err(error) = saved {
        tracing::warn!(%error, "the caches of a sequence could not be copied into chunks");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_prompt_cache::KvFormat;

    use super::*;
    use crate::prompt_cache::CacheHandle;
    use crate::prompt_cache::tests::{NUM_TOKENS, caches, stored_cache};

    fn store(folder: &std::path::Path) -> ChunkStore {
        stored_cache(folder).0.unwrap()
    }

    /// A sequence of three chunks.
    fn pending(store: &ChunkStore) -> PendingSave {
        pending_with(store, None)
    }

    fn pending_with(store: &ChunkStore, permit: Option<Arc<SavePermit>>) -> PendingSave {
        let save = ToSave {
            namespace: &Namespace::computed("0123456789abcdef", KvFormat::Plain),
            tokens: &PromptTokens::known([7; NUM_TOKENS]),
            boundaries: &[],
            checkpoints: &[],
            caches: &caches(),
            new_ref: Some(NewRef {
                owner: Owner::Conversation("a".to_owned()),
                model_name: "m".to_owned(),
                is_pinned: false,
                is_draft: false,
            }),
            permit,
        };
        PendingSave::new(store, save).unwrap()
    }

    #[test]
    fn chunks_wait_for_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let mut saves = PendingSaves::default();
        saves.push(&store, pending(&store));
        let owner = Owner::Conversation("a".to_owned());
        let num_referenced =
            || store.state.lock().index.ref_of(&owner).map(|cache_ref| cache_ref.num_tokens);
        assert_eq!(num_referenced(), Some(0), "it can be pinned");
        let num_chunks = || store.state.lock().index.num_chunks();
        store.state.lock().pending_bytes = MAX_QUEUED_BYTES;
        saves.advance(&store, Blocking::Forbidden);
        assert_eq!(num_chunks(), 0, "the queue is full");
        store.state.lock().pending_bytes = 0;
        for expected in 1..=3 {
            saves.advance(&store, Blocking::Allowed);
            assert_eq!(num_chunks(), expected);
        }
        assert!(saves.is_empty());
        assert_eq!(num_referenced(), Some(600));
        store.writer.close();
    }

    #[test]
    fn a_lookup_waits_for_what_it_may_find() {
        fn check(owner: Option<&str>, shared: usize, num_cut: usize) {
            let folder = tempfile::tempdir().unwrap();
            let store = store(folder.path());
            let mut saves = PendingSaves::default();
            saves.push(&store, pending(&store));
            let ids: Vec<u32> = (0..700).map(|index| if index < shared { 7 } else { 8 }).collect();
            let owner = owner.map(|id| Owner::Conversation(id.to_owned()));
            let namespace = Namespace::computed("0123456789abcdef", KvFormat::Plain);
            let tokens = PromptTokens::known(ids);
            saves.settle_for(&store, &[&namespace], &tokens, owner.as_ref());
            let found = store.state.lock().index.num_chunks();
            assert_eq!(found, num_cut, "{owner:?} with {shared} tokens");
            store.writer.close();
        }
        check(Some("b"), 0, 0);
        check(Some("b"), 10, 1);
        check(Some("b"), 257, 2);
        check(None, 0, 0);
        // The caches themselves may be taken.
        check(None, 400, 3);
        check(Some("a"), 0, 3);
    }

    /// Whoever clears the cache does not wait for the engine's thread, which may be cutting chunks.
    #[test]
    fn what_is_cleared_while_it_is_cut_saves_nothing_more() {
        for num_cut in 0..=3 {
            let folder = tempfile::tempdir().unwrap();
            let store = store(folder.path());
            let handle = CacheHandle::new(store.state.clone());
            let owner = Owner::Conversation("a".to_owned());
            let mut save = pending_with(&store, Some(handle.permit_for(Some(&owner))));
            save.begin_ref(&store);
            for _ in 0..num_cut {
                save.cut(&store).unwrap();
            }
            assert_eq!(handle.view(0).num_chunks, num_cut);
            handle.clear();
            handle.remove_ref(&owner);
            save.finish(&store).unwrap();
            assert_eq!(handle.view(0).num_chunks, 0, "{num_cut} were cut before");
            assert_eq!(handle.ref_usage(&owner), None, "{num_cut} were cut before");
            store.writer.close();
        }
    }

    #[test]
    fn few_finished_sequences_wait() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let mut saves = PendingSaves::default();
        for _ in 0..MAX_PENDING {
            saves.push(&store, pending(&store));
        }
        assert_eq!(store.state.lock().index.num_chunks(), 0);
        saves.push(&store, pending(&store));
        assert_eq!(saves.0.len(), MAX_PENDING);
        assert_eq!(store.state.lock().index.num_chunks(), 3, "the first one is saved");
        store.writer.close();
    }
}
