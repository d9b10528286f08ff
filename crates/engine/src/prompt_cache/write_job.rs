//! What the writer's thread is asked for.

use std::sync::Arc;

use cairn_lm::cache::chunk_state::CacheLayout;
use cairn_prompt_cache::ChunkKey;
use tokio::sync::oneshot;

use crate::EngineError;

/// A job for the writer's thread, done in the order of sending.
#[derive(Debug)]
pub(super) enum WriteJob {
    /// Writes a chunk whose contents are in memory.
    Write { key: ChunkKey, bytes: u64, layout: Arc<CacheLayout> },
    /// Removes the files of [`super::state::CacheState::doomed`].
    RemoveFiles,
    /// Evicts until the budgets hold, after they have changed.
    EnforceBudgets,
    /// Replies when every job before it is done.
    Flush(oneshot::Sender<Result<(), EngineError>>),
    /// Checks every file against its record, and adopts the files that have none.
    Repair(oneshot::Sender<Repaired>),
    /// Ends the thread.
    Close,
}

/// What [`super::CacheHandle::repair`] found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Chunks with a record whose files were read.
    pub num_checked: usize,
    /// Chunks whose records were rebuilt.
    pub num_adopted: usize,
    /// Cairn's own files that were removed: damaged ones, and those without a parent.
    pub num_removed: usize,
    /// Files of other programs, which were not touched.
    pub num_foreign: usize,
}
