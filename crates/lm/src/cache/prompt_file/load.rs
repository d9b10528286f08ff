//! Reading the caches of a prompt-cache file after its header has been checked.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_formats::FileError;
use cairn_formats::cache_file::{
    CacheFile, CacheFileError, KvBuffer, LayerState, QuantizedBuffers,
};
use cairn_formats::safetensors::TensorEntry;
use mlx_rs::{Array, Dtype};

use crate::LmError;
use crate::cache::fit::check_fit;
use crate::cache::{CacheSpec, LayerCache, LayerCacheSpec, QuantizedArray};
use crate::dtype::mlx_dtype;
use crate::ffi;
use crate::models::Model;

/// Reads the caches and the user metadata in `path`. Fails on any file that no model could continue
/// from; use [`PromptFile::check_fit`] to check the caches against a certain model.
pub fn load_prompt_cache(
    path: &Path,
) -> Result<(Vec<LayerCache>, BTreeMap<String, String>), LmError> {
    let file = PromptFile::open(path)?;
    let caches = file.read()?;
    Ok((caches, file.0.metadata))
}

/// An open prompt-cache file with a checked header. Its arrays are read later from the same file
/// handle, even if the path has been replaced by then.
#[derive(Debug)]
pub struct PromptFile(CacheFile);

impl PromptFile {
    /// Opens and checks `path`; reads only the header and the scalars.
    pub fn open(path: &Path) -> Result<PromptFile, LmError> {
        CacheFile::open(path).map(PromptFile).map_err(|refusal| error(path, refusal))
    }

    /// The user metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.metadata
    }

    /// How many tokens the layers have read. Of recurrent states alone, which do not record it, it is
    /// what the metadata says, or 0.
    pub fn num_tokens(&self) -> usize {
        self.0.num_tokens()
    }

    /// The file's length in bytes.
    pub fn num_bytes(&self) -> Result<u64, LmError> {
        self.0
            .file
            .file()
            .metadata()
            .map(|metadata| metadata.len())
            .map_err(|source| self.unreadable(source))
    }

    /// What its caches are, according to the header.
    pub fn spec(&self) -> CacheSpec {
        CacheSpec::new(self.0.layers.iter().map(LayerCacheSpec::of_state).collect())
    }

    /// Fails unless `model` can continue from it, by its header alone. With `is_its_own` the file
    /// was made by this very model, so its numbers must be of the type that the model computes in.
    pub fn check_fit(&self, model: &Model, is_its_own: bool) -> Result<(), LmError> {
        check_fit(model.typed_cache_spec()?, &self.0.layers, is_its_own)
    }

    /// Reads the caches: only the tokens in use, not the spare capacity that other programs save.
    pub fn read(&self) -> Result<Vec<LayerCache>, LmError> {
        self.read_with(&mut FileReading::new(&self.0, None), None)
    }

    /// Reads the caches and converts them to the types that `model` computes in. The file must have
    /// passed [`PromptFile::check_fit`].
    pub fn read_for(&self, model: &Model) -> Result<Vec<LayerCache>, LmError> {
        self.read_with(&mut FileReading::new(&self.0, None), Some(model.typed_cache_spec()?))
    }

    /// As [`PromptFile::read_for`], with a BLAKE3 hash (hex) of the metadata and of all that was
    /// read. Spare capacity in the file does not change it.
    pub fn read_and_hash_for(&self, model: &Model) -> Result<(Vec<LayerCache>, String), LmError> {
        // Stored namespaces contain this hash, so its input format must not change. Every part is
        // length-prefixed or terminated, so that different contents cannot collide.
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"cairn prompt file 1\n");
        for text in self.metadata().iter().flat_map(|(key, value)| [key, value]) {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let mut reading = FileReading::new(&self.0, Some(hasher));
        let caches = self.read_with(&mut reading, Some(model.typed_cache_spec()?))?;
        Ok((caches, reading.hasher.unwrap_or_default().finalize().to_hex().to_string()))
    }

    fn read_with(
        &self,
        reading: &mut FileReading<'_>,
        own: Option<&CacheSpec>,
    ) -> Result<Vec<LayerCache>, LmError> {
        let own = own.map_or(&[][..], CacheSpec::layers);
        let mut caches = reading.caches(&self.0.layers, own)?;
        let num_tokens = self.num_tokens();
        caches.iter_mut().for_each(|cache| cache.as_kind_mut().count_as_read(num_tokens));
        Ok(caches)
    }

    fn unreadable(&self, source: std::io::Error) -> LmError {
        let path = self.0.file.path().to_owned();
        LmError::Weights(FileError::Io { path, source }.into())
    }
}

fn error(path: &Path, refusal: CacheFileError) -> LmError {
    match refusal {
        CacheFileError::Safetensors(error) => LmError::Weights(error),
        CacheFileError::Contents { what, allowed } => {
            LmError::PromptFile { path: path.to_owned(), what, allowed }
        }
    }
}

/// Reads the arrays of one file after the other. Each kind of cache asks for its own.
#[derive(Debug)]
pub(crate) struct FileReading<'a> {
    file: &'a CacheFile,
    /// Hashes all that is read, in order; `None` if no hash is wanted.
    hasher: Option<blake3::Hasher>,
    /// The model's own layer, to whose types the arrays are converted.
    own: Option<LayerCacheSpec>,
}

// The casts to i32 below cannot overflow: the header check limits every length and number.
impl<'a> FileReading<'a> {
    fn new(file: &'a CacheFile, hasher: Option<blake3::Hasher>) -> Self {
        FileReading { file, hasher, own: None }
    }

    fn caches(
        &mut self,
        layers: &[LayerState],
        own: &[LayerCacheSpec],
    ) -> Result<Vec<LayerCache>, LmError> {
        let cache = |(index, layer): (usize, &LayerState)| {
            self.own = own.get(index).cloned();
            self.note_layer(layer);
            LayerCacheSpec::of_state(layer).as_kind().read_from_file(layer, self)
        };
        layers.iter().enumerate().map(cache).collect()
    }

    /// The caches of a list's entries.
    pub(crate) fn entries(&mut self, layer: &LayerState) -> Result<Vec<LayerCache>, LmError> {
        let LayerState::List(entries) = layer else { return Ok(Vec::new()) };
        match self.own.take() {
            Some(LayerCacheSpec::List(own)) => self.caches(entries, &own.entries),
            _ => self.caches(entries, &[]),
        }
    }

    /// Keys and values in use, `[1, H, T, D]`; `None` before the first token.
    pub(crate) fn keys_values(
        &mut self,
        layer: &LayerState,
    ) -> Result<Option<(Array, Array)>, LmError> {
        let Some([keys, values]) = layer.pair() else { return Ok(None) };
        let dtype = self.wanted(0);
        Ok(Some((self.buffer(keys, dtype)?, self.buffer(values, dtype)?)))
    }

    /// Quantized keys and values in use; `None` before the first token.
    pub(crate) fn quantized(
        &mut self,
        layer: &LayerState,
    ) -> Result<Option<[QuantizedArray; 2]>, LmError> {
        let LayerState::Quantized { buffers: Some(buffers), .. } = layer else { return Ok(None) };
        let [keys, values] = &**buffers;
        Ok(Some([self.quantized_array(keys)?, self.quantized_array(values)?]))
    }

    /// The arrays of a recurrent state.
    pub(crate) fn slots(&mut self, layer: &LayerState) -> Result<Vec<Option<Array>>, LmError> {
        let LayerState::Arrays(slots) = layer else { return Ok(Vec::new()) };
        let array = |(slot, tensor): (usize, &Option<TensorEntry>)| {
            let wanted = self.wanted(slot);
            tensor.as_ref().map(|tensor| self.array(tensor, wanted)).transpose()
        };
        slots.iter().enumerate().map(array).collect()
    }

    /// The type of the model's own array at `index`.
    fn wanted(&self, index: usize) -> Option<Dtype> {
        self.own.as_ref()?.as_kind().types().get(index).copied().flatten()
    }

    fn quantized_array(
        &mut self,
        [packed, scales, biases]: &QuantizedBuffers,
    ) -> Result<QuantizedArray, LmError> {
        let dtype = self.wanted(0);
        Ok(QuantizedArray {
            packed: self.buffer(packed, None)?,
            scales: self.buffer(scales, dtype)?,
            biases: self.buffer(biases, dtype)?,
        })
    }

    fn buffer(&mut self, buffer: &KvBuffer, dtype: Option<Dtype>) -> Result<Array, LmError> {
        let bytes = self
            .file
            .read_buffer(buffer)
            .map_err(|refusal| error(self.file.file.path(), refusal))?;
        self.array_of(&bytes, &buffer.tensor, &buffer.shape(), dtype)
    }

    fn array(&mut self, tensor: &TensorEntry, dtype: Option<Dtype>) -> Result<Array, LmError> {
        let bytes =
            self.file.read(tensor).map_err(|refusal| error(self.file.file.path(), refusal))?;
        self.array_of(&bytes, tensor, &tensor.shape, dtype)
    }

    fn array_of(
        &mut self,
        bytes: &[u8],
        tensor: &TensorEntry,
        shape: &[usize],
        wanted: Option<Dtype>,
    ) -> Result<Array, LmError> {
        if let Some(hasher) = &mut self.hasher {
            // The name tells a layer's arrays apart.
            hasher
                .update(format!("{} {} {shape:?}\n", tensor.name, tensor.dtype.name()).as_bytes());
            hasher.update(bytes);
        }
        array_of(bytes, shape, mlx_dtype(tensor.dtype), wanted)
    }

    /// Adds the class and the scalars of a layer to the hash.
    fn note_layer(&mut self, layer: &LayerState) {
        let Some(hasher) = &mut self.hasher else { return };
        hasher.update(format!("{} {:?}\n", layer.class().name(), layer.numbers()).as_bytes());
    }
}

fn array_of(
    bytes: &[u8],
    shape: &[usize],
    dtype: Dtype,
    wanted: Option<Dtype>,
) -> Result<Array, LmError> {
    let shape: Vec<i32> = shape.iter().map(|&length| length as i32).collect();
    let array = ffi::array_from_bytes(bytes, &shape, dtype)?;
    match wanted.filter(|wanted| *wanted != dtype) {
        Some(wanted) => {
            let array = array.as_dtype(wanted)?;
            // Evaluated at once, so that the unconverted copy is freed.
            array.eval()?;
            Ok(array)
        }
        None => Ok(array),
    }
}
