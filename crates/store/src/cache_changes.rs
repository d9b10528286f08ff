//! Changes of the prompt cache's index: several in one transaction, because every commit waits for
//! the disk.

use cairn_prompt_cache::{CacheChange, ChunkKey};

use crate::{Store, StoreError, cache_refs, chunks};

impl Store {
    /// Writes changes down in their order, all of them or none.
    ///
    /// A chunk that is written again keeps the creation time and the hits of its row. Unknown chunks
    /// and references are ignored where they are used or removed.
    pub async fn change_cache(&self, changes: &[CacheChange]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for change in changes {
            let changed = match change {
                CacheChange::Written(record) => chunks::insert(&mut tx, record).await,
                CacheChange::Used { keys, at_ms } => chunks::touch(&mut tx, keys, *at_ms).await,
                CacheChange::Removed { chunks: removed, .. } => {
                    let keys: Vec<ChunkKey> = removed.iter().map(|record| record.key).collect();
                    chunks::delete(&mut tx, &keys).await
                }
                CacheChange::RefSet(cache_ref) => cache_refs::put(&mut tx, cache_ref).await,
                CacheChange::RefRemoved(name) => cache_refs::delete(&mut tx, name).await,
            };
            changed.map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await
    }
}
