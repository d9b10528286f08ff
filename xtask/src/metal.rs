//! MLX's build for a Mac: which macOS it is for, and where its Metal library goes.
//!
//! ```text
//! src-tauri/tauri.conf.json   bundle.macOS.minimumSystemVersion: the only place that says which macOS
//!         │ cargo xtask mlx
//!         ▼
//! target/mlx/
//!   cargo.toml            cargo settings: the deployment target, and the folder below
//!   metal/mlx.metallib    where mlx-sys's build script leaves the library
//!         │ cargo xtask bundle (bundle.macOS.files)     │ make app
//!         ▼                                             ▼
//! Cairn.app/Contents/Resources/mlx.metallib     target/release/mlx.metallib
//! ```
//! A program finds it there by crates/lm/src/metal_library.rs.

// Linux only tests these functions.
#![cfg_attr(not(target_os = "macos"), allow(dead_code))]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// As mlx-sys names it.
const LIBRARY: &str = "mlx.metallib";

/// Where mlx-sys's build script is told to leave the library.
pub fn folder(root: &Path) -> PathBuf {
    root.join("target/mlx/metal")
}

/// The cargo settings for a Mac, by the app's configuration. Each is forced: what a shell has set would
/// make a library that other Macs refuse.
pub fn cargo_settings(root: &Path, configuration: &str) -> Result<String> {
    let configuration: Value = serde_json::from_str(configuration)?;
    let target = configuration["bundle"]["macOS"]["minimumSystemVersion"]
        .as_str()
        .context("tauri.conf.json names no bundle.macOS.minimumSystemVersion")?;
    let folder = folder(root);
    let folder = folder.to_str().context("the workspace's path is not UTF-8")?;
    Ok(format!(
        "# Written by `cargo xtask mlx` from src-tauri/tauri.conf.json.\n\
         [env]\n\
         MACOSX_DEPLOYMENT_TARGET = {{ value = {target:?}, force = true }}\n\
         MLX_RS_METAL_PATH = {{ value = {folder:?}, force = true }}\n"
    ))
}

/// Copies the library next to the programs in `folder`.
pub fn put_next_to_programs(root: &Path, folder: &Path) -> Result<()> {
    let built = self::folder(root).join(LIBRARY);
    let copy = folder.join(LIBRARY);
    fs::copy(&built, &copy)
        .with_context(|| format!("cannot copy {} to {}", built.display(), copy.display()))?;
    check(&copy)
}

/// Fails if a bundle has no library.
pub fn check_bundle(bundle: &Path) -> Result<()> {
    check(&bundle.join("Contents/Resources").join(LIBRARY))
}

fn check(library: &Path) -> Result<()> {
    let bytes = fs::metadata(library).map_or(0, |file| file.len());
    ensure!(bytes > 0, "{} is missing or empty", library.display());
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    const CONFIGURATION: &str = include_str!("../../src-tauri/tauri.conf.json");

    #[test]
    fn writes_deployment_target_of_configuration() {
        let configuration = r#"{"bundle": {"macOS": {"minimumSystemVersion": "26.2"}}}"#;
        let settings = cargo_settings(Path::new("/a \"b\""), configuration).unwrap();
        let expected = "[env]\n\
            MACOSX_DEPLOYMENT_TARGET = { value = \"26.2\", force = true }\n\
            MLX_RS_METAL_PATH = { value = \"/a \\\"b\\\"/target/mlx/metal\", force = true }\n";
        assert_eq!(settings.split_once('\n').unwrap().1, expected);
        assert!(cargo_settings(Path::new("/a"), "{}").is_err());
    }

    #[test]
    fn names_deployment_target_in_one_file() {
        let root = crate::root();
        let target = "14.0";
        assert!(cargo_settings(&root, CONFIGURATION).unwrap().contains(target));
        for file in [".cargo/config.toml", "Makefile", "src-tauri/Info.plist", "src-tauri/build.rs"]
        {
            let text = fs::read_to_string(root.join(file)).unwrap();
            assert!(!text.contains(target) && !text.contains("DEPLOYMENT_TARGET"), "{file}");
        }
    }

    #[test]
    fn bundle_takes_library_from_where_build_leaves_it() {
        let configuration: Value = serde_json::from_str(CONFIGURATION).unwrap();
        let files = &configuration["bundle"]["macOS"]["files"];
        let from = files[format!("Resources/{LIBRARY}")].as_str().unwrap();
        assert_eq!(from.strip_prefix("../"), folder(Path::new("")).join(LIBRARY).to_str());
    }

    #[test]
    fn copies_library_next_to_programs() {
        let workspace = tempfile::tempdir().unwrap();
        let root = workspace.path();
        let programs = root.join("target/release");
        fs::create_dir_all(&programs).unwrap();
        let missing = format!("{:#}", put_next_to_programs(root, &programs).unwrap_err());
        assert!(missing.contains("cannot copy") && missing.contains(LIBRARY), "{missing}");
        fs::create_dir_all(folder(root)).unwrap();
        fs::write(folder(root).join(LIBRARY), "kernels").unwrap();
        put_next_to_programs(root, &programs).unwrap();
        assert_eq!(fs::read_to_string(programs.join(LIBRARY)).unwrap(), "kernels");
    }

    #[test]
    fn refuses_bundle_without_library() {
        let folder = tempfile::tempdir().unwrap();
        let resources = folder.path().join("Contents/Resources");
        fs::create_dir_all(&resources).unwrap();
        assert!(check_bundle(folder.path()).is_err());
        fs::write(resources.join(LIBRARY), "").unwrap();
        assert!(check_bundle(folder.path()).is_err());
        fs::write(resources.join(LIBRARY), "kernels").unwrap();
        check_bundle(folder.path()).unwrap();
    }
}
