//! Emits what the engine is doing and how much memory is in use, as rarely as the eye allows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::app::App;
use crate::convert;
use crate::platform;
use crate::wire::{EngineState, Event, Status};

const BUSY_INTERVAL: Duration = Duration::from_millis(250);
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// A process's memory changes all the time; less than this is not reported.
const MEMORY_STEP_BYTES: u64 = 1 << 20;

/// The status now.
pub(crate) fn now(app: &App) -> Status {
    convert::status(
        app.engine.status().borrow().clone(),
        app.engine.device(),
        platform::process_memory(),
    )
}

/// Sends a `Status` event when something has changed, until the app closes.
pub(crate) async fn emit(app: Arc<App>) {
    let mut engine = app.engine.status();
    let mut told: Option<Status> = None;
    let mut looked_at = Instant::now();
    loop {
        let state = convert::engine_state(engine.borrow_and_update().state.clone());
        let due =
            told.as_ref().map_or(looked_at, |told| looked_at + interval(&told.engine, &state));
        tokio::select! {
            () = app.closing.cancelled() => return,
            // Only the time of the next check may change; the branch below does the check.
            changed = engine.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due.into()) => {
                looked_at = Instant::now();
                let status = now(&app);
                if told.as_ref().is_none_or(|told| is_news(told, &status)) {
                    app.emit(Event::Status { status: status.clone() });
                    told = Some(status);
                }
            }
        }
    }
}

/// How long to wait after the last check: briefly while the engine works or has just changed its
/// state.
fn interval(told: &EngineState, state: &EngineState) -> Duration {
    let is_busy = matches!(
        state,
        EngineState::Loading { .. }
            | EngineState::Prefilling { .. }
            | EngineState::Generating { .. }
    );
    if is_busy || told != state { BUSY_INTERVAL } else { IDLE_INTERVAL }
}

fn is_news(told: &Status, status: &Status) -> bool {
    let has_moved = |a: u64, b: u64| a.abs_diff(b) >= MEMORY_STEP_BYTES;
    told.engine != status.engine
        || told.model_fingerprint != status.model_fingerprint
        || told.device != status.device
        || has_moved(told.process_bytes, status.process_bytes)
        || has_moved(told.process_peak_bytes, status.process_peak_bytes)
        || has_moved(told.mlx_active_bytes, status.mlx_active_bytes)
        || has_moved(told.mlx_peak_bytes, status.mlx_peak_bytes)
        || has_moved(told.mlx_cache_bytes, status.mlx_cache_bytes)
        || told.cache_disk_bytes != status.cache_disk_bytes
        || told.cache_ram_bytes != status.cache_ram_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(model: &str) -> EngineState {
        EngineState::Ready { model: model.to_owned() }
    }

    #[test]
    fn the_engine_is_looked_at_often_only_while_it_works() {
        fn check(told: EngineState, state: EngineState, expected: Duration) {
            assert_eq!(interval(&told, &state), expected, "from {told:?} to {state:?}");
        }
        let loading = || EngineState::Loading { model: "m".to_owned() };
        check(EngineState::Empty, EngineState::Empty, IDLE_INTERVAL);
        check(ready("m"), ready("m"), IDLE_INTERVAL);
        check(EngineState::Empty, loading(), BUSY_INTERVAL);
        check(loading(), loading(), BUSY_INTERVAL);
        check(loading(), ready("m"), BUSY_INTERVAL);
    }

    #[test]
    fn small_movements_of_memory_are_no_news() {
        let told = convert::status(
            cairn_engine::EngineStatus::default(),
            "cpu",
            platform::ProcessMemory { now: 1 << 30, peak: 1 << 30 },
        );
        let check = |change: fn(&mut Status), expected: bool| {
            let mut status = told.clone();
            change(&mut status);
            assert_eq!(is_news(&told, &status), expected, "{status:?}");
        };
        check(|_| (), false);
        check(|s| s.process_bytes += 4096, false);
        check(|s| s.process_bytes -= 1 << 20, true);
        check(|s| s.mlx_peak_bytes += 2 << 20, true);
        check(|s| s.cache_disk_bytes += 1, true);
        check(|s| s.model_fingerprint = Some("f".to_owned()), true);
        check(|s| s.engine = EngineState::Loading { model: "m".to_owned() }, true);
    }
}
