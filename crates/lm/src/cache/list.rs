//! Several caches of one layer, for layers that attend more than once or mix attention with a
//! recurrent state.

use mlx_rs::Array;
use mlx_rs::error::Result;

use super::{AttentionStep, LayerCache};

/// The caches of one layer, in the order that its architecture gives them. As mlx-lm's CacheList.
#[derive(Debug, Clone)]
pub struct CacheList {
    entries: Vec<LayerCache>,
}

impl CacheList {
    /// These caches as one.
    ///
    /// Panics if there are none.
    pub fn new(entries: Vec<LayerCache>) -> Self {
        assert!(!entries.is_empty(), "a list of caches has at least one");
        CacheList { entries }
    }

    /// The caches.
    pub fn entries(&self) -> &[LayerCache] {
        &self.entries
    }

    /// The caches, for the layer to update.
    pub fn entries_mut(&mut self) -> &mut [LayerCache] {
        &mut self.entries
    }

    /// Tokens read by the one that read most.
    pub fn offset(&self) -> usize {
        self.entries.iter().map(LayerCache::offset).max().unwrap_or(0)
    }

    /// As the first cache's.
    pub fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        self.entries[0].attention_step(length, window)
    }

    /// Whether nothing was ever written.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(LayerCache::is_empty)
    }

    /// Whether tokens can be forgotten from the end of all of them.
    pub fn is_trimmable(&self) -> bool {
        self.entries.iter().all(LayerCache::is_trimmable)
    }

    /// Forgets the last `num_tokens` in all of them; returns how many the one that held fewest
    /// forgot, 0 if one of them cannot.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        if !self.is_trimmable() {
            return 0;
        }
        self.entries.iter_mut().map(|cache| cache.trim(num_tokens)).min().unwrap_or(0)
    }

    /// The arrays behind it.
    pub fn arrays(&self) -> Vec<&Array> {
        self.entries.iter().flat_map(LayerCache::arrays).collect()
    }
}
