//! The models on this machine, and why one cannot be loaded.

use crate::HubError;
use crate::cache_layout::{CacheVariables, main_snapshot, model_name};
use cairn_formats::{FileError, MAX_CONFIG_BYTES, read_file};
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// An index lists every tensor; those of the largest models have a few megabytes.
const MAX_INDEX_BYTES: u64 = 32 << 20;
/// The depth down to which sizes are counted; the files of a model are at the top.
const MAX_DEPTH: usize = 4;
/// The largest models have a few hundred weight files.
const MAX_PARTS: usize = 10_000;
const INDEX: &str = "model.safetensors.index.json";

/// One model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// `owner/name`, or the folder's name for an imported model.
    pub name: String,
    /// The folder with its files.
    pub path: PathBuf,
    /// `model_type` of its `config.json`, where that can be read.
    pub model_type: Option<String>,
    /// Length of all its files.
    pub bytes: u64,
    /// Why it cannot be loaded; none if it is complete.
    pub problem: Option<ModelProblem>,
}

/// Why a folder cannot be loaded as a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelProblem {
    /// `refs/main` names no snapshot, and there is not just one.
    #[error("refs/main names no snapshot, so the download did not finish")]
    NoSnapshot,
    /// There is no `config.json`.
    #[error("config.json is missing")]
    ConfigMissing,
    /// `config.json` cannot be read as a JSON object.
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
    /// The index of the weight files cannot be read.
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

/// The folders that models are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolders {
    imported: PathBuf,
    hub_cache: Option<PathBuf>,
}

impl ModelFolders {
    /// `models` in the data folder, and the shared cache that the variables name.
    pub fn new(cairn_home: &Path, variables: &CacheVariables) -> ModelFolders {
        ModelFolders { imported: cairn_home.join("models"), hub_cache: variables.hub_cache() }
    }

    /// The folder of imported models.
    pub fn imported(&self) -> &Path {
        &self.imported
    }

    /// The shared cache, where one is known.
    pub fn hub_cache(&self) -> Option<&Path> {
        self.hub_cache.as_deref()
    }

    /// Every model, sorted by name, with those that cannot be loaded.
    pub fn list(&self) -> Vec<ModelFolder> {
        self.found()
            .into_iter()
            .map(|(name, path, snapshot)| describe(name, path, snapshot))
            .collect()
    }

    /// The model's folder for a path or a name: an existing folder, else a model of that name,
    /// imported ones first. Fails if no complete model is there.
    pub fn resolve(&self, name_or_path: &str) -> Result<PathBuf, HubError> {
        let given = Path::new(name_or_path);
        let (path, problem) = if given.is_dir() {
            (given.to_owned(), check(given).1)
        } else {
            match self.found().into_iter().find(|(name, ..)| name == name_or_path) {
                Some((_, repository, None)) => (repository, Some(ModelProblem::NoSnapshot)),
                Some((_, _, Some(snapshot))) => {
                    let problem = check(&snapshot).1;
                    (snapshot, problem)
                }
                None => return Err(self.not_found(name_or_path)),
            }
        };
        match problem {
            Some(problem) => Err(HubError::Unusable { path, problem }),
            None => Ok(path),
        }
    }

    /// The folder of the model with this name, and whether it is in the shared cache.
    pub(crate) fn folder_of(&self, name: &str) -> Result<(PathBuf, bool), HubError> {
        let found = self.found().into_iter().find(|(known, ..)| known == name);
        let (_, folder, _) = found.ok_or_else(|| self.not_found(name))?;
        let is_shared = folder.parent() != Some(&self.imported);
        Ok((folder, is_shared))
    }

    fn not_found(&self, wanted: &str) -> HubError {
        let searched = [Some(&self.imported), self.hub_cache.as_ref()];
        HubError::NotFound {
            wanted: wanted.to_owned(),
            searched: searched.into_iter().flatten().cloned().collect(),
        }
    }

    /// The name of each model, its folder, and the folder in that with its files.
    fn found(&self) -> Vec<(String, PathBuf, Option<PathBuf>)> {
        let mut found = Vec::new();
        for (name, folder) in folders(&self.imported) {
            found.push((name, folder.clone(), Some(folder)));
        }
        for (folder_name, folder) in self.hub_cache.iter().flat_map(|cache| folders(cache)) {
            if let Some(name) = model_name(&folder_name) {
                let snapshot = main_snapshot(&folder);
                found.push((name, folder, snapshot));
            }
        }
        // A stable sort: of two models with one name the imported one stays first.
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }
}

/// The subfolders with their names, without hidden ones, which are unfinished imports or belong to
/// other programs.
fn folders(parent: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let named = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    named.filter(|(name, path)| !name.starts_with('.') && path.is_dir()).collect()
}

fn describe(name: String, folder: PathBuf, snapshot: Option<PathBuf>) -> ModelFolder {
    let Some(path) = snapshot else {
        return ModelFolder {
            name,
            path: folder,
            model_type: None,
            bytes: 0,
            problem: Some(ModelProblem::NoSnapshot),
        };
    };
    let (model_type, problem) = check(&path);
    ModelFolder { name, bytes: size(&path, 0), path, model_type, problem }
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

fn check(folder: &Path) -> (Option<String>, Option<ModelProblem>) {
    match model_type(folder) {
        Ok(model_type) => {
            (Some(model_type), weights(folder).and_then(|()| tokenizer(folder)).err())
        }
        Err(problem) => (None, Some(problem)),
    }
}

fn model_type(folder: &Path) -> Result<String, ModelProblem> {
    let config = folder.join("config.json");
    if !config.is_file() {
        return Err(ModelProblem::ConfigMissing);
    }
    let broken = |reason: String| ModelProblem::ConfigBroken { reason };
    let text = read_file(&config, MAX_CONFIG_BYTES).map_err(|error| broken(reason(error)))?;
    let config: Json = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
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

fn weights(folder: &Path) -> Result<(), ModelProblem> {
    let index = folder.join(INDEX);
    if index.is_file() {
        let broken = |reason: String| ModelProblem::IndexBroken { reason };
        let text = read_file(&index, MAX_INDEX_BYTES).map_err(|error| broken(reason(error)))?;
        let index: Index =
            serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
        // A file outside of the folder does not count as one of the model's.
        let is_here = |file: &str| !file.contains(['/', '\\']) && folder.join(file).is_file();
        if let Some(file) = index.weight_map.into_values().find(|file| !is_here(file)) {
            return Err(ModelProblem::ShardMissing { file });
        }
    }
    let names = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut shards: Vec<String> =
        names.filter(|name| name.starts_with("model") && name.ends_with(".safetensors")).collect();
    shards.sort();
    if let Some(file) = shards.first().and_then(|shard| missing_part(shard, &shards)) {
        return Err(ModelProblem::ShardMissing { file });
    }
    match shards.iter().find(|shard| !folder.join(shard).is_file()) {
        _ if shards.is_empty() => Err(ModelProblem::NoWeights),
        // The target of a link was removed from the shared cache.
        Some(shard) => Err(ModelProblem::ShardMissing { file: shard.clone() }),
        None => Ok(()),
    }
}

/// The first name that is absent of those that `model-00001-of-00003.safetensors` promises. Another
/// program's unfinished download may lack the index too.
fn missing_part(shard: &str, shards: &[String]) -> Option<String> {
    let (before, after) = shard.split_once("-of-")?;
    let (stem, number) = before.rsplit_once('-')?;
    let count: usize = after.strip_suffix(".safetensors")?.parse().ok()?;
    if count > MAX_PARTS {
        return None;
    }
    let width = number.len();
    let mut names = (1..=count).map(|part| format!("{stem}-{part:0width$}-of-{after}"));
    names.find(|name| !shards.contains(name))
}

fn tokenizer(folder: &Path) -> Result<(), ModelProblem> {
    if folder.join("tokenizer.json").is_file() {
        Ok(())
    } else {
        Err(ModelProblem::TokenizerMissing)
    }
}

/// Why a file could not be read, after a text that names the file.
fn reason(error: FileError) -> String {
    match error {
        FileError::Io { source, .. } => source.to_string(),
        FileError::NotAFile { .. } => "it is not a regular file".to_owned(),
        FileError::TooLong { limit_bytes, .. } => {
            format!("it has more than {limit_bytes} bytes, the most that are read of it")
        }
    }
}
