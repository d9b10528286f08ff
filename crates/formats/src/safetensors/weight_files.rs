//! The weight files of a model folder, checked together.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde::Deserialize;

use super::{Limits, SafetensorsError, SafetensorsFile};
use crate::excerpt::excerpt;
use crate::file::{FileError, read_file};

/// The most tensors of all files of a model; the largest known have a quarter of it.
pub(super) const MAX_MODEL_TENSORS: usize = 1 << 20;

/// The largest models have a few hundred weight files.
const MAX_PARTS: usize = 10_000;

/// Checks all weight files of a model folder: `model*.safetensors` and whatever
/// `model.safetensors.index.json` names.
///
/// A shard that the index names and the folder lacks is an error, unless the index was left over
/// from other weights ([`is_left_over`]). So is a tensor that two files hold.
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
        let indexed = shards_in_index(&index)?;
        let is_here = |file: &String| {
            let is_plain = !file.contains(['/', '\\', '\0']) && file.ends_with(".safetensors");
            is_plain && folder.join(file).is_file()
        };
        match indexed.iter().find(|file| !is_here(file)) {
            None => names.extend(indexed),
            Some(_) if !indexed.iter().any(is_here) && is_left_over(&indexed, &names) => {}
            Some(file) => {
                let file = excerpt(file.clone());
                return Err(SafetensorsError::MissingShard { index, file });
            }
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

/// Whether an index that names the files `indexed` was left over from other weights: it names no
/// weight file of the folder, and these are complete by their numbers. Conversions leave such
/// indexes; mlx-lm reads none, and transformers takes `model.safetensors` first.
pub fn is_left_over(indexed: &BTreeSet<String>, in_folder: &BTreeSet<String>) -> bool {
    !in_folder.is_empty() && indexed.is_disjoint(in_folder) && missing_part(in_folder).is_none()
}

/// Returns the first file that a name such as `model-00001-of-00003.safetensors` promises and
/// `files` lack; `None` if they are complete or have no numbers.
pub fn missing_part(files: &BTreeSet<String>) -> Option<String> {
    let (before, after) = files.first()?.split_once("-of-")?;
    let (stem, number) = before.rsplit_once('-')?;
    let count: usize = after.strip_suffix(".safetensors")?.parse().ok()?;
    if count > MAX_PARTS {
        return None;
    }
    let width = number.len();
    let mut names = (1..=count).map(|part| format!("{stem}-{part:0width$}-of-{after}"));
    names.find(|name| !files.contains(name))
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
