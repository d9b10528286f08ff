//! The figures of this moment.

use std::time::Instant;

use super::recent::Sample;
use crate::app::App;
use crate::clock::now_ms;
use crate::platform;
use crate::wire::Reply;

/// Asks the engine and the system, and takes their figures.
pub(crate) fn sample(app: &App, now: Instant) {
    let sample = {
        let engine = app.engine.status();
        let status = engine.borrow();
        Sample {
            process_bytes: 0,
            mlx_active_bytes: status.mlx_active_bytes,
            mlx_cache_bytes: status.mlx_cache_bytes,
            machine_used_bytes: None,
            num_waiting: u32::try_from(status.num_waiting).unwrap_or(u32::MAX),
            work: status.work,
        }
    };
    let (process_bytes, machine_used_bytes) =
        (platform::process_memory().now, platform::used_memory_bytes());
    app.monitor.sample(&Sample { process_bytes, machine_used_bytes, ..sample }, now, now_ms());
}

/// The points behind the one with this number, with one of this moment.
pub(crate) fn now(app: &App, after: u32) -> Reply {
    sample(app, Instant::now());
    Reply::MonitorNow {
        machine_bytes: platform::machine_memory_bytes(),
        points: app.monitor.points_after(after),
    }
}
