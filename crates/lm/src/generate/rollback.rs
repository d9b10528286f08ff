//! A point that a model's caches can go back to, by trimming where that is possible.

use mlx_rs::error::Result;

use crate::cache::{CacheSnapshot, LayerCache};

/// Where a model's caches stood. Going back is exact on every kind of cache.
#[derive(Debug)]
pub(crate) struct RollbackPoint {
    layers: Vec<CacheSnapshot>,
    only_trims: bool,
}

impl RollbackPoint {
    /// Where `caches` stand now, good for going back by up to `num_ahead` tokens.
    pub(crate) fn take(caches: &[LayerCache], num_ahead: usize) -> Self {
        RollbackPoint {
            layers: caches.iter().map(LayerCache::snap).collect(),
            only_trims: caches.iter().all(|cache| trims_after(cache, num_ahead)),
        }
    }

    /// Whether every layer goes back by trimming, and so to any point before the present.
    pub(crate) fn only_trims(&self) -> bool {
        self.only_trims
    }

    /// Puts `caches`, which it was taken of, back to where they stood.
    pub(crate) fn restore(&self, caches: &mut [LayerCache]) -> Result<()> {
        caches
            .iter_mut()
            .zip(&self.layers)
            .try_for_each(|(cache, layer)| cache.restore(layer.clone()))
    }
}

/// Whether tokens can still be trimmed from `cache` when it has read `num_ahead` more.
fn trims_after(cache: &LayerCache, num_ahead: usize) -> bool {
    match cache {
        LayerCache::Kv(_) | LayerCache::Quantized(_) | LayerCache::BatchKv(_) => true,
        LayerCache::Rotating(ring) => ring.offset().saturating_add(num_ahead) < ring.max_size(),
        LayerCache::List(list) => list.entries().iter().all(|cache| trims_after(cache, num_ahead)),
        LayerCache::Chunked(_) | LayerCache::Arrays(_) | LayerCache::BatchRotating(_) => false,
    }
}
