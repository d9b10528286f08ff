//! Emits what the engine is doing and how much memory is in use, up to four times a second while it
//! works, otherwise every two seconds. As often it asks the system whether it is short of memory, and
//! tells the engine, and the monitor takes its figures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_engine::{MemoryPressure, recommended_wired_bytes};

use crate::app::App;
use crate::convert;
use crate::memory_pressure::PressureWatch;
use crate::models::idle;
use crate::monitor;
use crate::platform;
use crate::wire::{EngineState, Event, Status};

const BUSY_INTERVAL: Duration = Duration::from_millis(250);
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// A process's memory changes all the time; smaller changes are not emitted.
const MEMORY_STEP_BYTES: u64 = 1 << 20;

/// The status now.
pub(crate) fn now(app: &App) -> Status {
    convert::status(
        app.engine.status().borrow().clone(),
        app.engine.device(),
        platform::process_memory(),
        recommended_wired_bytes(),
    )
}

/// Sends a `Status` event when something has changed, and tells the engine of memory pressure, until
/// the app closes.
pub(crate) async fn emit(app: Arc<App>, memory_pressure: fn() -> Option<MemoryPressure>) {
    let mut engine = app.engine.status();
    let mut emitted: Option<Status> = None;
    let mut pressure = PressureWatch::default();
    let mut checked_at = Instant::now();
    loop {
        let state = convert::engine_state(engine.borrow_and_update().state.clone());
        let due = emitted
            .as_ref()
            .map_or(checked_at, |emitted| checked_at + interval(&emitted.engine, &state));
        tokio::select! {
            () = app.closing.cancelled() => return,
            // Only the time of the next check may change; the branch below does the check.
            changed = engine.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due.into()) => {
                checked_at = Instant::now();
                if let Some(due) = pressure.due(memory_pressure(), checked_at) {
                    tracing::info!("the system is short of memory: {due:?}");
                    app.engine.relieve_memory(due);
                }
                monitor::sampling::sample(&app, checked_at);
                idle::unload_unused(&app, checked_at);
                let status = now(&app);
                if emitted.as_ref().is_none_or(|emitted| has_changed(emitted, &status)) {
                    app.emit(Event::Status { status: status.clone() });
                    emitted = Some(status);
                }
            }
        }
    }
}

/// How long to wait after the last check: briefly while the engine works or has just changed its
/// state.
fn interval(emitted: &EngineState, state: &EngineState) -> Duration {
    let is_busy = matches!(
        state,
        EngineState::Loading { .. }
            | EngineState::Prefilling { .. }
            | EngineState::Generating { .. }
    );
    if is_busy || emitted != state { BUSY_INTERVAL } else { IDLE_INTERVAL }
}

fn has_changed(emitted: &Status, status: &Status) -> bool {
    let differs = |a: u64, b: u64| a.abs_diff(b) >= MEMORY_STEP_BYTES;
    emitted.engine != status.engine
        || emitted.model_fingerprint != status.model_fingerprint
        || emitted.models != status.models
        || emitted.device != status.device
        || differs(emitted.process_bytes, status.process_bytes)
        || differs(emitted.process_peak_bytes, status.process_peak_bytes)
        || differs(emitted.mlx_active_bytes, status.mlx_active_bytes)
        || differs(emitted.mlx_peak_bytes, status.mlx_peak_bytes)
        || differs(emitted.mlx_cache_bytes, status.mlx_cache_bytes)
        || emitted.cache_disk_bytes != status.cache_disk_bytes
        || emitted.cache_ram_bytes != status.cache_ram_bytes
        || emitted.wired_memory != status.wired_memory
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {

    use super::*;
    use crate::wire::Command;
    use crate::{DataFolder, Options};

    /// A bound for what should take seconds; only a hang gets near it.
    const SOON: Duration = Duration::from_secs(60);

    #[tokio::test(flavor = "multi_thread")]
    async fn a_system_that_is_short_of_memory_has_idle_models_unloaded() {
        let home = tempfile::tempdir().unwrap();
        let model = home.path().join("models").join("m");
        cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &model).unwrap();
        let options = Options::new(DataFolder::new(home.path()));
        let app = App::open(options).await.unwrap();
        app.call(Command::LoadModel { name: "m".to_owned() }).await.unwrap();
        let mut engine = app.engine.status();
        assert_eq!(engine.borrow_and_update().models.len(), 1);
        app.spawn(emit(app.clone(), || Some(MemoryPressure::Critical)));
        let is_empty = |status: &cairn_engine::EngineStatus| status.models.is_empty();
        tokio::time::timeout(SOON, engine.wait_for(is_empty)).await.expect("unloads").unwrap();
        app.close().await;
    }

    fn loading(bytes_read: u64) -> EngineState {
        EngineState::Loading { model: "m".to_owned(), bytes_read, total_bytes: 2 }
    }

    fn ready(model: &str) -> EngineState {
        EngineState::Ready { model: model.to_owned() }
    }

    #[test]
    fn the_engine_is_checked_often_only_while_it_works() {
        fn check(emitted: EngineState, state: EngineState, expected: Duration) {
            assert_eq!(interval(&emitted, &state), expected, "from {emitted:?} to {state:?}");
        }
        check(EngineState::Empty, EngineState::Empty, IDLE_INTERVAL);
        check(ready("m"), ready("m"), IDLE_INTERVAL);
        check(EngineState::Empty, loading(0), BUSY_INTERVAL);
        check(loading(0), loading(1), BUSY_INTERVAL);
        check(loading(1), ready("m"), BUSY_INTERVAL);
    }

    #[test]
    fn small_changes_of_memory_are_not_emitted() {
        let emitted = convert::status(
            cairn_engine::EngineStatus::default(),
            "cpu",
            platform::ProcessMemory { now: 1 << 30, peak: 1 << 30 },
            Some(10 << 30),
        );
        let check = |change: fn(&mut Status), expected: bool| {
            let mut status = emitted.clone();
            change(&mut status);
            assert_eq!(has_changed(&emitted, &status), expected, "{status:?}");
        };
        check(|_| (), false);
        check(|s| s.process_bytes += 4096, false);
        check(|s| s.process_bytes -= 1 << 20, true);
        check(|s| s.mlx_peak_bytes += 2 << 20, true);
        check(|s| s.cache_disk_bytes += 1, true);
        check(|s| s.wired_memory = None, true);
        check(|s| s.model_fingerprint = Some("f".to_owned()), true);
        check(|s| s.engine = loading(0), true);
    }
}
