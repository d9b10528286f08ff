//! New files that are on the disk when they are said to be.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

/// Writes a new file and waits until it is on the disk. Fails if it exists.
pub fn write_new_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

/// Writes a new file of JSON that people can read, as [`write_new_file`] does.
pub fn write_new_json(path: &Path, contents: &Value) -> io::Result<()> {
    write_new_file(path, format!("{contents:#}\n").as_bytes())
}

/// Waits until the names in a folder are on the disk. Some file systems cannot do this for a folder;
/// its files are on the disk all the same.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
