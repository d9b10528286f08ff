//! `cargo xtask bench-ui`: the interface alone in Chromium, by `tests/e2e/ui-bench.mjs`.

use anyhow::Result;
use serde_json::Value;

use crate::bench_table::row;
use crate::{node, process, root, ui};

/// Measures the work for each piece of long answers, a chat of 2,000 messages, and the size on disk.
/// Chromium is there.
pub fn run() -> Result<()> {
    ui::build()?;
    let folder = root().join("tests/e2e");
    node::install(&folder)?;
    let mut script = node::program()?;
    script.arg(folder.join("ui-bench.mjs"));
    for line in process::output(&mut script)?.lines() {
        let figure: Value = serde_json::from_str(line)?;
        let (value, unit) = (figure["value"].as_f64().unwrap_or(f64::NAN), &figure["unit"]);
        let unit = unit.as_str().unwrap_or_default();
        let what = figure["what"].as_str().unwrap_or_default();
        match figure["goal"].as_f64() {
            Some(goal) => {
                row(what, format!("{value:.1} {unit}"), format!("goal {goal} {unit}"), value / goal)
            }
            None => println!("| {what} | {value:.2} {unit} | | |"),
        }
    }
    Ok(())
}
