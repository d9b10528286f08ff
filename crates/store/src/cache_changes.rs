//! Changes of the prompt cache's index: several in one transaction, because every commit waits for
//! the disk.

use crate::{CacheRefRow, ChunkRow, Store, StoreError, cache_refs, chunks};

/// A change of the chunks and references tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheChange {
    /// The file of a chunk is complete. An existing row keeps its creation time and its hits, and
    /// takes the rest from this.
    Written(ChunkRow),
    /// A prompt used chunks, one hit for each; unknown keys are ignored.
    Touched {
        /// Their keys.
        keys: Vec<String>,
        /// When, in milliseconds since the Unix epoch.
        at_ms: i64,
    },
    /// Chunks were removed; unknown keys are ignored.
    Removed {
        /// Their keys.
        keys: Vec<String>,
    },
    /// A reference, which replaces the one that its owner had before.
    RefSet(CacheRefRow),
    /// An owner's reference was removed; an owner without one is ignored.
    RefRemoved {
        /// The owner.
        owner: String,
    },
}

impl Store {
    /// Writes changes in their order, all of them or none.
    pub async fn change_cache(&self, changes: &[CacheChange]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for change in changes {
            let changed = match change {
                CacheChange::Written(chunk) => chunks::insert(&mut tx, chunk).await,
                CacheChange::Touched { keys, at_ms } => chunks::touch(&mut tx, keys, *at_ms).await,
                CacheChange::Removed { keys } => chunks::delete(&mut tx, keys).await,
                CacheChange::RefSet(cache_ref) => cache_refs::put(&mut tx, cache_ref).await,
                CacheChange::RefRemoved { owner } => cache_refs::delete(&mut tx, owner).await,
            };
            changed.map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await
    }
}
