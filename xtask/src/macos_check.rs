//! `make macos-check`: type-checks the whole macOS build, on Linux too.
//!
//! Debian packages a compiler with the sources of its std, so it can check std and the whole workspace
//! for a Mac; zig compiles the C parts. Types are checked and nothing is linked or run.
//!
//! ```text
//! target/macos-check/
//!   rust/      Debian's packages of Rust, unpacked: installed, they would stand before rustup's on
//!              some search paths
//!   zig/       the ziglang wheel, and zig's own cache beside it
//!   cc, ar     scripts that turn cargo's calls for a Mac into zig's
//!   target/    cargo's output
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::fetch::{self, Wheel};
use crate::{mlx, process, root, system, ui};

const ZIG: Wheel = Wheel {
    package: "ziglang",
    version: "0.17.0",
    file: "ziglang-0.17.0-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.musllinux_1_1_x86_64.whl",
    sha256: "97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b",
};

/// Debian's packages that carry a newer Rust than Debian 12's own.
const RUST: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];

/// Checks the workspace for `aarch64-apple-darwin`.
pub fn run() -> Result<()> {
    mlx::make()?;
    ui::build()?;
    if cfg!(target_os = "macos") {
        return process::run(process::cargo().args(["check", "--workspace"]));
    }
    let folder = root().join("target/macos-check");
    let rust = folder.join("rust");
    if !rust.exists() {
        system::unpack(&RUST, &rust)?;
    }
    let zig = zig(&folder)?;
    let (cc, ar) = write_scripts(&folder, &zig)?;
    let target = "aarch64-apple-darwin";
    let mut check = Command::new(rust.join("usr/bin/cargo"));
    check.current_dir(root()).args([
        "check",
        "--workspace",
        "--locked",
        "--keep-going",
        "-Zbuild-std=std,panic_abort",
        "--target",
        target,
    ]);
    check.arg("--target-dir").arg(folder.join("target"));
    // xtask was started by another cargo, whose settings must not reach this one.
    for name in [
        "CARGO",
        "CARGO_TARGET_DIR",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
    ] {
        check.env_remove(name);
    }
    check.env("LD_LIBRARY_PATH", rust.join("usr/lib/x86_64-linux-gnu"));
    // -Zbuild-std is unstable; the variable makes a stable compiler take it.
    check.env("RUSTC", rust.join("usr/bin/rustc")).env("RUSTC_BOOTSTRAP", "1");
    check.env("CC_aarch64_apple_darwin", cc).env("AR_aarch64_apple_darwin", ar);
    for cache in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
        check.env(cache, folder.join("zig-cache"));
    }
    process::run(&mut check)
}

fn zig(folder: &Path) -> Result<PathBuf> {
    let wheel = folder.join("zig");
    if !wheel.exists() {
        fetch::unpack(&ZIG, &wheel)?;
    }
    let zig = wheel.join("ziglang/zig");
    fs::set_permissions(&zig, fs::Permissions::from_mode(0o755))?;
    Ok(zig)
}

/// Build scripts pass Apple's name of the target; zig has another name for it and refuses Apple's. It has
/// no headers of Apple's frameworks either, so Objective-C becomes an empty object: nothing is linked.
fn write_scripts(folder: &Path, zig: &Path) -> Result<(PathBuf, PathBuf)> {
    let (cc, ar) = (folder.join("cc"), folder.join("ar"));
    let zig = zig.display();
    process::write_script(
        &cc,
        &format!(
            "#!/bin/sh\n\
             count=$#\n\
             language=\n\
             while [ $count -gt 0 ]; do\n\
             \x20 case \"$1\" in\n\
             \x20   --target=* | -mmacosx-version-min=* | -mmacos-version-min=*) ;;\n\
             \x20   *.m) language='-x c'; set -- \"$@\" /dev/null ;;\n\
             \x20   *) set -- \"$@\" \"$1\" ;;\n\
             \x20 esac\n\
             \x20 shift\n\
             \x20 count=$((count - 1))\n\
             done\n\
             exec '{zig}' cc -target aarch64-macos $language \"$@\"\n"
        ),
    )?;
    process::write_script(&ar, &format!("#!/bin/sh\nexec '{zig}' ar \"$@\"\n"))?;
    Ok((cc, ar))
}
