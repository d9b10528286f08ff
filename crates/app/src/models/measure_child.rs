//! The measurement of what rounding costs a model, in a process of its own: what that process does,
//! and what it answers. Its parent is [`super::measuring`].

use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use cairn_engine::Perplexity;
use cairn_formats::gguf::PerplexityChange;

use super::child::{asked_paths, prepare_device};
use crate::platform;

/// The arguments before the GGUF file and the folder of the model that was imported from it.
pub(super) const ARGUMENTS: [&str; 3] = ["models", "measure", "--json"];
/// The variable with the most bytes that the models may take in memory, one after the other.
pub(super) const MEMORY_VARIABLE: &str = "CAIRN_MEASURE_MEMORY_BYTES";
/// The variable with the bytes that stay free on the disk beside the copy with the file's own weights.
pub(super) const RESERVE_VARIABLE: &str = "CAIRN_MEASURE_RESERVE_BYTES";

/// Measures a model and returns the exit status, if these arguments of the process, without its name,
/// ask for it. The answer is one line of JSON, a [`PerplexityChange`].
pub(super) fn run_if_asked(arguments: &[OsString]) -> Option<ExitCode> {
    let [file, folder] = asked_paths(&ARGUMENTS, arguments)?;
    if let Err(status) = prepare_device() {
        return Some(status);
    }
    let bytes_of = |variable| std::env::var(variable).ok().and_then(|bytes| bytes.parse().ok());
    let memory_limit = bytes_of(MEMORY_VARIABLE);
    let reserve = bytes_of(RESERVE_VARIABLE).unwrap_or(0);
    let measured = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(measure(&file, &folder, memory_limit, reserve)));
    let written = match measured {
        Ok(change) => serde_json::to_string(&change)
            .is_ok_and(|answer| writeln!(std::io::stdout(), "{answer}").is_ok()),
        Err(reason) => {
            eprintln!("{reason}");
            false
        }
    };
    Some(if written { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(
    file: &Path,
    folder: &Path,
    memory_limit: Option<u64>,
    reserve: u64,
) -> Result<PerplexityChange, String> {
    // First: a model that cannot read the text is not copied.
    let after = Perplexity::of(folder, memory_limit).await.map_err(|error| error.to_string())?;
    let mut is_disk_short = false;
    let mut progress = |_, _| {
        is_disk_short = platform::free_disk_bytes(folder).is_some_and(|free| free < reserve);
        if is_disk_short { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let before = Perplexity::before_rounding(file, folder, memory_limit, &mut progress).await;
    if is_disk_short {
        return Err(format!("fewer than {reserve} bytes would stay free on the disk"));
    }
    let before = before.map_err(|error| error.to_string())?;
    Ok(PerplexityChange { before: before.value, after: after.value })
}
