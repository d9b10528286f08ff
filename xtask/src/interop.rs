//! `make interop`: checks that mlx-lm continues Cairn's files with the same tokens as Cairn, and that
//! Python's huggingface_hub shares the cache of models with it.
//!
//! It needs Python and, the first time, a network, so it is no part of `make test`.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::{check, mlx, oracle, process, root, starter};

/// Exports a prompt and a conversation of a tiny model and of the starter, and continues them in
/// mlx-lm.
pub fn run() -> Result<()> {
    mlx::make()?;
    starter::fetch()?;
    check::write_tiny_models();
    let python = oracle::python()?;
    let binaries = ["build", "--bin", "cairn", "--bin", "fake-hub", "--example", "exports"];
    let packages = ["-p", "cairn-cli", "-p", "cairn-engine", "-p", "cairn-fake-hub"];
    process::run(process::cargo().args(binaries).args(packages))?;
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
