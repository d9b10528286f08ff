//! What the engine's thread takes from the shelf and puts on it: lookups with their reasons, new
//! chunks, and places.

use std::sync::Arc;

use cairn_lm::LoadedModel;
use cairn_lm::cache::span::{CacheLayout, Capture, HeldLayers};
use cairn_lm::cache::{KvQuantization, LayerCache};

use super::chunk_file::{self, ChunkContents};
use super::filing::Filing;
use super::index::{Needs, Prefix};
use super::restore::{Source, restore};
use super::shelf::SharedShelf;
use super::space::{layout, needs};
use super::{Query, now_ms, why};
use crate::records::{Anchor, ChunkKind, ChunkRecord, Space};

/// More than this waits for the disk only if the memory budget allows it.
const MIN_PENDING_BYTES: u64 = 256 << 20;

/// The shelf, and the thread that files what is on it.
pub(super) struct Stored {
    pub(super) shelf: SharedShelf,
    pub(super) filing: Filing,
}

/// What was read back.
pub(super) struct Restored {
    pub(super) num_tokens: usize,
    pub(super) caches: Vec<LayerCache>,
    /// What was wrong with chunks that could not be used.
    pub(super) problem: Option<String>,
}

impl Stored {
    /// The layers of what is stored in `space` of `tokens`; none where they cannot be stored.
    fn layout(
        &self,
        space: &Space,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        tokens: &[u32],
    ) -> Option<CacheLayout> {
        if !space.is_opaque() {
            return layout(space, model, quantization);
        }
        // The file may have been quantized in a way of its own, which its chunks tell.
        let path = {
            let shelf = self.shelf.lock();
            let (prefix, _) = shelf.index.restorable_prefix(space, tokens, Needs::default());
            let on_disk =
                prefix.parts.into_iter().find(|part| !part.record.file_hash.is_empty())?;
            chunk_file::path(&shelf.folder, &space.fingerprint, &on_disk.record.key)
        };
        match chunk_file::layout(&path) {
            Ok(Some(layout)) => Some(layout),
            // Whoever reads it with another layout would take it for damaged.
            Err(error) if !error.is_lasting() => None,
            Ok(None) | Err(_) => layout(space, model, None),
        }
    }

    pub(super) fn num_restorable(
        &self,
        space: &Space,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        tokens: &[u32],
    ) -> usize {
        let Some(layout) = self.layout(space, model, quantization, tokens) else { return 0 };
        self.shelf.lock().index.restorable_prefix(space, tokens, needs(&layout)).1
    }

    /// Reads the longest beginning of `tokens` that can be gone on from. A chunk that cannot be
    /// used is forgotten, and what is before it is tried.
    pub(super) fn restore(
        &self,
        space: &Space,
        model: &LoadedModel,
        quantization: Option<KvQuantization>,
        tokens: &[u32],
    ) -> Restored {
        let mut problem = None;
        let nothing = |problem| Restored { num_tokens: 0, caches: Vec::new(), problem };
        let Some(layout) = self.layout(space, model, quantization, tokens) else {
            return nothing(None);
        };
        loop {
            let (folder, sources, num_tokens) = {
                let shelf = self.shelf.lock();
                let (prefix, num_tokens) =
                    shelf.index.restorable_prefix(space, tokens, needs(&layout));
                let wanted = prefix
                    .parts
                    .into_iter()
                    .map(|part| part.record)
                    .filter(|record| record.start < num_tokens);
                let sources: Vec<Source> = wanted.map(|record| shelf.source(record)).collect();
                (shelf.folder.clone(), sources, num_tokens)
            };
            if num_tokens == 0 {
                return nothing(problem);
            }
            match restore(&folder, &sources, &layout, num_tokens) {
                Ok(caches) => {
                    self.shelf
                        .lock()
                        .touch(sources.into_iter().map(|source| source.record.key).collect());
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

    /// Notes that the beginning `tokens` was used, though not from here.
    pub(super) fn touch(&self, space: &Space, tokens: &[u32]) {
        let mut shelf = self.shelf.lock();
        let prefix = shelf.index.best_prefix(space, tokens, |prefix| prefix.num_tokens);
        shelf.touch(prefix.parts.into_iter().map(|part| part.record.key).collect());
    }

    /// Why no more than `num_cached` tokens were taken.
    pub(super) fn explain(
        &self,
        space: &Space,
        query: &Query<'_>,
        num_cached: usize,
        problem: Option<String>,
    ) -> Option<String> {
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

    /// Puts the chunks of `tokens` that are not there yet on the shelf, and queues them for the
    /// disk.
    pub(super) fn keep(
        &self,
        space: &Space,
        tokens: &[u32],
        mut boundaries: Vec<(usize, ChunkKind)>,
        captures: &[Capture],
        caches: &[LayerCache],
    ) -> Result<(), cairn_lm::LmError> {
        let Some(layout) = CacheLayout::of(caches).map(Arc::new) else { return Ok(()) };
        // Behind these places the caches can go on, whatever they are. One that was caught is of
        // use only where a chunk ends.
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
            (
                shelf.index.plan(space, tokens, &boundaries, (needs, &places)),
                shelf.index.disk.budget > 0,
            )
        };
        if planned.is_empty() {
            return Ok(());
        }
        let held = HeldLayers::of(caches)?;
        let captures =
            captures.iter().map(HeldLayers::of_capture).collect::<Result<Vec<_>, _>>()?;
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
    pub(super) fn anchor(
        &self,
        owner: String,
        space: &Space,
        model: &str,
        tokens: &[u32],
        caches: &[LayerCache],
        is_pinned: bool,
    ) {
        let needs = CacheLayout::of(caches).map_or_else(Needs::default, |layout| needs(&layout));
        let mut shelf = self.shelf.lock();
        // Of equal runs the one that can be gone on from.
        let worth = |prefix: &Prefix| {
            let num_whole = prefix.last_whole().map_or(0, ChunkRecord::stop);
            num_whole - usize::from(prefix.num_restorable(needs, num_whole) < num_whole)
        };
        let prefix = shelf.index.best_prefix(space, tokens, worth);
        let (chunk_key, num_tokens) = prefix
            .last_whole()
            .map_or((None, 0), |record| (Some(record.key.clone()), record.stop()));
        let is_pinned =
            is_pinned || shelf.index.anchors.get(&owner).is_some_and(|anchor| anchor.is_pinned);
        let anchor = Anchor {
            owner,
            space: space.clone(),
            model: model.to_owned(),
            chunk_key,
            num_tokens,
            is_pinned,
            lost: None,
        };
        shelf.index.set_anchor(anchor);
        shelf.tell_anchors();
    }
}
