//! Limits that end the rendering of a template before it is done: a time, and a cancellation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sandbox::Stop;

/// An ordinary template renders the longest conversation in well under a second.
pub(crate) const MAX_RENDER_TIME: Duration = Duration::from_secs(2);

/// Tells a rendering that no one waits for it any more.
#[derive(Clone)]
pub struct Cancel(Arc<dyn Fn() -> bool + Send + Sync>);

impl Cancel {
    /// Cancels a rendering as soon as `is_cancelled` returns true. It is asked many times a
    /// millisecond.
    pub fn new(is_cancelled: impl Fn() -> bool + Send + Sync + 'static) -> Cancel {
        Cancel(Arc::new(is_cancelled))
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Cancel")
    }
}

/// The time limit of all renderings for one prompt, which are on one thread. It counts the time of
/// that thread's processor: a template is no slower because other programs are at work.
#[derive(Debug, Clone)]
pub(crate) struct TimeLimit {
    pub(crate) limit: Duration,
    /// The thread's time when the first of the renderings began; `None` if each counts for itself.
    began: Option<Duration>,
    pub(crate) cancel: Option<Cancel>,
}

impl Default for TimeLimit {
    fn default() -> TimeLimit {
        TimeLimit { limit: MAX_RENDER_TIME, began: None, cancel: None }
    }
}

impl TimeLimit {
    /// Starts the clock, unless it runs already.
    pub(crate) fn begun(&self) -> TimeLimit {
        TimeLimit { began: Some(self.began.unwrap_or_else(thread_time)), ..self.clone() }
    }

    /// Fails if the time is over or the rendering was cancelled.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        if self.cancel.as_ref().is_some_and(|cancel| cancel.0()) {
            return Err(Stop::Cancelled);
        }
        if self.began.is_some_and(|began| thread_time().saturating_sub(began) >= self.limit) {
            return Err(Stop::TimeOver(self.limit));
        }
        Ok(())
    }
}

/// Returns how long this thread has been at work.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither number is negative, as time does not go back.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
