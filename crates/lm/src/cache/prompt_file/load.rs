//! Reading the caches of a prompt-cache file after its header has been checked.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_formats::FileError;
use cairn_formats::cache_file::{
    CacheClass, CacheFile, CacheFileError, KvBuffer, LayerState, QuantizedBuffers,
};
use cairn_formats::safetensors::TensorEntry;
use mlx_rs::{Array, Dtype};

use crate::LmError;
use crate::cache::chunk_state::CacheLayout;
use crate::cache::fit::{check_fit, own_caches};
use crate::cache::{
    ArraysCache, CacheList, ChunkedKvCache, KvCache, LayerCache, QuantizedArray, QuantizedKvCache,
    RotatingKvCache,
};
use crate::ffi;
use crate::models::Model;
use crate::weights::mlx_dtype;

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

    /// How many tokens the layers have read; 0 if all are recurrent states, which do not record it.
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

    /// The layout of its layers according to the header; `None` if one of them cannot be stored in
    /// chunks.
    pub fn layout(&self) -> Option<CacheLayout> {
        CacheLayout::of_states(&self.0.layers)
    }

    /// Fails unless `model` can continue from it, by its header alone. With `is_its_own` the file
    /// was made by this very model, so its numbers must be of the type that the model computes in.
    pub fn check_fit(&self, model: &Model, is_its_own: bool) -> Result<(), LmError> {
        check_fit(model, &self.0.layers, is_its_own)
    }

    /// Reads the caches: only the tokens in use, not the spare capacity that other programs save.
    pub fn read(&self) -> Result<Vec<LayerCache>, LmError> {
        self.read_with(&mut Reading { file: &self.0, hasher: None }, None)
    }

    /// Reads the caches and converts them to the types that `model` computes in. The file must have
    /// passed [`PromptFile::check_fit`].
    pub fn read_for(&self, model: &Model) -> Result<Vec<LayerCache>, LmError> {
        self.read_with(&mut Reading { file: &self.0, hasher: None }, Some(&own_caches(model)?))
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
        let mut reading = Reading { file: &self.0, hasher: Some(hasher) };
        let caches = self.read_with(&mut reading, Some(&own_caches(model)?))?;
        Ok((caches, reading.hasher.unwrap_or_default().finalize().to_hex().to_string()))
    }

    fn read_with(
        &self,
        reading: &mut Reading<'_>,
        own: Option<&[LayerCache]>,
    ) -> Result<Vec<LayerCache>, LmError> {
        let layers = self.0.layers.iter().enumerate();
        let layers =
            layers.map(|(index, layer)| reading.cache(layer, own.and_then(|own| own.get(index))));
        let mut caches = layers.collect::<Result<Vec<_>, _>>()?;
        let num_tokens = self.num_tokens();
        caches.iter_mut().for_each(|cache| count_as_read(cache, num_tokens));
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

/// Sets the offset of recurrent states to that of the other layers.
fn count_as_read(cache: &mut LayerCache, num_tokens: usize) {
    match cache {
        LayerCache::Arrays(cache) => cache.advance(num_tokens),
        LayerCache::List(list) => {
            list.entries_mut().iter_mut().for_each(|entry| count_as_read(entry, num_tokens))
        }
        LayerCache::Kv(_)
        | LayerCache::Rotating(_)
        | LayerCache::Quantized(_)
        | LayerCache::Chunked(_) => {}
        LayerCache::BatchKv(_) | LayerCache::BatchRotating(_) => {}
    }
}

struct Reading<'a> {
    file: &'a CacheFile,
    /// Hashes all that is read, in order; `None` if no hash is wanted.
    hasher: Option<blake3::Hasher>,
}

// The casts to i32 below cannot overflow: the header check limits every length and number.
impl Reading<'_> {
    /// The cache of one layer, converted to the types of `own` if that is given.
    fn cache(
        &mut self,
        layer: &LayerState,
        own: Option<&LayerCache>,
    ) -> Result<LayerCache, LmError> {
        let types: Vec<Dtype> =
            own.map_or(Vec::new(), |own| own.arrays().into_iter().map(Array::dtype).collect());
        let dtype = types.first().copied();
        self.note_layer(layer);
        Ok(match layer {
            LayerState::Kv { buffers, offset } => {
                let held = self.keys_values(buffers, dtype)?;
                LayerCache::Kv(held.map_or_else(KvCache::new, |(keys, values)| {
                    KvCache::from_buffers(keys, values, *offset as i32)
                }))
            }
            LayerState::Rotating { buffers, offset, keep, max_size, index } => {
                let (max_size, keep) = (*max_size as i32, *keep as i32);
                let (offset, index) = (*offset as i32, *index as i32);
                LayerCache::Rotating(match self.keys_values(buffers, dtype)? {
                    Some((keys, values)) => {
                        RotatingKvCache::from_buffers(max_size, keep, keys, values, offset, index)?
                    }
                    None => RotatingKvCache::new(max_size, keep),
                })
            }
            LayerState::Quantized { buffers, offset, group_size, bits } => {
                let cache = QuantizedKvCache::new(*group_size, *bits)?;
                LayerCache::Quantized(match buffers.as_deref() {
                    Some([keys, values]) => cache.with_contents(
                        self.quantized(keys, dtype)?,
                        self.quantized(values, dtype)?,
                        *offset as i32,
                    ),
                    None => cache,
                })
            }
            LayerState::Chunked { buffers, offset, chunk_size, start } => {
                let (chunk_size, start) = (*chunk_size as i32, *start as i32);
                let held = self.keys_values(buffers, dtype)?;
                LayerCache::Chunked(match held {
                    Some((keys, values)) => ChunkedKvCache::from_buffers(
                        chunk_size,
                        keys,
                        values,
                        start,
                        *offset as i32,
                    ),
                    None => ChunkedKvCache::new(chunk_size),
                })
            }
            LayerState::Arrays(slots) => {
                let array = |(slot, tensor): (usize, &Option<TensorEntry>)| {
                    let tensor = tensor.as_ref();
                    tensor.map(|tensor| self.array(tensor, types.get(slot).copied())).transpose()
                };
                let slots = slots.iter().enumerate().map(array).collect::<Result<_, _>>()?;
                LayerCache::Arrays(ArraysCache::from_slots(slots))
            }
            LayerState::List(entries) => self.list(entries, own)?,
        })
    }

    fn list(
        &mut self,
        entries: &[LayerState],
        own: Option<&LayerCache>,
    ) -> Result<LayerCache, LmError> {
        let own: &[LayerCache] = match own {
            Some(LayerCache::List(own)) => own.entries(),
            _ => &[],
        };
        let entries =
            entries.iter().enumerate().map(|(index, entry)| self.cache(entry, own.get(index)));
        Ok(LayerCache::List(CacheList::new(entries.collect::<Result<_, _>>()?)))
    }

    fn keys_values(
        &mut self,
        buffers: &Option<[KvBuffer; 2]>,
        dtype: Option<Dtype>,
    ) -> Result<Option<(Array, Array)>, LmError> {
        let Some([keys, values]) = buffers else { return Ok(None) };
        Ok(Some((self.buffer(keys, dtype)?, self.buffer(values, dtype)?)))
    }

    fn quantized(
        &mut self,
        [packed, scales, biases]: &QuantizedBuffers,
        dtype: Option<Dtype>,
    ) -> Result<QuantizedArray, LmError> {
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
        let (class, numbers) = match layer {
            LayerState::Kv { offset, .. } => (CacheClass::Kv, vec![*offset]),
            LayerState::Rotating { offset, keep, max_size, index, .. } => {
                (CacheClass::Rotating, vec![*offset, *keep, *max_size, *index])
            }
            LayerState::Quantized { offset, group_size, bits, .. } => {
                (CacheClass::Quantized, vec![*offset, *group_size as usize, *bits as usize])
            }
            LayerState::Chunked { offset, chunk_size, start, .. } => {
                (CacheClass::Chunked, vec![*offset, *chunk_size, *start])
            }
            LayerState::Arrays(slots) => (CacheClass::Arrays, vec![slots.len()]),
            LayerState::List(entries) => (CacheClass::List, vec![entries.len()]),
        };
        hasher.update(format!("{} {numbers:?}\n", class.name()).as_bytes());
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
