//! A chunk as a safetensors file: `keys.<layer>` and `values.<layer>`, each `[1, H, tokens, D]`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_lm::cache::KvCache;
use cairn_lm::ffi;
use mlx_rs::{Array, Dtype};
use safetensors::tensor::{SafeTensors, View};

use super::ChunkRecord;
use super::index::PlannedChunk;

/// Why a stored chunk cannot be used. Each displays as a reason for a person.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChunkError {
    #[error("a stored part cannot be read ({0})")]
    Read(#[from] std::io::Error),
    #[error("a stored part is damaged (its contents have changed since it was written)")]
    Damaged,
    #[error("a stored part is damaged ({0})")]
    Format(#[from] safetensors::SafeTensorError),
    #[error("a stored part belongs to another model")]
    Foreign,
    #[error("a stored part could not be brought back into memory ({0})")]
    Mlx(#[from] cairn_lm::LmError),
}

/// Copies of one layer's keys and values, free of MLX, so that another thread can write them.
pub(super) struct LayerBytes {
    keys: TensorBytes,
    values: TensorBytes,
}

struct TensorBytes {
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl LayerBytes {
    /// Copies the tokens `start..stop` of a layer.
    pub(super) fn copy(cache: &KvCache, start: usize, stop: usize) -> Result<Self, ChunkError> {
        let (keys, values) = cache.span(start, stop).map_err(cairn_lm::LmError::from)?.ok_or(ChunkError::Foreign)?;
        Ok(LayerBytes { keys: TensorBytes::copy(&keys)?, values: TensorBytes::copy(&values)? })
    }
}

impl TensorBytes {
    fn copy(array: &Array) -> Result<Self, ChunkError> {
        let dtype = match array.dtype() {
            Dtype::Float32 => safetensors::Dtype::F32,
            Dtype::Float16 => safetensors::Dtype::F16,
            Dtype::Bfloat16 => safetensors::Dtype::BF16,
            _ => return Err(ChunkError::Foreign),
        };
        let bytes = ffi::array_bytes(array).map_err(cairn_lm::LmError::from)?.to_vec();
        Ok(TensorBytes { dtype, shape: array.shape().iter().map(|&length| length as usize).collect(), bytes })
    }
}

impl View for &TensorBytes {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// The file of a chunk, as bytes.
pub(super) fn encode(chunk: &PlannedChunk, layers: &[LayerBytes]) -> Result<Vec<u8>, ChunkError> {
    let tensors = layers
        .iter()
        .enumerate()
        .flat_map(|(index, layer)| [(format!("keys.{index}"), &layer.keys), (format!("values.{index}"), &layer.values)]);
    let metadata = HashMap::from([
        ("format".to_owned(), "cairn-chunk-1".to_owned()),
        ("fingerprint".to_owned(), chunk.fingerprint.clone()),
        ("key".to_owned(), chunk.key.clone()),
    ]);
    Ok(safetensors::serialize(tensors, Some(metadata))?)
}

/// Where a chunk's file lies.
pub(super) fn path(folder: &Path, fingerprint: &str, key: &str) -> PathBuf {
    folder.join(fingerprint).join(format!("{key}.safetensors"))
}

/// Reads the first `num_tokens` tokens of a chunk: keys and values `[1, H, num_tokens, D]` per layer.
pub(super) fn read(folder: &Path, record: &ChunkRecord, num_layers: usize, num_tokens: usize) -> Result<Vec<(Array, Array)>, ChunkError> {
    let bytes = std::fs::read(path(folder, &record.fingerprint, &record.key))?;
    if bytes.len() as u64 != record.bytes || blake3::hash(&bytes).to_hex().as_str() != record.file_hash {
        return Err(ChunkError::Damaged);
    }
    // From here on the bytes are those that this program wrote; what they hold must still fit the model that is loaded.
    let tensors = SafeTensors::deserialize(&bytes)?;
    if tensors.len() != 2 * num_layers {
        return Err(ChunkError::Foreign);
    }
    let load = |name: String| -> Result<Array, ChunkError> {
        let tensor = tensors.tensor(&name)?;
        let dtype = match tensor.dtype() {
            safetensors::Dtype::F32 => Dtype::Float32,
            safetensors::Dtype::F16 => Dtype::Float16,
            safetensors::Dtype::BF16 => Dtype::Bfloat16,
            _ => return Err(ChunkError::Foreign),
        };
        let shape: Vec<i32> = tensor.shape().iter().map(|&length| length as i32).collect();
        let [1, heads, stored, dimensions] = *shape else { return Err(ChunkError::Foreign) };
        if stored as usize != record.token_ids.len() {
            return Err(ChunkError::Foreign);
        }
        let array = ffi::array_from_bytes(tensor.data(), &shape, dtype).map_err(cairn_lm::LmError::from)?;
        if stored as usize == num_tokens {
            return Ok(array);
        }
        let stop = [1, heads, num_tokens as i32, dimensions];
        Ok(ffi::slice(&array, &[0, 0, 0, 0], &stop).map_err(cairn_lm::LmError::from)?)
    };
    (0..num_layers).map(|layer| Ok((load(format!("keys.{layer}"))?, load(format!("values.{layer}"))?))).collect()
}
