//! The measurements of what rounding costs that wait or run.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::due_measurements::DueMeasurements;

/// The measurements that wait or run, by the model's name. Owned by [`crate::App`].
#[derive(Debug)]
pub(crate) struct Measurements {
    /// The engine has computed nothing for so long before a process is started.
    pub(super) quiet: Duration,
    running: Mutex<HashMap<String, CancellationToken>>,
    /// Locked by the one that is at it.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// Those of the database, which this run's own are among.
    pub(super) due: DueMeasurements,
}

impl Measurements {
    pub(crate) fn new(quiet: Duration) -> Measurements {
        let (running, turn, due) = Default::default();
        Measurements { quiet, running, turn, due }
    }

    pub(super) fn running(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this model is or will be measured.
    pub(crate) fn has(&self, model: &str) -> bool {
        self.running().contains_key(model)
    }

    /// Ends the measurement of this model, if there is one.
    pub(crate) fn cancel(&self, model: &str) {
        if let Some(cancelled) = self.running().get(model) {
            cancelled.cancel();
        }
    }
}
