//! Keys, values and states that are stored for later queries, as plain bytes: no MLX array.

use std::ops::Range;
use std::rc::Rc;

use cairn_lm::LmError;
use cairn_lm::cache::chunk_state::{CacheAssembler, ChunkState, EvaluatedLayers, TensorSlice};
use cairn_lm::cache::{CacheSpec, LayerCache};

use super::kv_tree::{Amount, KvTree, Needs, Path, SegmentId, Stored};

/// The most bytes of recurrent states. They do not grow with the tokens, so that a number of tokens
/// does not bound them.
const STATE_BYTES: usize = 256 << 20;

/// What is stored, by the tokens.
#[derive(Debug)]
pub(super) struct KvStore {
    spec: CacheSpec,
    needs: Needs,
    tree: KvTree<Rc<ChunkState>>,
}

impl KvStore {
    /// Stores nothing yet, and later at most `num_tokens` of caches like `spec`.
    pub(super) fn new(spec: &CacheSpec, num_tokens: usize) -> Self {
        KvStore {
            spec: spec.clone(),
            needs: Needs { window: spec.window(), state: spec.has_state() },
            tree: KvTree::new(Amount { num_tokens, state_bytes: STATE_BYTES }),
        }
    }

    /// How many of the first tokens are found, at most `most`.
    pub(super) fn num_found(&self, ids: &[u32], most: usize) -> usize {
        self.tree.usable(ids, most, self.needs).num_tokens
    }

    /// Caches of the longest beginning of `ids` that is found, at most `most` tokens; `None` if
    /// there is none.
    pub(super) fn caches(
        &self,
        ids: &[u32],
        most: usize,
    ) -> Result<Option<Vec<LayerCache>>, LmError> {
        let path = self.tree.usable(ids, most, self.needs);
        if path.num_tokens == 0 {
            return Ok(None);
        }
        let mut assembler = CacheAssembler::new(&self.spec, path.num_tokens)?;
        for &id in &path.segments {
            let (range, Some(stored)) = (self.tree.range(id), self.tree.stored(id)) else {
                continue;
            };
            let chunk = &stored.value;
            assembler.add(range.start, range.end, |name| {
                let tensor = chunk.tensors.iter().find(|tensor| tensor.name == name)?;
                let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
                Some(TensorSlice { dtype, shape, bytes: &chunk.bytes[tensor.range.clone()] })
            })?;
        }
        assembler.finish().map(Some)
    }

    /// Counts what is stored of `ids` as used now, also if it was found elsewhere.
    pub(super) fn touch(&mut self, ids: &[u32]) {
        let path = self.tree.path(ids);
        self.tree.touch(&path);
    }

    /// Stores what `caches`, which have read `ids`, hold of tokens that are not stored. Less is
    /// stored where the limit asks for it; nothing where the rest could not be continued.
    pub(super) fn store(&mut self, ids: &[u32], caches: &[LayerCache]) -> Result<(), LmError> {
        let limit = self.tree.limits().num_tokens;
        let is_cut = ids.len() > limit;
        if limit == 0 || (is_cut && self.needs != Needs::default()) {
            return Ok(());
        }
        let ids = &ids[..ids.len().min(limit)];
        let mut path = self.tree.path(ids);
        let at = path.num_tokens;
        let last = path.segments.last().copied();
        let end = last.map_or(0, |id| self.tree.range(id).end);
        if at == ids.len() && at == end && self.lacking(&path).is_empty() {
            self.tree.touch(&path);
            return Ok(());
        }
        let layers = EvaluatedLayers::of(caches)?;
        let chunk = |range: Range<usize>| layers.chunk_state(&[], range.start, range.end);
        if let Some(id) = last
            && at < end
        {
            let start = self.tree.range(id).start;
            let Some(old) = self.tree.stored(id).map(|old| Rc::clone(&old.value)) else {
                return Ok(());
            };
            let head = old.head(start, end, at).joined(&chunk(start..at)?);
            if !self.tree.split(&path, stored(head), stored(old.tail(start, end, at))) {
                return Ok(());
            }
        }
        self.tree.touch(&path);
        if at < ids.len() {
            self.tree.push(&mut path, ids[at..].to_vec(), stored(chunk(at..ids.len())?));
        }
        for id in self.lacking(&path) {
            let more = chunk(self.tree.range(id))?;
            if let Some(old) = self.tree.stored(id) {
                let both = stored(old.value.joined(&more));
                self.tree.replace(&path, id, both);
            }
        }
        Ok(())
    }

    /// The segments of a path of which more has to be stored, so that its end can be continued.
    fn lacking(&self, path: &Path) -> Vec<SegmentId> {
        let first_needed = path.num_tokens - self.needs.window.unwrap_or(0).min(path.num_tokens);
        let lacks = |id: &SegmentId| {
            let (range, Some(stored)) = (self.tree.range(*id), self.tree.stored(*id)) else {
                return false;
            };
            let needed_from = range.start.max(first_needed);
            let lacks_tokens = self.needs.window.is_some()
                && needed_from < range.end
                && stored.held_from > needed_from;
            let is_end = range.end == path.num_tokens;
            lacks_tokens || (self.needs.state && is_end && !stored.has_state)
        };
        path.segments.iter().copied().filter(lacks).collect()
    }

    /// How many tokens are stored.
    pub(super) fn num_tokens(&self) -> usize {
        self.tree.held().num_tokens
    }

    /// Bytes of what is stored.
    pub(super) fn num_bytes(&self) -> usize {
        self.tree.values().map(|chunk| chunk.bytes.len()).sum()
    }

    /// The most tokens that may be.
    pub(super) fn most_tokens(&self) -> usize {
        self.tree.limits().num_tokens
    }

    pub(super) fn clear(&mut self) {
        self.tree.clear();
    }
}

fn stored(chunk: ChunkState) -> Stored<Rc<ChunkState>> {
    Stored {
        held_from: chunk.held_from,
        has_state: chunk.has_state,
        state_bytes: chunk.num_state_bytes(),
        value: Rc::new(chunk),
    }
}
