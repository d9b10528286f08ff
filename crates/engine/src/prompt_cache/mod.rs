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
//! caches refer to positions in the chunks ([`CacheRef`]).
//!
//! ```text
//! resident                     the caches of recent conversations, on the engine's thread
//! state                        the index and the contents in memory, shared by three threads
//! chunk_file                   the contents of a chunk, and their file
//! writer                       the thread that writes, evicts and removes files
//! restore                      assembles caches from contents
//! chunk_store                  what the engine's thread looks up and adds
//! namespace                    which chunks may match which caches
//! view                         what the window and the command line see of it
//! ```
//! The worker calls [`PromptCache`] in this file. Which chunks exist, which go first, who refers to
//! them and why a prompt was not found is decided in [`cairn_prompt_cache`].
//!
//! Invariants: a chunk file is visible complete or not at all; whatever is read back has the hash
//! that was taken when it was written; any failure is a miss with its reason, never an error and
//! never a wrong token.

mod chunk_file;
mod chunk_store;
mod namespace;
mod resident;
mod restore;
mod state;
mod view;
mod writer;

use std::cmp::Reverse;
use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc as std_mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_chat::{Prompt, Role};
use cairn_lm::LoadedModel;
use cairn_lm::cache::chunk_state::{CacheLayout, Checkpoint};
use cairn_lm::cache::{KvQuantization, LayerCache};
use cairn_prompt_cache::{
    Budgets, CacheChange, CacheRef, ChunkKind, ChunkRecord, KvFormat, LossReason, Miss, Namespace,
    Owner, PromptCacheError, PromptTokens, Provenance,
};
use mlx_rs::transforms::eval;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{EngineError, EngineStatus};
use chunk_store::ChunkStore;
use namespace::{kv_format, namespace, needs};
use resident::{Conversation, ResidentConversations};
use restore::{Source, restore};
use state::SharedCacheState;
use writer::Writer;

pub(crate) use namespace::{kv_format_of, quantization, quantized_like};
pub use state::CacheFigures;
pub use view::{CacheHandle, CacheNode, CacheView};
pub use writer::Repaired;

/// The stored prompt caches at start.
#[derive(Debug)]
pub struct CacheOptions {
    /// The folder of chunk files.
    pub folder: PathBuf,
    /// Folders that earlier versions kept chunk files in. Cairn's own files in them are removed.
    pub old_folders: Vec<PathBuf>,
    /// The most bytes that all chunk files may take together; 0 stores nothing on disk.
    pub disk_budget_bytes: u64,
    /// The most bytes of memory that chunks and resident conversations may take together. The
    /// conversation that ran last does not count.
    pub memory_budget_bytes: u64,
    /// The chunks on disk.
    pub chunks: Vec<ChunkRecord>,
    /// The references to them.
    pub refs: Vec<CacheRef>,
    /// A lock that no program holds that is adding files. While this engine holds it, at its start,
    /// it adopts chunk files without a record and removes its own unfinished files. Without the
    /// lock it does neither.
    pub cleanup_lock: Option<File>,
}

/// The part of a prompt whose caches were found.
pub(crate) struct Reuse {
    /// Prompt tokens in `caches`.
    pub(crate) num_tokens: usize,
    /// The reason why it is not more; none when everything that could be expected was found.
    pub(crate) miss: Option<Miss>,
    pub(crate) caches: Vec<LayerCache>,
}

/// A prompt to look up.
pub(crate) struct Query<'a> {
    pub(crate) prompt: &'a Prompt,
    /// The most tokens to reuse: at least one must be run, to have logits to sample from.
    pub(crate) limit: usize,
    /// The name under which the model was loaded.
    pub(crate) model_name: &'a str,
    /// How keys and values are quantized, where they are.
    pub(crate) quantization: Option<KvQuantization>,
    /// The provenance of the prompt's beginning.
    pub(crate) prefix_provenance: &'a Provenance,
    /// How many tokens of the prompt's beginning are unknown; zeros stand for them.
    pub(crate) num_opaque: usize,
    /// The conversation that the prompt belongs to.
    pub(crate) owner: Option<&'a Owner>,
}

impl Query<'_> {
    /// The first `len` tokens of the prompt.
    fn tokens(&self, len: usize) -> PromptTokens {
        prompt_tokens(&self.prompt.tokens[..len.min(self.prompt.tokens.len())], self.num_opaque)
    }
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
    /// The provenance of the tokens' beginning.
    pub(crate) prefix_provenance: &'a Provenance,
    /// How many tokens of that beginning are unknown; zeros stand for them.
    pub(crate) num_opaque: usize,
    /// The conversation that the prompt belongs to.
    pub(crate) owner: Option<Owner>,
}

/// The caches behind an owner's reference, to be written to a file.
pub(crate) struct Exported {
    pub(crate) cache_ref: CacheRef,
    /// The tokens in `caches`.
    pub(crate) tokens: Vec<u32>,
    pub(crate) caches: Vec<LayerCache>,
}

/// The prompt cache as the worker uses it. Owned by the engine's thread.
pub(crate) struct PromptCache {
    store: Option<ChunkStore>,
    resident: ResidentConversations,
}

/// The stored part of a prompt cache, which outlives the engine's thread that used it.
#[derive(Debug)]
pub(crate) struct StoredCache(Option<ChunkStore>);

/// For layers with recurrent states, a checkpoint is taken this many tokens before the end of a
/// prompt, because templates rewrite the end of a prompt when an answer follows. (As LM Studio's
/// CacheWrapper.)
const TAIL_TOKENS: usize = 11;
/// Resident conversations take at most this fraction (one in so many) of the memory budget. The
/// rest is for chunk contents, which are smaller and which other conversations can share.
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
        PromptCache { store: stored.0, resident: ResidentConversations::default() }
    }

    /// Drops the resident conversations and returns what is stored, for another thread.
    pub(crate) fn into_stored(self) -> StoredCache {
        StoredCache(self.store)
    }

    /// Restores the longest beginning of a prompt that is in memory or on disk.
    pub(crate) fn longest_prefix(&mut self, model: &LoadedModel, query: &Query<'_>) -> Reuse {
        self.drop_purged();
        let tokens = query.tokens(query.limit);
        let in_format = |kv_format: KvFormat| {
            Namespace::computed(model.fingerprint.as_str(), kv_format)
                .following(query.prefix_provenance)
        };
        let own = in_format(kv_format(query.quantization));
        let plain = in_format(KvFormat::Plain);
        let (mut caches, mut num_tokens, mut problem) = (None, 0, None);
        // Until keys and values are quantized they are those of a plain cache, so both namespaces
        // are searched, the one with more stored tokens first.
        let mut namespaces = vec![(0, &own)];
        namespaces.extend((own != plain).then_some((0, &plain)));
        if let Some(store) = &self.store {
            namespaces.iter_mut().for_each(|(num_stored, namespace)| {
                *num_stored = store.num_restorable(namespace, model, query.quantization, &tokens)
            });
            namespaces.sort_by_key(|(num_stored, _)| Reverse(*num_stored));
        }
        // A resident conversation wins a tie: nothing has to be read.
        let searched: Vec<&Namespace> =
            namespaces.iter().map(|(_, namespace)| *namespace).collect();
        if let Some(taken) = self.resident.take(&searched, &tokens, namespaces[0].0, query.owner) {
            if let Some(store) = &self.store {
                let mut used = tokens.clone();
                used.truncate(taken.num_tokens);
                store.used(&taken.namespace, &used);
            }
            (caches, num_tokens) = (Some(taken.caches), taken.num_tokens);
            self.enforce_memory_budget();
        }
        if let (None, Some(store)) = (&caches, &self.store) {
            for (_, namespace) in namespaces {
                let restored = store.restore(namespace, model, query.quantization, &tokens);
                problem = problem.or(restored.problem);
                if restored.num_tokens > 0 {
                    (caches, num_tokens) = (Some(restored.caches), restored.num_tokens);
                    break;
                }
            }
        }
        let miss =
            self.store.as_ref().and_then(|store| store.explain(&own, query, num_tokens, problem));
        Reuse { num_tokens, miss, caches: caches.unwrap_or_else(|| model.model.make_cache()) }
    }

    /// The positions after the first `num_cached` prompt tokens at which prefill takes a
    /// checkpoint; none where the caches can be trimmed to any position later.
    pub(crate) fn checkpoints_at(
        &self,
        model: &LoadedModel,
        prompt: &Prompt,
        num_cached: usize,
    ) -> Vec<usize> {
        let needs_checkpoints = CacheLayout::of(&model.model.make_cache())
            .is_some_and(|layout| layout.needs_checkpoints());
        if self.store.is_none() || !needs_checkpoints {
            return Vec::new();
        }
        let last = prompt.tokens.len() - 1; // prompts are not empty
        // Only the end of the system prompt and a position near the end of the question: states are
        // large, and later prompts rarely continue from elsewhere.
        let system = prompt
            .boundaries
            .iter()
            .zip(&prompt.roles)
            .find(|(_, role)| **role == Role::System)
            .map(|(end, _)| *end);
        let mut positions: Vec<usize> =
            system.into_iter().chain([prompt.tokens.len().saturating_sub(TAIL_TOKENS)]).collect();
        positions.sort_unstable();
        positions.retain(|position| (num_cached + 1..last).contains(position));
        positions.dedup();
        positions
    }

    /// Saves the caches of a finished sequence: in memory as they are, and their missing chunks on
    /// disk.
    pub(crate) fn save(&mut self, computed: Computed<'_>) {
        // The conversation was purged while it was being answered.
        if self.drop_purged().iter().any(|owner| Some(owner) == computed.owner.as_ref()) {
            return;
        }
        let Computed { caches, .. } = computed;
        let num_cached = caches.iter().map(LayerCache::offset).min().unwrap_or(0);
        if num_cached == 0
            || num_cached > computed.tokens.len()
            || caches.iter().any(|cache| cache.offset() != num_cached)
        {
            return;
        }
        let tokens = prompt_tokens(&computed.tokens[..num_cached], computed.num_opaque);
        let namespace = namespace(computed.model, &caches).following(computed.prefix_provenance);
        if let Some(store) = &self.store {
            let (checkpoints, boundaries) = (&computed.checkpoints, &computed.boundaries);
            let saved = store.save(&namespace, &tokens, boundaries, checkpoints, &caches);
            if let Err(error) = saved {
                tracing::warn!(%error, "the caches of a sequence could not be copied into chunks");
            }
            if let Some(owner) = &computed.owner {
                let model_name = computed.model_name;
                store.set_ref(owner, &namespace, model_name, &tokens, &caches, false);
            }
        }
        // A lazy array keeps its inputs alive, such as the caches of a whole batch: evaluate it
        // now.
        if let Err(error) = eval(caches.iter().flat_map(LayerCache::arrays)) {
            tracing::warn!(%error, "the caches of a conversation could not be computed, so they do not stay in memory");
            return;
        }
        self.resident.put(Conversation { namespace, tokens, caches, owner: computed.owner });
        self.enforce_memory_budget();
    }

    /// Drops the resident conversations of owners that were purged since the last call, and returns
    /// those owners.
    fn drop_purged(&mut self) -> Vec<Owner> {
        let purged = self
            .store
            .as_ref()
            .map_or(Vec::new(), |store| std::mem::take(&mut store.state.lock().purged));
        purged.iter().for_each(|owner| self.resident.forget(owner));
        purged
    }

    /// Evicts until the memory budget holds, which resident conversations and chunk contents share.
    /// The conversation that ran last stays however large it is.
    fn enforce_memory_budget(&mut self) {
        let Some(store) = &self.store else { return self.resident.shrink_to(0) };
        let mut state = store.state.lock();
        self.resident.shrink_to(state.index.budgets().memory_bytes / RESIDENT_FRACTION);
        state.index.set_resident_bytes(self.resident.bytes_without_last());
        state.enforce_memory_budget();
    }

    /// Adds the caches of a file as chunks, pinned for `owner`. Fails with a reason if not all of
    /// them reach the disk.
    pub(crate) fn import(
        &mut self,
        namespace: &Namespace,
        model_name: &str,
        tokens: &PromptTokens,
        caches: &[LayerCache],
        owner: &Owner,
    ) -> Result<(), String> {
        let store = self.store.as_ref().ok_or("this engine has no prompt-cache folder")?;
        if CacheLayout::of(caches).is_none() {
            return Err("its kind of cache can only be continued from the file, as `cairn generate --prompt-cache-file` does".to_owned());
        }
        let num_bytes: usize = caches.iter().map(LayerCache::nbytes).sum();
        if !store.state.lock().index.has_room_on_disk(num_bytes as u64) {
            return Err(PromptCacheError::NoRoom.to_string());
        }
        let boundaries = [(tokens.len(), ChunkKind::System)];
        let saved = store.save(namespace, tokens, &boundaries, &[], caches);
        store.set_ref(owner, namespace, model_name, tokens, caches, true);
        // Wait until the chunks are written: a disk budget that is too small shows only then.
        let (reply, answer) = oneshot::channel();
        store.writer.flush(reply);
        let _ = answer.blocking_recv();
        let reason = {
            let state = store.state.lock();
            let cache_ref = state.index.ref_of(owner);
            let whole = cache_ref.filter(|cache_ref| cache_ref.num_tokens == tokens.len());
            let target = whole.and_then(|cache_ref| cache_ref.target);
            let is_on_disk = target.is_some_and(|key| state.index.is_on_disk(&key));
            match (saved, is_on_disk, &state.problem) {
                (Ok(()), true, _) => return Ok(()),
                (Err(error), ..) => error.to_string(),
                (.., Some(problem)) => problem.clone(),
                _ => PromptCacheError::NoRoom.to_string(),
            }
        };
        CacheHandle::new(store.state.clone()).release(owner);
        Err(reason)
    }

    /// Restores the caches behind an owner's reference. Fails with a reason.
    pub(crate) fn export(
        &self,
        owner: &Owner,
        model: Option<&LoadedModel>,
    ) -> Result<Exported, String> {
        let store = self.store.as_ref().ok_or("this engine has no prompt-cache folder")?;
        let (cache_ref, target) = {
            let state = store.state.lock();
            let cache_ref = state.index.ref_of(owner).cloned();
            let target = cache_ref.as_ref().and_then(|cache_ref| cache_ref.target);
            cache_ref.zip(target).ok_or("nothing of it is saved")?
        };
        let layout = store
            .stored_layout(&cache_ref, &target, model)
            .ok_or_else(|| format!("load its model first ({})", cache_ref.model_name))?;
        // After an eviction the reference may end at a position that the caches cannot be restored
        // at.
        let (folder, sources, num_tokens) = {
            let state = store.state.lock();
            let plan = state.index.restore_plan_to(&target, needs(&layout));
            let sources = plan.chunks.into_iter().map(|record| state.source(record));
            (state.folder.clone(), sources.collect::<Vec<Source>>(), plan.num_tokens)
        };
        if num_tokens == 0 {
            return Err("the part that is still saved is too short to continue from".to_owned());
        }
        let caches = restore(&folder, &sources, &layout, num_tokens)
            .map_err(|unusable| unusable.error.to_string())?;
        let tokens = sources
            .into_iter()
            .flat_map(|source| source.record.tokens.stored_ids())
            .take(num_tokens)
            .collect();
        Ok(Exported { cache_ref, tokens, caches })
    }

    /// Drops the resident conversations, and the chunk contents that are on disk too.
    pub(crate) fn demote(&mut self) {
        self.drop_residents();
        if let Some(store) = &self.store {
            store.state.lock().demote();
        }
    }

    /// Drops the resident conversations with a model.
    pub(crate) fn drop_residents_of(&mut self, fingerprint: &str) {
        self.resident.forget_model(fingerprint);
        self.enforce_memory_budget();
    }

    /// Drops the resident conversations.
    pub(crate) fn drop_residents(&mut self) {
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
    }

    /// Replies when everything queued until now is on disk.
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
    pub(crate) fn close(self) {
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

/// Tokens of a prompt, of which the first `num_opaque` are unknown.
fn prompt_tokens(tokens: &[u32], num_opaque: usize) -> PromptTokens {
    let num_opaque = num_opaque.min(tokens.len());
    PromptTokens::after_opaque(num_opaque, &tokens[num_opaque..])
}

/// Milliseconds since the Unix epoch; only for "last used".
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as i64)
}
