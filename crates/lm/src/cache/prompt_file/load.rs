//! Caches from a file. Nothing in it is believed: its header is checked before a tensor is read, its numbers before a cache is made.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::path::Path;

use mlx_rs::Array;

use super::Class;
use crate::LmError;
use crate::cache::{
    ArraysCache, CacheList, ChunkedKvCache, KvCache, LayerCache, MAX_TOKENS, QuantizedArray, QuantizedKvCache, RotatingKvCache,
};
use crate::ffi;
use crate::safetensors_header::{Dtype, Limits, SafetensorsFile, TensorEntry};
use crate::weights::mlx_dtype;

/// More than any model has.
const MAX_LAYERS: usize = 1024;
/// More than any layer has, of slots or of caches.
const MAX_ENTRIES: usize = 16;

/// Reads the caches in `path`, and what the user stored beside them. Fails with one sentence on anything that a model could not continue
/// from; whether the caches fit a certain model, only that model can tell.
pub fn load_prompt_cache(path: &Path) -> Result<(Vec<LayerCache>, BTreeMap<String, String>), LmError> {
    let file = SafetensorsFile::open(path, Limits::CACHE)?;
    let (source, classes, metadata) = Source::parse(&file)?;
    let mut caches = Vec::with_capacity(classes.len());
    for (layer, class) in classes.into_iter().enumerate() {
        let state = State { source: &source, layer, prefix: layer.to_string() };
        caches.push(state.cache(class)?);
    }
    source.check_nothing_is_left()?;
    check_batch(&source, &caches)?;

    let num_tokens = caches.iter().map(LayerCache::offset).max().unwrap_or(0);
    caches.iter_mut().for_each(|cache| count_as_read(cache, num_tokens));
    Ok((caches, metadata))
}

/// Gives recurrent states the number of tokens that the other layers have read.
fn count_as_read(cache: &mut LayerCache, num_tokens: usize) {
    match cache {
        LayerCache::Arrays(cache) => cache.advance(num_tokens),
        LayerCache::List(list) => list.entries_mut().iter_mut().for_each(|entry| count_as_read(entry, num_tokens)),
        LayerCache::Kv(_) | LayerCache::Rotating(_) | LayerCache::Quantized(_) | LayerCache::Chunked(_) => {}
        LayerCache::BatchKv(_) | LayerCache::BatchRotating(_) => {}
    }
}

fn check_batch(source: &Source, caches: &[LayerCache]) -> Result<(), LmError> {
    let rows: HashSet<Option<i32>> = caches.iter().flat_map(LayerCache::arrays).map(|array| array.shape().first().copied()).collect();
    match rows.len() > 1 || rows.contains(&None) {
        true => Err(source.refuse("its arrays have different numbers of rows".to_owned(), "all layers must hold the same batch")),
        false => Ok(()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// mlx-lm 0.32.0's.
    Current,
    /// mlx-lm 0.30.4's.
    Old,
}

/// A file whose metadata has been taken apart.
struct Source<'a> {
    file: &'a SafetensorsFile,
    layout: Layout,
    kinds: HashMap<&'a str, &'a str>, // tensors that stand for something else
    taken: RefCell<HashSet<&'a str>>,
}

impl<'a> Source<'a> {
    /// Also returns the layers' classes, and the user's metadata.
    #[allow(clippy::type_complexity)] // returned to one caller
    fn parse(file: &'a SafetensorsFile) -> Result<(Self, Vec<Class>, BTreeMap<String, String>), LmError> {
        let found = file.metadata();
        // 0.32.0 begins its list of scalars with an empty one, where 0.30.4 has the first layer's class.
        let layout = if found.get("2.0").is_some_and(|first| first.is_empty()) { Layout::Current } else { Layout::Old };
        let (user, class) = match layout {
            Layout::Current => ("0.", "1."),
            Layout::Old => ("1.", "2."),
        };
        let mut source = Source { file, layout, kinds: HashMap::new(), taken: RefCell::default() };
        let num_layers = found.keys().filter(|key| key.starts_with(class)).count();
        if !(1..=MAX_LAYERS).contains(&num_layers) {
            return Err(source.refuse(format!("it names {num_layers} layers"), &format!("there must be from 1 to {MAX_LAYERS}")));
        }
        let mut classes = Vec::with_capacity(num_layers);
        for layer in 0..num_layers {
            let name = found.get(&format!("{class}{layer}")).map_or("nothing", String::as_str);
            classes.push(source.class(layer, name)?);
        }
        if layout == Layout::Current {
            for index in 1.. {
                let (Some(name), Some(kind)) = (found.get(&format!("2.{index}.0")), found.get(&format!("2.{index}.1"))) else { break };
                source.kinds.insert(name, kind);
            }
        }
        let metadata = found.iter().filter_map(|(key, value)| Some((key.strip_prefix(user)?.to_owned(), value.clone()))).collect();
        Ok((source, classes, metadata))
    }

    fn class(&self, layer: usize, name: &str) -> Result<Class, LmError> {
        Class::parse(name).ok_or_else(|| {
            let known = Class::ALL.map(Class::name);
            let shown: String = name.chars().take(60).collect();
            self.refuse(format!("layer {layer} is a {shown:?}"), &format!("only {} can be read", known.join(", ")))
        })
    }

    fn check_nothing_is_left(&self) -> Result<(), LmError> {
        let taken = self.taken.borrow();
        match self.file.tensors().iter().find(|tensor| !taken.contains(tensor.name.as_str())) {
            Some(tensor) => Err(self.refuse(format!("no layer uses its tensor {:?}", tensor.name), "every tensor must be part of a layer")),
            None => Ok(()),
        }
    }

    /// The tensor `name` if it is there, and what it stands for.
    fn find(&self, name: &str) -> Option<(&'a TensorEntry, Option<&'a str>)> {
        let tensor = self.file.tensor(name)?;
        self.taken.borrow_mut().insert(&tensor.name);
        Some((tensor, self.kinds.get(name).copied()))
    }

    fn get(&self, name: &str) -> Result<(&'a TensorEntry, Option<&'a str>), LmError> {
        self.find(name).ok_or_else(|| self.refuse(format!("it lacks the tensor {name:?}"), "its layer needs it"))
    }

    /// An array, or none.
    fn array(&self, name: &str) -> Result<Option<Array>, LmError> {
        let (tensor, kind) = self.get(name)?;
        match kind {
            Some("none") => Ok(None),
            None if !tensor.shape.contains(&0) => {
                let shape: Vec<i32> = tensor.shape.iter().map(|&length| length as i32).collect(); // the header check keeps each below 2^31
                Ok(Some(ffi::array_from_bytes(&self.file.read_tensor(name)?, &shape, mlx_dtype(tensor.dtype))?))
            }
            _ => Err(self.refuse(format!("tensor {name:?} is no array"), "its layer needs one there")),
        }
    }

    /// A whole number.
    fn scalar(&self, name: &str) -> Result<i64, LmError> {
        let (tensor, kind) = self.get(name)?;
        let bytes = if kind == Some("scalar") && tensor.shape.is_empty() { self.file.read_tensor(name)? } else { Vec::new() };
        let number = match tensor.dtype {
            Dtype::I32 => bytes.try_into().ok().map(|bytes| i64::from(i32::from_le_bytes(bytes))),
            Dtype::I64 => bytes.try_into().ok().map(i64::from_le_bytes),
            _ => None,
        };
        number.ok_or_else(|| self.refuse(format!("tensor {name:?} is no whole number"), "its layer needs one there"))
    }

    /// A short text.
    fn text(&self, name: &str) -> Result<String, LmError> {
        let (tensor, kind) = self.get(name)?;
        let is_text = kind == Some("string") && tensor.dtype == Dtype::I32 && matches!(tensor.shape[..], [1..=64]);
        let bytes = if is_text { self.file.read_tensor(name)? } else { Vec::new() };
        let (code_points, _) = bytes.as_chunks::<4>();
        let text: Option<String> = code_points.iter().map(|bytes| char::from_u32(u32::from_le_bytes(*bytes))).collect();
        text.filter(|text| !text.is_empty()).ok_or_else(|| self.refuse(format!("tensor {name:?} is no text"), "its layer needs one there"))
    }

    fn refuse(&self, what: String, allowed: &str) -> LmError {
        LmError::PromptFile { path: self.file.path().to_owned(), what, allowed: allowed.to_owned() }
    }
}

/// The state of one layer, or of an entry of its list.
struct State<'a> {
    source: &'a Source<'a>,
    layer: usize,
    prefix: String,
}

impl State<'_> {
    fn cache(&self, class: Class) -> Result<LayerCache, LmError> {
        match class {
            Class::Kv => self.kv().map(LayerCache::Kv),
            Class::Rotating => self.rotating().map(LayerCache::Rotating),
            Class::Quantized => self.quantized().map(LayerCache::Quantized),
            Class::Chunked => self.chunked().map(LayerCache::Chunked),
            Class::Arrays => self.arrays().map(LayerCache::Arrays),
            Class::List => self.list().map(LayerCache::List),
        }
    }

    fn kv(&self) -> Result<KvCache, LmError> {
        let held = self.pair()?;
        let capacity = capacity(&held);
        let offset = match self.source.layout {
            Layout::Current => self.number("offset", 0, 0, 0..=capacity)?,
            Layout::Old => capacity,
        };
        Ok(held.map_or_else(KvCache::new, |(keys, values)| KvCache::from_buffers(keys, values, offset)))
    }

    fn rotating(&self) -> Result<RotatingKvCache, LmError> {
        let held = self.pair()?;
        let capacity = capacity(&held);
        let max_size = self.number("max_size", 2, 1, 1..=MAX_TOKENS)?;
        let keep = self.number("keep", 1, 0, 0..=max_size - 1)?;
        let offset = self.number("offset", 0, 2, 0..=if held.is_some() { MAX_TOKENS } else { 0 })?;
        let index = self.number("index", 3, 3, 0..=capacity)?;
        let is_right = if offset < max_size {
            index == offset // and so within the capacity
        } else {
            (index == capacity && (max_size..=offset).contains(&capacity)) || (capacity == max_size && index > keep)
        };
        if !is_right {
            let what =
                format!("layer {} is a ring of {max_size} tokens, {capacity} of them held, with index {index} after {offset}", self.layer);
            return Err(self.source.refuse(what, "no sequence of tokens leads there"));
        }
        Ok(match held {
            Some((keys, values)) => RotatingKvCache::from_buffers(max_size, keep, keys, values, offset, index)?,
            None => RotatingKvCache::new(max_size, keep),
        })
    }

    fn quantized(&self) -> Result<QuantizedKvCache, LmError> {
        let group_size = self.number("group_size", 1, 1, 0..=i32::MAX)?;
        let bits = self.number("bits", 2, 2, 0..=i32::MAX)?;
        let cache = QuantizedKvCache::new(group_size, bits)
            .map_err(|error| self.source.refuse(format!("in layer {}, {error}", self.layer), "these are the settings that MLX has"))?;
        if self.source.find(&format!("{}.0", self.prefix)).is_some() {
            // Nothing was written yet.
            return match (self.pair()?, self.number("offset", 0, 0, 0..=0)?) {
                (None, _) => Ok(cache),
                _ => Err(self.source.refuse(format!("layer {} is not quantized", self.layer), "its class says so")),
            };
        }
        let (keys, values) = (self.quantized_array(0, group_size, bits)?, self.quantized_array(1, group_size, bits)?);
        self.check_alike(&keys.packed, &values.packed)?;
        let offset = self.number("offset", 0, 0, 0..=keys.packed.dim(2).min(MAX_TOKENS))?;
        Ok(cache.with_contents(keys, values, offset))
    }

    fn quantized_array(&self, index: usize, group_size: i32, bits: i32) -> Result<QuantizedArray, LmError> {
        let part = |part: usize| {
            let name = format!("{}.{index}.{part}", self.prefix);
            self.source.array(&name)?.ok_or_else(|| self.source.refuse(format!("tensor {name:?} is no array"), "its layer needs one there"))
        };
        let array = QuantizedArray { packed: part(0)?, scales: part(1)?, biases: part(2)? };
        let (packed, scales) = (array.packed.shape(), array.scales.shape());
        let is_right = match (packed, scales) {
            (&[.., packed_dim], &[.., num_groups]) => {
                packed.len() == 4
                    && scales.len() == 4
                    && packed[..3] == scales[..3]
                    && i64::from(packed_dim) * 32 == i64::from(num_groups) * i64::from(group_size) * i64::from(bits)
            }
            _ => false,
        };
        let has_types = array.packed.dtype() == mlx_rs::Dtype::Uint32 && is_float(&array.scales);
        if !is_right || !has_types || scales != array.biases.shape() || array.scales.dtype() != array.biases.dtype() {
            let what = format!("layer {} has shapes {packed:?}, {scales:?} and {:?}", self.layer, array.biases.shape());
            let allowed = format!("they must be those of one array, quantized in groups of {group_size} to {bits} bits");
            return Err(self.source.refuse(what, &allowed));
        }
        Ok(array)
    }

    fn chunked(&self) -> Result<ChunkedKvCache, LmError> {
        let held = self.pair()?;
        let capacity = capacity(&held);
        let chunk_size = self.number("chunk_size", 1, 0, 1..=MAX_TOKENS)?;
        let start = match self.source.layout {
            Layout::Current => self.number("start_position", 2, 1, 0..=MAX_TOKENS)?,
            // That version did not write down where it stood once it had given up tokens.
            Layout::Old => self.number("start_position", 2, 1, 0..=0)?,
        };
        let offset = match self.source.layout {
            Layout::Current => self.number("offset", 0, 0, start..=start.saturating_add(capacity).min(MAX_TOKENS))?,
            Layout::Old => capacity,
        };
        Ok(match held {
            Some((keys, values)) => ChunkedKvCache::from_buffers(chunk_size, keys, values, start, offset),
            None if offset == 0 => ChunkedKvCache::new(chunk_size),
            None => {
                let what = format!("layer {} holds nothing after {offset} tokens", self.layer);
                return Err(self.source.refuse(what, "it must hold the last ones"));
            }
        })
    }

    fn arrays(&self) -> Result<ArraysCache, LmError> {
        let prefix = &self.prefix;
        let slots = match self.source.layout {
            Layout::Current => {
                for name in [format!("{prefix}.1"), format!("{prefix}.2")] {
                    if self.source.array(&name)?.is_some() {
                        let what = format!("layer {} is the padded state of a batch", self.layer);
                        return Err(self.source.refuse(what, "only single prompts are read"));
                    }
                }
                format!("{prefix}.0")
            }
            Layout::Old => prefix.clone(),
        };
        let mut arrays = Vec::new();
        while self.source.find(&format!("{slots}.{}", arrays.len())).is_some() {
            if arrays.len() == MAX_ENTRIES {
                return Err(self
                    .source
                    .refuse(format!("layer {} has too many arrays", self.layer), &format!("at most {MAX_ENTRIES} are read")));
            }
            arrays.push(self.source.array(&format!("{slots}.{}", arrays.len()))?);
        }
        if arrays.is_empty() {
            return Err(self.source.refuse(format!("layer {} has no arrays", self.layer), "its class has at least one"));
        }
        Ok(ArraysCache::from_slots(arrays))
    }

    fn list(&self) -> Result<CacheList, LmError> {
        if self.source.layout == Layout::Old {
            let what = format!("layer {} is a CacheList of mlx-lm before 0.32", self.layer);
            return Err(self.source.refuse(what, "that version does not write down what is in it"));
        }
        let mut entries = Vec::new();
        while self.source.find(&format!("{}.{}.1", self.prefix, entries.len())).is_some() {
            let name = self.source.text(&format!("{}.{}.1", self.prefix, entries.len()))?;
            let class = self.source.class(self.layer, &name)?;
            if class == Class::List || entries.len() == MAX_ENTRIES {
                let allowed = format!("a list has at most {MAX_ENTRIES} caches, none of them a list");
                return Err(self.source.refuse(format!("layer {} is a list of another form", self.layer), &allowed));
            }
            let prefix = format!("{}.{}.0", self.prefix, entries.len());
            entries.push(State { source: self.source, layer: self.layer, prefix }.cache(class)?);
        }
        if entries.is_empty() {
            return Err(self.source.refuse(format!("layer {} is an empty list", self.layer), "a list has at least one cache"));
        }
        Ok(CacheList::new(entries))
    }

    /// Keys and values `[B, H, capacity, D]`, or neither.
    fn pair(&self) -> Result<Option<(Array, Array)>, LmError> {
        match (self.source.array(&format!("{}.0", self.prefix)), self.source.array(&format!("{}.1", self.prefix))) {
            (Ok(Some(keys)), Ok(Some(values))) => {
                self.check_alike(&keys, &values)?;
                if !is_float(&keys) || keys.dtype() != values.dtype() {
                    let what = format!("layer {} has keys of {:?} and values of {:?}", self.layer, keys.dtype(), values.dtype());
                    return Err(self.source.refuse(what, "both must be of one floating-point type"));
                }
                Ok(Some((keys, values)))
            }
            (Ok(None), Ok(None)) => Ok(None),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(_), Ok(_)) => Err(self.source.refuse(format!("layer {} has only one of keys and values", self.layer), "both are needed")),
        }
    }

    fn check_alike(&self, keys: &Array, values: &Array) -> Result<(), LmError> {
        let (keys, values) = (keys.shape(), values.shape());
        if keys.len() == 4 && values.len() == 4 && keys[..3] == values[..3] && keys[2] <= MAX_TOKENS {
            return Ok(());
        }
        let what = format!("layer {} has keys of shape {keys:?} and values of {values:?}", self.layer);
        Err(self.source.refuse(what, "both need four axes, the first three of the same lengths"))
    }

    /// The number that stands at `current` after keys and values in today's layout, and at `old` in 0.30.4's.
    fn number(&self, name: &str, current: usize, old: usize, allowed: RangeInclusive<i32>) -> Result<i32, LmError> {
        let found = match self.source.layout {
            Layout::Current => self.source.scalar(&format!("{}.{}", self.prefix, current + 2))?,
            Layout::Old => {
                let key = format!("0.{}.{old}", self.layer);
                let text = self.source.file.metadata().get(&key);
                let refuse =
                    || self.source.refuse(format!("its metadata has no number at {key:?}"), &format!("its layer needs its {name} there"));
                text.and_then(|text| text.parse().ok()).ok_or_else(refuse)?
            }
        };
        let in_range = i32::try_from(found).ok().filter(|found| allowed.contains(found));
        in_range.ok_or_else(|| {
            let what = format!("layer {} has {name} = {found}", self.layer);
            self.source.refuse(what, &format!("it must be from {} to {}", allowed.start(), allowed.end()))
        })
    }
}

fn capacity(held: &Option<(Array, Array)>) -> i32 {
    held.as_ref().map_or(0, |(keys, _)| keys.dim(2))
}

fn is_float(array: &Array) -> bool {
    matches!(array.dtype(), mlx_rs::Dtype::Float32 | mlx_rs::Dtype::Float16 | mlx_rs::Dtype::Bfloat16)
}
