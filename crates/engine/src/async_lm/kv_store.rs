//! Keys, values and states that are stored for later queries, as plain bytes: no MLX array.

use std::rc::Rc;

use cairn_lm::LmError;
use cairn_lm::cache::chunk_state::{CacheAssembler, ChunkState, EvaluatedLayers, TensorSlice};
use cairn_lm::cache::{CacheSpec, LayerCache};

use super::kv_tree::{Amount, KvTree, Needs, Path, Stored};

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
        let is_known = at == ids.len();
        if is_known && !self.lacks_state(&path, end) {
            self.tree.touch(&path);
            return Ok(());
        }
        let layers = EvaluatedLayers::of(caches)?;
        let chunk = |start, stop| layers.chunk_state(&[], start, stop).map(stored);
        if let Some(id) = last
            && at < end
        {
            let start = self.tree.range(id).start;
            let tail = |old: &Stored<Rc<ChunkState>>| stored(old.value.tail(start, end, at));
            if !self.tree.split(&path, chunk(start, at)?, tail) {
                return Ok(());
            }
        } else if is_known && let Some(id) = last {
            self.tree.replace(&path, chunk(self.tree.range(id).start, at)?);
        }
        self.tree.touch(&path);
        if at < ids.len() {
            self.tree.push(&mut path, ids[at..].to_vec(), chunk(at, ids.len())?);
        }
        Ok(())
    }

    /// Whether the states at the end of a path are needed and not stored.
    fn lacks_state(&self, path: &Path, end_of_last: usize) -> bool {
        let stored = path.segments.last().and_then(|&id| self.tree.stored(id));
        let has_state = stored.is_some_and(|stored| stored.has_state);
        self.needs.state && !(has_state && end_of_last == path.num_tokens)
    }

    /// How many tokens are stored.
    pub(super) fn num_tokens(&self) -> usize {
        self.tree.held().num_tokens
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
