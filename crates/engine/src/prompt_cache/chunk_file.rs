//! What a chunk holds, free of MLX, and its file: safetensors with the tensors of
//! [`cairn_lm::cache::chunk_state`].

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use cairn_lm::cache::chunk_state::{CacheLayout, ChunkState, StateTensor, TensorSlice};
use mlx_rs::Dtype;
use safetensors::tensor::{Metadata, SafeTensors, TensorInfo};

use crate::records::ChunkRecord;

/// Why a stored chunk cannot be used. Each displays as a reason for a person.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChunkError {
    #[error("a stored part cannot be read ({0})")]
    Read(#[from] io::Error),
    #[error("a stored part is damaged (its contents have changed since it was written)")]
    Damaged,
    #[error("a stored part is damaged ({0})")]
    Format(#[from] safetensors::SafeTensorError),
    #[error("a stored part could not be brought back into memory ({0})")]
    Lm(#[from] cairn_lm::LmError),
    #[error("a stored part holds numbers of a kind that no cache has")]
    Dtype,
}

impl ChunkError {
    /// Whether it will be there next time too: then the chunk is of no use any more.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            ChunkError::Read(error) => error.kind() == io::ErrorKind::NotFound,
            ChunkError::Lm(error) => matches!(error, cairn_lm::LmError::ChunkState { .. }),
            ChunkError::Damaged | ChunkError::Format(_) | ChunkError::Dtype => true,
        }
    }
}

/// The tensors of a chunk. Immutable once made, so that memory tier, writing and restoring share it.
#[derive(Debug)]
pub(super) struct ChunkContents {
    bytes: Vec<u8>,
    /// In the order of the bytes.
    tensors: Vec<StateTensor>,
    by_name: HashMap<String, usize>,
}

impl ChunkContents {
    pub(super) fn new(span: ChunkState) -> Self {
        let by_name = span
            .tensors
            .iter()
            .enumerate()
            .map(|(index, tensor)| (tensor.name.clone(), index))
            .collect();
        ChunkContents { bytes: span.bytes, tensors: span.tensors, by_name }
    }

    pub(super) fn num_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn tensor(&self, name: &str) -> Option<TensorSlice<'_>> {
        let tensor = &self.tensors[*self.by_name.get(name)?];
        Some(TensorSlice {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            bytes: &self.bytes[tensor.range.clone()],
        })
    }

    /// Reads the file of `record`; it must be the one that was written.
    pub(super) fn read(folder: &Path, record: &ChunkRecord) -> Result<Self, ChunkError> {
        let file = File::open(path(folder, &record.namespace.fingerprint, &record.key))?;
        // Not more than was written, whatever is there now; and whether it is longer shows too.
        let mut bytes = Vec::with_capacity(record.bytes as usize + 1);
        file.take(record.bytes + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != record.bytes
            || blake3::hash(&bytes).to_hex().as_str() != record.file_hash
        {
            return Err(ChunkError::Damaged);
        }
        // From here on the bytes are those that this program wrote; what they hold must still fit
        // the model, which the joiner sees.
        let (header_bytes, metadata) = SafeTensors::read_metadata(&bytes)?;
        let start = header_bytes + size_of::<u64>();
        let mut tensors = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let range = start + info.data_offsets.0..start + info.data_offsets.1;
            if range.end > bytes.len() {
                return Err(ChunkError::Damaged);
            }
            tensors.push(StateTensor {
                name,
                dtype: to_mlx(info.dtype)?,
                shape: info.shape.clone(),
                range,
            });
        }
        Ok(ChunkContents::new(ChunkState {
            tensors,
            bytes,
            held_from: record.held_from,
            has_state: record.has_state,
        }))
    }

    /// The beginning of the file: everything before the bytes of the tensors. `layout` makes the
    /// file say what it is without a model.
    pub(super) fn header(
        &self,
        record: &ChunkRecord,
        layout: &CacheLayout,
    ) -> Result<Vec<u8>, ChunkError> {
        let infos = self.tensors.iter().map(|tensor| {
            let data_offsets = (tensor.range.start, tensor.range.end);
            Ok((
                tensor.name.clone(),
                TensorInfo {
                    dtype: to_safetensors(tensor.dtype)?,
                    shape: tensor.shape.clone(),
                    data_offsets,
                },
            ))
        });
        let text = HashMap::from([
            ("format".to_owned(), "cairn-chunk-1".to_owned()),
            ("fingerprint".to_owned(), record.namespace.fingerprint.clone()),
            ("variant".to_owned(), record.namespace.variant.clone()),
            ("key".to_owned(), record.key.clone()),
            ("start".to_owned(), record.start.to_string()),
            ("layout".to_owned(), serde_json::to_string(layout).map_err(io::Error::from)?),
        ]);
        let metadata = Metadata::new(Some(text), infos.collect::<Result<_, ChunkError>>()?)?;
        let mut json = serde_json::to_vec(&metadata).map_err(io::Error::from)?;
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        Ok(header)
    }

    /// Writes the file so that it is there whole or not at all: temporary name, fsync, rename,
    /// fsync of the folder. Returns its hash.
    ///
    /// Where another program has written this chunk meanwhile, its file stays: that program knows
    /// it by its hash.
    pub(super) fn write(&self, path: &Path, header: &[u8]) -> io::Result<String> {
        let folder = path.parent().unwrap_or(Path::new("."));
        if !folder.exists() {
            std::fs::create_dir_all(folder)?;
            if let Some(parent) = folder.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        let num_bytes = (header.len() + self.bytes.len()) as u64;
        if std::fs::metadata(path).is_ok_and(|there| there.len() == num_bytes) {
            let there = std::fs::read(path)?;
            File::open(folder)?.sync_all()?;
            return Ok(blake3::hash(&there).to_hex().to_string());
        }
        let mut hasher = blake3::Hasher::new();
        let mut file =
            tempfile::Builder::new().prefix(".filing-").suffix(".tmp").tempfile_in(folder)?;
        for part in [header, &self.bytes] {
            file.write_all(part)?;
            hasher.update(part);
        }
        file.as_file().sync_all()?;
        file.persist(path)?;
        if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
            // It counts as not written: nobody would remove it later.
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

/// Where a chunk's file lies.
pub(super) fn path(folder: &Path, fingerprint: &str, key: &str) -> PathBuf {
    folder.join(fingerprint).join(format!("{key}.safetensors"))
}

/// The layers that the chunk at `path` was cut from, as it says itself; none where it is from a
/// version that did not.
pub(super) fn layout(path: &Path) -> Result<Option<CacheLayout>, ChunkError> {
    let mut file = File::open(path)?;
    let mut length = [0; size_of::<u64>()];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(ChunkError::Damaged);
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json)?;
    let metadata: Metadata = serde_json::from_slice(&json).map_err(|_| ChunkError::Damaged)?;
    let text = metadata.metadata().as_ref().and_then(|text| text.get("layout"));
    text.map(|layout| serde_json::from_str(layout).map_err(|_| ChunkError::Damaged)).transpose()
}

/// Far more than the header of any chunk takes.
const MAX_HEADER_BYTES: u64 = 8 << 20;

fn to_safetensors(dtype: Dtype) -> Result<safetensors::Dtype, ChunkError> {
    Ok(match dtype {
        Dtype::Float32 => safetensors::Dtype::F32,
        Dtype::Float16 => safetensors::Dtype::F16,
        Dtype::Bfloat16 => safetensors::Dtype::BF16,
        Dtype::Uint32 => safetensors::Dtype::U32,
        _ => return Err(ChunkError::Dtype),
    })
}

fn to_mlx(dtype: safetensors::Dtype) -> Result<Dtype, ChunkError> {
    Ok(match dtype {
        safetensors::Dtype::F32 => Dtype::Float32,
        safetensors::Dtype::F16 => Dtype::Float16,
        safetensors::Dtype::BF16 => Dtype::Bfloat16,
        safetensors::Dtype::U32 => Dtype::Uint32,
        _ => return Err(ChunkError::Dtype),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    fn contents(bytes: &[u8]) -> ChunkContents {
        let tensor = StateTensor {
            name: "keys.0".to_owned(),
            dtype: Dtype::Uint8,
            shape: vec![bytes.len()],
            range: 0..bytes.len(),
        };
        ChunkContents::new(ChunkState {
            tensors: vec![tensor],
            bytes: bytes.to_vec(),
            held_from: 0,
            has_state: false,
        })
    }

    /// Writes a chunk where there is a file already; what is there afterwards, by whose hash it is
    /// known.
    fn check(there: &[u8], written: &[u8], expected: &[u8]) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model/key.safetensors");
        contents(there).write(&path, b"header").unwrap();
        let hash = contents(written).write(&path, b"header").unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found, [b"header", expected].concat());
        assert_eq!(hash, blake3::hash(&found).to_hex().to_string());
    }

    #[test]
    fn a_chunk_that_another_program_has_written_stays_as_that_one_knows_it() {
        check(b"theirs", b"ours..", b"theirs");
        // Of another length it is none of this chunk.
        check(b"torn", b"ours..", b"ours..");
    }
}
