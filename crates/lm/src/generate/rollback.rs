//! Points that a model's caches can be rolled back to: by trimming if possible, otherwise from a
//! snapshot.

use mlx_rs::error::Result;

use crate::cache::{CacheSnapshot, LayerCache};

/// A position of a model's caches. Rolling back to it is exact for every kind of cache.
#[derive(Debug)]
pub(crate) struct RollbackPoint {
    layers: Vec<CacheSnapshot>,
    only_trims: bool,
}

impl RollbackPoint {
    /// The present position of `caches`, for a rollback after at most `num_ahead` more tokens.
    pub(crate) fn take(caches: &[LayerCache], num_ahead: usize) -> Self {
        RollbackPoint {
            layers: caches.iter().map(LayerCache::snap).collect(),
            only_trims: caches.iter().all(|cache| cache.trims_after(num_ahead)),
        }
    }

    /// Whether every layer rolls back by trimming, and therefore to any earlier position.
    pub(crate) fn only_trims(&self) -> bool {
        self.only_trims
    }

    /// Rolls `caches`, of which it was taken, back to this position.
    pub(crate) fn restore(&self, caches: &mut [LayerCache]) -> Result<()> {
        caches
            .iter_mut()
            .zip(&self.layers)
            .try_for_each(|(cache, layer)| cache.restore(layer.clone()))
    }
}
