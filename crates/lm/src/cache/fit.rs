//! Checks whether the caches in a file have the kinds and shapes that a model's own caches have.
//!
//! The check needs only the file's header and runs before any array is read: a shape also decides
//! how much memory is allocated, and MLX's own error would not name the file's mistake.

use std::fmt::{self, Display};

use cairn_formats::safetensors::TensorEntry;
use mlx_rs::{Array, Dtype};

use super::prompt_file::{CacheClass, KvBuffer, LayerState};
use super::quantized::check_head_dim;
use super::{KvQuantization, LayerCache};
use crate::LmError;
use crate::models::Model;
use crate::weights::mlx_dtype;

/// Fails unless `model` can continue from the caches of a file: one per layer, each of a kind that
/// the model's layer accepts, with its heads and sizes, and all of the same number of tokens.
/// With `has_its_types` they must also have the model's own floating-point types.
pub(super) fn check_fit(
    model: &Model,
    layers: &[LayerState],
    has_its_types: bool,
) -> Result<(), LmError> {
    let own = own_caches(model)?;
    if layers.len() != own.len() {
        return Err(LmError::CacheLayers { found: layers.len(), expected: own.len() });
    }
    for (layer, (own, given)) in own.iter().zip(layers).enumerate() {
        let (own, given) = (LayerShape::of_cache(own), LayerShape::of_state(given));
        if !own.accepts(&given) {
            return Err(LmError::CacheFit {
                layer,
                found: given.to_string(),
                expected: own.to_string(),
            });
        }
        if let Some((found, expected)) = own.first_dtype_mismatch(&given).filter(|_| has_its_types)
        {
            return Err(LmError::CachePrecision {
                layer,
                found: name(found),
                expected: name(expected),
            });
        }
    }
    let num_tokens = layers.iter().map(LayerState::offset).max().unwrap_or(0);
    let differs = |(_, layer): &(usize, &LayerState)| !has_read(layer, num_tokens);
    match layers.iter().enumerate().find(differs) {
        Some((index, layer)) => {
            Err(LmError::CacheOffsets { layer: index, found: layer.offset(), expected: num_tokens })
        }
        None => Ok(()),
    }
}

fn has_read(layer: &LayerState, num_tokens: usize) -> bool {
    match layer {
        // A recurrent state does not record its number of tokens.
        LayerState::Arrays(_) => true,
        LayerState::List(entries) => entries.iter().all(|entry| has_read(entry, num_tokens)),
        _ => layer.offset() == num_tokens,
    }
}

impl KvQuantization {
    /// Fails if the group size does not divide `model`'s head size; otherwise that error would
    /// appear only when the first keys are quantized.
    pub(crate) fn check_head_dims(&self, model: &Model) -> Result<(), LmError> {
        for cache in own_caches(model)?.iter().filter(|cache| matches!(cache, LayerCache::Kv(_))) {
            cache
                .arrays()
                .into_iter()
                .try_for_each(|array| check_head_dim(self.group_size, array))?;
        }
        Ok(())
    }
}

/// The model's caches after one token. The arrays have shapes and types, but are not evaluated.
pub(super) fn own_caches(model: &Model) -> Result<Vec<LayerCache>, LmError> {
    let mut caches = model.make_cache();
    model.forward(&Array::from_slice(&[0u32], &[1, 1]), &mut caches)?;
    Ok(caches)
}

/// The properties of a layer's cache that do not depend on its tokens.
#[derive(Debug)]
struct LayerShape {
    class: Option<CacheClass>, // none for batched caches, which are never saved
    kind: &'static str,
    /// `max_size` and `keep` of a rotating cache.
    ring: Option<(usize, usize)>,
    /// For keys, then values: rows, heads and head size. For a recurrent state: the shapes of its
    /// arrays. Empty for an empty cache.
    shapes: Vec<Vec<usize>>,
    types: Vec<Dtype>,
    entries: Vec<LayerShape>,
}

impl LayerShape {
    fn of_cache(cache: &LayerCache) -> LayerShape {
        let arrays = cache.arrays();
        let axes = |array: &Array| -> Vec<usize> {
            array.shape().iter().map(|&length| length as usize).collect()
        };
        let mut shape = LayerShape {
            class: None,
            kind: cache.kind(),
            ring: None,
            shapes: Vec::new(),
            types: Vec::new(),
            entries: Vec::new(),
        };
        match cache {
            LayerCache::Kv(_) | LayerCache::Rotating(_) | LayerCache::Chunked(_) => {
                // The first two arrays are keys and values; a plain cache may have a tail buffer
                // after them.
                for array in arrays.into_iter().take(2) {
                    shape.add_tokens(&axes(array), 1, array.dtype());
                }
            }
            LayerCache::Arrays(_) => {
                (shape.shapes, shape.types) =
                    arrays.into_iter().map(|array| (axes(array), array.dtype())).unzip();
            }
            LayerCache::List(list) => {
                shape.entries = list.entries().iter().map(LayerShape::of_cache).collect()
            }
            // No model creates these as its own caches.
            LayerCache::Quantized(_) | LayerCache::BatchKv(_) | LayerCache::BatchRotating(_) => {
                return shape;
            }
        }
        shape.class = Some(match cache {
            LayerCache::Rotating(ring) => {
                shape.ring = Some((ring.max_size(), ring.keep()));
                CacheClass::Rotating
            }
            LayerCache::Chunked(_) => CacheClass::Chunked,
            LayerCache::Arrays(_) => CacheClass::Arrays,
            LayerCache::List(_) => CacheClass::List,
            _ => CacheClass::Kv,
        });
        shape
    }

    fn of_state(state: &LayerState) -> LayerShape {
        let empty = |class: CacheClass| LayerShape {
            class: Some(class),
            kind: class.kind(),
            ring: None,
            shapes: Vec::new(),
            types: Vec::new(),
            entries: Vec::new(),
        };
        let tokens = |mut shape: LayerShape, buffers: &Option<[KvBuffer; 2]>| {
            for KvBuffer { tensor, .. } in buffers.iter().flatten() {
                shape.add_tokens(&tensor.shape, 1, mlx_dtype(tensor.dtype));
            }
            shape
        };
        match state {
            LayerState::Kv { buffers, .. } => tokens(empty(CacheClass::Kv), buffers),
            LayerState::Chunked { buffers, .. } => tokens(empty(CacheClass::Chunked), buffers),
            LayerState::Rotating { buffers, max_size, keep, .. } => tokens(
                LayerShape { ring: Some((*max_size, *keep)), ..empty(CacheClass::Rotating) },
                buffers,
            ),
            LayerState::Quantized { buffers, group_size, .. } => {
                let mut shape = empty(CacheClass::Quantized);
                for [_, scales, _] in buffers.iter().flat_map(|buffers| buffers.iter()) {
                    // One scale covers `group_size` numbers.
                    shape.add_tokens(
                        &scales.tensor.shape,
                        *group_size as usize,
                        mlx_dtype(scales.tensor.dtype),
                    );
                }
                shape
            }
            LayerState::Arrays(slots) => {
                let slots = slots
                    .iter()
                    .flatten()
                    .map(|TensorEntry { shape, dtype, .. }| (shape.clone(), mlx_dtype(*dtype)));
                let (shapes, types) = slots.unzip();
                LayerShape { shapes, types, ..empty(CacheClass::Arrays) }
            }
            LayerState::List(entries) => LayerShape {
                entries: entries.iter().map(LayerShape::of_state).collect(),
                ..empty(CacheClass::List)
            },
        }
    }

    /// Adds keys or values of these axes; each entry of the last axis stands for `group_size`
    /// numbers.
    fn add_tokens(&mut self, axes: &[usize], group_size: usize, dtype: Dtype) {
        if let &[rows, heads, _, width] = axes {
            self.shapes.push(vec![rows, heads, width * group_size]);
            self.types.push(dtype);
        }
    }

    /// Whether a model whose own cache has this shape can continue from a `given` one. Of an empty
    /// cache only the kind must fit.
    fn accepts(&self, given: &LayerShape) -> bool {
        let is_kind = match (self.class, given.class) {
            (Some(CacheClass::Rotating), Some(CacheClass::Rotating)) => self.ring == given.ring,
            (
                Some(CacheClass::Kv),
                Some(CacheClass::Kv | CacheClass::Rotating | CacheClass::Quantized),
            ) => true,
            (Some(own), Some(given)) => own == given,
            _ => false,
        };
        let are_floats = given.types.iter().all(|dtype| dtype.is_float());
        let fit = |(own, given): (&LayerShape, &LayerShape)| own.accepts(given);
        is_kind
            && are_floats
            && (given.shapes.is_empty() || self.shapes == given.shapes)
            && self.entries.len() == given.entries.len()
            && self.entries.iter().zip(&given.entries).all(fit)
    }

    /// The first dtype that differs: the given one and this one's.
    fn first_dtype_mismatch(&self, given: &LayerShape) -> Option<(Dtype, Dtype)> {
        let own = self
            .types
            .iter()
            .zip(&given.types)
            .find(|(own, given)| own != given)
            .map(|(own, given)| (*given, *own));
        own.or_else(|| {
            self.entries
                .iter()
                .zip(&given.entries)
                .find_map(|(own, given)| own.first_dtype_mismatch(given))
        })
    }
}

fn name(dtype: Dtype) -> String {
    format!("{dtype:?}").to_lowercase()
}

impl Display for LayerShape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a {}", self.kind)?;
        match self.ring {
            Some((max_size, 0)) => write!(out, " of {max_size} tokens")?,
            Some((max_size, keep)) => {
                write!(out, " of {max_size} tokens that keeps the first {keep}")?
            }
            None if !self.entries.is_empty() => write!(out, " of {}", self.entries.len())?,
            None => {}
        }
        match (self.class, self.shapes.as_slice()) {
            (Some(CacheClass::Arrays), shapes) if !shapes.is_empty() => {
                write!(out, " of {shapes:?}")
            }
            (_, [keys, values]) => match (keys.as_slice(), values.as_slice()) {
                ([_, heads, size], [_, _, other]) if size == other => {
                    write!(out, " with {heads} heads of {size} numbers")
                }
                ([_, heads, size], [_, _, other]) => {
                    write!(out, " with {heads} heads of {size} and {other} numbers")
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
