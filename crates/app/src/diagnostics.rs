//! The facts that a bug report needs, as one text that the user can read before sending it: without
//! secrets, texts of conversations and titles.

use std::fmt::Write;

use crate::app::App;
use crate::logs;
use crate::platform;
use crate::status;

const NUM_LOG_LINES: usize = 200;

/// The report.
pub(crate) async fn text(app: &App) -> String {
    let status = status::now(app);
    let num_conversations = app.store.conversations().await.map(|rows| rows.len());
    let data_folder = app.data_folder.clone();
    let asked = app.blocking(move || {
        let database_bytes =
            std::fs::metadata(data_folder.database()).map_or(0, |metadata| metadata.len());
        (
            platform::system_version(),
            platform::memory_bytes(),
            platform::free_disk_bytes(data_folder.home()),
            database_bytes,
            logs::last_lines(&data_folder, NUM_LOG_LINES),
        )
    });
    let (system, memory_bytes, free_bytes, database_bytes, log) = asked.await.unwrap_or_default();

    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{name}: {value}");
    };
    line("Cairn", env!("CARGO_PKG_VERSION").to_owned());
    line("System", system);
    line("Device", status.device.clone());
    line("Memory", bytes(memory_bytes));
    line("Free disk space", free_bytes.map_or("unknown".to_owned(), bytes));
    line("Settings", json(&app.settings()));
    line("Status", json(&status));
    line(
        "Conversations",
        num_conversations.map_or_else(|error| error.to_string(), |n| n.to_string()),
    );
    line("Database", bytes(database_bytes));
    match app.engine.cache() {
        Some(cache) => {
            let view = cache.view(0);
            line("Saved context on disk", of_budget(view.disk));
            line("Saved context in memory", of_budget(view.memory));
            line("Saved pieces", view.num_chunks.to_string());
            line("Problem with saved context", view.problem.unwrap_or_else(|| "none".to_owned()));
        }
        None => line("Saved context", app.cache_problem.clone().unwrap_or_default()),
    }
    line("Log", if log.is_empty() { "empty".to_owned() } else { format!("\n{}", log.join("\n")) });
    logs::mask(&text)
}

fn of_budget((used, budget): (u64, u64)) -> String {
    format!("{} of {}", bytes(used), bytes(budget))
}

fn bytes(count: u64) -> String {
    format!("{:.1} MB", count as f64 / 1e6)
}

fn json(value: &impl serde::Serialize) -> String {
    // Plain numbers, texts and enums always serialize.
    serde_json::to_string(value).unwrap_or_default()
}
