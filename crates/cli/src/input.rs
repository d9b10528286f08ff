//! Files that an argument names.

use std::path::Path;

use anyhow::{Context, Result};
use cairn_formats::read_file;

use crate::output;

/// The most bytes of a text that are read; its rows are kept in memory.
const MAX_TEXT_BYTES: u64 = 4 << 30;

/// The text of a file, or of stdin where that is `-`. Refuses at once what is no regular file: a pipe
/// would be waited for. What another program has opened for this one, as `/dev/stdin` or the
/// `/dev/fd/63` of a shell's `<(…)`, has its writer.
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
