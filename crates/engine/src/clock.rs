//! The time that slices are measured with, passed in so that tests need no real time.

use std::time::Instant;

/// What one slice computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// One token for each of so many rows.
    Decode { num_rows: usize },
    /// So many prompt tokens.
    Prefill { num_tokens: usize },
}

/// Measures slices.
pub(crate) trait EngineClock {
    /// The time now.
    fn now(&self) -> Instant;

    /// Called after each slice. Real time has passed by itself.
    fn worked(&self, _work: Work) {}
}

/// The system's clock.
pub(crate) struct SystemClock;

impl EngineClock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that stands still but for the cost of each slice.
#[cfg(test)]
pub(crate) struct VirtualClock {
    now: std::cell::Cell<Instant>,
    cost: fn(Work) -> std::time::Duration,
}

#[cfg(test)]
impl VirtualClock {
    pub(crate) fn new(cost: fn(Work) -> std::time::Duration) -> Self {
        VirtualClock { now: std::cell::Cell::new(Instant::now()), cost }
    }
}

#[cfg(test)]
impl EngineClock for VirtualClock {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn worked(&self, work: Work) {
        self.now.set(self.now.get() + (self.cost)(work));
    }
}
