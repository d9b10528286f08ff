//! Tiny random models for tests, by name.
//!
//! The folders of `tests/goldens` hold a config and the numbers that mlx-lm computes, and no
//! weights: [`tiny_model`] draws those from a seed, as the script that made the numbers did, and
//! checks that they are the same bits.
//!
//! ```
//! let folder = cairn_tiny_models::tiny_model("llama/dense-tied");
//! assert!(folder.join("model.safetensors").exists());
//! ```

mod draw;
mod scripted;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use draw::{Stored, Weights};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use thiserror::Error;

pub use scripted::{
    ANSWER, SHOWS_NOTHING, copy_api_models, copy_scripted_model, set_context, set_template,
};

/// Why there is no such model.
#[derive(Debug, Error)]
pub enum TinyModelError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// `weights.json` is not what the script writes.
    #[error("{path}: {source}; run tests/goldens/make_goldens.py")]
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The numbers in `tests/goldens` are those of other weights.
    #[error("{name}: the drawn checkpoint has SHA-256 {found}, the script's had {expected}")]
    Digest {
        /// The model.
        name: String,
        /// Of what was drawn here.
        found: String,
        /// In `weights.json`.
        expected: String,
    },
    /// The checkpoint cannot be put into a file.
    #[error("{name}: {source}")]
    Checkpoint {
        /// The model.
        name: String,
        /// What went wrong.
        source: safetensors::SafeTensorError,
    },
}

/// The folder of a model, `family/case` in `tests/goldens`; every one has the tokenizer of bytes.
///
/// It is below `target/tiny-models` and must not be changed: a test that changes a model copies it
/// ([`copy_tiny_model`]). The first call of a process writes the files that are missing or wrong.
/// Panics where they cannot be written.
pub fn tiny_model(name: &str) -> PathBuf {
    static WRITTEN: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let written = written.get_or_insert_default();
    if let Some(folder) = written.get(name) {
        return folder.clone();
    }
    let folder = workspace().join("target/tiny-models").join(name);
    write_tiny_model(name, &folder).unwrap_or_else(|error| panic!("the tiny model {error}"));
    written.insert(name.to_owned(), folder.clone());
    folder
}

/// A copy of [`tiny_model`] in a folder that is made.
pub fn copy_tiny_model(name: &str, folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(tiny_model(name))? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    Ok(())
}

/// Rewrites the weights in a copied model's folder as embedding models are saved: the decoder
/// alone, whose names have no `model.`, and no output layer. Panics where that fails.
pub fn save_decoder_alone(folder: &Path) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let all = SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{error}"));
    let decoder = all.iter().filter_map(|(name, view)| Some((name.strip_prefix("model.")?, view)));
    let written = safetensors::serialize_to_file(decoder, None, &path);
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The names of all models, in order. Panics where `tests/goldens` cannot be read.
pub fn tiny_models() -> Vec<String> {
    let names_in = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let entries = entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let mut names = Vec::new();
    for family in names_in(&goldens()) {
        for case in names_in(&goldens().join(&family)) {
            if goldens().join(&family).join(&case).join("weights.json").exists() {
                names.push(format!("{family}/{case}"));
            }
        }
    }
    names.sort();
    names
}

/// `tests/goldens`.
pub fn goldens() -> PathBuf {
    workspace().join("tests/goldens")
}

fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_owned()
}

/// Writes the files that are not there with the right contents; each appears whole, for processes
/// that read them at the same time.
fn write_tiny_model(name: &str, folder: &Path) -> Result<(), TinyModelError> {
    fs::create_dir_all(folder)
        .map_err(|source| TinyModelError::Io { path: folder.to_owned(), source })?;
    let golden = goldens().join(name);
    let mut files = checkpoint(name, &golden.join("weights.json"))?;
    let beside = ["config.json", "generation_config.json"].map(|file| golden.join(file));
    let tokenizer = ["tokenizer.json", "tokenizer_config.json"]
        .map(|file| goldens().join("tokenizer").join(file));
    for path in beside.into_iter().chain(tokenizer) {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file != "generation_config.json" || path.exists() {
            files.insert(file, read(&path)?);
        }
    }
    for (file, contents) in files {
        let path = folder.join(file);
        if fs::read(&path).is_ok_and(|found| found == contents) {
            continue;
        }
        let write = || {
            // Outside the folder, so that a copy of it never has a half-written file.
            let mut temporary = tempfile::NamedTempFile::new_in(folder.parent().unwrap_or(folder))?;
            temporary.write_all(&contents)?;
            temporary.persist(&path)?;
            Ok(())
        };
        write().map_err(|source| TinyModelError::Io { path: path.clone(), source })?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, TinyModelError> {
    fs::read(path).map_err(|source| TinyModelError::Io { path: path.to_owned(), source })
}

/// The checkpoint's files by name: one, or shards with their index.
fn checkpoint(name: &str, path: &Path) -> Result<BTreeMap<String, Vec<u8>>, TinyModelError> {
    let weights: Weights = serde_json::from_slice(&read(path)?)
        .map_err(|source| TinyModelError::Weights { path: path.to_owned(), source })?;
    let stored = draw::draw(&weights);
    let found = draw::digest(&stored);
    if found != weights.sha256 {
        let (name, expected) = (name.to_owned(), weights.sha256);
        return Err(TinyModelError::Digest { name, found, expected });
    }
    let serialized = |part: &[(&String, &Stored)]| {
        serialize(part)
            .map_err(|source| TinyModelError::Checkpoint { name: name.to_owned(), source })
    };
    let tensors: Vec<_> = stored.iter().collect();
    if weights.num_shards == 1 {
        return Ok([("model.safetensors".to_owned(), serialized(&tensors)?)].into());
    }
    let mut files = BTreeMap::new();
    let mut index = serde_json::Map::new();
    let parts = tensors.chunks(tensors.len().div_ceil(weights.num_shards));
    for (shard, part) in parts.enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", shard + 1, weights.num_shards);
        index.extend(part.iter().map(|(name, _)| ((*name).clone(), file.as_str().into())));
        files.insert(file, serialized(part)?);
    }
    let total_size: usize = tensors.iter().map(|(_, tensor)| tensor.data.len()).sum();
    let index =
        serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": index });
    files.insert("model.safetensors.index.json".to_owned(), index.to_string().into_bytes());
    Ok(files)
}

/// What the weight files of a model folder hold: each tensor's type and shape, such as "BF16 64x32", and a
/// digest of those that count with their bytes, as the golden scripts compute it. Panics where there is
/// none.
pub fn checkpoint_digest(
    folder: &Path,
    counts: impl Fn(&str) -> bool,
) -> (BTreeMap<String, String>, String) {
    let mut stored = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}")) {
        let path = entry.unwrap_or_else(|error| panic!("{folder:?}: {error}")).path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = read(&path).unwrap_or_else(|error| panic!("{error}"));
        let file = safetensors::SafeTensors::deserialize(&bytes);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        stored.extend(file.tensors().into_iter().map(|(name, view)| {
            let (dtype, shape) = (view.dtype(), view.shape().to_vec());
            (name, Stored { dtype, shape, data: view.data().to_vec() })
        }));
    }
    stored.retain(|name, _| counts(name));
    let digest = draw::digest(&stored);
    let kinds = stored.into_iter().map(|(name, tensor)| {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        (name, format!("{} {}", tensor.dtype, shape.join("x")))
    });
    (kinds.collect(), digest)
}

/// A safetensors file.
fn serialize(part: &[(&String, &Stored)]) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let mut views = Vec::with_capacity(part.len());
    for (name, tensor) in part {
        views.push((name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data)?));
    }
    let metadata = HashMap::from([("format".to_owned(), "mlx".to_owned())]);
    safetensors::serialize(views, Some(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_checkpoint_is_drawn_as_the_script_draws_it() {
        let names = tiny_models();
        assert!(names.iter().any(|name| name == "llama/tiny-chat"), "{names:?}");
        for name in names {
            // Panics where the digest is another.
            assert!(tiny_model(&name).join("config.json").exists(), "{name}");
        }
    }

    #[test]
    fn a_spoilt_file_is_written_again() {
        let folder = tempfile::tempdir().expect("a folder");
        write_tiny_model("llama/sharded", folder.path()).expect("writes");
        let file = folder.path().join("model-00001-of-00002.safetensors");
        let sound = fs::read(&file).expect("reads");
        fs::write(&file, &sound[..100]).expect("writes");
        write_tiny_model("llama/sharded", folder.path()).expect("writes");
        assert!(fs::read(&file).expect("reads") == sound);
    }
}
