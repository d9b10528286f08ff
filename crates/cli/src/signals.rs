//! Ctrl-C and SIGTERM.

use std::ops::ControlFlow;

use anyhow::{Context, Result};
use signal_hook::low_level::emulate_default_handler;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::output;

/// SIGINT (Ctrl-C) and SIGTERM.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Handles the signals from here on; until then they end the program.
    pub fn listen() -> Result<Signals> {
        let listen = |kind| signal(kind).context("cannot listen for Ctrl-C");
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal.
    pub async fn recv(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        }
    }

    /// Lets the next signal end the program at once.
    pub fn end_at_next(mut self) {
        tokio::spawn(async move {
            let kind = self.recv().await;
            // The signal's default action runs no destructors: MLX's abort while its thread works.
            let _ = emulate_default_handler(kind.as_raw_value());
        });
    }
}

/// Runs `work` on a thread of its own. At a signal it is told to stop and ends soon, without
/// leaving what it has begun, and the program ends with its result; a second signal ends the
/// program at once.
pub async fn stoppable<T: Send + 'static>(
    work: impl FnOnce(watch::Receiver<bool>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let mut signals = Signals::listen()?;
    let (stop, is_stopped) = watch::channel(false);
    let mut working = tokio::task::spawn_blocking(move || work(is_stopped));
    tokio::select! {
        worked = &mut working => return worked?,
        _ = signals.recv() => stop.send_replace(true),
    };
    signals.end_at_next();
    let status = working.await?.map_or_else(|error| output::report(&error), |_| 0);
    // Returning would run MLX's exit handlers, which abort while an engine is busy.
    cairn_app::exit_now(status.into())
}

/// What work that [`stoppable`] runs does next.
pub fn unless_stopped(stopped: &watch::Receiver<bool>) -> ControlFlow<()> {
    if *stopped.borrow() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
