//! The caches of several requests as the rows of one set of caches, and back.
//!
//! Every function takes the caches of all layers. Rows that are padded on the right are announced with [`prepare`] and set right with
//! [`finalize`]; [`extract`] gives a row's own tokens either way.

use mlx_rs::error::Exception;

use super::{ArraysCache, BatchKvCache, BatchRotatingKvCache, KvCache, LayerCache, RotatingKvCache};
use crate::LmError;

/// What caches must have in common to become rows of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchKind {
    /// Keys and values of every token.
    Kv,
    /// Keys and values of the last `max_size` tokens.
    Rotating {
        /// The size of the ring.
        max_size: usize,
    },
    /// Recurrent state in `num_slots` arrays.
    Arrays {
        /// How many.
        num_slots: usize,
    },
}

/// What the caches of one request, one per layer, must have in common with others. An error names a kind that has no batched form.
pub fn batch_kinds(caches: &[LayerCache]) -> Result<Vec<BatchKind>, LmError> {
    caches.iter().map(batch_kind).collect()
}

fn batch_kind(cache: &LayerCache) -> Result<BatchKind, LmError> {
    match cache {
        LayerCache::Kv(_) | LayerCache::BatchKv(_) => Ok(BatchKind::Kv),
        LayerCache::Rotating(cache) if cache.keep() == 0 => Ok(BatchKind::Rotating { max_size: cache.max_size() }),
        LayerCache::Rotating(_) => Err(LmError::NotBatchable { kind: "rotating key/value cache that keeps its first tokens" }),
        LayerCache::BatchRotating(cache) => Ok(BatchKind::Rotating { max_size: cache.max_size() }),
        LayerCache::Arrays(cache) => Ok(BatchKind::Arrays { num_slots: cache.num_slots() }),
    }
}

/// The caches of several requests as rows of one set, in order; rows of different lengths end at the same place.
///
/// Fails where a kind has no batched form, or the rows are of different kinds.
pub fn merge(rows: Vec<Vec<LayerCache>>) -> Result<Vec<LayerCache>, LmError> {
    let mut layers: Vec<Vec<LayerCache>> = Vec::new();
    for row in rows {
        if layers.is_empty() {
            layers = row.into_iter().map(|cache| vec![cache]).collect();
            continue;
        }
        if row.len() != layers.len() {
            return Err(LmError::MixedCaches);
        }
        for (layer, cache) in layers.iter_mut().zip(row) {
            layer.push(cache);
        }
    }
    layers.into_iter().map(merge_layer).collect()
}

fn merge_layer(rows: Vec<LayerCache>) -> Result<LayerCache, LmError> {
    let kinds = batch_kinds(&rows)?;
    if kinds.iter().any(|kind| *kind != kinds[0]) {
        return Err(LmError::MixedCaches);
    }
    match kinds.first() {
        Some(BatchKind::Kv) => Ok(LayerCache::BatchKv(BatchKvCache::merge(&all(rows, LayerCache::into_kv)?)?)),
        Some(BatchKind::Rotating { .. }) => {
            Ok(LayerCache::BatchRotating(BatchRotatingKvCache::merge(&all(rows, LayerCache::into_rotating)?)?))
        }
        Some(BatchKind::Arrays { .. }) => Ok(LayerCache::Arrays(ArraysCache::merge(&all(rows, LayerCache::into_arrays)?)?)),
        None => Err(LmError::MixedCaches),
    }
}

fn all<T>(rows: Vec<LayerCache>, into: impl Fn(LayerCache) -> Option<T>) -> Result<Vec<T>, LmError> {
    rows.into_iter().map(into).collect::<Option<_>>().ok_or(LmError::MixedCaches)
}

impl LayerCache {
    fn into_kv(self) -> Option<KvCache> {
        if let LayerCache::Kv(cache) = self { Some(cache) } else { None }
    }

    fn into_rotating(self) -> Option<RotatingKvCache> {
        if let LayerCache::Rotating(cache) = self { Some(cache) } else { None }
    }

    fn into_arrays(self) -> Option<ArraysCache> {
        if let LayerCache::Arrays(cache) = self { Some(cache) } else { None }
    }

    fn not_a_batch(&self) -> Exception {
        Exception::custom("a cache of one request was given where a batch was to be changed".to_owned())
    }
}

/// Adds the rows of `other`, another batch of the same kinds, behind those of `caches`.
pub fn extend(caches: &mut [LayerCache], other: Vec<LayerCache>) -> Result<(), LmError> {
    if caches.len() != other.len() {
        return Err(LmError::MixedCaches);
    }
    for (cache, other) in caches.iter_mut().zip(other) {
        match (cache, other) {
            (LayerCache::BatchKv(cache), LayerCache::BatchKv(other)) => cache.extend(other)?,
            (LayerCache::BatchRotating(cache), LayerCache::BatchRotating(other)) if cache.max_size() == other.max_size() => {
                cache.extend(other)?;
            }
            (LayerCache::Arrays(cache), LayerCache::Arrays(other)) if cache.num_slots() == other.num_slots() => cache.extend(other)?,
            _ => return Err(LmError::MixedCaches),
        }
    }
    Ok(())
}

/// Keeps only the rows `kept`, in that order.
pub fn filter(caches: &mut [LayerCache], kept: &[usize]) -> Result<(), LmError> {
    for cache in caches {
        match cache {
            LayerCache::BatchKv(cache) => cache.filter(kept)?,
            LayerCache::BatchRotating(cache) => cache.filter(kept)?,
            LayerCache::Arrays(cache) => cache.filter(kept)?,
            LayerCache::Kv(_) | LayerCache::Rotating(_) => return Err(cache.not_a_batch().into()),
        }
    }
    Ok(())
}

/// The caches of one row, as they would be had it run alone.
pub fn extract(caches: &[LayerCache], row: usize) -> Result<Vec<LayerCache>, LmError> {
    let extract_layer = |cache: &LayerCache| match cache {
        LayerCache::BatchKv(cache) => Ok(LayerCache::Kv(cache.extract(row)?)),
        LayerCache::BatchRotating(cache) => Ok(LayerCache::Rotating(cache.extract(row)?)),
        LayerCache::Arrays(cache) => Ok(LayerCache::Arrays(cache.extract(row)?)),
        LayerCache::Kv(_) | LayerCache::Rotating(_) => Err(cache.not_a_batch().into()),
    };
    caches.iter().map(extract_layer).collect()
}

/// Says how many tokens of the coming forward passes belong to each row, at least one; the rest of its columns is right padding.
pub fn prepare(caches: &mut [LayerCache], lengths: &[i32]) -> Result<(), LmError> {
    for cache in caches {
        match cache {
            LayerCache::BatchKv(cache) => cache.prepare(lengths),
            LayerCache::BatchRotating(cache) => cache.prepare(lengths),
            LayerCache::Arrays(cache) => cache.prepare(lengths),
            LayerCache::Kv(_) | LayerCache::Rotating(_) => return Err(cache.not_a_batch().into()),
        }
    }
    Ok(())
}

/// Ends what [`prepare`] began: right padding becomes left padding.
pub fn finalize(caches: &mut [LayerCache]) -> Result<(), LmError> {
    for cache in caches {
        match cache {
            LayerCache::BatchKv(cache) => cache.finalize()?,
            LayerCache::BatchRotating(cache) => cache.finalize()?,
            LayerCache::Arrays(cache) => cache.finalize(),
            LayerCache::Kv(_) | LayerCache::Rotating(_) => return Err(cache.not_a_batch().into()),
        }
    }
    Ok(())
}
