//! Checks whether the caches in a file are ones that a model can continue from.
//!
//! The check needs only the file's header and runs before any array is read: a shape also decides
//! how much memory is allocated, and MLX's own error would not name the file's mistake.

use mlx_rs::Dtype;

use super::prompt_file::LayerState;
use super::{CacheSpec, LayerCacheSpec};
use crate::LmError;

/// Fails unless a model whose caches are `own` can continue from the caches of a file: one per
/// layer, each of a kind that the model's layer admits, with its heads and sizes, and all of the
/// same number of tokens. With `has_its_types` they must also have the model's own floating-point
/// types.
pub(super) fn check_fit(
    own: &CacheSpec,
    layers: &[LayerState],
    has_its_types: bool,
) -> Result<(), LmError> {
    let (found, expected) = (layers.len(), own.layers().len());
    if found != expected {
        return Err(LmError::CacheLayers { found, expected });
    }
    for (layer, (own, state)) in own.layers().iter().zip(layers).enumerate() {
        let given = LayerCacheSpec::of_state(state);
        if !own.as_kind().admits(&given) {
            let (found, expected) = (given.to_string(), own.to_string());
            return Err(LmError::CacheFit { layer, found, expected });
        }
        if let Some(num_rows) = num_rows(state).filter(|&num_rows| num_rows != 1) {
            let (found, expected) = (format!("{given} of {num_rows} rows"), own.to_string());
            return Err(LmError::CacheFit { layer, found, expected });
        }
        if let Some((found, expected)) = first_other_type(own, &given).filter(|_| has_its_types) {
            let (found, expected) = (name(found), name(expected));
            return Err(LmError::CachePrecision { layer, found, expected });
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

/// The length of the first axis, which is that of all arrays in a file; `None` for a layer without
/// arrays.
fn num_rows(layer: &LayerState) -> Option<usize> {
    layer.tensors().first().and_then(|tensor| tensor.shape.first()).copied()
}

/// The first type that differs, where both are known: the given one and the model's.
fn first_other_type(own: &LayerCacheSpec, given: &LayerCacheSpec) -> Option<(Dtype, Dtype)> {
    let pairs = std::iter::zip(given.as_kind().types(), own.as_kind().types());
    pairs.filter_map(|(given, own)| given.zip(own)).find(|(given, own)| given != own)
}

fn name(dtype: Dtype) -> String {
    format!("{dtype:?}").to_lowercase()
}
