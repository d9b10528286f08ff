//! Builds the interface in ui/ if its sources have changed, and generates its wire types.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::{node, process, root};

/// The interface's folder.
pub fn folder() -> PathBuf {
    root().join("ui")
}

/// Installs the interface's packages and builds it into ui/dist, unless that is newer than every
/// source.
pub fn build() -> Result<()> {
    let folder = folder();
    node::install(&folder)?;
    let built = fs::metadata(folder.join("dist/index.html")).and_then(|file| file.modified()).ok();
    if built.is_some_and(|built| newest(&folder).is_ok_and(|newest| newest <= built)) {
        return Ok(());
    }
    eprintln!("building the interface");
    node::npm(&folder, &["run", "--silent", "build"])
}

/// Writes what the interface takes over from Rust: the wire types and the table of settings.
pub fn write_bindings() -> Result<()> {
    for (name, file) in [("wire", "src/platform/wire.ts"), ("settings", "src/settings/table.ts")] {
        let text = process::output(
            process::cargo()
                .args(["run", "--quiet", "-p", "cairn-app", "--example", "bindings"])
                .arg(name),
        )?;
        let file = folder().join(file);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("wrote {}", file.display());
    }
    Ok(())
}

/// When the newest source was changed; installed packages and build results are not sources.
fn newest(folder: &Path) -> Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if ["node_modules", "dist"].iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let metadata = entry.metadata()?;
        let modified =
            if metadata.is_dir() { self::newest(&entry.path())? } else { metadata.modified()? };
        newest = newest.max(modified);
    }
    Ok(newest)
}
