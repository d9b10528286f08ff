//! Going back to where a cache stood, exactly: what speculative decoding does when a draft is
//! refused.

use mlx_rs::error::{Exception, Result};

use super::LayerCache;

/// Where a cache stood. Costs no copy when it is taken.
///
/// Caches that only append remember how many tokens they held, so between the two calls they may be
/// appended to and trimmed, but not below that number. The others are kept whole: a ring overwrites
/// what it would have to bring back.
#[derive(Debug, Clone)]
pub struct CacheSnapshot(SavedState);

#[derive(Debug, Clone)]
enum SavedState {
    Offset(usize),
    Whole(Box<LayerCache>),
    Each(Vec<CacheSnapshot>),
}

impl LayerCache {
    /// Remembers the present contents.
    pub fn snap(&self) -> CacheSnapshot {
        CacheSnapshot(match self {
            LayerCache::Kv(_) | LayerCache::Quantized(_) => SavedState::Offset(self.offset()),
            LayerCache::Rotating(_)
            | LayerCache::Chunked(_)
            | LayerCache::Arrays(_)
            | LayerCache::BatchKv(_)
            | LayerCache::BatchRotating(_) => SavedState::Whole(Box::new(self.clone())),
            LayerCache::List(list) => {
                SavedState::Each(list.entries().iter().map(LayerCache::snap).collect())
            }
        })
    }

    /// Goes back to `snapshot`, which this cache made. Fails if the tokens it counted are no longer
    /// there.
    pub fn restore(&mut self, snapshot: CacheSnapshot) -> Result<()> {
        match (snapshot.0, self) {
            (SavedState::Whole(cache), to) => *to = *cache,
            (SavedState::Offset(offset), to) => {
                let surplus = to.offset().checked_sub(offset);
                if surplus.is_none_or(|surplus| to.trim(surplus) != surplus) {
                    let held = to.offset();
                    return Err(Exception::custom(format!(
                        "a cache of {held} tokens cannot go back to {offset}"
                    )));
                }
            }
            (SavedState::Each(snapshots), LayerCache::List(list))
                if snapshots.len() == list.entries().len() =>
            {
                for (cache, snapshot) in list.entries_mut().iter_mut().zip(snapshots) {
                    cache.restore(snapshot)?;
                }
            }
            (SavedState::Each(_), to) => {
                return Err(Exception::custom(format!(
                    "a {} is given the snapshot of another cache",
                    to.kind()
                )));
            }
        }
        Ok(())
    }
}
