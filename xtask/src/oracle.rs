//! Python environments with what Cairn is compared with: mlx-lm in target/oracle, huggingface_hub in
//! target/hub-oracle.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{mlx, process, root};

/// A Python with the pinned mlx-lm, on the same OpenBLAS as ours.
pub fn python() -> Result<PathBuf> {
    let folder = root().join("target/oracle");
    let python = folder.join("bin/python");
    if !folder.join("ready").exists() {
        process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        process::run(Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "mlx[cpu]==0.32.2",
            "mlx-lm==0.32.0",
        ]))?;
        let site = process::output(
            Command::new(&python)
                .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]),
        )?;
        mlx::use_openblas(Path::new(site.trim()))?;
        fs::write(folder.join("ready"), "")?;
    }
    Ok(python)
}

/// A Python with the pinned huggingface_hub, whichever version mlx-lm's environment has.
pub fn hub_python() -> Result<PathBuf> {
    let folder = root().join("target/hub-oracle");
    let python = folder.join("bin/python");
    if !folder.join("ready").exists() {
        process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let install = ["-m", "pip", "install", "--quiet", "huggingface_hub==2.4.0"];
        process::run(Command::new(&python).args(install))?;
        fs::write(folder.join("ready"), "")?;
    }
    Ok(python)
}
