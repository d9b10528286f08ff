//! A copy of a GGUF file's model that keeps every weight, for as long as it is measured.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::import::{GgufImport, NUM_RANDOM_CHARS, PARTIAL_PREFIX, import_gguf};
use super::{GgufError, RoundTo};
use crate::make_locked_folder;

/// The model of a file in an MLX folder, in which weights without an exact form are f32. Dropping it
/// removes it. It is named and locked as a folder that a model is being written to, so that what a
/// crash leaves is removed with those.
#[derive(Debug)]
pub struct ExactCopy {
    folder: PathBuf,
    _partial: TempDir,
    _lock: Option<File>,
}

impl ExactCopy {
    /// Makes it in `models_dir`. `progress` is [`import_gguf`]'s.
    pub fn make(
        file: &Path,
        models_dir: &Path,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ExactCopy, GgufError> {
        let partial = || {
            tempfile::Builder::new()
                .prefix(PARTIAL_PREFIX)
                .rand_bytes(NUM_RANDOM_CHARS)
                .tempdir_in(models_dir)
        };
        let (partial, lock) = make_locked_folder(partial)
            .map_err(|source| GgufError::Write { path: models_dir.into(), source })?;
        let options = GgufImport { name: Some("model"), round_to: RoundTo::Float32 };
        let imported = import_gguf(file, partial.path(), options, progress)?;
        Ok(ExactCopy { folder: imported.folder, _partial: partial, _lock: lock })
    }

    /// The model's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
