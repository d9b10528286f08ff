//! From caches to spans: copies of what layers hold of some tokens, free of MLX.

use std::ops::Range;

use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use super::{PLAIN, QUANTIZED, entry_path, state_name};
use crate::cache::LayerCache;
use crate::{LmError, ffi};

/// Which part of a span's bytes is a tensor, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTensor {
    /// See [`crate::cache::chunk_state`].
    pub name: String,
    /// Its type.
    pub dtype: Dtype,
    /// Its axes.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub range: Range<usize>,
}

/// What the layers hold of a span of tokens.
#[derive(Debug)]
pub struct ChunkState {
    /// In the order of the layers, each right behind the one before.
    pub tensors: Vec<StateTensor>,
    /// All their bytes.
    pub bytes: Vec<u8>,
    /// The first token whose keys and values every layer still held; the span's end where a ring
    /// holds none of it.
    pub held_from: usize,
    /// Whether the recurrent states behind the span's last token are there; false where there are
    /// none.
    pub has_state: bool,
}

/// What rings and recurrent states were at a place that the conversation went on from. The arrays
/// are handles: nothing is copied, but rings that go on are.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    num_tokens: usize,
    layers: Vec<Option<LayerCache>>,
}

impl Checkpoint {
    /// Of `caches` behind their last token; none where every layer keeps all tokens anyway.
    pub fn of(caches: Vec<LayerCache>) -> Option<Checkpoint> {
        let num_tokens = caches.iter().map(LayerCache::offset).max()?;
        // A second handle to a buffer that only grows would make its next step a copy.
        let layers: Vec<_> = caches
            .into_iter()
            .map(|cache| {
                (!matches!(cache, LayerCache::Kv(_) | LayerCache::Quantized(_))).then_some(cache)
            })
            .collect();
        layers.iter().any(Option::is_some).then_some(Checkpoint { num_tokens, layers })
    }

    /// Tokens read when it was taken.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }
}

/// The evaluated arrays of all layers, to be cut.
#[derive(Debug)]
pub struct EvaluatedLayers {
    num_tokens: usize,
    layers: Vec<EvaluatedLayer>,
}

#[derive(Debug)]
enum EvaluatedLayer {
    /// Keys and values `[1, H, capacity, …]`, row-major, of the tokens from `first` on.
    Tokens {
        arrays: Vec<(&'static str, Array)>,
        first: usize,
        is_window: bool,
    },
    State(Vec<Option<Array>>),
    List(Vec<EvaluatedLayer>),
    /// Not part of a checkpoint.
    Elsewhere,
}

impl EvaluatedLayers {
    /// Of `caches`, each of which has read the same number of tokens. Evaluates them.
    pub fn of(caches: &[LayerCache]) -> Result<EvaluatedLayers, LmError> {
        let layers = caches.iter().map(EvaluatedLayer::of).collect::<Result<_, _>>()?;
        EvaluatedLayers {
            num_tokens: caches.iter().map(LayerCache::offset).max().unwrap_or(0),
            layers,
        }
        .evaluated()
    }

    /// Of a checkpoint.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<EvaluatedLayers, LmError> {
        let layers = checkpoint
            .layers
            .iter()
            .map(|cache| cache.as_ref().map_or(Ok(EvaluatedLayer::Elsewhere), EvaluatedLayer::of));
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

    /// Copies the tokens `start..stop`. What these layers no longer hold is taken from `checkpoints`,
    /// which are of the same conversation, in the order in which they were taken.
    pub fn cut(
        &self,
        checkpoints: &[EvaluatedLayers],
        start: usize,
        stop: usize,
    ) -> Result<ChunkState, LmError> {
        let mut span = ChunkState {
            tensors: Vec::new(),
            bytes: Vec::new(),
            held_from: start,
            has_state: false,
        };
        let mut lacks_state = false;
        for (index, layer) in self.layers.iter().enumerate() {
            let path = index.to_string();
            // The first place at or behind the span's end knows most of it.
            let earlier = checkpoints.iter().find(|checkpoint| {
                checkpoint.num_tokens >= stop && checkpoint.num_tokens < self.num_tokens
            });
            let (source, num_tokens) = match earlier
                .map(|checkpoint| (&checkpoint.layers[index], checkpoint.num_tokens))
            {
                Some((EvaluatedLayer::Elsewhere, _)) | None => (layer, self.num_tokens),
                Some(earlier) => earlier,
            };
            source.cut(&path, num_tokens, start, stop, &mut span, &mut lacks_state)?;
        }
        span.has_state &= !lacks_state;
        Ok(span)
    }
}

impl EvaluatedLayer {
    fn of(cache: &LayerCache) -> Result<EvaluatedLayer, LmError> {
        let refused = || LmError::ChunkState {
            what: format!("a {} cannot be stored in parts", cache.kind()),
        };
        Ok(match cache {
            LayerCache::Kv(kv) => {
                let (keys, values) = kv.materialized()?.ok_or_else(refused)?;
                EvaluatedLayer::Tokens {
                    arrays: PLAIN.into_iter().zip([keys, values]).collect(),
                    first: 0,
                    is_window: false,
                }
            }
            LayerCache::Quantized(quantized) if !quantized.is_empty() => {
                let arrays =
                    QUANTIZED.into_iter().zip(quantized.arrays().into_iter().cloned()).collect();
                EvaluatedLayer::Tokens { arrays, first: 0, is_window: false }
            }
            LayerCache::Rotating(ring) => {
                let (keys, values) = ring.temporal()?.ok_or_else(refused)?;
                EvaluatedLayer::Tokens {
                    arrays: PLAIN.into_iter().zip([keys, values]).collect(),
                    first: ring.first_held(),
                    is_window: true,
                }
            }
            LayerCache::Arrays(state) => EvaluatedLayer::State(
                (0..state.num_slots()).map(|slot| state.get(slot).cloned()).collect(),
            ),
            LayerCache::List(list) => EvaluatedLayer::List(
                list.entries().iter().map(EvaluatedLayer::of).collect::<Result<_, _>>()?,
            ),
            LayerCache::Quantized(_)
            | LayerCache::Chunked(_)
            | LayerCache::BatchKv(_)
            | LayerCache::BatchRotating(_) => {
                return Err(refused());
            }
        })
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
            EvaluatedLayer::Elsewhere => {}
        }
    }

    /// `num_tokens` have been read.
    fn cut(
        &self,
        path: &str,
        num_tokens: usize,
        start: usize,
        stop: usize,
        span: &mut ChunkState,
        lacks_state: &mut bool,
    ) -> Result<(), LmError> {
        match self {
            EvaluatedLayer::Tokens { arrays, first, is_window } => {
                let from = start.max(*first).min(stop);
                if *is_window {
                    span.held_from = span.held_from.max(from);
                }
                if from == stop {
                    return Ok(());
                }
                for (name, array) in arrays {
                    span.push_tokens(format!("{name}.{path}"), array, from - first, stop - first)?;
                }
            }
            EvaluatedLayer::State(slots)
                if num_tokens == stop && slots.iter().all(Option::is_some) =>
            {
                span.has_state = true;
                for (slot, array) in slots.iter().enumerate() {
                    let Some(array) = array else { continue };
                    let shape = array.shape().iter().map(|&length| length as usize).collect();
                    let start = span.bytes.len();
                    span.bytes.extend_from_slice(ffi::array_bytes(array)?);
                    let range = start..span.bytes.len();
                    span.tensors.push(StateTensor {
                        name: state_name(slot, path),
                        dtype: array.dtype(),
                        shape,
                        range,
                    });
                }
            }
            EvaluatedLayer::State(_) => *lacks_state = true,
            EvaluatedLayer::List(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    entry.cut(
                        &entry_path(path, index),
                        num_tokens,
                        start,
                        stop,
                        span,
                        lacks_state,
                    )?;
                }
            }
            EvaluatedLayer::Elsewhere => {
                return Err(LmError::ChunkState {
                    what: "a snapshot does not hold its keys and values".to_owned(),
                });
            }
        }
        Ok(())
    }
}

impl ChunkState {
    /// Adds the tokens `start..stop` of `array` `[1, H, T, …]`.
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
