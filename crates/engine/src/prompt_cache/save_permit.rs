//! What a purge takes from the requests under way: the permission to save.

use std::sync::atomic::{AtomicBool, Ordering};

use cairn_prompt_cache::Owner;

/// Whether what a request computes may be saved. It lives from when the request is asked until nothing
/// that it computed is resident or waits to be cut: a purge of its owner meanwhile revokes it, and with
/// it all of that goes. Earlier purges do not concern it.
///
/// It is revoked while the cache state is locked, and read in the same lock before a chunk or a
/// reference is added.
#[derive(Debug)]
pub(crate) struct SavePermit {
    /// Who refers to what is saved; none for a request that nobody continues.
    owner: Option<Owner>,
    is_revoked: AtomicBool,
}

impl SavePermit {
    pub(super) fn new(owner: Option<Owner>) -> SavePermit {
        SavePermit { owner, is_revoked: AtomicBool::new(false) }
    }

    pub(super) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    pub(super) fn revoke(&self) {
        self.is_revoked.store(true, Ordering::Release);
    }

    fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::Acquire)
    }
}

/// Whether what has this permit was purged; without one no purge concerns it.
pub(super) fn is_purged(permit: Option<&SavePermit>) -> bool {
    permit.is_some_and(SavePermit::is_revoked)
}
