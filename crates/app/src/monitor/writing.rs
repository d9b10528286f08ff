//! Writes the minutes that have something to note.

use std::sync::Arc;

use super::minute::NotedMinute;
use crate::app::App;
use crate::clock::now_ms;

/// Writes the minutes that have something to note, until the app closes.
pub(crate) async fn write_minutes(app: Arc<App>) {
    let Some(mut waiting) = app.monitor.take_waiting() else { return };
    loop {
        let minute = tokio::select! {
            () = app.closing.cancelled() => return,
            minute = waiting.recv() => minute,
        };
        let Some(minute) = minute else { return };
        write(&app, &minute).await;
    }
}

/// Writes the minute that is under way when the app closes.
pub(crate) async fn write_last(app: &App) {
    if let Some(minute) = app.monitor.minute_so_far() {
        write(app, &minute).await;
    }
}

async fn write(app: &App, minute: &NotedMinute) {
    let Ok(figures) = serde_json::to_string(&minute.figures) else { return };
    match app.store.add_monitor_minute(minute.at_ms, &figures, now_ms()).await {
        Ok(true) => {}
        Ok(false) => tracing::debug!("a minute of the monitor is lost: the database is in use"),
        Err(error) => tracing::debug!(%error, "a minute of the monitor is lost"),
    }
}
