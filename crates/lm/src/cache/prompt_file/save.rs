//! Writing a prompt-cache file.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use cairn_formats::Replacement;
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
        let form = cache.as_kind().to_file()?;
        header.insert(format!("1.{layer}"), form.class.name().to_owned());
        state.add(&layer.to_string(), form);
    }
    header.insert("2.0".to_owned(), String::new());
    for (index, (name, kind)) in state.kinds.iter().enumerate() {
        header.insert(format!("2.{}.0", index + 1), name.clone());
        header.insert(format!("2.{}.1", index + 1), (*kind).to_owned());
    }
    Ok((state.tensors, header))
}

/// What a file stores of one layer's cache.
#[derive(Debug)]
pub(crate) struct FileForm {
    pub(crate) class: CacheClass,
    pub(crate) tensors: FileTensors,
    /// The class's numbers in the layout of 0.32, which follow keys and values.
    pub(crate) numbers: Vec<i32>,
    /// The class's `meta_state` in the layout of 0.30, or why that layout cannot hold the cache.
    pub(crate) numbers_v0_30: std::result::Result<Vec<i32>, &'static str>,
}

/// The arrays of a layer, cut to the tokens in use; `None` before the first token.
#[derive(Debug)]
pub(crate) enum FileTensors {
    /// Keys and values.
    Pair(Option<(Array, Array)>),
    /// Quantized keys and values.
    Quantized(Option<(QuantizedArray, QuantizedArray)>),
    /// A recurrent state.
    Slots(Vec<Option<Array>>),
    /// Those of the entries of a list.
    Entries(Vec<FileForm>),
}

impl QuantizedArray {
    fn into_parts(self) -> [Array; 3] {
        [self.packed, self.scales, self.biases]
    }
}

/// The layers' states in the layout of mlx-lm 0.32, flattened.
#[derive(Default)]
struct State {
    tensors: Vec<(String, Content)>,
    kinds: Vec<(String, &'static str)>, // name and meaning of the tensors that encode other values
}

impl State {
    fn add(&mut self, prefix: &str, form: FileForm) {
        match form.tensors {
            FileTensors::Pair(held) => self.pair(prefix, held),
            FileTensors::Quantized(Some((keys, values))) => {
                for (side, array) in [keys, values].into_iter().enumerate() {
                    for (part, array) in array.into_parts().into_iter().enumerate() {
                        self.array(format!("{prefix}.{side}.{part}"), Some(array));
                    }
                }
            }
            FileTensors::Quantized(None) => self.pair(prefix, None),
            FileTensors::Slots(slots) => {
                for (slot, array) in slots.into_iter().enumerate() {
                    self.array(format!("{prefix}.0.{slot}"), array);
                }
                self.array(format!("{prefix}.1"), None);
                self.array(format!("{prefix}.2"), None);
            }
            FileTensors::Entries(entries) => {
                for (index, entry) in entries.into_iter().enumerate() {
                    let class = entry.class.name();
                    self.add(&format!("{prefix}.{index}.0"), entry);
                    let code_points: Vec<i32> = class.chars().map(|char| char as i32).collect();
                    let shape = vec![code_points.len()];
                    let content = Content::Numbers(code_points, shape);
                    self.other(format!("{prefix}.{index}.1"), "string", content);
                }
            }
        }
        self.numbers(prefix, &form.numbers);
    }

    fn pair(&mut self, prefix: &str, held: Option<(Array, Array)>) {
        let (keys, values) = held.unzip();
        self.array(format!("{prefix}.0"), keys);
        self.array(format!("{prefix}.1"), values);
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
        let kind = cache.as_kind();
        let refused = |reason| LmError::PromptFileLayout { layer, kind: kind.name(), reason };
        if cache.spec().is_none() {
            return Err(refused("a file holds the caches of one prompt"));
        }
        let form = kind.to_file()?;
        let numbers = form.numbers_v0_30.map_err(refused)?;
        let arrays = named_arrays(form.tensors);
        let arrays = arrays.ok_or_else(|| refused("that layout has no empty caches"))?;
        tensors.extend(
            arrays
                .into_iter()
                .map(|(name, array)| (format!("{layer}.{name}"), Content::Array(array))),
        );
        header.insert(format!("2.{layer}"), form.class.name().to_owned());
        if numbers.is_empty() {
            header.insert(format!("0.{layer}"), String::new());
        }
        for (index, number) in numbers.iter().enumerate() {
            header.insert(format!("0.{layer}.{index}"), number.to_string());
        }
    }
    Ok((tensors, header))
}

/// A layer's arrays as the layout of mlx-lm 0.30 names them behind the layer's number; `None` for
/// an empty cache.
fn named_arrays(tensors: FileTensors) -> Option<Vec<(String, Array)>> {
    let numbered = |arrays: Vec<Array>| {
        arrays.into_iter().enumerate().map(|(index, array)| (index.to_string(), array)).collect()
    };
    match tensors {
        FileTensors::Pair(held) => held.map(|(keys, values)| numbered(vec![keys, values])),
        FileTensors::Quantized(held) => {
            let (keys, values) = held?;
            let part = |(side, array): (usize, QuantizedArray)| {
                let parts = array.into_parts().into_iter().enumerate();
                parts.map(move |(part, array)| (format!("{side}.{part}"), array))
            };
            Some([keys, values].into_iter().enumerate().flat_map(part).collect())
        }
        FileTensors::Slots(slots) => slots.into_iter().collect::<Option<_>>().map(numbered),
        FileTensors::Entries(_) => None,
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
    let mut replacement = Replacement::create(path).map_err(failed)?;
    {
        let mut to = BufWriter::new(replacement.file());
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
    replacement.finish().map_err(failed)
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
