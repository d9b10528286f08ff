//! Stores the keys and values that earlier turns computed. The next turn, or another conversation
//! with the same beginning, reads them back instead of computing them again.
//!
//! ```text
//! <folder>/prompt-cache-v2/                 (given as CacheOptions::folder)
//!   <model fingerprint>/
//!     <chunk key>.safetensors               the cache of at most 256 tokens, never rewritten
//! ```
//! A chunk continues its parent. Its key is a hash over the parent's key and its token ids; a
//! root's key hashes the model fingerprint and whatever else changes the numbers ([`Namespace`]).
//! Equal beginnings therefore have equal keys and are stored once. Conversations and named prompt
//! caches refer to positions in the chunks ([`CacheRef`](cairn_prompt_cache::CacheRef)).
//!
//! ```text
//! resident                     the caches of recent conversations, on the engine's thread
//! state                        the index and the contents in memory, shared by three threads
//! chunk_file                   the contents of a chunk, and their file
//! byte_planes                  codes tensors without loss, where files are to be smaller
//! writer                       the thread that writes, evicts and removes files
//! write_job                    what that thread is asked for
//! saving                       cuts chunks from finished sequences, one by one
//! prefix                       restores the longest stored beginning of a prompt
//! restore                      assembles caches from contents, a chunk at a time
//! exchange                     imports and exports files
//! chunk_store                  what the engine's thread looks up and adds
//! namespace                    which chunks may match which caches
//! view                         what the window and the command line see of it
//!
//! options                      what it starts with
//! query                        what is looked up
//! save_permit                  whether what a request computes may still be saved
//! blocking                     whether a call waits for the disk
//! unix_time                    when chunks were used
//! ```
//! The worker calls [`PromptCache`] in this file. Which chunks exist, which go first, who refers to
//! them and why a prompt was not found is decided in [`cairn_prompt_cache`].
//!
//! Invariants: a chunk file is visible complete or not at all; whatever is read back has the hash
//! that was taken when it was written; any failure is a miss with its reason, never an error and
//! never a wrong token.

mod blocking;
mod byte_planes;
mod chunk_file;
mod chunk_store;
mod exchange;
mod namespace;
mod options;
mod prefix;
mod query;
mod resident;
mod restore;
mod save_permit;
mod saving;
mod state;
mod unix_time;
mod view;
mod write_job;
mod writer;

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;

use std::cmp::Reverse;
use std::sync::{Arc, mpsc as std_mpsc};

use cairn_chat::{CachedFrom, Prompt, Role};
use cairn_lm::LoadedModel;
use cairn_lm::cache::LayerCache;
use cairn_lm::cache::chunk_state::Checkpoint;
use cairn_prompt_cache::{
    Budgets, CacheChange, ChunkKey, ChunkKind, KvFormat, LossReason, Miss, Namespace, PromptTokens,
    Provenance,
};
use mlx_rs::transforms::eval;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{EngineError, EngineStatus};
use chunk_store::{ChunkStore, NewRef};
use namespace::namespace;
use prefix::{PrefixRestore, PrefixSource, Restored};
use query::prompt_tokens;
use resident::{Conversation, ResidentConversations};
use save_permit::is_purged;
use saving::{PendingSave, PendingSaves, ToSave};
use state::SharedCacheState;
use unix_time::now_ms;
use writer::Writer;

pub(crate) use blocking::Blocking;
pub use chunk_file::FileCoding;
pub(crate) use exchange::Exported;
pub use options::CacheOptions;
pub(crate) use query::Query;
pub(crate) use save_permit::SavePermit;
pub use state::CacheFigures;
pub use view::{CacheHandle, CacheNode, CacheView};
pub use write_job::Repaired;

/// The part of a prompt whose caches were found.
#[derive(Default)]
pub(crate) struct Reuse {
    /// Prompt tokens in `caches`.
    pub(crate) num_tokens: usize,
    /// Where those came from.
    pub(crate) from: CachedFrom,
    /// The reason why it is not more; none when everything that could be expected was found.
    pub(crate) miss: Option<Miss>,
    pub(crate) caches: Vec<LayerCache>,
}

/// The caches that a sequence has computed.
pub(crate) struct Computed<'a> {
    pub(crate) model: &'a LoadedModel,
    /// The name under which the model was loaded.
    pub(crate) model_name: &'a str,
    /// The tokens of prompt and answer; `caches` contain a beginning of them.
    pub(crate) tokens: Vec<u32>,
    /// The position at which each message of the prompt ends; the tokens after the last are the
    /// answer's.
    pub(crate) boundaries: Vec<(usize, ChunkKind)>,
    /// Checkpoints taken during prefill, by position.
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) caches: Vec<LayerCache>,
    /// The format that was asked for.
    pub(crate) kv_format: KvFormat,
    /// The provenance of the tokens' beginning.
    pub(crate) prefix_provenance: &'a Provenance,
    /// How many tokens of that beginning are unknown; zeros stand for them.
    pub(crate) num_opaque: usize,
    /// Says whom the prompt belongs to, and whether that was purged meanwhile. None without a folder of
    /// chunks.
    pub(crate) permit: Option<Arc<SavePermit>>,
    /// Whether a draft model computed them, beside the model that answered: the owner's reference stays
    /// at what that has read.
    pub(crate) is_draft: bool,
}

/// The prompt cache as the worker uses it. Owned by the engine's thread.
pub(crate) struct PromptCache {
    store: Option<ChunkStore>,
    resident: ResidentConversations,
    saving: PendingSaves,
    /// What was restored last, while other prompts wait for the same.
    last_restored: Option<LastRestored>,
}

/// Caches, and what they were restored from.
type LastRestored = (PrefixSource<'static>, Vec<LayerCache>);

/// A beginning of a prompt that is being restored from chunks.
pub(crate) struct PendingRestore(Box<PrefixRestore>);

impl PendingRestore {
    /// Whether `self` waits for what `other` restores too.
    pub(crate) fn is_like(&self, other: &PendingRestore) -> bool {
        let source = self.0.source();
        source.is_some() && source == other.0.source()
    }

    /// How many chunks are not in the caches yet.
    pub(crate) fn num_left(&self) -> usize {
        self.0.num_left()
    }
}

/// The stored part of a prompt cache, which outlives the engine's thread that used it.
#[derive(Debug)]
pub(crate) struct StoredCache(Option<ChunkStore>);

/// For layers with recurrent states, a checkpoint is taken this many tokens before the end of a
/// prompt, because templates rewrite the end of a prompt when an answer follows. (As LM Studio's
/// CacheWrapper.)
const TAIL_TOKENS: usize = 11;
/// Resident conversations may take at least one in so many bytes of the memory budget, even if
/// chunks that are not on disk take more than the rest.
const RESIDENT_FRACTION: u64 = 2;

impl StoredCache {
    /// No stored caches: conversations are in memory only.
    pub(crate) fn none() -> Self {
        StoredCache(None)
    }

    /// Opens the stored caches; without `options` there are none. Whichever thread changes the bytes
    /// on disk publishes them in `status`.
    pub(crate) fn open(
        options: Option<CacheOptions>,
        events: mpsc::UnboundedSender<CacheChange>,
        status: watch::Sender<EngineStatus>,
    ) -> Self {
        let store = options.map(|mut options| {
            let cleanup_lock = options.cleanup_lock.take();
            let old_folders = std::mem::take(&mut options.old_folders);
            let (jobs, receiver) = std_mpsc::channel();
            let state = SharedCacheState::new(options, events, status, jobs.clone());
            let writer = Writer::start(state.clone(), (jobs, receiver), cleanup_lock, old_folders);
            ChunkStore { writer, state }
        });
        StoredCache(store)
    }

    /// The handle to it, where it is stored on disk.
    pub(crate) fn handle(&self) -> Option<CacheHandle> {
        self.0.as_ref().map(|store| CacheHandle::new(store.state.clone()))
    }
}

impl PromptCache {
    /// The cache of an engine's thread. Whatever it stores is in `stored`.
    pub(crate) fn new(stored: StoredCache) -> Self {
        PromptCache {
            store: stored.0,
            resident: ResidentConversations::default(),
            saving: PendingSaves::default(),
            last_restored: None,
        }
    }

    /// Drops the resident conversations and returns what is stored, for another thread.
    pub(crate) fn into_stored(self) -> StoredCache {
        StoredCache(self.store)
    }

    /// Begins to restore the longest beginning of a prompt, for a [`PromptCache::longest_prefix`] that
    /// follows. None where that has nothing to wait for.
    pub(crate) fn begin_restore(
        &mut self,
        model: &LoadedModel,
        query: &Query<'_>,
    ) -> Option<PendingRestore> {
        let tokens = query.tokens(query.limit);
        let searched = self.namespaces(model, query, &tokens);
        let (num_stored, namespace) = searched.first()?;
        let namespaces: Vec<&Namespace> = searched.iter().map(|(_, other)| other).collect();
        if *num_stored == 0 || self.resident.num_shared(&namespaces, &tokens) >= *num_stored {
            return None;
        }
        let store = self.store.as_ref()?;
        let restore = PrefixRestore::new(store, namespace, model, &tokens);
        (restore.num_left() > 0).then_some(PendingRestore(Box::new(restore)))
    }

    /// Restores the next chunk, if one is left; without blocking only if one has been read. Returns
    /// whether all are restored, for this prompt or for another that begins alike.
    pub(crate) fn restore_next(&self, pending: &mut PendingRestore, blocking: Blocking) -> bool {
        if pending.num_left() == 0 || self.is_last_restored(pending) {
            return true;
        }
        if let Some(store) = &self.store {
            pending.0.advance(store, blocking);
        }
        pending.num_left() == 0
    }

    /// Forgets what was restored last, unless one of `waiting` takes it too: its memory counts for
    /// nobody.
    pub(crate) fn keep_restored_for<'a>(
        &mut self,
        mut waiting: impl Iterator<Item = &'a PendingRestore>,
    ) {
        if self.last_restored.is_some() && !waiting.any(|other| self.is_last_restored(other)) {
            self.last_restored = None;
        }
    }

    fn is_last_restored(&self, pending: &PendingRestore) -> bool {
        let last = self.last_restored.as_ref().map(|(source, _)| source);
        last.is_some_and(|last| pending.0.source().as_ref() == Some(last))
    }

    /// Restores the longest beginning of a prompt that is in memory or on disk. `pending` is what
    /// has been restored for it so far.
    pub(crate) fn longest_prefix(
        &mut self,
        model: &LoadedModel,
        query: &Query<'_>,
        mut pending: Option<PendingRestore>,
    ) -> Reuse {
        let tokens = query.tokens(query.limit);
        let searched = self.namespaces(model, query, &tokens);
        let (mut caches, mut num_tokens, mut from) = (None, 0, CachedFrom::default());
        let mut problem = pending.as_ref().and_then(|pending| pending.0.problem());
        // A resident conversation wins a tie: nothing has to be read.
        let namespaces: Vec<&Namespace> = searched.iter().map(|(_, namespace)| namespace).collect();
        let at_least = searched[0].0;
        let taken = if query.only_looks {
            self.resident.copy(&namespaces, &tokens, at_least)
        } else {
            self.resident.take(&namespaces, &tokens, at_least, query.owner)
        };
        if let Some(taken) = taken {
            if let Some(store) = &self.store {
                let mut used = tokens.clone();
                used.truncate(taken.num_tokens);
                store.used(&taken.namespace, &used);
            }
            if taken.is_own {
                from.num_in_memory = taken.num_tokens;
            } else {
                from.num_shared = taken.num_tokens;
            }
            (caches, num_tokens) = (Some(taken.caches), taken.num_tokens);
            self.enforce_memory_budget();
        }
        if let (None, Some(store)) = (&caches, &self.store) {
            for (_, namespace) in &searched {
                let begun = pending.take_if(|pending| pending.0.namespace() == namespace);
                let restored = match begun {
                    // The model's, which others may take, is not forgotten for a draft model's.
                    Some(begun) if query.is_draft => begun.0.finish(store),
                    Some(begun) => restore_once(*begun.0, store, &mut self.last_restored),
                    None => PrefixRestore::new(store, namespace, model, &tokens).finish(store),
                };
                problem = problem.or(restored.problem);
                if restored.num_tokens > 0 {
                    let num_own = store.num_owned(query.owner, &restored.keys);
                    from.num_restored = num_own.min(restored.num_tokens);
                    from.num_shared = restored.num_tokens - from.num_restored;
                    (caches, num_tokens) = (Some(restored.caches), restored.num_tokens);
                    break;
                }
            }
        }
        let own = query.namespace(model, query.kv_format);
        let store = self.store.as_ref().filter(|_| !query.only_looks && !query.is_draft);
        let miss = store.and_then(|store| {
            store.count_lookup();
            store.explain(&own, query, num_tokens, problem)
        });
        Reuse { num_tokens, from, miss, caches: caches.unwrap_or_else(|| model.model.make_cache()) }
    }

    /// How many tokens [`PromptCache::longest_prefix`] would find, and why it would not be more.
    /// Nothing is restored, written or counted.
    pub(crate) fn num_reusable(
        &mut self,
        model: &LoadedModel,
        query: &Query<'_>,
    ) -> (usize, Option<Miss>) {
        self.drop_purged();
        let tokens = query.tokens(query.limit);
        let searched = self.num_stored(model, &tokens, Self::searched(model, query));
        let namespaces: Vec<&Namespace> = searched.iter().map(|(_, namespace)| namespace).collect();
        // What is not written yet is found in the resident conversation.
        let num_resident = self.resident.num_shared(&namespaces, &tokens);
        let num_tokens = num_resident.max(searched[0].0);
        let own = query.namespace(model, query.kv_format);
        let store = self.store.as_ref();
        (num_tokens, store.and_then(|store| store.explain(&own, query, num_tokens, None)))
    }

    /// The namespaces that may hold a beginning of a prompt, each with the number of its tokens in
    /// chunks, most first.
    fn namespaces(
        &mut self,
        model: &LoadedModel,
        query: &Query<'_>,
        tokens: &PromptTokens,
    ) -> Vec<(usize, Namespace)> {
        self.drop_purged();
        let namespaces = Self::searched(model, query);
        if let Some(store) = &self.store {
            let searched: Vec<&Namespace> = namespaces.iter().collect();
            self.saving.settle_for(store, &searched, tokens, query.owner);
        }
        self.num_stored(model, tokens, namespaces)
    }

    /// The namespaces that may hold a beginning of a prompt, its own first.
    fn searched(model: &LoadedModel, query: &Query<'_>) -> Vec<Namespace> {
        // Until keys and values are quantized or compressed they are those of a plain cache, so both
        // are searched.
        let own = query.namespace(model, query.kv_format);
        let plain = query.namespace(model, KvFormat::Plain);
        let other = (own != plain).then_some(plain);
        [own].into_iter().chain(other).collect()
    }

    /// How many of `tokens` each namespace has in chunks, most first.
    fn num_stored(
        &self,
        model: &LoadedModel,
        tokens: &PromptTokens,
        namespaces: Vec<Namespace>,
    ) -> Vec<(usize, Namespace)> {
        let mut namespaces: Vec<_> = namespaces.into_iter().map(|other| (0, other)).collect();
        if let Some(store) = &self.store {
            namespaces.iter_mut().for_each(|(num_stored, namespace)| {
                *num_stored = store.num_restorable(namespace, model, tokens)
            });
            namespaces.sort_by_key(|(num_stored, _)| Reverse(*num_stored));
        }
        namespaces
    }

    /// The positions after the first `num_cached` prompt tokens at which prefill takes a
    /// checkpoint; none where the caches can be trimmed to any position later.
    pub(crate) fn checkpoints_at(
        &self,
        model: &LoadedModel,
        prompt: &Prompt,
        kv_format: KvFormat,
        num_cached: usize,
    ) -> Vec<usize> {
        let spec = model.model.cache_spec();
        // What is left of a context continues from the positions where it was stored only.
        let is_compressed = matches!(kv_format, KvFormat::Compressed { .. });
        let needs_checkpoints =
            spec.layout().is_some() && (spec.needs_checkpoints() || is_compressed);
        if self.store.is_none() || !needs_checkpoints {
            return Vec::new();
        }
        let last = prompt.tokens.len() - 1; // prompts are not empty
        // Only the end of the system prompt, a position near the end of the question, and what was
        // asked for: states are large, and later prompts rarely continue from elsewhere.
        let system = prompt
            .boundaries
            .iter()
            .zip(&prompt.roles)
            .find(|(_, role)| **role == Role::System)
            .map(|(end, _)| *end);
        let mut positions: Vec<usize> =
            system.into_iter().chain([prompt.tokens.len().saturating_sub(TAIL_TOKENS)]).collect();
        positions.extend(&prompt.breakpoints);
        positions.sort_unstable();
        positions.retain(|position| (num_cached + 1..last).contains(position));
        positions.dedup();
        positions
    }

    /// Saves the caches of a finished sequence: in memory as they are, and their missing chunks on
    /// disk.
    pub(crate) fn save(&mut self, mut computed: Computed<'_>) {
        self.drop_purged();
        // The conversation was purged while its answer waited or was written.
        if is_purged(computed.permit.as_deref()) {
            return;
        }
        let mut caches = std::mem::take(&mut computed.caches);
        let num_cached = caches.iter().map(LayerCache::offset).min().unwrap_or(0);
        if num_cached == 0
            || num_cached > computed.tokens.len()
            || caches.iter().any(|cache| cache.offset() != num_cached)
        {
            return;
        }
        let tokens = prompt_tokens(&computed.tokens[..num_cached], computed.num_opaque);
        let namespace = namespace(computed.model, &caches, computed.kv_format)
            .following(computed.prefix_provenance);
        // A lazy array keeps its inputs alive, such as the caches of a whole batch: evaluate it now.
        let materialized = caches.iter_mut().try_for_each(LayerCache::materialize);
        if let Err(error) =
            materialized.and_then(|()| eval(caches.iter().flat_map(LayerCache::arrays)))
        {
            tracing::warn!(%error, "the caches of a conversation could not be computed, so they are not saved");
            return;
        }
        let keys = self.plan_chunks(&computed, &namespace, &tokens, &caches);
        let Computed { permit, is_draft, .. } = computed;
        self.resident.put(Conversation { namespace, tokens, caches, permit, keys, is_draft });
        self.enforce_memory_budget();
    }

    /// Has the missing chunks of a finished sequence cut from its caches. Returns the keys of all its
    /// chunks.
    fn plan_chunks(
        &mut self,
        computed: &Computed<'_>,
        namespace: &Namespace,
        tokens: &PromptTokens,
        caches: &[LayerCache],
    ) -> Vec<ChunkKey> {
        let Some(store) = &self.store else { return Vec::new() };
        let owner = computed.permit.as_ref().and_then(|permit| permit.owner());
        let to_save = ToSave {
            namespace,
            tokens,
            boundaries: &computed.boundaries,
            checkpoints: &computed.checkpoints,
            caches,
            new_ref: owner.map(|owner| NewRef {
                owner: owner.clone(),
                model_name: computed.model_name.to_owned(),
                is_pinned: false,
                is_draft: computed.is_draft,
            }),
            permit: computed.permit.clone(),
        };
        let mut keys = store.keys(namespace, tokens);
        match PendingSave::new(store, to_save) {
            Ok(save) => {
                keys.extend(save.planned_keys());
                self.saving.push(store, save);
            }
            Err(error) => saving::report(Err(error)),
        }
        keys
    }

    /// Whether chunks of finished sequences are still to be cut.
    pub(crate) fn is_saving(&self) -> bool {
        !self.saving.is_empty()
    }

    /// Cuts the next chunk of a finished sequence; without blocking only if the writer has room for
    /// it.
    pub(crate) fn save_next(&mut self, blocking: Blocking) {
        self.drop_purged();
        if let Some(store) = &self.store {
            self.saving.advance(store, blocking);
        }
    }

    /// Cuts all chunks that are still to be cut.
    fn finish_saving(&mut self) {
        self.drop_purged();
        if let Some(store) = &self.store {
            self.saving.finish_all(store);
        }
    }

    /// Drops what requests have computed whose permits were revoked since.
    fn drop_purged(&mut self) {
        self.resident.drop_purged();
        self.saving.drop_purged();
    }

    /// Evicts until the memory budget holds, which resident conversations and chunk contents share.
    /// The conversation that ran last stays however large it is.
    fn enforce_memory_budget(&mut self) {
        let Some(store) = &self.store else { return self.resident.shrink_to(0) };
        let mut state = store.state.lock();
        state.set_resident(self.resident.keys());
        let budget = state.index.budgets().memory_bytes;
        let left = budget.saturating_sub(state.index.contents_bytes());
        self.resident.shrink_to(left.max(budget / RESIDENT_FRACTION));
        state.set_resident(self.resident.keys());
        state.index.set_resident_bytes(self.resident.bytes_without_last());
        state.enforce_memory_budget();
    }

    /// Drops the chunk contents that are on disk too.
    pub(crate) fn drop_stored_contents(&mut self) {
        if let Some(store) = &self.store {
            store.state.lock().demote();
        }
    }

    /// Drops the resident conversations with a model.
    pub(crate) fn drop_residents_of(&mut self, fingerprint: &str) {
        self.resident.forget_model(fingerprint);
        self.enforce_memory_budget();
    }

    /// Drops the resident conversations, once they are saved.
    pub(crate) fn drop_residents(&mut self) {
        self.finish_saving();
        self.resident.clear();
        self.enforce_memory_budget();
    }

    /// Bytes on disk, and bytes in memory without the conversation that ran last.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        self.store.as_ref().map_or((0, 0), |store| store.state.lock().bytes())
    }

    pub(crate) fn set_budgets(&mut self, disk_bytes: u64, memory_bytes: u64) {
        if let Some(store) = &self.store {
            {
                let mut state = store.state.lock();
                state.index.set_budgets(Budgets { disk_bytes, memory_bytes });
                // The budget may have been the problem.
                state.problem = None;
            }
            store.writer.enforce_budgets();
        }
        self.enforce_memory_budget();
        if let Some(store) = &self.store {
            store.state.publish();
        }
    }

    /// Replies when every chunk that has been cut until now is on disk.
    pub(crate) fn flush(&mut self, reply: oneshot::Sender<Result<(), EngineError>>) {
        match &self.store {
            Some(store) => store.writer.flush(reply),
            None => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Writes what is queued and ends the writer thread. Chunks that could not be written are lost,
    /// and the references to them note the reason.
    pub(crate) fn close(mut self) {
        self.finish_saving();
        if let Some(store) = self.store {
            store.writer.close();
            let mut state = store.state.lock();
            let reason = match &state.problem {
                Some(problem) => LossReason::NotWritten(problem.clone()),
                None => LossReason::OnlyInMemory,
            };
            let changes = state.index.remove_unwritten(reason, now_ms());
            state.apply(changes);
            state.end_events();
        }
    }
}

/// Restores what is left, unless it is what was restored last; then this is the last, if all of it
/// could be restored.
fn restore_once(
    restore: PrefixRestore,
    store: &ChunkStore,
    last: &mut Option<LastRestored>,
) -> Restored {
    let source = restore.source().map(PrefixSource::into_owned);
    match last {
        // They share arrays until one of them writes.
        Some((same, caches)) if source.as_ref() == Some(same) => {
            restore.take(store, caches.clone())
        }
        _ => {
            let restored = restore.finish(store);
            let whole = source.filter(|source| source.num_tokens() == restored.num_tokens);
            *last = whole.map(|source| (source, restored.caches.clone()));
            restored
        }
    }
}
