//! Older versions of models that were removed and can be brought back for a while.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_hub::OldRevisions;

/// Older versions whose removal can still be undone, by their model, with the time of the removal. Owned
/// by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct RemovedRevisions(Mutex<HashMap<String, (i64, OldRevisions)>>);

impl RemovedRevisions {
    pub(super) fn all(&self) -> MutexGuard<'_, HashMap<String, (i64, OldRevisions)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what was removed at this time; none if that was brought back.
    pub(super) fn take(&self, name: &str, removed_at_ms: i64) -> Option<OldRevisions> {
        let mut all = self.all();
        let is_same = all.get(name).is_some_and(|(at_ms, _)| *at_ms == removed_at_ms);
        match is_same {
            true => all.remove(name).map(|(_, revisions)| revisions),
            false => None,
        }
    }
}
