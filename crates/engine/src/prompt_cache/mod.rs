//! Keys and values that earlier turns computed, kept so that the next turn, or another conversation
//! with the same beginning, reads them back instead of computing them again.
//!
//! ```text
//! <folder>/prompt-cache-v2/                 (given as CacheOptions::folder)
//!   <model fingerprint>/
//!     <chunk key>.safetensors               what at most 256 tokens left behind, never rewritten
//! ```
//! A chunk continues its parent; its key is a hash over the parent's key and its token ids, the
//! root's over the model fingerprint and whatever else changes the numbers ([`Namespace`]). So equal
//! beginnings have equal keys and are kept once. Conversations and named prompt caches stand at
//! places among the chunks ([`CacheRef`]).
//!
//! ```text
//! index · eviction · references   what there is, what goes, who holds what: pure policy
//! in_place                     conversations as their last answers left them, on the engine's thread
//! cache state                        the index with the contents in memory, shared by three threads
//! chunk_file                   contents and their file
//! writing                       the thread that writes, evicts and sweeps
//! restore                      contents back into caches
//! why                          what was not found, in words
//! stored, namespace                what the engine's thread takes and adds; where caches belong by how they are kept
//! view                         the whole as people look at it
//! ```
//! This module is what the worker calls.
//!
//! Invariants: a file is visible complete or not at all; whatever is read back was hashed when it
//! was written and hashes the same; any failure is a miss with its reason, never an error and never
//! a wrong token.

mod chunk_file;
mod chunk_store;
mod eviction;
mod index;
mod miss;
mod namespace;
mod refs;
mod resident;
mod restore;
mod state;
mod view;
mod writer;

use std::cmp::Reverse;
use std::sync::mpsc as std_mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_chat::{Prompt, Role};
use cairn_lm::LoadedModel;
use cairn_lm::cache::chunk_state::{CacheLayout, Checkpoint};
use cairn_lm::cache::{KvQuantization, LayerCache};
use mlx_rs::transforms::eval;
use tokio::sync::{mpsc, oneshot, watch};

use crate::records::{
    CacheEvent, CacheOptions, CacheRef, ChunkKind, KvFormat, Namespace, Provenance,
};
use crate::{EngineError, EngineStatus};
use chunk_store::ChunkStore;
use eviction::NO_ROOM;
use index::{Prefix, PrefixPart};
use namespace::{layout, namespace, needs};
use resident::{Conversation, ResidentConversations};
use restore::{Source, restore};
use state::SharedCacheState;
use writer::Writer;

pub(crate) use namespace::{kv_format_of, quantized_like};
pub use refs::{RefUsage, owner_of};
pub use state::CacheFigures;
pub use view::{CacheHandle, CacheNode, CacheView};
pub use writer::Repaired;

/// What could be reused of earlier work.
pub(crate) struct Reuse {
    /// Prompt tokens that `caches` hold.
    pub(crate) num_tokens: usize,
    /// Why not more, in words; none when everything that could be expected was there.
    pub(crate) note: Option<String>,
    pub(crate) caches: Vec<LayerCache>,
}

/// What is looked up.
pub(crate) struct Query<'a> {
    pub(crate) prompt: &'a Prompt,
    /// The most tokens that are of use: at least one must be run, to have something to sample from.
    pub(crate) limit: usize,
    /// The name under which the model was loaded.
    pub(crate) model_name: &'a str,
    /// How keys and values are quantized, where they are.
    pub(crate) quantization: Option<KvQuantization>,
    /// The [`Namespace::KV format`] of what the prompt begins with, where that has one of its own.
    pub(crate) prefix_provenance: &'a Provenance,
    /// Whose conversation it is.
    pub(crate) owner: Option<&'a str>,
}

/// What an answer has computed.
pub(crate) struct Computed<'a> {
    pub(crate) model: &'a LoadedModel,
    /// The name under which the model was loaded.
    pub(crate) model_name: &'a str,
    /// Prompt and answer, of which `caches` hold a beginning.
    pub(crate) tokens: Vec<u32>,
    /// Where the words of each end; what comes after is the answer's.
    pub(crate) boundaries: Vec<(usize, ChunkKind)>,
    /// Places on the way, in their order.
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) caches: Vec<LayerCache>,
    /// The [`Namespace::KV format`] of what the tokens begin with, where that has one of its own.
    pub(crate) prefix_provenance: &'a Provenance,
    /// Whose conversation it is.
    pub(crate) owner: Option<String>,
}

/// What an owner holds, to be written to a file.
pub(crate) struct Exported {
    pub(crate) cache_ref: CacheRef,
    /// Those that `caches` hold.
    pub(crate) tokens: Vec<u32>,
    pub(crate) caches: Vec<LayerCache>,
}

/// The prompt cache as the worker sees it. Owned by the engine's thread.
pub(crate) struct PromptCache {
    store: Option<ChunkStore>,
    resident: ResidentConversations,
}

/// A chunk is kept up to this many tokens before the end of a prompt, for layers that remember only
/// places: templates rewrite the end of a prompt when an answer follows. (As LM Studio's
/// CacheWrapper.)
const TAIL_TOKENS: usize = 11;
/// Conversations in place take at most one part in so many of the memory budget: the rest is for
/// contents, which others can share and which are smaller.
const IN_PLACE_PART: u64 = 2;

impl PromptCache {
    /// What the disk holds is kept current in `status`, whichever thread changes it.
    pub(crate) fn new(
        options: Option<CacheOptions>,
        events: mpsc::UnboundedSender<CacheEvent>,
        status: watch::Sender<EngineStatus>,
    ) -> (Self, Option<CacheHandle>) {
        let store = options.map(|mut options| {
            let cleanup_lock = options.cleanup_lock.take();
            let old_folders = std::mem::take(&mut options.old_folders);
            let (jobs, receiver) = std_mpsc::channel();
            let state = SharedCacheState::new(options, events, status, jobs.clone());
            let writer = Writer::start(state.clone(), (jobs, receiver), cleanup_lock, old_folders);
            ChunkStore { writer, state }
        });
        let window = store.as_ref().map(|store| CacheHandle::new(store.state.clone()));
        (PromptCache { store, resident: ResidentConversations::default() }, window)
    }

    /// The longest beginning of a prompt that is in memory or on disk.
    pub(crate) fn longest_prefix(&mut self, model: &LoadedModel, query: &Query<'_>) -> Reuse {
        self.forget_purged();
        let tokens = &query.prompt.tokens[..query.limit.min(query.prompt.tokens.len())];
        let in_format = |kv_format: KvFormat| {
            Namespace::computed(&model.fingerprint, kv_format).following(query.prefix_provenance)
        };
        let (own, plain) = (in_format(query.quantization.into()), in_format(KvFormat::Plain));
        let (mut caches, mut num_tokens, mut problem) = (None, 0, None);
        // Until they are quantized, keys and values are those of a plain cache; but there zeros
        // stand for nothing else. Where more is stored comes first.
        let mut namespaces = vec![(0, &own)];
        namespaces.extend((own != plain).then_some((0, &plain)));
        if let Some(store) = &self.store {
            namespaces.iter_mut().for_each(|(num_stored, namespace)| {
                *num_stored = store.num_restorable(namespace, model, query.quantization, tokens)
            });
            namespaces.sort_by_key(|(num_stored, _)| Reverse(*num_stored));
        }
        // Memory wins a tie: there is nothing to read.
        let in_which: Vec<&Namespace> =
            namespaces.iter().map(|(_, namespace)| *namespace).collect();
        if let Some(taken) = self.resident.take(&in_which, tokens, namespaces[0].0, query.owner) {
            if let Some(store) = &self.store {
                store.touch(&taken.namespace, &tokens[..taken.num_tokens]);
            }
            (caches, num_tokens) = (Some(taken.caches), taken.num_tokens);
            self.enforce_memory_budget();
        }
        if let (None, Some(store)) = (&caches, &self.store) {
            for (_, namespace) in namespaces {
                let restored = store.restore(namespace, model, query.quantization, tokens);
                problem = problem.or(restored.problem);
                if restored.num_tokens > 0 {
                    (caches, num_tokens) = (Some(restored.caches), restored.num_tokens);
                    break;
                }
            }
        }
        let note =
            self.store.as_ref().and_then(|store| store.explain(&own, query, num_tokens, problem));
        Reuse { num_tokens, note, caches: caches.unwrap_or_else(|| model.model.make_cache()) }
    }

    /// Places in a prompt, after the first `num_cached` tokens, that have to be caught while it is
    /// read; none where every place can be gone back to later.
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
        // The end of the system prompt, and near the end of the question: states are large, and
        // others are not gone back to.
        let system = prompt
            .boundaries
            .iter()
            .zip(&prompt.roles)
            .find(|(_, role)| **role == Role::System)
            .map(|(end, _)| *end);
        let mut places: Vec<usize> =
            system.into_iter().chain([prompt.tokens.len().saturating_sub(TAIL_TOKENS)]).collect();
        places.sort_unstable();
        places.retain(|place| (num_cached + 1..last).contains(place));
        places.dedup();
        places
    }

    /// Keeps what an answer has computed: in memory as it is, and on disk what is not there yet.
    pub(crate) fn keep(&mut self, computed: Computed<'_>) {
        // Purged since it was answered.
        if self.forget_purged().iter().any(|owner| Some(owner) == computed.owner.as_ref()) {
            return;
        }
        let Computed { mut tokens, caches, .. } = computed;
        let num_held = caches.iter().map(LayerCache::offset).min().unwrap_or(0);
        if num_held == 0
            || num_held > tokens.len()
            || caches.iter().any(|cache| cache.offset() != num_held)
        {
            return;
        }
        tokens.truncate(num_held);
        let namespace = namespace(computed.model, &caches).following(computed.prefix_provenance);
        if let Some(store) = &self.store {
            let (checkpoints, boundaries) = (computed.checkpoints, computed.boundaries);
            let kept = store.keep(&namespace, &tokens, boundaries, &checkpoints, &caches);
            if let Err(error) = kept {
                tracing::warn!(%error, "a prompt cache cannot be copied for keeping");
            }
            if let Some(owner) = &computed.owner {
                store.cache_ref(
                    owner.clone(),
                    &namespace,
                    computed.model_name,
                    &tokens,
                    &caches,
                    false,
                );
            }
        }
        // What is yet to be computed holds on to what it is computed from, such as the caches of a
        // whole batch.
        if let Err(error) = eval(caches.iter().flat_map(LayerCache::arrays)) {
            tracing::warn!(%error, "a conversation cannot stay in memory");
            return;
        }
        self.resident.put(Conversation { namespace, tokens, caches, owner: computed.owner });
        self.enforce_memory_budget();
    }

    /// Drops what the owners have in place that were purged since the last call, and returns them.
    fn forget_purged(&mut self) -> Vec<String> {
        let purged = self
            .store
            .as_ref()
            .map_or(Vec::new(), |store| std::mem::take(&mut store.state.lock().purged));
        purged.iter().for_each(|owner| self.resident.forget(owner));
        purged
    }

    /// Keeps to the memory budget, which resident conversations and contents share. The
    /// conversation that ran last stays whatever it takes.
    fn enforce_memory_budget(&mut self) {
        let Some(store) = &self.store else { return self.resident.keep_to(0) };
        let mut state = store.state.lock();
        self.resident.keep_to(state.index.memory.budget / IN_PLACE_PART);
        state.index.resident_bytes = self.resident.bytes_without_last();
        state.enforce_memory_budget();
    }

    /// Puts what a file held on the cache state, pinned for `owner`. Fails in words where it is not there
    /// entirely afterwards.
    pub(crate) fn import(
        &mut self,
        namespace: &Namespace,
        model_name: &str,
        tokens: Vec<u32>,
        caches: &[LayerCache],
        owner: &str,
    ) -> Result<(), String> {
        let store = self.store.as_ref().ok_or("this engine keeps no prompt caches")?;
        if CacheLayout::of(caches).is_none() {
            return Err("its kind of caches can only be continued from the file, as `cairn generate --prompt-cache-file` does".to_owned());
        }
        let num_bytes: usize = caches.iter().map(LayerCache::nbytes).sum();
        if !store.state.lock().index.has_room_on_disk(num_bytes as u64) {
            return Err(NO_ROOM.to_owned());
        }
        let boundaries = vec![(tokens.len(), ChunkKind::System)];
        let kept = store.keep(namespace, &tokens, boundaries, &[], caches);
        store.cache_ref(owner.to_owned(), namespace, model_name, &tokens, caches, true);
        // Until the disk has it: only then a budget that is too small shows.
        let (reply, answer) = oneshot::channel();
        store.writer.flush(reply);
        let _ = answer.blocking_recv();
        let why = {
            let state = store.state.lock();
            let cache_ref = state
                .index
                .refs
                .get(owner)
                .filter(|cache_ref| cache_ref.num_tokens == tokens.len());
            let is_there = cache_ref
                .and_then(|cache_ref| cache_ref.chunk_key.as_deref())
                .is_some_and(|key| state.index.is_on_disk(key));
            match (kept, is_there, &state.problem) {
                (Ok(()), true, _) => return Ok(()),
                (Err(error), ..) => error.to_string(),
                (.., Some(problem)) => problem.clone(),
                _ => NO_ROOM.to_owned(),
            }
        };
        CacheHandle::new(store.state.clone()).release(owner);
        Err(why)
    }

    /// What an owner holds, as caches. Fails in words.
    pub(crate) fn export(
        &self,
        owner: &str,
        model: Option<&LoadedModel>,
    ) -> Result<Exported, String> {
        let store = self.store.as_ref().ok_or("this engine keeps no prompt caches")?;
        let (folder, cache_ref, sources) = {
            let state = store.state.lock();
            let cache_ref =
                state.index.refs.get(owner).filter(|cache_ref| cache_ref.num_tokens > 0).cloned();
            let cache_ref = cache_ref.ok_or("nothing of it is kept")?;
            let path =
                cache_ref.chunk_key.as_deref().map_or(Vec::new(), |key| state.index.path(key));
            let sources: Vec<Source> =
                path.into_iter().map(|entry| state.source(entry.record.clone())).collect();
            (state.folder.clone(), cache_ref, sources)
        };
        // The chunks say themselves what they are, so that no model has to be loaded for it.
        let on_disk = sources.iter().find(|source| !source.record.file_hash.is_empty());
        let written = on_disk.map(|source| {
            chunk_file::layout(&chunk_file::path(
                &folder,
                &cache_ref.namespace.model,
                &source.record.key,
            ))
        });
        let of_model = model.filter(|model| model.fingerprint == cache_ref.namespace.model);
        let layout = match written {
            Some(Ok(layout)) => Some(layout),
            _ => of_model.and_then(|model| {
                layout(&cache_ref.namespace, model, cache_ref.namespace.kv_format.quantization())
            }),
        };
        let layout = layout.ok_or_else(|| format!("load its model first ({})", cache_ref.model))?;
        // After an eviction its place may be one that a model cannot go on from.
        let parts = sources.iter().map(|source| PrefixPart {
            num_tokens: source.record.token_ids.len(),
            record: source.record.clone(),
        });
        let prefix = Prefix { parts: parts.collect(), num_tokens: cache_ref.num_tokens };
        let num_tokens = prefix.num_restorable(needs(&layout), cache_ref.num_tokens);
        if num_tokens == 0 {
            return Err("a conversation cannot go on from what is left of it".to_owned());
        }
        let caches = restore(&folder, &sources, &layout, num_tokens)
            .map_err(|unusable| unusable.error.to_string())?;
        let tokens = sources
            .into_iter()
            .flat_map(|source| source.record.token_ids)
            .take(num_tokens)
            .collect();
        Ok(Exported { cache_ref, tokens, caches })
    }

    /// Drops what is in memory as it was left, and of the rest in memory what is on disk too.
    pub(crate) fn demote(&mut self) {
        self.forget_conversations();
        if let Some(store) = &self.store {
            store.state.lock().demote();
        }
    }

    /// Drops the conversations that are in memory as they were left.
    pub(crate) fn forget_conversations(&mut self) {
        self.resident.clear();
        self.enforce_memory_budget();
    }

    /// Bytes on disk, and in memory beside the conversation that ran last.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        self.store.as_ref().map_or((0, 0), |store| store.state.lock().bytes())
    }

    pub(crate) fn set_budgets(&mut self, disk_bytes: u64, memory_bytes: u64) {
        if let Some(store) = &self.store {
            {
                let mut state = store.state.lock();
                (state.index.disk.budget, state.index.memory.budget) = (disk_bytes, memory_bytes);
                // It may have been the budget.
                state.problem = None;
            }
            store.writer.enforce_budgets();
        }
        self.enforce_memory_budget();
    }

    /// Answers when everything queued until now is on disk.
    pub(crate) fn flush(&mut self, reply: oneshot::Sender<Result<(), EngineError>>) {
        match &self.store {
            Some(store) => store.writer.flush(reply),
            None => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Files what is queued and ends the writer thread. What only memory holds then is lost, and
    /// whoever holds a place in it hears why.
    pub(crate) fn close(self) {
        if let Some(store) = self.store {
            store.writer.close();
            let mut state = store.state.lock();
            let reason = match &state.problem {
                Some(problem) => format!("it was not stored, because {problem}"),
                None => "it was not stored on disk, only in memory".to_owned(),
            };
            let removed = state.index.remove_unwritten(&reason, now_ms());
            state.discard(removed, &reason);
            state.end_events();
        }
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Milliseconds since the Unix epoch; only for "last used".
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as i64)
}
