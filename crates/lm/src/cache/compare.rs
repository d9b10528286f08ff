//! Whether caches hold what a model computes: number by number, with the tolerance that their precision asks for.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};

use super::buffer::span;
use super::{LayerCache, QuantizedArray};
use crate::LmError;

/// Where caches differ first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// The layer, counted from 0.
    pub layer: usize,
    /// The token, counted from 0; none where it is a recurrent state, which stands for all of them.
    pub token: Option<usize>,
}

/// Compares what `found` and `computed` hold of `tokens`, the last of which is the last that `computed` has read; recurrent states must
/// have read as many. What only one of them still holds is not compared.
///
/// Numbers may be as far apart as two computations of them are: kernels for one token and for many add in other orders, and rounding
/// goes through all layers. Quantized numbers are compared as what they stand for, within a step of their scale. Behind the first layer a
/// few tokens may be further off, the fewer the finer the numbers are: where experts are chosen, rounding can tip the scales.
pub fn first_difference(found: &[LayerCache], computed: &[LayerCache], tokens: Range<usize>) -> Result<Option<Difference>, LmError> {
    for (layer, (found, computed)) in found.iter().zip(computed).enumerate() {
        if let Some(token) = differs(found, computed, &tokens, layer == 0)? {
            return Ok(Some(Difference { layer, token }));
        }
    }
    Ok(None)
}

/// The token at which they differ, if they do.
fn differs(found: &LayerCache, computed: &LayerCache, tokens: &Range<usize>, is_first: bool) -> Result<Option<Option<usize>>, LmError> {
    match (found, computed) {
        (LayerCache::Arrays(found), LayerCache::Arrays(computed)) => {
            for slot in 0..found.num_slots().max(computed.num_slots()) {
                let are_close = match (found.get(slot), computed.get(slot)) {
                    (Some(found), Some(computed)) => is_close(found, computed)?,
                    (None, None) => true,
                    _ => false,
                };
                if !are_close {
                    return Ok(Some(None));
                }
            }
            Ok(None)
        }
        (LayerCache::List(found), LayerCache::List(computed)) => {
            for (found, computed) in found.entries().iter().zip(computed.entries()) {
                if let Some(token) = differs(found, computed, tokens, is_first)? {
                    return Ok(Some(token));
                }
            }
            Ok(None)
        }
        (found, computed) => {
            let (start, stop) = (tokens.start.max(first_held(found)?).max(first_held(computed)?), tokens.end);
            if start >= stop {
                return Ok(None);
            }
            let (found, computed) = (Part::of(found, start, stop)?, Part::of(computed, start, stop)?);
            let tolerance = if found.tolerance.distance > computed.tolerance.distance { found.tolerance } else { computed.tolerance };
            let num_exempt = if is_first { 0 } else { ((stop - start) as f32 * tolerance.exempt) as usize };
            for (found, computed) in found.arrays.iter().zip(&computed.arrays) {
                let distant = distant_tokens(found, computed, tolerance.distance)?;
                if distant.len() > num_exempt {
                    return Ok(Some(Some(start + distant[0])));
                }
            }
            Ok(None)
        }
    }
}

/// The first token of which a cache still has keys and values.
fn first_held(cache: &LayerCache) -> Result<usize, LmError> {
    Ok(match cache {
        LayerCache::Rotating(ring) => {
            let held = ring.temporal()?.map_or(0, |(keys, _)| keys.dim(2) as usize);
            // What is kept of the beginning is not compared.
            let kept = if ring.offset() > held { ring.keep() } else { 0 };
            ring.offset() - held.min(ring.offset()) + kept
        }
        _ => 0,
    })
}

/// Keys and values `[1, H, T, D]` of some tokens.
struct Part {
    arrays: [Array; 2],
    tolerance: Tolerance,
}

impl Part {
    /// Of the tokens `start..stop`, all of which are held.
    fn of(cache: &LayerCache, start: usize, stop: usize) -> Result<Part, LmError> {
        let refused = || LmError::CacheSpan { what: format!("a {} cannot be compared", cache.kind()) };
        let cut = |array: &Array, first: usize| match stop - first <= array.dim(2) as usize {
            true => Ok(span(array, (start - first) as i32, (stop - first) as i32)?),
            false => Err(LmError::CacheSpan { what: format!("a {} holds fewer than {stop} tokens", cache.kind()) }),
        };
        match cache {
            LayerCache::Kv(kv) => {
                let (keys, values) = kv.settled()?.ok_or_else(refused)?;
                Ok(Part { tolerance: Tolerance::of(keys.dtype()), arrays: [cut(&keys, 0)?, cut(&values, 0)?] })
            }
            LayerCache::Rotating(ring) => {
                let (keys, values) = ring.temporal()?.ok_or_else(refused)?;
                let first = ring.offset() - (keys.dim(2) as usize).min(ring.offset());
                Ok(Part { tolerance: Tolerance::of(keys.dtype()), arrays: [cut(&keys, first)?, cut(&values, first)?] })
            }
            LayerCache::Quantized(quantized) => {
                let (keys, values) = quantized.held()?.ok_or_else(refused)?;
                let (group_size, bits) = (quantized.group_size(), quantized.bits());
                let dense = |array: &QuantizedArray| {
                    let (packed, scales, biases) = (cut(&array.packed, 0)?, cut(&array.scales, 0)?, cut(&array.biases, 0)?);
                    Ok::<Array, LmError>(ops::dequantize(&packed, &scales, &biases, group_size, bits)?)
                };
                // From one end of a scale to the other is up to twice the largest number, and a step is that over their count. Rounding
                // is half of one, and what the layers before have rounded comes on top.
                let step = 2.0 / ((1_u32 << bits) - 1) as f32;
                let distance = Tolerance::of(keys.scales.dtype()).distance + 1.5 * step;
                let exempt = if bits >= 6 { 0.25 } else { 0.5 };
                let tolerance = Tolerance { distance, exempt };
                Ok(Part { tolerance, arrays: [dense(&keys)?, dense(&values)?] })
            }
            _ => Err(refused()),
        }
    }
}

/// What is no difference yet.
#[derive(Debug, Clone, Copy)]
struct Tolerance {
    /// How far two computations of a number may be apart, of the largest of its token.
    distance: f32,
    /// The share of tokens that may be further off.
    exempt: f32,
}

impl Tolerance {
    fn of(dtype: Dtype) -> Tolerance {
        match dtype {
            Dtype::Float32 => Tolerance { distance: 0.005, exempt: 0.005 },
            Dtype::Float16 => Tolerance { distance: 0.03, exempt: 0.05 },
            _ => Tolerance { distance: 0.08, exempt: 0.05 },
        }
    }
}

/// The tokens of `[1, H, T, D]` with a number too far from what was computed.
fn distant_tokens(found: &Array, computed: &Array, tolerance: f32) -> Result<Vec<usize>, LmError> {
    if found.shape() != computed.shape() {
        return Ok((0..found.dim(2) as usize).collect());
    }
    let (found, computed) = (found.as_dtype(Dtype::Float32)?, computed.as_dtype(Dtype::Float32)?);
    let largest = |array: Array| Ok::<Array, LmError>(array.abs()?.max_axes(&[0, 1, 3], false)?); // [T]
    let (distances, sizes) = (largest(found.subtract(&computed)?)?, largest(computed)?);
    let (distances, sizes) = (distances.contiguous()?, sizes.contiguous()?);
    let (distances, sizes) = (distances.try_as_slice::<f32>()?, sizes.try_as_slice::<f32>()?);
    // Some tokens, such as the first, have values near zero everywhere: what is left of rounding there is no difference.
    let usual = sizes.iter().sum::<f32>() / sizes.len().max(1) as f32;
    // What is no number is not close to anything.
    let is_close = |distance: &f32, size: &f32| *distance <= tolerance * size.max(usual / 2.0).max(f32::MIN_POSITIVE);
    let distant = distances.iter().zip(sizes).enumerate().filter(|(_, (distance, size))| !is_close(distance, size));
    Ok(distant.map(|(token, _)| token).collect())
}

fn is_close(found: &Array, computed: &Array) -> Result<bool, LmError> {
    if found.shape() != computed.shape() {
        return Ok(false);
    }
    let tolerance = Tolerance::of(found.dtype()).distance.max(Tolerance::of(computed.dtype()).distance);
    let (found, computed) = (found.as_dtype(Dtype::Float32)?, computed.as_dtype(Dtype::Float32)?);
    let largest = |array: Array| Ok::<f32, LmError>(array.abs()?.max(None)?.try_as_slice::<f32>()?.first().copied().unwrap_or(0.0));
    let (distance, size) = (largest(found.subtract(&computed)?)?, largest(computed)?);
    Ok(distance <= tolerance * size.max(f32::MIN_POSITIVE))
}
