//! Exact snapshots of a cache: speculative decoding restores one when a draft is refused.

use mlx_rs::error::{Exception, Result};

use super::LayerCache;

/// The state of a cache at one moment. Taking it copies no array.
///
/// For a cache that only appends, the snapshot is its number of tokens: until it is restored the
/// cache may be appended to and trimmed, but not below that number. Other caches are saved whole,
/// because a ring overwrites the tokens that a restore would need.
#[derive(Debug, Clone)]
pub struct CacheSnapshot(SavedState);

#[derive(Debug, Clone)]
enum SavedState {
    Offset(usize),
    Whole(Box<LayerCache>),
    Each(Vec<CacheSnapshot>),
}

impl LayerCache {
    /// Takes a snapshot of the present contents.
    pub fn snap(&self) -> CacheSnapshot {
        let kind = self.as_kind();
        CacheSnapshot(match kind.entries() {
            Some(entries) => SavedState::Each(entries.iter().map(LayerCache::snap).collect()),
            None if kind.only_appends() => SavedState::Offset(kind.offset()),
            None => SavedState::Whole(Box::new(self.clone())),
        })
    }

    /// Restores `snapshot`, which this cache made. Fails if tokens that it counted have been
    /// trimmed since.
    pub fn restore(&mut self, snapshot: CacheSnapshot) -> Result<()> {
        match (snapshot.0, self) {
            (SavedState::Whole(cache), to) => *to = *cache,
            (SavedState::Offset(offset), to) => {
                let surplus = to.offset().checked_sub(offset);
                if surplus.is_none_or(|surplus| to.trim(surplus) != surplus) {
                    let held = to.offset();
                    return Err(Exception::custom(format!(
                        "a cache of {held} tokens cannot be restored to {offset} tokens"
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
                    "a {} cannot restore the snapshot of another kind of cache",
                    to.as_kind().name()
                )));
            }
        }
        Ok(())
    }
}
