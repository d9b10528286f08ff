//! Keys and values that earlier turns computed, kept so that the next turn, or another conversation with the same beginning, reads
//! them back instead of computing them again.
//!
//! ```text
//! <folder>/prompt-cache-v1/                 (given as CacheOptions::folder)
//!   <model fingerprint>/
//!     <chunk key>.safetensors               what at most 256 tokens left behind, never rewritten
//! ```
//! A chunk continues its parent; its key is a hash over the parent's key and its token ids, the root's over the model fingerprint and
//! whatever else changes the numbers ([`Space`]). So equal beginnings have equal keys and are kept once. Conversations and named prompt
//! caches stand at places among the chunks ([`Anchor`]).
//!
//! ```text
//! index · eviction · anchors   what there is, what goes, who holds what: pure policy
//! in_place                     conversations as their last answers left them, on the engine's thread
//! shelf                        the index with the contents in memory, shared by three threads
//! chunk_file                   contents and their file
//! filing                       the thread that writes, evicts and sweeps
//! restore                      contents back into caches
//! why                          what was not found, in words
//! view                         the whole as people look at it
//! ```
//! This module is what the worker calls.
//!
//! Invariants: a file is visible complete or not at all; whatever is read back was hashed when it was written and hashes the same; any
//! failure is a miss with its reason, never an error and never a wrong token.

mod anchors;
mod chunk_file;
mod eviction;
mod filing;
mod in_place;
mod index;
mod restore;
mod shelf;
mod view;
mod why;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_chat::{Prompt, Role};
use cairn_lm::LoadedModel;
use cairn_lm::cache::span::{CacheLayout, Capture, HeldLayers};
use cairn_lm::cache::{KvQuantization, LayerCache, QuantizedKvCache};
use mlx_rs::transforms::eval;
use tokio::sync::{mpsc, oneshot, watch};

use crate::records::{Anchor, CacheEvent, CacheOptions, ChunkKind, ChunkRecord, Space};
use crate::{EngineError, EngineStatus};
use chunk_file::ChunkContents;
use eviction::NO_ROOM;
use filing::Filing;
use in_place::{Conversation, InPlace};
use index::{Needs, Prefix, PrefixPart};
use restore::{Source, restore};
use shelf::SharedShelf;

pub use anchors::Holding;
pub use shelf::CacheFigures;
pub use view::{CacheNode, CacheView, CacheWindow};

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
    /// The [`Space::variant`] of what the prompt begins with, where that has one of its own.
    pub(crate) prefix_variant: Option<&'a str>,
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
    pub(crate) captures: Vec<Capture>,
    pub(crate) caches: Vec<LayerCache>,
    /// The [`Space::variant`] of what the tokens begin with, where that has one of its own.
    pub(crate) prefix_variant: Option<&'a str>,
    /// Whose conversation it is.
    pub(crate) owner: Option<String>,
}

/// What an owner holds, to be written to a file.
pub(crate) struct Exported {
    pub(crate) anchor: Anchor,
    /// Those that `caches` hold.
    pub(crate) tokens: Vec<u32>,
    pub(crate) caches: Vec<LayerCache>,
}

/// The prompt cache as the worker sees it. Owned by the engine's thread.
pub(crate) struct PromptCache {
    stored: Option<Stored>,
    in_place: InPlace,
}

struct Stored {
    shelf: SharedShelf,
    filing: Filing,
}

/// A chunk is kept up to this many tokens before the end of a prompt, for layers that remember only places: templates rewrite the end of
/// a prompt when an answer follows. (As LM Studio's CacheWrapper.)
const TAIL_TOKENS: usize = 11;
/// Conversations in place take at most one part in so many of the memory budget: the rest is for contents, which others can share and which
/// are smaller.
const IN_PLACE_PART: u64 = 2;
/// More than this waits for the disk only if the memory budget allows it.
const MIN_PENDING_BYTES: u64 = 256 << 20;

impl PromptCache {
    /// What the disk holds is kept current in `status`, whichever thread changes it.
    pub(crate) fn new(
        options: Option<CacheOptions>,
        events: mpsc::UnboundedSender<CacheEvent>,
        status: watch::Sender<EngineStatus>,
    ) -> (Self, Option<CacheWindow>) {
        let stored = options.map(|mut options| {
            let sweep_lock = options.sweep_lock.take();
            let shelf = SharedShelf::new(options, events, status);
            Stored { filing: Filing::start(shelf.clone(), sweep_lock), shelf }
        });
        let window = stored.as_ref().map(|stored| CacheWindow::new(stored.shelf.clone()));
        (PromptCache { stored, in_place: InPlace::default() }, window)
    }

    /// The longest beginning of a prompt that is in memory or on disk.
    pub(crate) fn longest_prefix(&mut self, model: &LoadedModel, query: &Query<'_>) -> Reuse {
        let tokens = &query.prompt.tokens[..query.limit.min(query.prompt.tokens.len())];
        let plain = space(model, &[]).following(query.prefix_variant);
        let kept_as = query.quantization.map_or_else(String::new, variant);
        let own = Space { variant: kept_as, ..plain.clone() }.following(query.prefix_variant);
        let (mut caches, mut num_tokens, mut problem) = (None, 0, None);
        // Until they are quantized, keys and values are those of a plain cache; but there zeros stand for nothing else. Where more is stored
        // comes first.
        let mut spaces = vec![(0, &own)];
        spaces.extend((own != plain).then_some((0, &plain)));
        if let Some(stored) = &self.stored {
            spaces.iter_mut().for_each(|(num_stored, space)| *num_stored = stored.num_restorable(space, model, query.quantization, tokens));
            spaces.sort_by_key(|(num_stored, _)| Reverse(*num_stored));
        }
        // Memory wins a tie: there is nothing to read.
        let in_which: Vec<&Space> = spaces.iter().map(|(_, space)| *space).collect();
        if let Some((num_held, held)) = self.in_place.take(&in_which, tokens, spaces[0].0, query.owner) {
            (caches, num_tokens) = (Some(held), num_held);
            self.keep_to_memory_budget();
        }
        if let (None, Some(stored)) = (&caches, &self.stored) {
            for (_, space) in spaces {
                let restored = stored.restore(space, model, query.quantization, tokens);
                problem = problem.or(restored.problem);
                if restored.num_tokens > 0 {
                    (caches, num_tokens) = (Some(restored.caches), restored.num_tokens);
                    break;
                }
            }
        }
        let note = self.stored.as_ref().and_then(|stored| stored.explain(&own, query, num_tokens, problem));
        Reuse { num_tokens, note, caches: caches.unwrap_or_else(|| model.model.make_cache()) }
    }

    /// Places in a prompt, after the first `num_cached` tokens, that have to be caught while it is read; none where every place can be
    /// gone back to later.
    pub(crate) fn places_to_catch(&self, model: &LoadedModel, prompt: &Prompt, num_cached: usize) -> Vec<usize> {
        let needs_captures = CacheLayout::of(&model.model.make_cache()).is_some_and(|layout| layout.needs_captures());
        if self.stored.is_none() || !needs_captures {
            return Vec::new();
        }
        let last = prompt.tokens.len() - 1; // prompts are not empty
        // The end of the system prompt, and near the end of the question: states are large, and others are not gone back to.
        let system = prompt.boundaries.iter().zip(&prompt.roles).find(|(_, role)| **role == Role::System).map(|(end, _)| *end);
        let mut places: Vec<usize> = system.into_iter().chain([prompt.tokens.len().saturating_sub(TAIL_TOKENS)]).collect();
        places.sort_unstable();
        places.retain(|place| (num_cached + 1..last).contains(place));
        places.dedup();
        places
    }

    /// Keeps what an answer has computed: in memory as it is, and on disk what is not there yet.
    pub(crate) fn keep(&mut self, computed: Computed<'_>) {
        let Computed { mut tokens, caches, .. } = computed;
        let num_held = caches.iter().map(LayerCache::offset).min().unwrap_or(0);
        if num_held == 0 || num_held > tokens.len() || caches.iter().any(|cache| cache.offset() != num_held) {
            return;
        }
        tokens.truncate(num_held);
        let space = space(computed.model, &caches).following(computed.prefix_variant);
        if let Some(stored) = &self.stored {
            let (captures, boundaries) = (computed.captures, computed.boundaries);
            let kept = stored.keep(&space, &tokens, boundaries, &captures, &caches);
            if let Err(error) = kept {
                tracing::warn!(%error, "a prompt cache cannot be copied for keeping");
            }
            if let Some(owner) = &computed.owner {
                stored.anchor(owner.clone(), &space, computed.model_name, &tokens, &caches, false);
            }
        }
        // What is yet to be computed holds on to what it is computed from, such as the caches of a whole batch.
        if let Err(error) = eval(caches.iter().flat_map(LayerCache::arrays)) {
            tracing::warn!(%error, "a conversation cannot stay in memory");
            return;
        }
        self.in_place.put(Conversation { space, tokens, caches, owner: computed.owner });
        self.keep_to_memory_budget();
    }

    /// Keeps to the memory budget, which conversations in place and contents share. The conversation that ran last stays whatever it takes.
    fn keep_to_memory_budget(&mut self) {
        let Some(stored) = &self.stored else { return self.in_place.keep_to(0) };
        let mut shelf = stored.shelf.lock();
        self.in_place.keep_to(shelf.index.memory.budget / IN_PLACE_PART);
        shelf.index.in_place_bytes = self.in_place.bytes_beside_last();
        shelf.keep_to_memory_budget();
    }

    /// Puts what a file held on the shelf, pinned for `owner`. Fails in words where it is not there entirely afterwards.
    pub(crate) fn import(
        &mut self,
        space: &Space,
        model_name: &str,
        tokens: Vec<u32>,
        caches: &[LayerCache],
        owner: &str,
    ) -> Result<(), String> {
        let stored = self.stored.as_ref().ok_or("this engine keeps no prompt caches")?;
        if CacheLayout::of(caches).is_none() {
            return Err("its kind of caches can only be continued from the file, as `cairn generate --prompt-cache-file` does".to_owned());
        }
        let num_bytes: usize = caches.iter().map(LayerCache::nbytes).sum();
        if !stored.shelf.lock().index.has_room_on_disk(num_bytes as u64) {
            return Err(NO_ROOM.to_owned());
        }
        let boundaries = vec![(tokens.len(), ChunkKind::System)];
        let kept = stored.keep(space, &tokens, boundaries, &[], caches);
        stored.anchor(owner.to_owned(), space, model_name, &tokens, caches, true);
        // Until the disk has it: only then a budget that is too small shows.
        let (reply, answer) = oneshot::channel();
        stored.filing.flush(reply);
        let _ = answer.blocking_recv();
        let why = {
            let shelf = stored.shelf.lock();
            let anchor = shelf.index.anchors.get(owner).filter(|anchor| anchor.num_tokens == tokens.len());
            let is_there = anchor.and_then(|anchor| anchor.chunk_key.as_deref()).is_some_and(|key| shelf.index.is_on_disk(key));
            match (kept, is_there, &shelf.problem) {
                (Ok(()), true, _) => return Ok(()),
                (Err(error), ..) => error.to_string(),
                (.., Some(problem)) => problem.clone(),
                _ => NO_ROOM.to_owned(),
            }
        };
        CacheWindow::new(stored.shelf.clone()).release(owner);
        Err(why)
    }

    /// What an owner holds, as caches. Fails in words.
    pub(crate) fn export(&self, owner: &str, model: Option<&LoadedModel>) -> Result<Exported, String> {
        let stored = self.stored.as_ref().ok_or("this engine keeps no prompt caches")?;
        let (folder, anchor, sources) = {
            let shelf = stored.shelf.lock();
            let anchor = shelf.index.anchors.get(owner).filter(|anchor| anchor.num_tokens > 0).cloned();
            let anchor = anchor.ok_or("nothing of it is kept")?;
            let path = anchor.chunk_key.as_deref().map_or(Vec::new(), |key| shelf.index.path(key));
            let sources: Vec<Source> = path.into_iter().map(|entry| shelf.source(entry.record.clone())).collect();
            (shelf.folder.clone(), anchor, sources)
        };
        // The chunks say themselves what they are, so that no model has to be loaded for it.
        let on_disk = sources.iter().find(|source| !source.record.file_hash.is_empty());
        let written = on_disk.map(|source| chunk_file::layout(&chunk_file::path(&folder, &anchor.space.fingerprint, &source.record.key)));
        let of_model = model.filter(|model| model.fingerprint == anchor.space.fingerprint);
        let layout = match written {
            Some(Ok(Some(layout))) => Some(layout),
            _ => of_model.and_then(|model| layout(&anchor.space, model, named_quantization(&anchor.space.variant))),
        };
        let layout = layout.ok_or_else(|| format!("load its model first ({})", anchor.model))?;
        // After an eviction its place may be one that a model cannot go on from.
        let parts = sources.iter().map(|source| PrefixPart { num_tokens: source.record.token_ids.len(), record: source.record.clone() });
        let prefix = Prefix { parts: parts.collect(), num_tokens: anchor.num_tokens };
        let num_tokens = prefix.num_restorable(needs(&layout), anchor.num_tokens);
        if num_tokens == 0 {
            return Err("a conversation cannot go on from what is left of it".to_owned());
        }
        let caches = restore(&folder, &sources, &layout, num_tokens).map_err(|unusable| unusable.error.to_string())?;
        let tokens = sources.into_iter().flat_map(|source| source.record.token_ids).take(num_tokens).collect();
        Ok(Exported { anchor, tokens, caches })
    }

    /// Drops what is in memory as it was left, and of the rest in memory what is on disk too.
    pub(crate) fn demote(&mut self) {
        self.forget_conversations();
        if let Some(stored) = &self.stored {
            stored.shelf.lock().demote();
        }
    }

    /// Drops the conversations that are in memory as they were left.
    pub(crate) fn forget_conversations(&mut self) {
        self.in_place.clear();
        self.keep_to_memory_budget();
    }

    /// Bytes on disk, and in memory beside the conversation that ran last.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        self.stored.as_ref().map_or((0, 0), |stored| stored.shelf.lock().bytes())
    }

    pub(crate) fn set_budgets(&mut self, disk_bytes: u64, memory_bytes: u64) {
        if let Some(stored) = &self.stored {
            {
                let mut shelf = stored.shelf.lock();
                (shelf.index.disk.budget, shelf.index.memory.budget) = (disk_bytes, memory_bytes);
            }
            stored.filing.keep_to_budgets();
        }
        self.keep_to_memory_budget();
    }

    /// Answers when everything queued until now is on disk.
    pub(crate) fn flush(&mut self, reply: oneshot::Sender<Result<(), EngineError>>) {
        match &self.stored {
            Some(stored) => stored.filing.flush(reply),
            None => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Files what is queued and ends the filing thread. What only memory holds then is lost, and whoever holds a place in it hears why.
    pub(crate) fn close(self) {
        if let Some(stored) = self.stored {
            stored.filing.close();
            let mut shelf = stored.shelf.lock();
            let reason = match &shelf.problem {
                Some(problem) => format!("it was not stored, because {problem}"),
                None => "it was not stored on disk, only in memory".to_owned(),
            };
            let removed = shelf.index.remove_unwritten(&reason, now_ms());
            shelf.discard(removed, &reason);
            shelf.end_events();
        }
    }
}

struct Restored {
    num_tokens: usize,
    caches: Vec<LayerCache>,
    problem: Option<String>,
}

impl Stored {
    /// The layers of what is stored in `space` of `tokens`; none where they cannot be stored.
    fn layout(&self, space: &Space, model: &LoadedModel, quantization: Option<KvQuantization>, tokens: &[u32]) -> Option<CacheLayout> {
        if !space.is_opaque() {
            return layout(space, model, quantization);
        }
        // The file may have been quantized in a way of its own, which its chunks tell.
        let path = {
            let shelf = self.shelf.lock();
            let (prefix, _) = shelf.index.restorable_prefix(space, tokens, Needs::default());
            let on_disk = prefix.parts.into_iter().find(|part| !part.record.file_hash.is_empty())?;
            chunk_file::path(&shelf.folder, &space.fingerprint, &on_disk.record.key)
        };
        chunk_file::layout(&path).ok().flatten().or_else(|| layout(space, model, None))
    }

    fn num_restorable(&self, space: &Space, model: &LoadedModel, quantization: Option<KvQuantization>, tokens: &[u32]) -> usize {
        let Some(layout) = self.layout(space, model, quantization, tokens) else { return 0 };
        self.shelf.lock().index.restorable_prefix(space, tokens, needs(&layout)).1
    }

    /// Reads the longest beginning of `tokens` that can be gone on from. A chunk that cannot be used is forgotten, and what is before it
    /// is tried.
    fn restore(&self, space: &Space, model: &LoadedModel, quantization: Option<KvQuantization>, tokens: &[u32]) -> Restored {
        let mut problem = None;
        let nothing = |problem| Restored { num_tokens: 0, caches: Vec::new(), problem };
        let Some(layout) = self.layout(space, model, quantization, tokens) else { return nothing(None) };
        loop {
            let (folder, sources, num_tokens) = {
                let shelf = self.shelf.lock();
                let (prefix, num_tokens) = shelf.index.restorable_prefix(space, tokens, needs(&layout));
                let wanted = prefix.parts.into_iter().map(|part| part.record).filter(|record| record.start < num_tokens);
                let sources: Vec<Source> = wanted.map(|record| shelf.source(record)).collect();
                (shelf.folder.clone(), sources, num_tokens)
            };
            if num_tokens == 0 {
                return nothing(problem);
            }
            match restore(&folder, &sources, &layout, num_tokens) {
                Ok(caches) => {
                    let keys: Vec<String> = sources.into_iter().map(|source| source.record.key).collect();
                    let at_ms = now_ms();
                    let mut shelf = self.shelf.lock();
                    shelf.index.touch(&keys, at_ms);
                    shelf.tell(CacheEvent::Touched { keys, at_ms });
                    return Restored { num_tokens, caches, problem };
                }
                Err(unusable) => {
                    let reason = unusable.error.to_string();
                    tracing::warn!(chunk = %unusable.key, %reason, "a stored prompt cache cannot be used");
                    if !unusable.error.is_lasting() {
                        return nothing(Some(reason));
                    }
                    self.shelf.lock().forget(&unusable.key, &reason);
                    problem = Some(reason);
                }
            }
        }
    }

    /// Why no more than `num_cached` tokens were taken.
    fn explain(&self, space: &Space, query: &Query<'_>, num_cached: usize, problem: Option<String>) -> Option<String> {
        let mut shelf = self.shelf.lock();
        shelf.figures.num_lookups += 1;
        shelf.figures.num_prompt_tokens += query.prompt.tokens.len() as u64;
        shelf.figures.num_cached_tokens += num_cached as u64;
        let anchor = query.owner.and_then(|owner| shelf.index.anchors.get(owner));
        let tokens = |anchor: &Anchor| {
            let path = anchor.chunk_key.as_deref().map_or(Vec::new(), |key| shelf.index.path(key));
            path.iter().flat_map(|entry| entry.record.token_ids.iter().copied()).collect()
        };
        let lookup = why::Lookup {
            prompt: query.prompt,
            space,
            model: query.model_name,
            anchor: anchor.map(|anchor| (anchor, tokens(anchor))),
            limit: query.limit,
            not_written: shelf.problem.as_deref(),
            now_ms: now_ms(),
        };
        why::note(&lookup, num_cached, problem)
    }

    /// Puts the chunks of `tokens` that are not there yet on the shelf, and queues them for the disk.
    fn keep(
        &self,
        space: &Space,
        tokens: &[u32],
        mut boundaries: Vec<(usize, ChunkKind)>,
        captures: &[Capture],
        caches: &[LayerCache],
    ) -> Result<(), cairn_lm::LmError> {
        let Some(layout) = CacheLayout::of(caches).map(Arc::new) else { return Ok(()) };
        // Behind these places the caches can go on, whatever they are. One that was caught is of use only where a chunk ends.
        let needs = needs(&layout);
        let end = layout.needs_captures().then_some(tokens.len());
        let places: Vec<usize> = captures.iter().map(Capture::num_tokens).chain(end).collect();
        for capture in captures {
            let place = capture.num_tokens();
            let at = boundaries.partition_point(|(boundary, _)| *boundary < place);
            if boundaries.get(at).is_none_or(|(boundary, _)| *boundary != place) {
                let kind = boundaries.get(at).map_or(ChunkKind::Assistant, |(_, kind)| *kind);
                boundaries.insert(at, (place, kind));
            }
        }
        let (planned, is_filed) = {
            let shelf = self.shelf.lock();
            if shelf.index.disk.budget == 0 && shelf.index.memory.budget == 0 {
                return Ok(());
            }
            (shelf.index.plan(space, tokens, &boundaries, (needs, &places)), shelf.index.disk.budget > 0)
        };
        if planned.is_empty() {
            return Ok(());
        }
        let held = HeldLayers::of(caches)?;
        let captures = captures.iter().map(HeldLayers::of_capture).collect::<Result<Vec<_>, _>>()?;
        for chunk in planned {
            let span = held.cut(&captures, chunk.start, chunk.start + chunk.token_ids.len())?;
            let (held_from, has_state) = (span.held_from, span.has_state);
            let contents = Arc::new(ChunkContents::new(span));
            let bytes = contents.num_bytes();
            let record = ChunkRecord {
                key: chunk.key.clone(),
                parent_key: chunk.parent_key,
                space: space.clone(),
                kind: chunk.kind,
                start: chunk.start,
                token_ids: chunk.token_ids,
                held_from,
                has_state,
                bytes,
                file_hash: String::new(),
                hits: 0,
                last_used_at_ms: now_ms(),
            };
            let most_pending = {
                let mut shelf = self.shelf.lock();
                // Evicted since it was planned on: what continues it could not be reached.
                if record.parent_key.as_ref().is_some_and(|parent| !shelf.index.contains(parent)) {
                    break;
                }
                // Another program's, or one that cannot be cut otherwise.
                if shelf.index.contains(&record.key) {
                    continue;
                }
                shelf.add(record, contents, is_filed);
                shelf.index.memory.budget.max(MIN_PENDING_BYTES)
            };
            if is_filed {
                self.filing.file(chunk.key, bytes, Arc::clone(&layout));
                self.shelf.wait_until_pending_is_at_most(most_pending);
            }
        }
        self.shelf.lock().keep_to_memory_budget();
        Ok(())
    }

    /// Moves the owner's anchor to the end of `tokens`, as far as they are kept.
    fn anchor(&self, owner: String, space: &Space, model: &str, tokens: &[u32], caches: &[LayerCache], is_pinned: bool) {
        let needs = CacheLayout::of(caches).map_or_else(Needs::default, |layout| needs(&layout));
        let mut shelf = self.shelf.lock();
        // Of equal runs the one that can be gone on from.
        let worth = |prefix: &Prefix| {
            let num_whole = prefix.last_whole().map_or(0, ChunkRecord::stop);
            num_whole - usize::from(prefix.num_restorable(needs, num_whole) < num_whole)
        };
        let prefix = shelf.index.best_prefix(space, tokens, worth);
        let (chunk_key, num_tokens) = prefix.last_whole().map_or((None, 0), |record| (Some(record.key.clone()), record.stop()));
        let is_pinned = is_pinned || shelf.index.anchors.get(&owner).is_some_and(|anchor| anchor.is_pinned);
        let anchor = Anchor { owner, space: space.clone(), model: model.to_owned(), chunk_key, num_tokens, is_pinned, lost: None };
        shelf.index.set_anchor(anchor);
        shelf.tell_anchors();
    }
}

/// Where what `caches` hold belongs; no caches stand for plain ones.
fn space(model: &LoadedModel, caches: &[LayerCache]) -> Space {
    Space { fingerprint: model.fingerprint.clone(), variant: cache_variant(caches) }
}

/// The [`Space::variant`] of what `caches` hold.
pub(crate) fn cache_variant(caches: &[LayerCache]) -> String {
    let quantized = caches.iter().find_map(|cache| if let LayerCache::Quantized(cache) = cache { Some(cache) } else { None });
    quantized.map_or_else(String::new, |cache| quantized_variant(cache.bits(), cache.group_size()))
}

fn variant(quantization: KvQuantization) -> String {
    quantized_variant(quantization.bits, quantization.group_size)
}

fn quantized_variant(bits: i32, group_size: i32) -> String {
    format!("kv{bits}g{group_size}")
}

/// The quantization that a [`Space::variant`] names; from which token on it began it does not say.
pub(crate) fn named_quantization(variant: &str) -> Option<KvQuantization> {
    let (bits, group_size) = Space::kept_as(variant).strip_prefix("kv")?.split_once('g')?;
    Some(KvQuantization { bits: bits.parse().ok()?, group_size: group_size.parse().ok()?, start: 0 })
}

/// The layers of what is stored in `space` for a model; none where they cannot be stored.
fn layout(space: &Space, model: &LoadedModel, quantization: Option<KvQuantization>) -> Option<CacheLayout> {
    let quantization = quantization.filter(|quantization| Space::kept_as(&space.variant) == variant(*quantization));
    let quantized = |cache: LayerCache| match (cache, quantization) {
        (LayerCache::Kv(_), Some(KvQuantization { bits, group_size, .. })) => {
            QuantizedKvCache::new(group_size, bits).ok().map(LayerCache::Quantized)
        }
        (cache, _) => Some(cache),
    };
    CacheLayout::of(&model.model.make_cache().into_iter().map(quantized).collect::<Option<Vec<_>>>()?)
}

fn needs(layout: &CacheLayout) -> Needs {
    Needs { window: layout.window(), state: layout.has_state() }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Milliseconds since the Unix epoch; only for "last used".
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as i64)
}
