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
mod score;
mod serve;
mod session;
mod signals;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    // `cairn serve` starts this program again to check models.
    if let Some(status) = cairn_app::run_child_if_asked(std::env::args_os()) {
        return status;
    }
    let arguments = Arguments::parse();
    // Chats can be saved from here even if this machine computes nothing.
    if !matches!(arguments.command, Command::Chats(_))
        && let Err(error) = cairn_lm::device::use_metal_library()
    {
        return output::fail(&error.into());
    }
    let asks_for_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !asks_for_plain)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("CAIRN_LOG")
                .unwrap_or_else(|_| "warn".into()),
        )
        .init();
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
            Command::Bench(arguments) => bench::run(arguments).await,
            Command::Serve(arguments) => serve::run(arguments).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::fail(&error),
    }
}
