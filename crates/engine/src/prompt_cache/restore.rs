//! Restores caches from stored chunks. Other threads read and check the files while the engine's
//! thread assembles the caches.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use cairn_lm::cache::LayerCache;
use cairn_lm::cache::chunk_state::{CacheAssembler, CacheLayout};

use cairn_prompt_cache::{ChunkKey, ChunkRecord};

use super::chunk_file::{ChunkContents, ChunkError};

/// A chunk to restore from, with its contents if they are in memory.
pub(super) struct Source {
    pub(super) record: ChunkRecord,
    pub(super) contents: Option<Arc<ChunkContents>>,
}

/// A chunk that cannot be used, with the reason.
#[derive(Debug)]
pub(super) struct Unusable {
    pub(super) key: ChunkKey,
    /// Position of its first token.
    pub(super) start: usize,
    pub(super) error: ChunkError,
}

impl Source {
    fn unusable(&self, error: impl Into<ChunkError>) -> Unusable {
        Unusable { key: self.record.key, start: self.record.start, error: error.into() }
    }
}

/// The most reader threads: more would only wait for the disk or for memory.
const MAX_READERS: usize = 4;

/// Restores the caches of the first `num_tokens` tokens from `sources`, which are in order from the
/// root.
///
/// A file's contents are used only after their hash has been compared with the one taken when the
/// file was written. Contents in memory need no check.
pub(super) fn restore(
    folder: &Path,
    sources: &[Source],
    layout: &CacheLayout,
    num_tokens: usize,
) -> Result<Vec<LayerCache>, Unusable> {
    let wanted: Vec<&Source> =
        sources.iter().filter(|source| source.record.start < num_tokens).collect();
    let Some(last) = wanted.last() else { return Ok(Vec::new()) };
    let mut assembler = CacheAssembler::new(layout, num_tokens);
    let mut add = |source: &Source, contents: &ChunkContents| {
        let added =
            assembler.add(source.record.start, source.record.stop(), |name| contents.tensor(name));
        added.map_err(|error| source.unusable(error))
    };
    let on_disk: Vec<&Source> =
        wanted.iter().copied().filter(|source| source.contents.is_none()).collect();
    let num_readers = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_READERS)
        .min(on_disk.len());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // At most one chunk per reader is read ahead, to bound the memory.
        let (sender, contents) = mpsc::sync_channel(num_readers);
        for _ in 0..num_readers {
            let (sender, next, on_disk) = (sender.clone(), &next, &on_disk);
            scope.spawn(move || {
                while let Some(source) = on_disk.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send((*source, ChunkContents::read(folder, &source.record))).is_err()
                    {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for source in &wanted {
            if let Some(contents) = &source.contents {
                add(source, contents)?;
            }
        }
        for (source, contents) in contents {
            add(source, &contents.map_err(|error| source.unusable(error))?)?;
        }
        Ok(())
    })?;
    assembler.finish().map_err(|error| last.unusable(error))
}
