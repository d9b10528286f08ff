//! Files that an argument names.

use std::path::Path;

use anyhow::{Context, Result};
use cairn_formats::read_file;

use crate::output;

/// The most bytes of a text that are read; its rows are kept in memory.
const MAX_TEXT_BYTES: u64 = 4 << 30;

/// Reads the text of a file, or of stdin if the path is `-`. Refuses anything but a regular file at
/// once, because a pipe might never get a writer. `/dev/stdin` and the `/dev/fd/63` of a shell's
/// `<(…)` are read all the same: another program has opened them for this one, so they have a
/// writer.
pub fn read_text(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return output::stdin().context("cannot read stdin");
    }
    if path.starts_with("/dev/fd") || path == Path::new("/dev/stdin") {
        let text = std::fs::read_to_string(path);
        return text.with_context(|| format!("cannot read {}", path.display()));
    }
    let text = String::from_utf8(read_file(path, MAX_TEXT_BYTES)?);
    text.with_context(|| format!("cannot read {}", path.display()))
}
