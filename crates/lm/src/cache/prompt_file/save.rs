//! Writing a prompt-cache file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype};
use serde_json::{Map, Value, json};

use super::{CacheClass, PromptFileLayout};
use crate::LmError;
use crate::cache::{LayerCache, QuantizedArray};
use crate::ffi;

/// Writes `caches` and `metadata` to `path` in the given layout. The file is replaced atomically:
/// after an error the old one, if any, is still there. Buffers are cut to the tokens in use. Fails
/// for caches with several rows, for caches that the layout cannot hold, and if the file cannot be
/// written.
pub fn save_prompt_cache(
    path: &Path,
    caches: &[LayerCache],
    metadata: &BTreeMap<String, String>,
    layout: PromptFileLayout,
) -> std::result::Result<(), LmError> {
    let (tensors, header) = match layout {
        PromptFileLayout::V0_32 => encode_v0_32(caches, metadata)?,
        PromptFileLayout::V0_30 => encode_v0_30(caches, metadata)?,
    };
    write(path, tensors, header)
}

/// Fails if [`save_prompt_cache`] could not write `path`: call it before a long computation.
pub fn check_writable(path: &Path) -> std::result::Result<(), LmError> {
    Replacement::create(path)
        .map(drop)
        .map_err(|source| LmError::Write { path: path.to_owned(), source })
}

/// The tensors and the metadata of a file.
type Encoded = (Vec<(String, Content)>, BTreeMap<String, String>);

/// The contents of one tensor of the file.
enum Content {
    Array(Array),
    Numbers(Vec<i32>, Vec<usize>), // values and shape
}

fn encode_v0_32(caches: &[LayerCache], metadata: &BTreeMap<String, String>) -> Result<Encoded> {
    let mut state = State::default();
    let mut header: BTreeMap<String, String> =
        metadata.iter().map(|(key, value)| (format!("0.{key}"), value.clone())).collect();
    for (layer, cache) in caches.iter().enumerate() {
        let class = state.add(&layer.to_string(), cache)?;
        header.insert(format!("1.{layer}"), class.name().to_owned());
    }
    header.insert("2.0".to_owned(), String::new());
    for (index, (name, kind)) in state.kinds.iter().enumerate() {
        header.insert(format!("2.{}.0", index + 1), name.clone());
        header.insert(format!("2.{}.1", index + 1), (*kind).to_owned());
    }
    Ok((state.tensors, header))
}

/// The layers' states in the layout of mlx-lm 0.32, flattened.
#[derive(Default)]
struct State {
    tensors: Vec<(String, Content)>,
    kinds: Vec<(String, &'static str)>, // name and meaning of the tensors that encode other values
}

impl State {
    fn add(&mut self, prefix: &str, cache: &LayerCache) -> Result<CacheClass> {
        let class = match cache {
            LayerCache::Kv(cache) => {
                self.pair(prefix, cache.tokens_in_use()?);
                self.numbers(prefix, &[cache.offset() as i32]);
                CacheClass::Kv
            }
            LayerCache::Rotating(cache) => {
                self.pair(prefix, cache.tokens_in_use()?);
                self.numbers(
                    prefix,
                    &[
                        cache.offset() as i32,
                        cache.keep() as i32,
                        cache.max_size() as i32,
                        cache.index(),
                    ],
                );
                CacheClass::Rotating
            }
            LayerCache::Quantized(cache) => {
                match cache.tokens_in_use()? {
                    Some((keys, values)) => {
                        self.quantized(&format!("{prefix}.0"), keys);
                        self.quantized(&format!("{prefix}.1"), values);
                    }
                    None => self.pair(prefix, None),
                }
                self.numbers(prefix, &[cache.offset() as i32, cache.group_size(), cache.bits()]);
                CacheClass::Quantized
            }
            LayerCache::Chunked(cache) => {
                self.pair(prefix, cache.tokens_in_use()?);
                self.numbers(
                    prefix,
                    &[cache.offset() as i32, cache.chunk_size() as i32, cache.start() as i32],
                );
                CacheClass::Chunked
            }
            LayerCache::Arrays(cache) => {
                for slot in 0..cache.num_slots() {
                    self.array(format!("{prefix}.0.{slot}"), cache.get(slot).cloned());
                }
                self.array(format!("{prefix}.1"), None);
                self.array(format!("{prefix}.2"), None);
                CacheClass::Arrays
            }
            LayerCache::List(list) => {
                for (index, entry) in list.entries().iter().enumerate() {
                    let class = self.add(&format!("{prefix}.{index}.0"), entry)?;
                    let code_points: Vec<i32> =
                        class.name().chars().map(|char| char as i32).collect();
                    let shape = vec![code_points.len()];
                    self.other(
                        format!("{prefix}.{index}.1"),
                        "string",
                        Content::Numbers(code_points, shape),
                    );
                }
                CacheClass::List
            }
            LayerCache::BatchKv(_) | LayerCache::BatchRotating(_) => {
                return Err(cache.is_not_for("a prompt-cache file"));
            }
        };
        Ok(class)
    }

    fn pair(&mut self, prefix: &str, held: Option<(Array, Array)>) {
        let (keys, values) = held.unzip();
        self.array(format!("{prefix}.0"), keys);
        self.array(format!("{prefix}.1"), values);
    }

    fn quantized(&mut self, prefix: &str, array: QuantizedArray) {
        for (index, part) in [array.packed, array.scales, array.biases].into_iter().enumerate() {
            self.array(format!("{prefix}.{index}"), Some(part));
        }
    }

    /// Adds scalars after a pair of keys and values.
    fn numbers(&mut self, prefix: &str, numbers: &[i32]) {
        for (index, number) in numbers.iter().enumerate() {
            self.other(
                format!("{prefix}.{}", index + 2),
                "scalar",
                Content::Numbers(vec![*number], Vec::new()),
            );
        }
    }

    fn array(&mut self, name: String, array: Option<Array>) {
        match array {
            Some(array) => self.tensors.push((name, Content::Array(array))),
            None => self.other(name, "none", Content::Numbers(Vec::new(), vec![0])),
        }
    }

    fn other(&mut self, name: String, kind: &'static str, content: Content) {
        self.kinds.push((name.clone(), kind));
        self.tensors.push((name, content));
    }
}

fn encode_v0_30(
    caches: &[LayerCache],
    metadata: &BTreeMap<String, String>,
) -> std::result::Result<Encoded, LmError> {
    let mut tensors = Vec::new();
    let mut header: BTreeMap<String, String> =
        metadata.iter().map(|(key, value)| (format!("1.{key}"), value.clone())).collect();
    for (layer, cache) in caches.iter().enumerate() {
        let refused = |reason| LmError::PromptFileLayout { layer, kind: cache.kind(), reason };
        let Some(LayerV0_30 { class, arrays, numbers }) = LayerV0_30::of(cache)? else {
            return Err(refused(match cache {
                LayerCache::List(_) => "that layout does not record the kinds of its entries",
                LayerCache::Chunked(cache) if cache.start() > 0 => {
                    "that layout does not record which tokens were dropped"
                }
                LayerCache::BatchKv(_) | LayerCache::BatchRotating(_) => {
                    "a file holds the caches of one prompt"
                }
                _ => "that layout has no empty caches",
            }));
        };
        tensors.extend(
            arrays
                .into_iter()
                .map(|(name, array)| (format!("{layer}.{name}"), Content::Array(array))),
        );
        header.insert(format!("2.{layer}"), class.name().to_owned());
        if numbers.is_empty() {
            header.insert(format!("0.{layer}"), String::new());
        }
        for (index, number) in numbers.iter().enumerate() {
            header.insert(format!("0.{layer}.{index}"), number.to_string());
        }
    }
    Ok((tensors, header))
}

/// The state of one layer in the layout of mlx-lm 0.30.
struct LayerV0_30 {
    class: CacheClass,
    /// Named without the layer's number.
    arrays: Vec<(String, Array)>,
    /// The class's `meta_state`.
    numbers: Vec<i32>,
}

impl LayerV0_30 {
    /// `None` if the layout cannot hold `cache`.
    fn of(cache: &LayerCache) -> Result<Option<LayerV0_30>> {
        let layer = |class, arrays: Option<Vec<Array>>, numbers| {
            let named = |arrays: Vec<Array>| {
                arrays.into_iter().enumerate().map(|(index, array)| (index.to_string(), array))
            };
            arrays.map(|arrays| LayerV0_30 { class, arrays: named(arrays).collect(), numbers })
        };
        let pair = |tokens: Option<(Array, Array)>| tokens.map(|(keys, values)| vec![keys, values]);
        Ok(match cache {
            LayerCache::Kv(cache) => {
                layer(CacheClass::Kv, pair(cache.tokens_in_use()?), Vec::new())
            }
            LayerCache::Rotating(cache) => {
                let (keep, max_size) = (cache.keep() as i32, cache.max_size() as i32);
                let numbers = vec![keep, max_size, cache.offset() as i32, cache.index()];
                layer(CacheClass::Rotating, pair(cache.tokens_in_use()?), numbers)
            }
            LayerCache::Quantized(cache) => {
                let numbers = vec![cache.offset() as i32, cache.group_size(), cache.bits()];
                let part = |side: usize, array: QuantizedArray| {
                    [array.packed, array.scales, array.biases]
                        .into_iter()
                        .enumerate()
                        .map(move |(part, array)| (format!("{side}.{part}"), array))
                };
                cache.tokens_in_use()?.map(|(keys, values)| LayerV0_30 {
                    class: CacheClass::Quantized,
                    arrays: part(0, keys).chain(part(1, values)).collect(),
                    numbers,
                })
            }
            LayerCache::Chunked(cache) if cache.start() == 0 => {
                let numbers = vec![cache.chunk_size() as i32, 0];
                layer(CacheClass::Chunked, pair(cache.tokens_in_use()?), numbers)
            }
            LayerCache::Arrays(cache) => {
                let slots = (0..cache.num_slots()).map(|slot| cache.get(slot).cloned()).collect();
                layer(CacheClass::Arrays, slots, Vec::new())
            }
            LayerCache::Chunked(_)
            | LayerCache::List(_)
            | LayerCache::BatchKv(_)
            | LayerCache::BatchRotating(_) => None,
        })
    }
}

impl Content {
    fn describe(&self) -> Result<(&'static str, Vec<usize>, usize)> {
        match self {
            Content::Array(array) => {
                let shape = array.shape().iter().map(|&length| length as usize).collect();
                Ok((dtype_name(array.dtype())?, shape, array.nbytes()))
            }
            Content::Numbers(numbers, shape) => {
                Ok(("I32", shape.clone(), size_of_val(numbers.as_slice())))
            }
        }
    }

    fn item_bytes(&self) -> usize {
        match self {
            Content::Array(array) => array.item_size(),
            Content::Numbers(..) => size_of::<i32>(),
        }
    }
}

fn write(
    path: &Path,
    mut tensors: Vec<(String, Content)>,
    metadata: BTreeMap<String, String>,
) -> std::result::Result<(), LmError> {
    // Tensors with wide items first, so that every tensor is aligned for readers that map the file.
    tensors.sort_by_key(|(_, content)| std::cmp::Reverse(content.item_bytes()));
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!(metadata));
    let mut end = 0;
    for (name, content) in &tensors {
        let (dtype, shape, bytes) = content.describe()?;
        entries.insert(
            name.clone(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes] }),
        );
        end += bytes;
    }
    let mut header = Value::Object(entries).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');

    let failed = |source: io::Error| LmError::Write { path: path.to_owned(), source };
    let Replacement { mut file, folder, target } = Replacement::create(path).map_err(failed)?;
    {
        let mut to = BufWriter::new(file.as_file_mut());
        to.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
        to.write_all(&header).map_err(failed)?;
        for (_, content) in tensors {
            match content {
                Content::Array(array) => {
                    to.write_all(ffi::array_bytes(&array.contiguous()?)?).map_err(failed)?
                }
                Content::Numbers(numbers, _) => {
                    for number in numbers {
                        to.write_all(&number.to_le_bytes()).map_err(failed)?;
                    }
                }
            }
        }
        to.flush().map_err(failed)?;
    }
    file.as_file().sync_all().map_err(failed)?;
    file.persist(target).map_err(|error| failed(error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

/// A temporary file that will replace `target`.
struct Replacement {
    file: tempfile::NamedTempFile,
    folder: PathBuf,
    target: PathBuf,
}

impl Replacement {
    /// Follows links; refuses to replace a device, a pipe or a folder.
    fn create(path: &Path) -> io::Result<Self> {
        let target = match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => std::fs::canonicalize(path)?,
            Ok(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
                path.to_owned()
            }
            Err(error) => return Err(error),
        };
        let folder = target
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
            .to_owned();
        let file =
            tempfile::Builder::new().prefix(".saving-").suffix(".tmp").tempfile_in(&folder)?;
        Ok(Replacement { file, folder, target })
    }
}

fn dtype_name(dtype: Dtype) -> Result<&'static str> {
    Ok(match dtype {
        Dtype::Bool => "BOOL",
        Dtype::Uint8 => "U8",
        Dtype::Int8 => "I8",
        Dtype::Uint16 => "U16",
        Dtype::Int16 => "I16",
        Dtype::Float16 => "F16",
        Dtype::Bfloat16 => "BF16",
        Dtype::Uint32 => "U32",
        Dtype::Int32 => "I32",
        Dtype::Float32 => "F32",
        Dtype::Uint64 => "U64",
        Dtype::Int64 => "I64",
        Dtype::Float64 | Dtype::Complex64 => {
            return Err(Exception::custom(format!("a prompt cache does not hold {dtype:?}")));
        }
    })
}
