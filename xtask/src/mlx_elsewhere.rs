//! MLX on a Mac: mlx-sys's build script builds it, by the settings that are written here.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::{metal, process, root};

/// Writes the settings of MLX's build into `target/mlx` unless they are there.
pub fn make() -> Result<()> {
    let settings = metal::cargo_settings(
        &root(),
        &fs::read_to_string(root().join("src-tauri/tauri.conf.json"))?,
    )?;
    let file = root().join("target/mlx/cargo.toml");
    if fs::read_to_string(&file).is_ok_and(|text| text == settings) {
        return Ok(());
    }
    fs::create_dir_all(metal::folder(&root()))?;
    // Its build script does not ask which macOS it is for, so it would not run again.
    for profile in ["dev", "release"] {
        process::run(process::cargo().args(["clean", "-p", "mlx-sys", "--profile", profile]))?;
    }
    fs::write(&file, settings)?;
    Ok(())
}

/// Copies MLX's Metal library next to the programs in `folder`.
pub fn put_metal_library(folder: &Path) -> Result<()> {
    metal::put_next_to_programs(&root(), folder)
}

/// Benchmarks against mlx-lm are set up on Linux, where both sides can be given the same BLAS.
pub fn use_openblas(_site: &Path) -> Result<()> {
    anyhow::bail!(
        "`make bench` compares on Linux only; on a Mac run `cairn bench` beside `mlx_lm.benchmark`"
    )
}
