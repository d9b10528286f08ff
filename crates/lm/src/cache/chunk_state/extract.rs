//! From caches to chunk states: plain bytes that hold no MLX array.

use std::ops::Range;

use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use super::{PLAIN, QUANTIZED, STATE, entry_path, state_name};
use crate::cache::{KeysValues, LayerCache};
use crate::{LmError, ffi};

/// One tensor within [`ChunkState::bytes`], in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTensor {
    /// Its name, see [`crate::cache::chunk_state`].
    pub name: String,
    /// Its type.
    pub dtype: Dtype,
    /// Its axes.
    pub shape: Vec<usize>,
    /// Its range in [`ChunkState::bytes`].
    pub range: Range<usize>,
}

impl StateTensor {
    /// Whether it is a recurrent state, and not keys or values.
    fn is_state(&self) -> bool {
        self.name.starts_with(STATE)
    }
}

/// The state of all layers that belongs to a range of tokens.
#[derive(Debug)]
pub struct ChunkState {
    /// In the order of the layers; their ranges are adjacent.
    pub tensors: Vec<StateTensor>,
    /// The contents of all tensors.
    pub bytes: Vec<u8>,
    /// The first token whose keys and values every layer still held; the range's end if a ring held
    /// none of its tokens.
    pub held_from: usize,
    /// Whether the recurrent states after the range's last token are included; false if the model
    /// has none.
    pub has_state: bool,
}

/// A snapshot of the rings and recurrent states at one position, taken before generation continues
/// past it. Taking it copies nothing; the next write to a ring copies that ring.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    num_tokens: usize,
    layers: Vec<Option<LayerCache>>,
}

impl Checkpoint {
    /// A checkpoint of `caches` after their last token; `None` if every layer holds all tokens, so
    /// that no checkpoint is needed.
    pub fn of(caches: Vec<LayerCache>) -> Option<Checkpoint> {
        let num_tokens = caches.iter().map(LayerCache::offset).max()?;
        // Plain caches are left out: a second handle to their buffers would make the next write a
        // copy.
        let layers: Vec<_> = caches
            .into_iter()
            .map(|cache| cache.as_kind().needs_checkpoints().then_some(cache))
            .collect();
        layers.iter().any(Option::is_some).then_some(Checkpoint { num_tokens, layers })
    }

    /// The position: how many tokens had been read.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }
}

/// The evaluated arrays of all layers, from which chunk states are extracted.
#[derive(Debug)]
pub struct EvaluatedLayers {
    num_tokens: usize,
    layers: Vec<EvaluatedLayer>,
}

#[derive(Debug)]
enum EvaluatedLayer {
    /// Keys and values `[1, H, capacity, …]`, row-major; column 0 is the token `first`.
    Tokens {
        arrays: Vec<(&'static str, Array)>,
        first: usize,
        is_window: bool,
    },
    State(Vec<Option<Array>>),
    List(Vec<EvaluatedLayer>),
    /// Not part of a checkpoint: the caches themselves have it.
    InCaches,
}

impl EvaluatedLayers {
    /// Evaluates `caches`, all of which must have read the same number of tokens.
    pub fn of(caches: &[LayerCache]) -> Result<EvaluatedLayers, LmError> {
        let layers = caches.iter().map(EvaluatedLayer::of).collect::<Result<_, _>>()?;
        EvaluatedLayers {
            num_tokens: caches.iter().map(LayerCache::offset).max().unwrap_or(0),
            layers,
        }
        .evaluated()
    }

    /// Evaluates the arrays of a checkpoint.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<EvaluatedLayers, LmError> {
        let layers = checkpoint
            .layers
            .iter()
            .map(|cache| cache.as_ref().map_or(Ok(EvaluatedLayer::InCaches), EvaluatedLayer::of));
        EvaluatedLayers {
            num_tokens: checkpoint.num_tokens,
            layers: layers.collect::<Result<_, _>>()?,
        }
        .evaluated()
    }

    fn evaluated(mut self) -> Result<EvaluatedLayers, LmError> {
        let mut arrays = Vec::new();
        self.layers.iter_mut().for_each(|layer| layer.arrays_mut(&mut arrays));
        eval(arrays.iter().map(|array| &**array))?;
        for array in arrays {
            if ffi::array_bytes(array).is_err() {
                *array = array.contiguous()?;
            }
        }
        Ok(self)
    }

    /// Copies the state of the tokens `start..stop`. What these layers no longer hold comes from
    /// `checkpoints` of the same sequence, in the order in which they were taken.
    pub fn chunk_state(
        &self,
        checkpoints: &[EvaluatedLayers],
        start: usize,
        stop: usize,
    ) -> Result<ChunkState, LmError> {
        let mut extraction = Extraction::new(start..stop);
        for (index, layer) in self.layers.iter().enumerate() {
            let path = index.to_string();
            // The first checkpoint at or after the range's end has overwritten the least of it.
            let earlier = checkpoints.iter().find(|checkpoint| {
                checkpoint.num_tokens >= stop && checkpoint.num_tokens < self.num_tokens
            });
            let (source, num_tokens) = match earlier
                .map(|checkpoint| (&checkpoint.layers[index], checkpoint.num_tokens))
            {
                Some((EvaluatedLayer::InCaches, _)) | None => (layer, self.num_tokens),
                Some(earlier) => earlier,
            };
            extraction.add(source, &path, num_tokens)?;
        }
        Ok(extraction.finish())
    }
}

impl EvaluatedLayer {
    fn of(cache: &LayerCache) -> Result<EvaluatedLayer, LmError> {
        let kind = cache.as_kind();
        if let Some(slots) = kind.state_arrays()? {
            return Ok(EvaluatedLayer::State(slots));
        }
        if let Some(entries) = kind.entries() {
            let entries = entries.iter().map(EvaluatedLayer::of);
            return Ok(EvaluatedLayer::List(entries.collect::<Result<_, _>>()?));
        }
        let held = kind.held_tokens()?.ok_or_else(|| LmError::ChunkState {
            what: format!("a {} cannot be stored in chunks", kind.name()),
        })?;
        let arrays = match held.tokens {
            KeysValues::Dense { keys, values } => PLAIN.into_iter().zip([keys, values]).collect(),
            KeysValues::Quantized { keys, values, .. } => {
                let sides = [keys, values].map(|side| [side.packed, side.scales, side.biases]);
                QUANTIZED.into_iter().flatten().zip(sides.into_iter().flatten()).collect()
            }
            KeysValues::AfterPrefix { .. } => {
                let what = format!("a {} cannot be stored in chunks", kind.name());
                return Err(LmError::ChunkState { what });
            }
        };
        Ok(EvaluatedLayer::Tokens { arrays, first: held.first, is_window: held.is_window })
    }

    fn arrays_mut<'a>(&'a mut self, into: &mut Vec<&'a mut Array>) {
        match self {
            EvaluatedLayer::Tokens { arrays, .. } => {
                into.extend(arrays.iter_mut().map(|(_, array)| array))
            }
            EvaluatedLayer::State(slots) => into.extend(slots.iter_mut().flatten()),
            EvaluatedLayer::List(entries) => {
                entries.iter_mut().for_each(|entry| entry.arrays_mut(into))
            }
            EvaluatedLayer::InCaches => {}
        }
    }
}

/// The state of the tokens `range` while the parts of its layers are copied.
struct Extraction {
    range: Range<usize>,
    chunk: ChunkState,
    /// Whether a recurrent layer has no state after the last of the tokens.
    lacks_state: bool,
}

impl Extraction {
    fn new(range: Range<usize>) -> Extraction {
        let (tensors, bytes, held_from) = (Vec::new(), Vec::new(), range.start);
        let chunk = ChunkState { tensors, bytes, held_from, has_state: false };
        Extraction { range, chunk, lacks_state: false }
    }

    fn finish(mut self) -> ChunkState {
        self.chunk.has_state &= !self.lacks_state;
        self.chunk
    }

    /// Adds a layer's part. The layer was evaluated after `num_tokens` tokens.
    fn add(
        &mut self,
        layer: &EvaluatedLayer,
        path: &str,
        num_tokens: usize,
    ) -> Result<(), LmError> {
        match layer {
            EvaluatedLayer::Tokens { arrays, first, is_window } => {
                let Range { start, end } = self.range;
                if *is_window {
                    self.chunk.held_from = self.chunk.held_from.max(start.max(*first).min(end));
                }
                // Empty if the layer has dropped all of them.
                let columns = start.saturating_sub(*first)..end.saturating_sub(*first);
                self.add_tokens(arrays, path, columns)
            }
            EvaluatedLayer::State(slots) => self.add_state(slots, path, num_tokens),
            EvaluatedLayer::List(entries) => {
                let mut entries = entries.iter().enumerate();
                entries.try_for_each(|(index, entry)| {
                    self.add(entry, &entry_path(path, index), num_tokens)
                })
            }
            EvaluatedLayer::InCaches => {
                let what = "a checkpoint does not hold the keys and values of a plain cache";
                Err(LmError::ChunkState { what: what.to_owned() })
            }
        }
    }

    /// Adds these columns of keys and values, or of what they are packed in.
    fn add_tokens(
        &mut self,
        arrays: &[(&'static str, Array)],
        path: &str,
        columns: Range<usize>,
    ) -> Result<(), LmError> {
        if columns.is_empty() {
            return Ok(());
        }
        arrays.iter().try_for_each(|(name, array)| {
            let (start, stop) = (columns.start, columns.end);
            self.chunk.push_tokens(format!("{name}.{path}"), array, start, stop)
        })
    }

    /// Adds a recurrent state, which is valid after `num_tokens` tokens only.
    fn add_state(
        &mut self,
        slots: &[Option<Array>],
        path: &str,
        num_tokens: usize,
    ) -> Result<(), LmError> {
        if num_tokens != self.range.end || !slots.iter().all(Option::is_some) {
            self.lacks_state = true;
            return Ok(());
        }
        self.chunk.has_state = true;
        for (slot, array) in slots.iter().flatten().enumerate() {
            self.chunk.push_array(state_name(slot, path), array)?;
        }
        Ok(())
    }
}

impl ChunkState {
    /// Bytes of the recurrent states.
    pub fn num_state_bytes(&self) -> usize {
        let states = self.tensors.iter().filter(|tensor| tensor.is_state());
        states.map(|tensor| tensor.range.len()).sum()
    }

    /// The state of the tokens `start..at`, where this is that of `start..stop`. Recurrent states are
    /// left out, because they are those after the last token.
    ///
    /// Panics unless `start <= at <= stop`.
    pub fn head(&self, start: usize, stop: usize, at: usize) -> ChunkState {
        assert!(start <= at && at <= stop, "{at} is in {start} to {stop}");
        let held_from = self.held_from.min(at);
        let (tensors, bytes) = (Vec::new(), Vec::new());
        let mut head = ChunkState { tensors, bytes, held_from, has_state: false };
        for tensor in self.tensors.iter().filter(|tensor| !tensor.is_state()) {
            let &[_, heads, held, _] = tensor.shape.as_slice() else { continue };
            // The last column is the token before `stop`.
            let kept = held.saturating_sub(stop - at);
            let all = &self.bytes[tensor.range.clone()];
            let head_bytes = all.len() / heads.max(1);
            let before = head.bytes.len();
            for of_head in all.chunks(head_bytes.max(1)) {
                head.bytes.extend_from_slice(&of_head[..head_bytes / held.max(1) * kept]);
            }
            head.push_tensor(tensor, kept, before);
        }
        head
    }

    /// The state of the same tokens with all that either of the two holds.
    pub fn joined(&self, other: &ChunkState) -> ChunkState {
        let mut joined = ChunkState {
            tensors: Vec::new(),
            bytes: Vec::new(),
            // Both end with the same token, so that the longer of two rings holds the other.
            held_from: self.held_from.min(other.held_from),
            has_state: self.has_state || other.has_state,
        };
        let find = |chunk: &ChunkState, name: &str| {
            chunk.tensors.iter().position(|tensor| tensor.name == name)
        };
        let mut copy = |chunk: &ChunkState, index: usize| {
            let tensor = chunk.tensors[index].clone();
            let start = joined.bytes.len();
            joined.bytes.extend_from_slice(&chunk.bytes[tensor.range.clone()]);
            joined.tensors.push(StateTensor { range: start..joined.bytes.len(), ..tensor });
        };
        for (index, tensor) in self.tensors.iter().enumerate() {
            match find(other, &tensor.name) {
                Some(at) if other.tensors[at].range.len() > tensor.range.len() => copy(other, at),
                _ => copy(self, index),
            }
        }
        for (index, tensor) in other.tensors.iter().enumerate() {
            if find(self, &tensor.name).is_none() {
                copy(other, index);
            }
        }
        joined
    }

    /// Names what was added to the bytes from `before` on: `num_tokens` of a tensor like `tensor`.
    fn push_tensor(&mut self, tensor: &StateTensor, num_tokens: usize, before: usize) {
        let range = before..self.bytes.len();
        if !range.is_empty() {
            let mut shape = tensor.shape.clone();
            shape[2] = num_tokens;
            self.tensors.push(StateTensor { shape, range, ..tensor.clone() });
        }
    }

    /// The state of the tokens `at..stop`, where this is that of `start..stop`.
    ///
    /// Panics unless `start <= at <= stop`.
    pub fn tail(&self, start: usize, stop: usize, at: usize) -> ChunkState {
        assert!(start <= at && at <= stop, "{at} is in {start} to {stop}");
        let held_from = self.held_from.max(at);
        let (tensors, bytes) = (Vec::new(), Vec::new());
        let mut tail = ChunkState { tensors, bytes, held_from, has_state: self.has_state };
        for tensor in &self.tensors {
            let all = &self.bytes[tensor.range.clone()];
            let (before, mut shape) = (tail.bytes.len(), tensor.shape.clone());
            match tensor.shape.as_slice() {
                // The last column is the token before `stop`.
                &[1, heads, held, _] if !tensor.is_state() => {
                    let kept = held.min(stop - at);
                    let head_bytes = all.len() / heads.max(1);
                    let kept_bytes = head_bytes / held.max(1) * kept;
                    for head in all.chunks(head_bytes.max(1)) {
                        tail.bytes.extend_from_slice(&head[head.len() - kept_bytes..]);
                    }
                    shape[2] = kept;
                }
                _ => tail.bytes.extend_from_slice(all),
            }
            let range = before..tail.bytes.len();
            if !range.is_empty() {
                tail.tensors.push(StateTensor { shape, range, ..tensor.clone() });
            }
        }
        tail
    }

    /// Adds the whole `array`.
    fn push_array(&mut self, name: String, array: &Array) -> Result<(), LmError> {
        let shape = array.shape().iter().map(|&length| length as usize).collect();
        let start = self.bytes.len();
        self.bytes.extend_from_slice(ffi::array_bytes(array)?);
        let range = start..self.bytes.len();
        self.tensors.push(StateTensor { name, dtype: array.dtype(), shape, range });
        Ok(())
    }

    /// Adds the columns `start..stop` of `array` `[1, H, T, …]`.
    fn push_tokens(
        &mut self,
        name: String,
        array: &Array,
        start: usize,
        stop: usize,
    ) -> Result<(), LmError> {
        let [1, heads, held, width] = *array.shape() else {
            return Err(LmError::ChunkState {
                what: format!("{name} is {:?}, and not one row of keys or values", array.shape()),
            });
        };
        let (heads, held, width) = (heads as usize, held as usize, width as usize);
        if stop > held {
            return Err(LmError::ChunkState {
                what: format!("{name} holds {held} tokens, not {stop}"),
            });
        }
        let token_bytes = width * array.item_size();
        let all = ffi::array_bytes(array)?;
        let before = self.bytes.len();
        for head in 0..heads {
            let head = head * held;
            self.bytes
                .extend_from_slice(&all[(head + start) * token_bytes..(head + stop) * token_bytes]);
        }
        let (shape, range) = (vec![1, heads, stop - start, width], before..self.bytes.len());
        self.tensors.push(StateTensor { name, dtype: array.dtype(), shape, range });
        Ok(())
    }
}
