//! Comparison of two caches, number by number, with tolerances that follow from their precision:
//! how an imported cache is verified against a recomputed one.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};

use super::buffer::token_range;
use super::kind::HeldTokens;
use super::{ArraysCache, CacheKind, KeysValues, LayerCache, QuantizedArray};
use crate::LmError;

/// The first place where two caches differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// The layer, counted from 0.
    pub layer: usize,
    /// The token, counted from 0; `None` for a recurrent state, which depends on all tokens.
    pub token: Option<usize>,
}

/// Compares the range `tokens` of two caches. It must end at the last token that `computed` has
/// read; recurrent states must have read as many. Tokens that only one of the caches still holds
/// are not compared.
///
/// The tolerance covers two honest computations of the same numbers: kernels for one token and for
/// many add in different orders, and rounding errors pass through all layers. Quantized numbers are
/// dequantized first and may differ by steps of their scale. After the first layer a small share of
/// the tokens may differ more, because rounding can change which experts are chosen; the share is
/// smaller for more precise types. No token may differ by about its own magnitude, as the numbers
/// of a different token do (for few bits: by several times their magnitude).
pub fn first_difference(
    found: &[LayerCache],
    computed: &[LayerCache],
    tokens: Range<usize>,
) -> Result<Option<Difference>, LmError> {
    for (layer, (found, computed)) in found.iter().zip(computed).enumerate() {
        if let Some(token) = differs(found, computed, &tokens, layer == 0)? {
            return Ok(Some(Difference { layer, token }));
        }
    }
    Ok(None)
}

/// The first token at which the caches of one layer differ: outer `None` if they do not, inner
/// `None` for a recurrent state.
fn differs(
    found: &LayerCache,
    computed: &LayerCache,
    tokens: &Range<usize>,
    is_first: bool,
) -> Result<Option<Option<usize>>, LmError> {
    let (found, computed) = (found.as_kind(), computed.as_kind());
    if let (Some(found), Some(computed)) = (found.state(), computed.state()) {
        return Ok(if is_same_state(found, computed)? { None } else { Some(None) });
    }
    if let (Some(found), Some(computed)) = (found.entries(), computed.entries()) {
        for (found, computed) in found.iter().zip(computed) {
            if let Some(token) = differs(found, computed, tokens, is_first)? {
                return Ok(Some(token));
            }
        }
        return Ok(None);
    }
    let (found, computed) = (held_tokens(found)?, held_tokens(computed)?);
    let start = tokens.start.max(first_comparable(&found)).max(first_comparable(&computed));
    let stop = tokens.end;
    if start >= stop {
        return Ok(None);
    }
    let (found, computed) =
        (Part::of(found, start, stop, is_first)?, Part::of(computed, start, stop, is_first)?);
    let tolerance = if found.tolerance.distance > computed.tolerance.distance {
        found.tolerance
    } else {
        computed.tolerance
    };
    let num_exempt = if is_first { 0 } else { ((stop - start) as f32 * tolerance.exempt) as usize };
    for (found, computed) in found.arrays.iter().zip(&computed.arrays) {
        let Distant { far, beyond } = Distant::of(found, computed, tolerance)?;
        let first = if far.len() > num_exempt { far.first() } else { beyond.first() };
        if let Some(token) = first {
            return Ok(Some(Some(start + token)));
        }
    }
    Ok(None)
}

fn is_same_state(found: &ArraysCache, computed: &ArraysCache) -> Result<bool, LmError> {
    for slot in 0..found.num_slots().max(computed.num_slots()) {
        let are_close = match (found.get(slot), computed.get(slot)) {
            (Some(found), Some(computed)) => is_close(found, computed)?,
            (None, None) => true,
            _ => false,
        };
        if !are_close {
            return Ok(false);
        }
    }
    Ok(true)
}

fn held_tokens(cache: &dyn CacheKind) -> Result<HeldTokens, LmError> {
    let refused = || LmError::ChunkState { what: format!("a {} cannot be compared", cache.name()) };
    cache.held_tokens()?.ok_or_else(refused)
}

/// The first token whose keys and values a cache still holds. The first tokens that a rotating
/// cache keeps are not compared.
fn first_comparable(held: &HeldTokens) -> usize {
    held.first + held.num_kept
}

/// Keys and values `[1, H, T, D]` of a range of tokens, dequantized.
struct Part {
    arrays: [Array; 2],
    tolerance: Tolerance,
}

impl Part {
    /// The tokens `start..stop`, all of which the cache must hold.
    fn of(held: HeldTokens, start: usize, stop: usize, is_first: bool) -> Result<Part, LmError> {
        let first = held.first;
        let cut = |array: &Array| match stop - first <= array.dim(2) as usize {
            true => Ok(token_range(array, (start - first) as i32, (stop - first) as i32)?),
            false => {
                Err(LmError::ChunkState { what: format!("a cache holds fewer than {stop} tokens") })
            }
        };
        match held.tokens {
            KeysValues::Dense { keys, values } => Ok(Part {
                tolerance: Tolerance::of(keys.dtype()),
                arrays: [cut(&keys)?, cut(&values)?],
            }),
            KeysValues::Quantized { keys, values, group_size, bits } => {
                let dense = |array: &QuantizedArray| {
                    let (packed, scales, biases) =
                        (cut(&array.packed)?, cut(&array.scales)?, cut(&array.biases)?);
                    Ok::<Array, LmError>(ops::dequantize(
                        &packed, &scales, &biases, group_size, bits,
                    )?)
                };
                // A scale spans up to twice the largest number; one step is that span over the
                // number of levels. Rounding accounts for half a step. The rest covers the rounding
                // of earlier layers, and that the tokens before may have been quantized before or
                // after these were computed.
                let step = 2.0 / ((1_u32 << bits) - 1) as f32;
                let distance = Tolerance::of(keys.scales.dtype()).distance
                    + if is_first { 1.5 } else { 3.0 } * step;
                let tolerance =
                    Tolerance { distance, exempt: 0.5, limit: EXEMPT_DISTANCE + 10.0 * step };
                Ok(Part { tolerance, arrays: [dense(&keys)?, dense(&values)?] })
            }
            KeysValues::AfterPrefix { .. } => {
                let what = "caches of rows with a shared prefix cannot be compared".to_owned();
                Err(LmError::ChunkState { what })
            }
        }
    }
}

/// How far two numbers may differ.
#[derive(Debug, Clone, Copy)]
struct Tolerance {
    /// The largest allowed distance, relative to the largest number of the token.
    distance: f32,
    /// The share of tokens that may exceed `distance`.
    exempt: f32,
    /// The largest allowed distance of those, relative to the largest number of the token or to the
    /// mean over all tokens, whichever is greater.
    limit: f32,
}

/// Measured: in tiny models that choose two of four experts, a different choice moved a token by at
/// most a third of its magnitude; the numbers of a different token are off by 1.1 to 1.6 of it.
/// With 4-bit keys and values, a model of thirty layers moved one token by 1.4.
const EXEMPT_DISTANCE: f32 = 0.75;

impl Tolerance {
    fn of(dtype: Dtype) -> Tolerance {
        let (distance, exempt) = match dtype {
            Dtype::Float32 => (0.005, 0.005),
            Dtype::Float16 => (0.03, 0.05),
            _ => (0.08, 0.05),
        };
        Tolerance { distance, exempt, limit: EXEMPT_DISTANCE }
    }
}

/// The tokens of `[1, H, T, D]` that differ.
struct Distant {
    /// Tokens beyond [`Tolerance::distance`].
    far: Vec<usize>,
    /// Tokens beyond [`Tolerance::limit`].
    beyond: Vec<usize>,
}

impl Distant {
    fn of(found: &Array, computed: &Array, tolerance: Tolerance) -> Result<Distant, LmError> {
        if found.shape() != computed.shape() {
            let all: Vec<usize> = (0..found.dim(2) as usize).collect();
            return Ok(Distant { far: all.clone(), beyond: all });
        }
        let (found, computed) =
            (found.as_dtype(Dtype::Float32)?, computed.as_dtype(Dtype::Float32)?);
        let largest =
            |array: Array| Ok::<Array, LmError>(array.abs()?.max_axes(&[0, 1, 3], false)?); // [T]
        let (distances, sizes) = (largest(found.subtract(&computed)?)?, largest(computed)?);
        let (distances, sizes) = (distances.contiguous()?, sizes.contiguous()?);
        let (distances, sizes) = (distances.try_as_slice::<f32>()?, sizes.try_as_slice::<f32>()?);
        // Some tokens, such as the first, have values near zero everywhere; relative to those,
        // rounding errors would look large.
        let usual = sizes.iter().sum::<f32>() / sizes.len().max(1) as f32;
        let at = |is_close: &dyn Fn(f32, f32) -> bool| {
            let pairs = distances.iter().zip(sizes).enumerate();
            // The condition is written so that NaN counts as a difference.
            pairs
                .filter(|(_, (distance, size))| !is_close(**distance, **size))
                .map(|(token, _)| token)
                .collect()
        };
        Ok(Distant {
            far: at(&|distance, size| {
                distance <= tolerance.distance * size.max(usual / 2.0).max(f32::MIN_POSITIVE)
            }),
            beyond: at(&|distance, size| {
                distance <= tolerance.limit * size.max(usual).max(f32::MIN_POSITIVE)
            }),
        })
    }
}

fn is_close(found: &Array, computed: &Array) -> Result<bool, LmError> {
    if found.shape() != computed.shape() {
        return Ok(false);
    }
    let tolerance =
        Tolerance::of(found.dtype()).distance.max(Tolerance::of(computed.dtype()).distance);
    let (found, computed) = (found.as_dtype(Dtype::Float32)?, computed.as_dtype(Dtype::Float32)?);
    let largest = |array: Array| {
        Ok::<f32, LmError>(
            array.abs()?.max(None)?.try_as_slice::<f32>()?.first().copied().unwrap_or(0.0),
        )
    };
    let (distance, size) = (largest(found.subtract(&computed)?)?, largest(computed)?);
    Ok(distance <= tolerance * size.max(f32::MIN_POSITIVE))
}
