//! The weight files of a model folder, checked together.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde::Deserialize;

use super::{Limits, SafetensorsError, SafetensorsFile};
use crate::excerpt::excerpt;
use crate::file::{FileError, read_file};

/// The most tensors of all files of a model; the largest known have a quarter of it.
pub(super) const MAX_MODEL_TENSORS: usize = 1 << 20;

/// Checks all weight files of a model folder: `model*.safetensors` and whatever
/// `model.safetensors.index.json` names.
///
/// A shard that the index names and the folder lacks, or a tensor that two files hold, is an error.
pub fn check_weight_files(folder: &Path) -> Result<Vec<SafetensorsFile>, SafetensorsError> {
    let mut names = BTreeSet::new();
    let entries = std::fs::read_dir(folder)
        .map_err(|source| FileError::Io { path: folder.into(), source })?;
    for entry in entries {
        let entry = entry.map_err(|source| FileError::Io { path: folder.into(), source })?;
        if let Ok(name) = entry.file_name().into_string()
            && name.starts_with("model")
            && name.ends_with(".safetensors")
        {
            names.insert(name);
        }
    }
    let index = folder.join("model.safetensors.index.json");
    if index.exists() {
        for file in shards_in_index(&index)? {
            let is_plain = !file.contains(['/', '\\', '\0']) && file.ends_with(".safetensors");
            if !is_plain || !folder.join(&file).is_file() {
                return Err(SafetensorsError::MissingShard { index, file: excerpt(file) });
            }
            names.insert(file);
        }
    }
    if names.is_empty() {
        return Err(SafetensorsError::NoWeights { folder: folder.into() });
    }

    let mut files: Vec<SafetensorsFile> = Vec::with_capacity(names.len());
    let mut num_tensors = 0;
    for name in names {
        let file = SafetensorsFile::open(&folder.join(name), Limits::MODEL)?;
        num_tensors += file.tensors().len();
        if num_tensors > MAX_MODEL_TENSORS {
            return Err(SafetensorsError::TooManyTensors { folder: folder.into() });
        }
        files.push(file);
    }
    check_names(&files)?;
    Ok(files)
}

/// Fails if two files have a tensor of the same name.
fn check_names(files: &[SafetensorsFile]) -> Result<(), SafetensorsError> {
    let mut file_of_tensor: HashMap<&str, &Path> = HashMap::new();
    for file in files {
        for tensor in file.tensors() {
            if let Some(first) = file_of_tensor.insert(&tensor.name, file.path()) {
                return Err(SafetensorsError::DuplicateTensor {
                    name: excerpt(&tensor.name),
                    first: first.into(),
                    second: file.path().into(),
                });
            }
        }
    }
    Ok(())
}

fn shards_in_index(index: &Path) -> Result<BTreeSet<String>, SafetensorsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let text = read_file(index, Limits::MODEL.header_bytes)?;
    let parsed: Index = serde_json::from_slice(&text)
        .map_err(|source| SafetensorsError::Index { path: index.into(), source })?;
    Ok(parsed.weight_map.into_values().collect())
}
