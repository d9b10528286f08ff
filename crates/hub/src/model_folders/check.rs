//! Whether a folder can be loaded as a model, as far as its small files tell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter;
use std::path::Path;

use cairn_formats::safetensors::{is_left_over, missing_part};
use cairn_formats::{FileError, MAX_CONFIG_BYTES, python_json, read_file, tiktoken};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::FilesIdentity;
use crate::files_identity::Listing;

/// An index lists every tensor; those of the largest models have a few megabytes.
const MAX_INDEX_BYTES: u64 = 32 << 20;
/// The depth down to which sizes are counted; the files of a model are at the top.
const MAX_DEPTH: usize = 4;
const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const INDEX: &str = "model.safetensors.index.json";

/// Why a folder cannot be loaded as a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelProblem {
    /// `refs/main` names no snapshot, and there is not just one.
    #[error("refs/main names no snapshot, so the download did not finish")]
    NoSnapshot,
    /// The folder cannot be opened now.
    #[error("its folder cannot be read: {reason}")]
    FolderUnreadable {
        /// Why.
        reason: String,
    },
    /// A file that has to be read cannot be opened now.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// The file's name.
        file: String,
        /// Why.
        reason: String,
    },
    /// There is no `config.json`.
    #[error("config.json is missing")]
    ConfigMissing,
    /// `config.json` is no JSON object.
    #[error("config.json cannot be read: {reason}")]
    ConfigBroken {
        /// What is wrong.
        reason: String,
    },
    /// `config.json` does not say what architecture this is.
    #[error("config.json has no model_type")]
    NoModelType,
    /// There is no weight file.
    #[error("it has no .safetensors file")]
    NoWeights,
    /// The index of the weight files is none.
    #[error("{INDEX} cannot be read: {reason}")]
    IndexBroken {
        /// What is wrong.
        reason: String,
    },
    /// A weight file that should be there is not.
    #[error("the weight file {file:?} is missing")]
    ShardMissing {
        /// Its name.
        file: String,
    },
    /// There is no `tokenizer.json`.
    #[error("tokenizer.json is missing")]
    TokenizerMissing,
}

/// What would help against a [`ModelProblem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelProblemKind {
    /// Files are missing: a download of the model fetches the rest.
    Incomplete,
    /// A file is there and does not contain what it should.
    Broken,
    /// The folder or a file cannot be opened now, and may be whole: a permission is missing, or a disk.
    Unreadable,
}

impl ModelProblem {
    /// Whether files are missing, cannot be used, or cannot be opened now.
    pub fn kind(&self) -> ModelProblemKind {
        match self {
            ModelProblem::NoSnapshot
            | ModelProblem::ConfigMissing
            | ModelProblem::NoWeights
            | ModelProblem::ShardMissing { .. }
            | ModelProblem::TokenizerMissing => ModelProblemKind::Incomplete,
            ModelProblem::FolderUnreadable { .. } | ModelProblem::Unreadable { .. } => {
                ModelProblemKind::Unreadable
            }
            ModelProblem::ConfigBroken { .. }
            | ModelProblem::NoModelType
            | ModelProblem::IndexBroken { .. } => ModelProblemKind::Broken,
        }
    }

    /// The name of the file that is missing or cannot be used; none where it is not about one.
    pub fn file(&self) -> Option<&str> {
        match self {
            ModelProblem::NoSnapshot
            | ModelProblem::FolderUnreadable { .. }
            | ModelProblem::NoWeights => None,
            ModelProblem::ConfigMissing
            | ModelProblem::ConfigBroken { .. }
            | ModelProblem::NoModelType => Some(CONFIG),
            ModelProblem::IndexBroken { .. } => Some(INDEX),
            ModelProblem::TokenizerMissing => Some(TOKENIZER),
            ModelProblem::Unreadable { file, .. } | ModelProblem::ShardMissing { file } => {
                Some(file)
            }
        }
    }
}

/// What the small files of a model have shown.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub model_type: Option<String>,
    pub problem: Option<ModelProblem>,
}

impl Checked {
    /// Whether it holds as long as the files stay the same. A permission or a lack of file handles
    /// changes without a trace in the identity.
    pub fn is_lasting(&self) -> bool {
        let kind = self.problem.as_ref().map(ModelProblem::kind);
        kind != Some(ModelProblemKind::Unreadable)
    }

    fn problem(problem: ModelProblem) -> Checked {
        Checked { model_type: None, problem: Some(problem) }
    }
}

/// A model's folder as it is now.
pub(super) struct Look {
    pub identity: Option<FilesIdentity>,
    pub bytes: u64,
    pub checked: Checked,
}

/// Lists a folder, and reads its small files unless `known` has what they show.
pub(super) fn look(folder: &Path, known: impl FnOnce(&FilesIdentity) -> Option<Checked>) -> Look {
    let listing = match Listing::of(folder) {
        Ok(listing) => listing,
        Err(error) => {
            let checked =
                Checked::problem(ModelProblem::FolderUnreadable { reason: error.to_string() });
            return Look { identity: None, bytes: 0, checked };
        }
    };
    let identity = listing.identity();
    let checked = known(&identity).unwrap_or_else(|| check_files(folder, &listing));
    let below: u64 = listing.folders.iter().map(|folder| size(folder, 1)).sum();
    Look { identity: Some(identity), bytes: listing.bytes() + below, checked }
}

/// What a folder's small files show.
pub(super) fn check(folder: &Path) -> Checked {
    look(folder, |_| None).checked
}

/// The length of all files in a folder. Links are followed, because the shared cache consists of
/// them; one without a target counts nothing.
fn size(folder: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match fs::metadata(entry.path()) {
        Ok(metadata) if metadata.is_dir() && depth < MAX_DEPTH => size(&entry.path(), depth + 1),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    });
    sizes.sum()
}

fn check_files(folder: &Path, listing: &Listing) -> Checked {
    match model_type(folder, listing) {
        Ok(model_type) => {
            let problem = weights(folder, listing).and_then(|()| tokenizer(listing)).err();
            Checked { model_type: Some(model_type), problem }
        }
        Err(problem) => Checked::problem(problem),
    }
}

fn model_type(folder: &Path, listing: &Listing) -> Result<String, ModelProblem> {
    if !listing.has_file(CONFIG) {
        return Err(ModelProblem::ConfigMissing);
    }
    let broken = |reason: String| ModelProblem::ConfigBroken { reason };
    let config: Json = read_json(folder, CONFIG, MAX_CONFIG_BYTES, broken)?;
    if !config.is_object() {
        return Err(broken("it is not an object".to_owned()));
    }
    config
        .get("model_type")
        .and_then(Json::as_str)
        .map(str::to_owned)
        .ok_or(ModelProblem::NoModelType)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn weights(folder: &Path, listing: &Listing) -> Result<(), ModelProblem> {
    let is_shard = |name: &&str| name.starts_with("model") && name.ends_with(".safetensors");
    let shards: BTreeSet<String> = listing.names().filter(is_shard).map(str::to_owned).collect();
    if listing.has_file(INDEX) {
        let broken = |reason: String| ModelProblem::IndexBroken { reason };
        let index: Index = read_json(folder, INDEX, MAX_INDEX_BYTES, broken)?;
        let indexed: BTreeSet<String> = index.weight_map.into_values().collect();
        // No name in the list leads out of the folder, so such a file does not count as there.
        let is_here = |file: &String| listing.has_file(file);
        let is_left_over = !indexed.iter().any(is_here) && is_left_over(&indexed, &shards);
        if let Some(file) = indexed.iter().find(|file| !is_here(file))
            && !is_left_over
        {
            return Err(ModelProblem::ShardMissing { file: file.clone() });
        }
    }
    if let Some(file) = missing_part(&shards) {
        return Err(ModelProblem::ShardMissing { file });
    }
    match shards.iter().find(|shard| !listing.has_file(shard)) {
        _ if shards.is_empty() => Err(ModelProblem::NoWeights),
        // The target of a link was removed from the shared cache.
        Some(shard) => Err(ModelProblem::ShardMissing { file: shard.clone() }),
        None => Ok(()),
    }
}

fn tokenizer(listing: &Listing) -> Result<(), ModelProblem> {
    // What is in a file of another kind is found out when it is opened.
    match iter::once(TOKENIZER).chain(tiktoken::file_names()).any(|name| listing.has_file(name)) {
        true => Ok(()),
        false => Err(ModelProblem::TokenizerMissing),
    }
}

fn read_json<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    limit_bytes: u64,
    broken: impl Fn(String) -> ModelProblem,
) -> Result<T, ModelProblem> {
    let text = read_file(&folder.join(name), limit_bytes).map_err(|error| match error {
        FileError::Io { source, .. } => unreadable(name, &source),
        FileError::NotAFile { .. } => broken("it is not a regular file".to_owned()),
        FileError::TooLong { limit_bytes, .. } => {
            broken(format!("it has more than {limit_bytes} bytes, the most that are read of it"))
        }
    })?;
    let json = python_json(&text).and_then(serde_json::from_value);
    json.map_err(|error| broken(error.to_string()))
}

fn unreadable(file: &str, error: &std::io::Error) -> ModelProblem {
    ModelProblem::Unreadable { file: file.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_folder_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CONFIG), "{").unwrap();
        let first = look(folder.path(), |_| None);
        let broken = Some(ModelProblemKind::Broken);
        assert_eq!(first.checked.problem.as_ref().map(ModelProblem::kind), broken);
        let known = Checked { model_type: Some("known".to_owned()), problem: None };
        let again = look(folder.path(), |identity| {
            assert_eq!(Some(identity), first.identity.as_ref());
            Some(known)
        });
        assert_eq!(again.checked.model_type.as_deref(), Some("known"));
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_a_problem_that_may_pass() {
        let folder = tempfile::tempdir().unwrap();
        let look = look(&folder.path().join("gone"), |_| None);
        assert!(look.identity.is_none() && !look.checked.is_lasting());
        let problem = look.checked.problem.unwrap();
        assert_eq!(problem.kind(), ModelProblemKind::Unreadable);
        assert!(problem.to_string().starts_with("its folder cannot be read: "), "{problem}");
    }
}
