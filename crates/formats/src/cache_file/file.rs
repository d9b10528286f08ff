//! An open prompt-cache file whose header and scalars were checked.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::error::{CacheFileError, refusal};
use super::layers::{KvBuffer, LayerReader, LayerState};
use super::layout::LayoutReader;
use super::metadata::CacheFileMetadata;
use crate::excerpt::excerpt;
use crate::safetensors::{Dtype, Limits, SafetensorsFile, TensorEntry};

/// An open prompt-cache file.
///
/// - Every layer has a state that some sequence of tokens produces, and tensors of fitting shapes.
/// - Every tensor belongs to a layer, and all have the same number of rows.
/// - Values are checked when they are read: an infinite one is an error.
#[derive(Debug)]
pub struct CacheFile {
    /// The open file.
    pub file: SafetensorsFile,
    /// The state of each layer.
    pub layers: Vec<LayerState>,
    /// What the user stored beside the caches.
    pub metadata: BTreeMap<String, String>,
}

impl CacheFile {
    /// Opens and checks `path`; reads the header and the scalars. Whether the layers fit a certain
    /// model is for that model to check.
    pub fn open(path: &Path) -> Result<CacheFile, CacheFileError> {
        let file = SafetensorsFile::open(path, Limits::CACHE)?;
        let source = LayoutReader::new(&file);
        let mut layers = Vec::new();
        for (layer, class) in source.classes()?.into_iter().enumerate() {
            let reader = LayerReader { source: &source, layer, prefix: layer.to_string() };
            layers.push(reader.read(class)?);
        }
        source.check_all_used()?;
        check_batch(&layers)?;
        let metadata = source.user_metadata();
        Ok(CacheFile { file, layers, metadata })
    }

    /// Tokens that the layers have read. Recurrent states record no number: of a file with states
    /// alone it is what the metadata says, or 0.
    pub fn num_tokens(&self) -> usize {
        match self.layers.iter().all(LayerState::is_recurrent) {
            true => CacheFileMetadata::named_count(&self.metadata).unwrap_or(0),
            false => self.layers.iter().map(LayerState::offset).max().unwrap_or(0),
        }
    }

    /// The bytes of an array, whose values are all finite.
    pub fn read(&self, tensor: &TensorEntry) -> Result<Vec<u8>, CacheFileError> {
        let bytes = self.file.read_tensor(&tensor.name)?;
        self.check_finite(tensor, &bytes)?;
        Ok(bytes)
    }

    /// The bytes of the tokens in use, whose values are all finite.
    pub fn read_buffer(&self, buffer: &KvBuffer) -> Result<Vec<u8>, CacheFileError> {
        let KvBuffer { tensor, num_used } = buffer;
        let &[batch, heads, capacity, width] = tensor.shape.as_slice() else {
            return self.read(tensor);
        };
        if *num_used >= capacity {
            return self.read(tensor);
        }
        let token_bytes = width * tensor.dtype.size_bytes() as usize;
        // Less than the tensor's bytes, which the file was found to hold.
        let mut bytes = vec![0; batch * heads * num_used * token_bytes];
        for (head, part) in bytes.chunks_exact_mut((num_used * token_bytes).max(1)).enumerate() {
            self.file.read_at(part, tensor.bytes.start + (head * capacity * token_bytes) as u64)?;
        }
        self.check_finite(tensor, &bytes)?;
        Ok(bytes)
    }

    fn check_finite(&self, tensor: &TensorEntry, bytes: &[u8]) -> Result<(), CacheFileError> {
        if are_finite(tensor.dtype, bytes) {
            return Ok(());
        }
        let what =
            format!("its tensor {:?} holds values that are NaN or infinite", excerpt(&tensor.name));
        Err(refusal(what, "a model computes finite ones only"))
    }
}

/// Whether no floating-point value is infinite or NaN; an exponent of ones means either.
fn are_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    let half = |exponent: u16| {
        let (numbers, _) = bytes.as_chunks::<2>();
        !numbers
            .iter()
            .fold(false, |bad, number| bad | (u16::from_le_bytes(*number) & exponent == exponent))
    };
    match dtype {
        Dtype::F32 => {
            let (numbers, _) = bytes.as_chunks::<4>();
            !numbers.iter().fold(false, |bad, number| {
                bad | (u32::from_le_bytes(*number) & 0x7f80_0000 == 0x7f80_0000)
            })
        }
        Dtype::F16 => half(0x7c00),
        Dtype::Bf16 => half(0x7f80),
        _ => true,
    }
}

/// Fails unless every tensor has the same number of rows of a batch.
fn check_batch(layers: &[LayerState]) -> Result<(), CacheFileError> {
    let tensors = layers.iter().flat_map(LayerState::tensors);
    let batch_sizes: HashSet<Option<&usize>> = tensors.map(|tensor| tensor.shape.first()).collect();
    if batch_sizes.len() > 1 || batch_sizes.contains(&None) {
        return Err(refusal(
            "its arrays have different numbers of rows".to_owned(),
            "all layers must hold the same batch",
        ));
    }
    Ok(())
}
