//! Several caches of one layer: for layers that attend more than once, or combine attention with a
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
    /// A list of `entries`.
    ///
    /// Panics if it is empty.
    pub fn new(entries: Vec<LayerCache>) -> Self {
        assert!(!entries.is_empty(), "a list of caches has at least one");
        CacheList { entries }
    }

    /// The entries.
    pub fn entries(&self) -> &[LayerCache] {
        &self.entries
    }

    /// The entries, for the layer to update.
    pub fn entries_mut(&mut self) -> &mut [LayerCache] {
        &mut self.entries
    }

    /// The largest offset of all entries.
    pub fn offset(&self) -> usize {
        self.entries.iter().map(LayerCache::offset).max().unwrap_or(0)
    }

    /// The step of the first entry.
    pub fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        self.entries[0].attention_step(length, window)
    }

    /// Whether all entries are empty.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(LayerCache::is_empty)
    }

    /// Whether all entries can be trimmed.
    pub fn is_trimmable(&self) -> bool {
        self.entries.iter().all(LayerCache::is_trimmable)
    }

    /// Removes the last `num_tokens` of every entry and returns the smallest number removed; 0 (and
    /// no change) if an entry cannot be trimmed.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        if !self.is_trimmable() {
            return 0;
        }
        self.entries.iter_mut().map(|cache| cache.trim(num_tokens)).min().unwrap_or(0)
    }

    /// The arrays of all entries.
    pub fn arrays(&self) -> Vec<&Array> {
        self.entries.iter().flat_map(LayerCache::arrays).collect()
    }
}
