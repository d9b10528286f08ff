//! Which answers are being read for their probabilities, and how to stop that.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::wire::Failure;

/// What is being read, by the name that the caller gave it. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct RunningReads(Mutex<HashMap<String, CancellationToken>>);

impl RunningReads {
    fn reads(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a read; one that does not run is no mistake.
    pub(crate) fn stop(&self, id: &str) {
        if let Some(stop) = self.reads().get(id) {
            stop.cancel();
        }
    }
}

/// A read that is listed until this is dropped.
pub(super) struct ListedRead<'a> {
    reads: &'a RunningReads,
    id: String,
    /// Cancelled when it is to end.
    pub(super) stop: CancellationToken,
}

impl<'a> ListedRead<'a> {
    /// Fails where another read has this id.
    pub(super) fn new(reads: &'a RunningReads, id: &str) -> Result<Self, Failure> {
        let stop = CancellationToken::new();
        let mut listed = reads.reads();
        if listed.contains_key(id) {
            return Err(Failure::invalid("There is a read with this id already."));
        }
        listed.insert(id.to_owned(), stop.clone());
        drop(listed);
        Ok(ListedRead { reads, id: id.to_owned(), stop })
    }
}

impl Drop for ListedRead<'_> {
    fn drop(&mut self) {
        self.reads.reads().remove(&self.id);
    }
}
