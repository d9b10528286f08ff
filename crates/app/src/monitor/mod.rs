//! What the monitor shows: memory, speeds and waiting requests of the last minutes, which are only in
//! memory, and of the last day, of which the store has a row for each minute that has something to
//! note, and a row for the work of each request.
//!
//! ```text
//! status.rs, four times a second or every two ─► Monitor::sample ─► recent points ─► GetMonitorNow
//!                                                      │
//!                                                      └─► a minute ─► write_minutes ─► store
//! engine: each request's work when it ends ─► recording ─► store
//! GetMonitorDay ◄─ day.rs: the stored minutes, the one under way, and the sums of the work
//!
//! recent    the figures of the last minutes, and the minute under way
//! minute    what is noted of a minute
//! sampling  asks the engine and the system for the figures of this moment
//! speed     when a speed may be shown
//! recording stores the work of requests
//! writing   writes the minutes
//! day       the last day
//! ```
//!
//! Nothing waits for it: a minute that cannot be written at once is lost. Intervals are measured with a
//! monotonic clock; the wall clock only names them.

pub(crate) mod day;
mod minute;
pub(crate) mod recent;
pub(crate) mod recording;
pub(crate) mod sampling;
pub(crate) mod speed;
pub(crate) mod writing;
