//! `make bundle`: Cairn.app and a disk image of it, which start on every Mac with the macOS that
//! src-tauri/tauri.conf.json names. Tauri's own bundler makes them.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{metal, mlx, process, root, ui};

/// Sets up, builds, and checks that what MLX needs is in the bundle.
pub fn run() -> Result<()> {
    ensure!(cfg!(target_os = "macos"), "a bundle of the app is made on a Mac");
    let is_installed = Command::new("cargo")
        .args(["tauri", "--version"])
        .output()
        .is_ok_and(|asked| asked.status.success());
    ensure!(
        is_installed,
        "the bundler is missing: install it with `cargo install tauri-cli --version '^2' --locked`"
    );
    mlx::make()?;
    ui::build()?;
    process::run(process::cargo().args(["tauri", "build"]))?;
    metal::check_bundle(&root().join("target/release/bundle/macos/Cairn.app"))
}
