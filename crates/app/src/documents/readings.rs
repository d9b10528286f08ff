//! How far the documents of drafts and folders are read, and how to stop reading them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::wire::{DocumentReading, DocumentsOf};

/// How far the documents of drafts and folders are read. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct Readings(Mutex<HashMap<DocumentsOf, Reading>>);

/// The last reading of a draft or a folder.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    state: DocumentReading,
    /// Cancelled when it is to end.
    pub(super) stop: CancellationToken,
    /// Cancelled when it has ended.
    pub(super) ended: CancellationToken,
    /// Only looks whether this model has all of it saved already, and loads none for that.
    looks_for: Option<String>,
}

impl Reading {
    pub(super) fn new(looks_for: Option<String>) -> Self {
        let state = match looks_for {
            Some(_) => DocumentReading::Unread,
            None => DocumentReading::Waiting,
        };
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        Reading { state, stop, ended, looks_for }
    }

    pub(super) fn only_looks(&self) -> bool {
        self.looks_for.is_some()
    }
}

impl Readings {
    pub(super) fn all(&self) -> MutexGuard<'_, HashMap<DocumentsOf, Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far documents are read.
    pub(crate) fn state(&self, of: &DocumentsOf) -> DocumentReading {
        let all = self.all();
        all.get(of).map_or(DocumentReading::Unread, |reading| reading.state.clone())
    }

    /// Stops a reading, if one runs; what is known of it stays. The result is cancelled when it has ended.
    pub(crate) fn stop(&self, of: &DocumentsOf) -> Option<CancellationToken> {
        let reading = self.all().get(of).cloned()?;
        reading.stop.cancel();
        Some(reading.ended)
    }

    /// Stops a reading that is to go on later, if one runs that does not only look. The result is cancelled
    /// when it has ended.
    pub(super) fn pause(&self, of: &DocumentsOf) -> Option<CancellationToken> {
        let mut all = self.all();
        let running = |state: &DocumentReading| {
            matches!(state, DocumentReading::Waiting | DocumentReading::Reading { .. })
        };
        let reading = all.get_mut(of).filter(|reading| running(&reading.state))?;
        reading.stop.cancel();
        reading.state = DocumentReading::Waiting;
        Some(reading.ended.clone())
    }

    /// Puts a look in the place of what is known, unless that is more, or the same model was looked for.
    /// Returns whether it did, and what was there.
    pub(super) fn begin_look(&self, of: &DocumentsOf, look: &Reading) -> (bool, Option<Reading>) {
        let mut all = self.all();
        let is_known = all.get(of).is_some_and(|known| {
            known.state != DocumentReading::Unread || known.looks_for == look.looks_for
        });
        if is_known { (false, None) } else { (true, all.insert(of.clone(), look.clone())) }
    }

    /// Forgets what a look has found or is about to find; false if the last reading was none.
    pub(super) fn forget_look(&self, of: &DocumentsOf) -> bool {
        let mut all = self.all();
        let is_look = all.get(of).is_some_and(Reading::only_looks);
        if is_look && let Some(look) = all.remove(of) {
            look.stop.cancel();
        }
        is_look
    }

    /// The documents that were too long when they were counted, or for which their conversation might
    /// make room.
    pub(super) fn without_room(&self) -> Vec<DocumentsOf> {
        let is_without = |(_, reading): &(&DocumentsOf, &Reading)| {
            matches!(reading.state, DocumentReading::TooLong { .. } | DocumentReading::WithQuestion)
        };
        self.all().iter().filter(is_without).map(|(of, _)| of.clone()).collect()
    }

    /// Whether documents are read, or were to be read.
    pub(super) fn is_wanted(&self, of: &DocumentsOf) -> bool {
        !matches!(self.state(of), DocumentReading::Unread)
    }

    /// Forgets what is known of a reading; of all with none.
    pub(crate) fn forget(&self, of: Option<&DocumentsOf>) {
        let mut all = self.all();
        for (key, reading) in all.iter_mut() {
            if of.is_none_or(|wanted| wanted == key) {
                reading.stop.cancel();
                reading.state = DocumentReading::Unread;
            }
        }
    }

    /// Sets the state of a reading; false if it was stopped, as it is when another takes its place.
    pub(super) fn set(&self, of: &DocumentsOf, reading: &Reading, state: &DocumentReading) -> bool {
        let mut all = self.all();
        if reading.stop.is_cancelled() {
            return false;
        }
        if let Some(current) = all.get_mut(of) {
            current.state = state.clone();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_reading_waits_and_one_that_looks_goes_on() {
        let readings = Readings::default();
        let of = DocumentsOf::folder("contracts");
        assert!(readings.pause(&of).is_none(), "nothing is read");

        let looking = Reading::new(Some("m".to_owned()));
        readings.all().insert(of.clone(), looking.clone());
        assert!(readings.pause(&of).is_none());
        assert!(!looking.stop.is_cancelled());

        let reading = Reading::new(None);
        readings.all().insert(of.clone(), reading.clone());
        let half = DocumentReading::Reading {
            processed_tokens: 5,
            total_tokens: 10,
            cached_tokens: 0,
            document_tokens: 8,
        };
        assert!(readings.set(&of, &reading, &half));
        assert!(readings.pause(&of).is_some());
        assert!(reading.stop.is_cancelled());
        assert_eq!(readings.state(&of), DocumentReading::Waiting, "no progress that stands still");
        assert!(readings.is_wanted(&of), "it goes on later");
        assert!(!readings.set(&of, &reading, &half), "it says nothing any more");
    }
}
