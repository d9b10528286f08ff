//! Reading input files with one JSON object on each line.

use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::input::read_text;

/// Reads the objects of a file, or of stdin where that is `-`, and skips empty lines. `parse` reads
/// and checks one; an error names the line.
pub fn read<T>(path: &Path, parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    let text = read_text(path)?;
    // Some programs begin a text with a byte-order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut objects = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("line {} of {}", index + 1, path.display());
        if serde_json::from_str::<IgnoredAny>(line).is_err() {
            bail!("{place} is not JSON");
        }
        ensure!(
            line.trim_start().starts_with('{'),
            "{place} is not a JSON object: write one {{…}} on each line"
        );
        objects.push(parse(line).context(place)?);
    }
    let is_empty = objects.is_empty();
    ensure!(!is_empty, "{} is empty: write one JSON object on each line", path.display());
    Ok(objects)
}

/// Parses the object of one line. The error leaves out the position that serde_json appends,
/// because its line number is not that of the file.
pub fn object<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).map_err(|error| {
        let text = error.to_string();
        match text.rsplit_once(" at line ") {
            Some((problem, _)) => anyhow!(problem.to_owned()),
            None => Error::from(error),
        }
    })
}
