//! Python environments with what Cairn is compared with: mlx-lm in target/oracle, and others in
//! folders beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{mlx, process, root};

/// A Python with the pinned mlx-lm, on the same OpenBLAS as ours.
pub fn python() -> Result<PathBuf> {
    let packages = ["mlx[cpu]==0.32.2", "mlx-lm==0.32.2"];
    let bin = prepared("oracle", &packages, |python| {
        let site = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"];
        mlx::use_openblas(Path::new(process::output(Command::new(python).args(site))?.trim()))
    })?;
    Ok(bin.join("python"))
}

/// A Python with the pinned huggingface_hub, whichever version mlx-lm's environment has.
pub fn hub_python() -> Result<PathBuf> {
    Ok(environment("hub-oracle", &["huggingface_hub==2.4.0"])?.join("python"))
}

/// A Python with the vendors' clients of the API.
pub fn clients_python() -> Result<PathBuf> {
    Ok(environment("api-clients", &["openai==3.54.0", "anthropic==2.12.0"])?.join("python"))
}

/// The folder of aider, a coding agent that is a Python program.
pub fn aider() -> Result<PathBuf> {
    environment("aider", &["aider-chat==0.86.2"])
}

/// Schemathesis, which sends what an OpenAPI document allows and what it forbids.
pub fn schemathesis() -> Result<PathBuf> {
    Ok(environment("schemathesis", &["schemathesis==4.32.5"])?.join("schemathesis"))
}

/// The programs of an environment with these packages in a folder of target. It is made again when
/// the packages are others.
fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    prepared(name, packages, |_| Ok(()))
}

/// As [`environment`]; `prepare` changes a new one, whose Python it is given, before its first use.
fn prepared(
    name: &str,
    packages: &[&str],
    prepare: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = root().join("target").join(name);
    let (bin, ready) = (folder.join("bin"), folder.join("ready"));
    let wanted = packages.join(" ");
    if fs::read_to_string(&ready).is_ok_and(|found| found == wanted) {
        return Ok(bin);
    }
    process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let install = ["-m", "pip", "install", "--quiet"];
    process::run(Command::new(bin.join("python")).args(install).args(packages))?;
    prepare(&bin.join("python"))?;
    fs::write(ready, wanted)?;
    Ok(bin)
}
