//! Whether caches from elsewhere are of the shapes that a model's own have. Checked at the door, because MLX would say so in terms of its arrays.

use std::fmt::{self, Display};

use mlx_rs::Array;

use super::quantized::check_head_dim;
use super::{KvQuantization, LayerCache};
use crate::LmError;
use crate::models::Model;

/// Fails unless `model` can continue `caches`: as many layers, each of a kind that stands for the model's own, with its heads and sizes.
///
/// Caches that hold nothing yet fit by their kind.
pub fn check_fit(model: &Model, caches: &[LayerCache]) -> Result<(), LmError> {
    let own = own_caches(model)?;
    if caches.len() != own.len() {
        return Err(LmError::CacheLayers { found: caches.len(), expected: own.len() });
    }
    own.iter().zip(caches).enumerate().try_for_each(|(layer, (own, given))| check_layer(layer, own, given))
}

impl KvQuantization {
    /// Fails if the groups do not divide `model`'s heads, which shows else only when the first keys are quantized.
    pub(crate) fn check_head_dims(&self, model: &Model) -> Result<(), LmError> {
        for cache in own_caches(model)?.iter().filter(|cache| matches!(cache, LayerCache::Kv(_))) {
            cache.arrays().into_iter().try_for_each(|array| check_head_dim(self.group_size, array))?;
        }
        Ok(())
    }
}

/// The model's caches as they would be after a token: their shapes are known, nothing is computed.
fn own_caches(model: &Model) -> Result<Vec<LayerCache>, LmError> {
    let mut caches = model.make_cache();
    model.forward(&Array::from_slice(&[0u32], &[1, 1]), &mut caches)?;
    Ok(caches)
}

fn check_layer(layer: usize, own: &LayerCache, given: &LayerCache) -> Result<(), LmError> {
    let fits = match (own, given) {
        (LayerCache::List(own), LayerCache::List(given)) if own.entries().len() == given.entries().len() => {
            return own.entries().iter().zip(given.entries()).try_for_each(|(own, given)| check_layer(layer, own, given));
        }
        (LayerCache::Rotating(own), LayerCache::Rotating(given)) if own.max_size() != given.max_size() => false,
        (LayerCache::Kv(_), LayerCache::Kv(_) | LayerCache::Rotating(_) | LayerCache::Quantized(_))
        | (LayerCache::Rotating(_), LayerCache::Rotating(_))
        | (LayerCache::Chunked(_), LayerCache::Chunked(_)) => given.is_empty() || heads(own) == heads(given),
        (LayerCache::Arrays(own), LayerCache::Arrays(given)) => {
            let shapes = |arrays: Vec<&Array>| arrays.into_iter().map(|array| array.shape().to_vec()).collect::<Vec<_>>();
            given.arrays().is_empty() || shapes(own.arrays()) == shapes(given.arrays())
        }
        _ => false,
    };
    let tell = |cache: &LayerCache| Contents(cache).to_string();
    if fits { Ok(()) } else { Err(LmError::CacheFit { layer, found: tell(given), expected: tell(own) }) }
}

/// Rows, heads and numbers a head: of keys, then of values. Equal where they fit, whatever the number of tokens.
fn heads(cache: &LayerCache) -> Vec<[i32; 3]> {
    let arrays = cache.arrays();
    match cache {
        // Packed numbers, scales and biases of each: a scale stands for a group.
        LayerCache::Quantized(quantized) => {
            arrays.chunks(3).map(|of| [of[0].dim(0), of[0].dim(1), of[1].dim(-1) * quantized.group_size()]).collect()
        }
        // Behind keys and values a plain cache may have a few tokens more of each.
        _ => arrays.into_iter().take(2).map(|array| [array.dim(0), array.dim(1), array.dim(-1)]).collect(),
    }
}

struct Contents<'a>(&'a LayerCache);

impl Display for Contents<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a {}", self.0.kind())?;
        match self.0 {
            LayerCache::Rotating(cache) => write!(out, " of {} tokens", cache.max_size())?,
            LayerCache::List(list) => write!(out, " of {}", list.entries().len())?,
            _ => {}
        }
        match (self.0, heads(self.0).as_slice()) {
            (LayerCache::Kv(_) | LayerCache::Rotating(_) | LayerCache::Chunked(_) | LayerCache::Quantized(_), [[_, heads, size], ..]) => {
                write!(out, " with {heads} heads of {size} numbers")
            }
            _ => Ok(()),
        }
    }
}
