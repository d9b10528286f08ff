//! `make interop`: checks that mlx-lm continues Cairn's files with the same tokens as Cairn, that
//! Python's huggingface_hub shares the cache of models with it, that coding agents work with it
//! (`agents.rs`), and that the vendors' clients speak to its API (`api_clients.rs`).
//!
//! It needs Python and, the first time, a network, so it is no part of `make test`.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::{agents, api_clients, check, mlx, oracle, process, root, starter};

/// Exports a prompt and a conversation of a tiny model and of the starter, and continues them in
/// mlx-lm; then downloads, agents and the API.
pub fn run() -> Result<()> {
    mlx::make()?;
    check_files()?;
    run_agents()?;
    run_api()
}

/// Coding agents alone.
pub fn run_agents() -> Result<()> {
    build()?;
    agents::run()
}

/// The vendors' clients alone.
pub fn run_api() -> Result<()> {
    build()?;
    api_clients::run(&root().join("target/debug/cairn"))
}

/// The engine's example has the scripted model built in, which agents and recordings want.
fn build() -> Result<()> {
    mlx::make()?;
    let binaries = ["build", "--bin", "cairn", "--bin", "fake-hub", "--example", "exports"];
    let packages = ["-p", "cairn-cli", "-p", "cairn-engine", "-p", "cairn-fake-hub"];
    process::run(process::cargo().args(binaries).args(packages))
}

fn check_files() -> Result<()> {
    starter::fetch()?;
    check::write_tiny_models();
    let python = oracle::python()?;
    build()?;
    let tiny = root().join("target/tiny-models/llama/tiny-chat");
    compare(&python, &tiny)?;
    compare(&python, &starter()?)?;
    check_downloads(&tiny, &python)
}

/// Downloads a model from a hub on loopback into caches that Python reads, writes and locks too, and
/// has mlx-lm and Cairn run each other's downloads.
fn check_downloads(model: &Path, mlx_python: &Path) -> Result<()> {
    let binary = |name: &str| root().join("target/debug").join(name);
    process::run(
        Command::new(oracle::hub_python()?)
            .arg(root().join("tests/goldens/check_downloads.py"))
            .arg(binary("fake-hub"))
            .arg(model)
            .arg(binary("cairn"))
            .arg(mlx_python),
    )
}

fn compare(python: &Path, model: &Path) -> Result<()> {
    let name = model.file_name().unwrap_or_default();
    let folder = root().join("target/interop").join(name);
    eprintln!("{}", model.display());
    process::run(
        Command::new(root().join("target/debug/examples/exports")).arg(model).arg(&folder),
    )?;
    let script = root().join("tests/goldens/check_exports.py");
    process::run(Command::new(python).arg(script).arg(&folder))
}

/// The starter as a model folder.
fn starter() -> Result<std::path::PathBuf> {
    let home = root().join("target/interop/home");
    let model = home.join("models").join(starter::MODEL);
    if !model.exists() {
        let mut import = Command::new(root().join("target/debug/cairn"));
        import
            .env("CAIRN_HOME", &home)
            .args(["models", "import", "--name", starter::MODEL])
            .arg(starter::file());
        process::run(&mut import)?;
    }
    Ok(model)
}
