//! `cairn`: language models on the command line, with mlx-lm's commands and flags. Results go to
//! stdout; progress and logs go to stderr.
//!
//! Exit status: 0 on success; 1 on failure, with one line `cairn: what failed: why`; 2 for usage.

mod arguments;
mod batch;
mod bench;
mod cache;
mod cache_prompt;
mod chat;
mod chats;
mod classify;
mod completion;
mod convert;
mod download;
mod generate;
mod input;
mod json_lines;
mod model_folders;
mod models;
mod output;
mod perplexity;
mod rounding;
mod score;
mod serve;
mod session;
mod signals;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Mutex;

use cairn_app::{DataFolder, LOG_FILTER, LogFile};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use arguments::Command;

fn main() -> ExitCode {
    // `cairn serve` starts this program again to check models.
    if let Some(status) = cairn_app::run_child_if_asked(std::env::args_os()) {
        return status;
    }
    let arguments = match arguments::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(error) => error.exit(),
            Err(error) => return output::fail(&error),
        },
    };
    // Chats can be saved from here even if this machine computes nothing.
    if !matches!(arguments.command, Command::Chats(_))
        && let Err(error) = cairn_lm::device::use_metal_library()
    {
        return output::fail(&error.into());
    }
    let asks_for_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    write_logs(&arguments.command, asks_for_plain);
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return output::fail(&error.into()),
        };
    let result = runtime.block_on(async {
        match arguments.command {
            Command::Generate(arguments) => generate::run(*arguments).await,
            Command::Batch(arguments) => batch::run(arguments).await,
            Command::Cache(command) => cache::run(command).await,
            Command::CachePrompt(arguments) => cache_prompt::run(arguments).await,
            Command::Chat(arguments) => chat::run(arguments).await,
            Command::Chats(command) => chats::run(command).await,
            Command::Classify(arguments) => classify::run(arguments).await,
            Command::Convert(arguments) => convert::run(arguments).await,
            Command::Score(arguments) => score::run(arguments).await,
            Command::Models(command) => models::run(command).await,
            Command::Perplexity(arguments) => perplexity::run(arguments).await,
            Command::Bench(arguments) => bench::run(arguments).await,
            Command::Serve(arguments) => serve::run(*arguments).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::fail(&error),
    }
}

/// Sends logs to stderr, as `--log-level` or else `CAIRN_LOG` says. `cairn serve` runs without
/// anyone watching, so its logs also go to the data folder's log files.
fn write_logs(command: &Command, asks_for_plain: bool) {
    let level = match command {
        Command::Serve(serve) => serve.log_level,
        _ => None,
    };
    let filter = match level {
        Some(level) => EnvFilter::new(level.filter()),
        None => EnvFilter::try_from_env("CAIRN_LOG").unwrap_or_else(|_| EnvFilter::new("warn")),
    };
    let stderr = std::io::stderr;
    let to_stderr = fmt::layer()
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal() && !asks_for_plain)
        .with_filter(filter);
    let serves = matches!(command, Command::Serve(_));
    // If there is no data folder, opening the app reports why.
    let data_folder = if serves { DataFolder::from_environment().ok() } else { None };
    let to_files = data_folder.map(|data_folder| {
        fmt::layer()
            .with_writer(Mutex::new(LogFile::new(&data_folder)))
            .with_ansi(false)
            .with_filter(EnvFilter::new(LOG_FILTER))
    });
    tracing_subscriber::registry().with(to_stderr).with(to_files).init();
}
