//! The jobs that run, and how to stop them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The jobs that run or wait for another to end. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct RunningJobs {
    jobs: Mutex<HashMap<String, RunningJob>>,
    /// Held by the job that runs: two would load their models in turn.
    pub(super) turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct RunningJob {
    stop: CancellationToken,
    /// Whether it has the turn.
    has_begun: bool,
    rows_per_second: Option<f64>,
}

impl RunningJobs {
    /// Whether a job has a task.
    pub(super) fn has(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    /// Whether a job waits for its turn, and how fast it is.
    pub(super) fn pace(&self, id: &str) -> (bool, Option<f64>) {
        match self.lock().get(id) {
            Some(job) => (!job.has_begun, job.rows_per_second),
            None => (false, None),
        }
    }

    /// Adds a job that is to stop when `closing` is cancelled. The token is that of its task; none where
    /// it has one already.
    pub(super) fn begin(&self, id: &str, closing: &CancellationToken) -> Option<CancellationToken> {
        let mut jobs = self.lock();
        if jobs.contains_key(id) {
            return None;
        }
        let stop = closing.child_token();
        jobs.insert(id.to_owned(), RunningJob { stop: stop.clone(), ..RunningJob::default() });
        Some(stop)
    }

    /// Notes that a job has the turn.
    pub(super) fn has_turn(&self, id: &str) {
        self.update(id, |job| job.has_begun = true);
    }

    /// Notes how fast a job is.
    pub(super) fn is_at(&self, id: &str, rows_per_second: f64) {
        self.update(id, |job| job.rows_per_second = Some(rows_per_second));
    }

    /// Removes a job whose task has ended by itself; false if it was stopped meanwhile.
    pub(super) fn end(&self, id: &str, stop: &CancellationToken) -> bool {
        let mut jobs = self.lock();
        // A pause that came meanwhile has the last word.
        if stop.is_cancelled() {
            return false;
        }
        jobs.remove(id);
        true
    }

    /// Ends the job's task, which leaves its rows as they are saved.
    pub(super) fn stop(&self, id: &str) {
        if let Some(job) = self.lock().remove(id) {
            job.stop.cancel();
        }
    }

    fn update(&self, id: &str, update: impl FnOnce(&mut RunningJob)) {
        if let Some(job) = self.lock().get_mut(id) {
            update(job);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, RunningJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
