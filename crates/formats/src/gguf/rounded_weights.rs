//! What a model's folder says of weights that an import has rounded: by how much they differ, in
//! `config.json`, and what that costs, once it was measured, in a file of its own. A `config.json` that
//! changed would be another model to whatever was saved of it.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::{MAX_CONFIG_BYTES, read_file};

/// How far the weights of an imported model are from the file's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RoundedWeights {
    /// How many tensors were rounded.
    pub num_tensors: usize,
    /// See [`Rounding::relative_error`](super::Rounding::relative_error).
    pub relative_error: f64,
    /// What that costs; none before it was measured.
    #[serde(skip)]
    pub perplexity: Option<PerplexityChange>,
}

/// The perplexity of a text with a file's own weights and with the rounded ones. Both are finite and
/// at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PerplexityChange {
    /// With the file's own weights.
    pub before: f64,
    /// With the rounded ones.
    pub after: f64,
}

impl RoundedWeights {
    /// The key of `config.json`. Other programs skip what they do not know.
    pub const KEY: &str = "cairn_rounded_weights";

    /// What the files in a model's folder say; none of a model whose weights are the file's, and of
    /// one that another program made.
    pub fn read(folder: &Path) -> Option<RoundedWeights> {
        let config = json(&folder.join("config.json"))?;
        let rounded = RoundedWeights::deserialize(config.get(RoundedWeights::KEY)?).ok()?;
        let perplexity = PerplexityChange::read(folder);
        (rounded.relative_error >= 0.0).then_some(RoundedWeights { perplexity, ..rounded })
    }
}

impl PerplexityChange {
    /// The file in a model's folder. Copies of the folder have it too.
    pub const FILE_NAME: &str = "cairn_perplexity.json";

    fn read(folder: &Path) -> Option<PerplexityChange> {
        let found = json(&folder.join(PerplexityChange::FILE_NAME))?;
        PerplexityChange::deserialize(found).ok().filter(PerplexityChange::is_valid)
    }

    /// Whether these are perplexities. Of a model whose numbers overflow they are none.
    pub fn is_valid(&self) -> bool {
        [self.before, self.after].iter().all(|value| value.is_finite() && *value >= 1.0)
    }

    /// Writes the file, whole or not at all.
    pub fn write(self, folder: &Path) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer(&mut file, &self)?;
        file.flush()?;
        file.as_file().sync_all()?;
        file.persist(folder.join(PerplexityChange::FILE_NAME))?;
        File::open(folder)?.sync_all()
    }
}

fn json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&read_file(path, MAX_CONFIG_BYTES).ok()?).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_read_with_what_was_rounded() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let rounded = RoundedWeights { num_tensors: 3, relative_error: 0.01, perplexity: None };
        write(
            "config.json",
            r#"{"cairn_rounded_weights": {"num_tensors": 3, "relative_error": 0.01}}"#,
        );
        assert_eq!(RoundedWeights::read(folder.path()), Some(rounded));

        let change = PerplexityChange { before: 12.1, after: 12.4 };
        change.write(folder.path()).unwrap();
        let measured = RoundedWeights { perplexity: Some(change), ..rounded };
        assert_eq!(RoundedWeights::read(folder.path()), Some(measured));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);

        for spoilt in ["{", r#"{"before": 0.2, "after": 3}"#, r#"{"before": 2, "after": 1e999}"#] {
            write(PerplexityChange::FILE_NAME, spoilt);
            assert_eq!(RoundedWeights::read(folder.path()), Some(rounded), "{spoilt}");
        }
        write("config.json", "{}");
        assert_eq!(RoundedWeights::read(folder.path()), None);
    }
}
