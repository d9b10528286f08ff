//! Safetensors files: checked before anything else reads them, and read through the file handle
//! that was checked.
//!
//! ```text
//! <name>.safetensors
//! ├── 8 bytes      length of the header, little-endian
//! ├── header       JSON: "__metadata__" → {key: text}, each tensor's name → {dtype, shape, data_offsets}
//! └── data         the tensors, end to end; the last one ends with the file
//! ```
//! MLX needs stricter rules than the format has: each dimension is from 1 (0 in prompt caches) to
//! `i32::MAX`, names are unique, dtypes are from a closed list, and the header's length is bounded.

mod dtype;
mod error;
mod header;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
mod weight_files;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use dtype::Dtype;
pub use error::{HeaderProblem, SafetensorsError};
pub use weight_files::{check_weight_files, is_left_over, missing_part};

use crate::file::{FileError, open_regular};
use header::{Header, LENGTH_BYTES, header_bytes};

/// How much of a file may be header; parsing a hostile one costs about 15 times its size in memory.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest accepted header, in bytes.
    pub header_bytes: u64,
    /// The least length of a dimension. MLX takes no empty tensors from us, but mlx-lm's prompt
    /// caches name absent arrays by them.
    pub least_dimension: u64,
}

impl Limits {
    /// For model weights: 64 MiB.
    pub const MODEL: Limits = Limits { header_bytes: 64 << 20, least_dimension: 1 };
    /// For prompt caches: 8 MiB.
    pub const CACHE: Limits = Limits { header_bytes: 8 << 20, least_dimension: 0 };
}

/// One tensor of a checked file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// The name, unique in the file.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// Row-major; empty for a scalar; every dimension is from 1 (0 in prompt caches) to `i32::MAX`.
    pub shape: Vec<usize>,
    /// Where the values lie, counted from the start of the file.
    pub bytes: Range<u64>,
}

/// A file that passed the check and is still open.
///
/// - Its tensors lie inside the file, end to end, and have the bytes that dtype and shape ask for.
/// - Names are unique, among tensors as among metadata.
/// - What is read later comes from the same inode, even if another file has the path by then.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    tensors: Vec<TensorEntry>,
    /// Where each name is in `tensors`.
    index: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

impl SafetensorsFile {
    /// Opens and checks `path`; reads the header only.
    pub fn open(path: &Path, limits: Limits) -> Result<SafetensorsFile, SafetensorsError> {
        let (file, file_bytes) = open_regular(path)?;
        let header = read_header(path, &file, file_bytes, limits)?;
        let Header { tensors, metadata } = Header::parse(&header, file_bytes, limits)
            .map_err(|problem| SafetensorsError::Header { path: path.into(), problem })?;
        let index = tensors.iter().enumerate();
        let index = index.map(|(index, tensor)| (tensor.name.clone(), index)).collect();
        Ok(SafetensorsFile { path: path.into(), file, tensors, index, metadata })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for a reader that must see the bytes that were checked.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// All tensors in the order of their bytes.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.index.get(name).map(|index| &self.tensors[*index])
    }

    /// The file with other names for its tensors, without those that get none. Fails if two get the
    /// same.
    pub fn renamed(
        mut self,
        name_of: impl Fn(&str) -> Option<String>,
    ) -> Result<SafetensorsFile, SafetensorsError> {
        let path = &self.path;
        self.tensors = std::mem::take(&mut self.tensors)
            .into_iter()
            .filter_map(|tensor| Some(TensorEntry { name: name_of(&tensor.name)?, ..tensor }))
            .collect();
        self.index.clear();
        for (index, tensor) in self.tensors.iter().enumerate() {
            if self.index.insert(tensor.name.clone(), index).is_some() {
                return Err(SafetensorsError::DuplicateTensor {
                    name: tensor.name.clone(),
                    first: path.clone(),
                    second: path.clone(),
                });
            }
        }
        Ok(self)
    }

    /// The `__metadata__` map; empty if the file has none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Bytes of all tensors together.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).sum()
    }

    /// The little-endian bytes of one tensor.
    pub fn read_tensor(&self, name: &str) -> Result<Vec<u8>, SafetensorsError> {
        let entry = self.tensor(name).ok_or_else(|| SafetensorsError::NoSuchTensor {
            path: self.path.clone(),
            name: name.into(),
        })?;
        // The length was checked against the file's size, so this allocates no more than the file
        // holds.
        let mut bytes = vec![0; (entry.bytes.end - entry.bytes.start) as usize];
        self.read_at(&mut bytes, entry.bytes.start)?;
        Ok(bytes)
    }

    /// Fills `bytes` from the file's byte `position` on.
    pub fn read_at(&self, bytes: &mut [u8], position: u64) -> Result<(), SafetensorsError> {
        self.file
            .read_exact_at(bytes, position)
            .map_err(|source| FileError::Io { path: self.path.clone(), source }.into())
    }
}

/// The header's JSON, which is within the limit and within the file.
fn read_header(
    path: &Path,
    file: &File,
    file_bytes: u64,
    limits: Limits,
) -> Result<Vec<u8>, SafetensorsError> {
    let refused = |problem| SafetensorsError::Header { path: path.into(), problem };
    let failed = |source| FileError::Io { path: path.into(), source };
    let mut length = [0; LENGTH_BYTES as usize];
    if file_bytes < LENGTH_BYTES {
        let (expected_bytes, found_bytes) = (LENGTH_BYTES, file_bytes);
        return Err(refused(HeaderProblem::Truncated { expected_bytes, found_bytes }));
    }
    file.read_exact_at(&mut length, 0).map_err(failed)?;
    let mut header = vec![0; header_bytes(length, file_bytes, limits).map_err(refused)?];
    file.read_exact_at(&mut header, LENGTH_BYTES).map_err(failed)?;
    Ok(header)
}
