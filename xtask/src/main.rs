//! Chores of the Cairn workspace: `cargo xtask <command>`. Each is idempotent and says what it does
//! on stderr.

mod agents;
mod api_clients;
mod app;
mod bench;
mod bench_server;
mod bench_table;
mod bench_ui;
mod bundle;
mod check;
mod fetch;
mod fuzz;
mod gemma;
mod interop;
mod macos_check;
mod metal;
#[cfg_attr(not(target_os = "linux"), path = "mlx_elsewhere.rs")]
mod mlx;
mod node;
mod oracle;
mod process;
mod soak;
mod starter;
mod system;
mod ui;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Set-up and chores of the Cairn workspace")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Set up, build and open Cairn; without a display, serve it to a browser.
    App,
    /// Set up, and make Cairn.app and a disk image of it; on a Mac.
    Bundle,
    /// Set up and run every test.
    Test,
    /// Set up and run the tests' sweeps with other seeds, for as long as asked.
    Soak {
        /// How long to begin new runs; the one that is running then is completed.
        #[arg(long, env = "SOAK_MINUTES", default_value_t = 60)]
        minutes: u64,
        /// The first seed; taken from the clock if it is not given.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Continue prompts from files of Cairn in mlx-lm, share downloads with huggingface_hub, run coding
    /// agents, and record the vendors' clients at the API. Needs Python.
    Interop {
        /// Only the clients of the API.
        #[arg(long)]
        api: bool,
        /// Only the coding agents.
        #[arg(long, conflicts_with = "api")]
        agents: bool,
    },
    /// Set up, and draw every state of the interface.
    Pictures,
    /// Set up and check formatting and lints.
    Lint {
        /// Not Clippy's lints, where its driver builds the tests.
        #[arg(long)]
        no_clippy: bool,
    },
    /// Measure what the README claims.
    Bench,
    /// Measure the server against mlx_lm.server, with the target/release/cairn that is there.
    BenchServer {
        /// Only this model folder, with 32 clients, as it is; it has a tokenizer of words.
        #[arg(long)]
        model: Option<PathBuf>,
        /// A Python with mlx-lm; set up here if it is not given.
        #[arg(long, requires = "model")]
        python: Option<PathBuf>,
    },
    /// Measure the interface alone, in Chromium.
    BenchUi,
    /// Type-check the macOS build.
    MacosCheck,
    /// Write ui/src/platform/wire.ts from the app's wire types.
    Bindings,
    /// Build target/mlx: MLX, mlx-c and its bindings for this Linux machine; on macOS, the settings of
    /// MLX's own build.
    Mlx,
    /// Fetch the starter model into target/starter.
    Starter,
    /// Feed mutated files to the code that checks them; needs a C++ compiler.
    Fuzz {
        /// How long each target runs.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Targets in fuzz/fuzz_targets; all of them if none is named.
        targets: Vec<String>,
    },
    /// Import Gemma 3 270M from a K-quant GGUF file of 240 MB, and compare its greedy answers with
    /// mlx-lm's. Needs Python and, the first time, a network.
    Gemma,
    /// Write the tiny random models of the tests to target/tiny-models.
    TinyModels,
    /// Install the system packages that one part of the work needs.
    Packages {
        #[arg(value_enum)]
        part: system::Part,
    },
}

/// The workspace's root folder.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default()
}

fn main() -> ExitCode {
    match run(Arguments::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        // A sentence, not a backtrace, whatever RUST_BACKTRACE says.
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::App => app::run(),
        Chore::Bundle => bundle::run(),
        Chore::Test => check::test(),
        Chore::Soak { minutes, seed } => soak::run(minutes, seed),
        Chore::Interop { api: true, .. } => interop::run_api(),
        Chore::Interop { agents: true, .. } => interop::run_agents(),
        Chore::Interop { .. } => interop::run(),
        Chore::Pictures => check::pictures(),
        Chore::Lint { no_clippy } => check::lint(!no_clippy),
        Chore::Bench => bench::run(),
        Chore::BenchServer { model: None, .. } => bench_server::run(),
        Chore::BenchServer { model: Some(model), python } => {
            bench_server::run_model(&model, python)
        }
        Chore::BenchUi => bench_ui::run(),
        Chore::MacosCheck => macos_check::run(),
        Chore::Bindings => ui::write_bindings(),
        Chore::Mlx => mlx::make(),
        Chore::Starter => starter::fetch(),
        Chore::Fuzz { seconds, targets } => fuzz::run_targets(seconds, &targets),
        Chore::Gemma => gemma::run(),
        Chore::TinyModels => {
            check::write_tiny_models();
            Ok(())
        }
        Chore::Packages { part } => system::ensure(part),
    }
}
