//! What a prompt-cache file says that it holds: checked from header and numbers alone, before an
//! array is made of it. Links no MLX, so that it can be fuzzed alone.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::path::Path;

use crate::safetensors::{Dtype, Limits, SafetensorsError, SafetensorsFile, TensorEntry};

/// No position is above this, so that sums of two fit an i32 on the host and in MLX.
pub const MAX_TOKENS: usize = 1 << 30;
/// Bits a value that MLX quantizes keys and values to.
pub const KV_BITS: [i32; 5] = [2, 3, 4, 6, 8];
/// How many values may share a scale.
pub const KV_GROUP_SIZES: [i32; 3] = [32, 64, 128];
/// More than any model has.
const MAX_LAYERS: usize = 1024;
/// More than any layer has, of slots or of caches.
const MAX_ENTRIES: usize = 16;
/// What is repeated of a file's words in a refusal.
const MAX_SHOWN_CHARS: usize = 60;

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is not even a safetensors file, or cannot be read.
    #[error(transparent)]
    Check(#[from] SafetensorsError),
    /// It is no prompt cache, or one that no sequence of tokens leads to.
    #[error("{what}, but {allowed}")]
    Contents {
        /// What it says.
        what: String,
        /// What is allowed.
        allowed: String,
    },
}

/// mlx-lm's names of the kinds that files may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `KVCache`
    Kv,
    /// `RotatingKVCache`
    Rotating,
    /// `QuantizedKVCache`
    Quantized,
    /// `ChunkedKVCache`
    Chunked,
    /// `ArraysCache`
    Arrays,
    /// `CacheList`
    List,
}

impl Class {
    const ALL: [Class; 6] =
        [Class::Kv, Class::Rotating, Class::Quantized, Class::Chunked, Class::Arrays, Class::List];

    fn parse(name: &str) -> Option<Class> {
        // What 0.30.4 called an ArraysCache of two.
        let name = if name == "MambaCache" { "ArraysCache" } else { name };
        Class::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Class::Kv => "KVCache",
            Class::Rotating => "RotatingKVCache",
            Class::Quantized => "QuantizedKVCache",
            Class::Chunked => "ChunkedKVCache",
            Class::Arrays => "ArraysCache",
            Class::List => "CacheList",
        }
    }

    /// Its name for people.
    pub fn kind(self) -> &'static str {
        match self {
            Class::Kv => "cache of keys and values",
            Class::Rotating => "rotating cache",
            Class::Quantized => "quantized cache",
            Class::Chunked => "chunked cache",
            Class::Arrays => "recurrent state",
            Class::List => "list of caches",
        }
    }
}

/// A file whose header and numbers are sound. Its tensors are read from the file that was checked.
#[derive(Debug)]
pub struct CheckedFile {
    /// The open file.
    pub file: SafetensorsFile,
    /// What each layer holds.
    pub layers: Vec<LayerState>,
    /// What the user stored beside them.
    pub metadata: BTreeMap<String, String>,
}

/// What a layer holds: numbers that a cache can have, and tensors whose shapes fit them.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // as on the caches of these names
pub enum LayerState {
    Kv { held: Option<[Rows; 2]>, offset: usize },
    Rotating { held: Option<[Rows; 2]>, offset: usize, keep: usize, max_size: usize, index: usize },
    Quantized { held: Option<Box<[QuantizedRows; 2]>>, offset: usize, group_size: i32, bits: i32 },
    Chunked { held: Option<[Rows; 2]>, offset: usize, chunk_size: usize, start: usize },
    Arrays(Vec<Option<TensorEntry>>),
    List(Vec<LayerState>),
}

impl LayerState {
    /// Tokens read; 0 for recurrent states, which do not say.
    pub fn offset(&self) -> usize {
        match self {
            LayerState::Kv { offset, .. }
            | LayerState::Rotating { offset, .. }
            | LayerState::Quantized { offset, .. }
            | LayerState::Chunked { offset, .. } => *offset,
            LayerState::Arrays(_) => 0,
            LayerState::List(entries) => entries.iter().map(LayerState::offset).max().unwrap_or(0),
        }
    }
}

/// A tensor `[B, H, capacity, D]` of which the first tokens are in use: the rest is never read.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// The whole.
    pub tensor: TensorEntry,
    /// Tokens in use, at least one.
    pub num_used: usize,
}

/// Keys or values in groups: packed numbers, scales and biases, each `[B, H, capacity, …]`.
pub type QuantizedRows = [Rows; 3];

impl Rows {
    /// `[B, H, num_used, D]`
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.tensor.shape.clone();
        if let Some(capacity) = shape.get_mut(2) {
            *capacity = self.num_used;
        }
        shape
    }
}

impl CheckedFile {
    /// Opens and checks `path`. Whether its layers fit a certain model, only that model can tell.
    pub fn open(path: &Path) -> Result<CheckedFile, Refusal> {
        CheckedFile::of(SafetensorsFile::open(path, Limits::CACHE)?)
    }

    fn of(file: SafetensorsFile) -> Result<CheckedFile, Refusal> {
        let (source, classes, metadata) = Source::parse(&file)?;
        let mut layers = Vec::with_capacity(classes.len());
        for (layer, class) in classes.into_iter().enumerate() {
            let state = State { source: &source, layer, prefix: layer.to_string() };
            layers.push(state.read(class)?);
        }
        source.check_nothing_is_left()?;
        check_batch(&layers)?;
        Ok(CheckedFile { file, layers, metadata })
    }

    /// Tokens that the layers have read.
    pub fn num_tokens(&self) -> usize {
        self.layers.iter().map(LayerState::offset).max().unwrap_or(0)
    }

    /// The bytes of an array, all of whose numbers are some.
    pub fn read(&self, tensor: &TensorEntry) -> Result<Vec<u8>, Refusal> {
        let bytes = self.file.read_tensor(&tensor.name)?;
        self.check_numbers(tensor, &bytes)?;
        Ok(bytes)
    }

    /// The bytes of the tokens in use.
    pub fn read_rows(&self, rows: &Rows) -> Result<Vec<u8>, Refusal> {
        let Rows { tensor, num_used } = rows;
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
        self.check_numbers(tensor, &bytes)?;
        Ok(bytes)
    }

    fn check_numbers(&self, tensor: &TensorEntry, bytes: &[u8]) -> Result<(), Refusal> {
        match are_finite(tensor.dtype, bytes) {
            true => Ok(()),
            false => Err(refusal(
                format!(
                    "its tensor {:?} holds numbers that are none (NaN or infinite)",
                    shown(&tensor.name)
                ),
                "the model computes none such",
            )),
        }
    }
}

/// Whether no floating-point number among `bytes` is infinite or not a number. Others always are
/// numbers.
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

fn check_batch(layers: &[LayerState]) -> Result<(), Refusal> {
    fn rows<'a>(layer: &'a LayerState, into: &mut HashSet<Option<&'a usize>>) {
        let mut add = |tensor: &'a TensorEntry| {
            into.insert(tensor.shape.first());
        };
        match layer {
            LayerState::Kv { held, .. }
            | LayerState::Rotating { held, .. }
            | LayerState::Chunked { held, .. } => {
                held.iter().flatten().for_each(|rows| add(&rows.tensor));
            }
            LayerState::Quantized { held, .. } => held
                .iter()
                .flat_map(|held| held.iter())
                .flatten()
                .for_each(|rows| add(&rows.tensor)),
            LayerState::Arrays(slots) => slots.iter().flatten().for_each(add),
            LayerState::List(entries) => entries.iter().for_each(|entry| rows(entry, into)),
        }
    }
    let mut found = HashSet::new();
    layers.iter().for_each(|layer| rows(layer, &mut found));
    match found.len() > 1 || found.contains(&None) {
        true => Err(refusal(
            "its arrays have different numbers of rows".to_owned(),
            "all layers must hold the same batch",
        )),
        false => Ok(()),
    }
}

fn refusal(what: String, allowed: &str) -> Refusal {
    Refusal::Contents { what, allowed: allowed.to_owned() }
}

/// A file's own words, short enough to be repeated.
fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN_CHARS).collect()
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
    fn parse(
        file: &'a SafetensorsFile,
    ) -> Result<(Self, Vec<Class>, BTreeMap<String, String>), Refusal> {
        let found = file.metadata();
        // 0.32.0 begins its list of scalars with an empty one, where 0.30.4 has the first layer's
        // class.
        let layout = if found.get("2.0").is_some_and(|first| first.is_empty()) {
            Layout::Current
        } else {
            Layout::Old
        };
        let (user, class) = match layout {
            Layout::Current => ("0.", "1."),
            Layout::Old => ("1.", "2."),
        };
        let mut source = Source { file, layout, kinds: HashMap::new(), taken: RefCell::default() };
        let num_layers = found.keys().filter(|key| key.starts_with(class)).count();
        if !(1..=MAX_LAYERS).contains(&num_layers) {
            return Err(refusal(
                format!("it names {num_layers} layers"),
                &format!("there must be from 1 to {MAX_LAYERS}"),
            ));
        }
        let mut classes = Vec::with_capacity(num_layers);
        for layer in 0..num_layers {
            let name = found.get(&format!("{class}{layer}")).map_or("nothing", String::as_str);
            classes.push(known_class(layer, name)?);
        }
        if layout == Layout::Current {
            for index in 1.. {
                let (Some(name), Some(kind)) =
                    (found.get(&format!("2.{index}.0")), found.get(&format!("2.{index}.1")))
                else {
                    break;
                };
                source.kinds.insert(name, kind);
            }
        }
        let metadata = found
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(user)?.to_owned(), value.clone())))
            .collect();
        Ok((source, classes, metadata))
    }

    fn check_nothing_is_left(&self) -> Result<(), Refusal> {
        let taken = self.taken.borrow();
        match self.file.tensors().iter().find(|tensor| !taken.contains(tensor.name.as_str())) {
            Some(tensor) => Err(refusal(
                format!("no layer uses its tensor {:?}", shown(&tensor.name)),
                "every tensor must be part of a layer",
            )),
            None => Ok(()),
        }
    }

    /// The tensor `name` if it is there, and what it stands for.
    fn find(&self, name: &str) -> Option<(&'a TensorEntry, Option<&'a str>)> {
        let tensor = self.file.tensor(name)?;
        self.taken.borrow_mut().insert(&tensor.name);
        Some((tensor, self.kinds.get(name).copied()))
    }

    fn get(&self, name: &str) -> Result<(&'a TensorEntry, Option<&'a str>), Refusal> {
        self.find(name)
            .ok_or_else(|| refusal(format!("it lacks the tensor {name:?}"), "its layer needs it"))
    }

    /// An array, or none.
    fn array(&self, name: &str) -> Result<Option<&'a TensorEntry>, Refusal> {
        let (tensor, kind) = self.get(name)?;
        match kind {
            Some("none") => Ok(None),
            None if !tensor.shape.contains(&0) => Ok(Some(tensor)),
            _ => Err(no_array(name)),
        }
    }

    /// A whole number.
    fn scalar(&self, name: &str) -> Result<i64, Refusal> {
        let (tensor, kind) = self.get(name)?;
        let bytes = if kind == Some("scalar") && tensor.shape.is_empty() {
            self.file.read_tensor(name)?
        } else {
            Vec::new()
        };
        let number = match tensor.dtype {
            Dtype::I32 => bytes.try_into().ok().map(|bytes| i64::from(i32::from_le_bytes(bytes))),
            Dtype::I64 => bytes.try_into().ok().map(i64::from_le_bytes),
            _ => None,
        };
        number.ok_or_else(|| {
            refusal(format!("tensor {name:?} is no whole number"), "its layer needs one there")
        })
    }

    /// A short text.
    fn text(&self, name: &str) -> Result<String, Refusal> {
        let (tensor, kind) = self.get(name)?;
        let is_text = kind == Some("string")
            && tensor.dtype == Dtype::I32
            && matches!(tensor.shape[..], [1..=64]);
        let bytes = if is_text { self.file.read_tensor(name)? } else { Vec::new() };
        let (code_points, _) = bytes.as_chunks::<4>();
        let text: Option<String> =
            code_points.iter().map(|bytes| char::from_u32(u32::from_le_bytes(*bytes))).collect();
        text.filter(|text| !text.is_empty()).ok_or_else(|| {
            refusal(format!("tensor {name:?} is no text"), "its layer needs one there")
        })
    }
}

fn known_class(layer: usize, name: &str) -> Result<Class, Refusal> {
    Class::parse(name).ok_or_else(|| {
        let known = Class::ALL.map(Class::name);
        refusal(
            format!("layer {layer} is a {:?}", shown(name)),
            &format!("only {} can be read", known.join(", ")),
        )
    })
}

fn no_array(name: &str) -> Refusal {
    refusal(format!("tensor {name:?} is no array"), "its layer needs one there")
}

/// The state of one layer, or of an entry of its list.
struct State<'a> {
    source: &'a Source<'a>,
    layer: usize,
    prefix: String,
}

/// Keys and values, each as long as the other.
type Pair<'a> = Option<[&'a TensorEntry; 2]>;

impl<'a> State<'a> {
    fn read(&self, class: Class) -> Result<LayerState, Refusal> {
        match class {
            Class::Kv => self.kv(),
            Class::Rotating => self.rotating(),
            Class::Quantized => self.quantized(),
            Class::Chunked => self.chunked(),
            Class::Arrays => self.arrays().map(LayerState::Arrays),
            Class::List => self.list().map(LayerState::List),
        }
    }

    fn kv(&self) -> Result<LayerState, Refusal> {
        let pair = self.pair()?;
        let capacity = capacity(&pair);
        let offset = match self.source.layout {
            Layout::Current => self.number("offset", 0, 0, 0..=capacity)?,
            Layout::Old => capacity,
        };
        Ok(LayerState::Kv { held: held(pair, offset), offset })
    }

    fn rotating(&self) -> Result<LayerState, Refusal> {
        let pair = self.pair()?;
        let capacity = capacity(&pair);
        let max_size = self.number("max_size", 2, 1, 1..=MAX_TOKENS)?;
        let keep = self.number("keep", 1, 0, 0..=max_size - 1)?;
        let offset =
            self.number("offset", 0, 2, 0..=if pair.is_some() { MAX_TOKENS } else { 0 })?;
        let index = self.number("index", 3, 3, 0..=capacity)?;
        let is_right = if offset < max_size {
            index == offset // and so within the capacity
        } else {
            (index == capacity && (max_size..=offset).contains(&capacity))
                || (capacity == max_size && index > keep)
        };
        if !is_right {
            let what = format!(
                "layer {} is a ring of {max_size} tokens, {capacity} of them held, with index {index} after {offset}",
                self.layer
            );
            return Err(refusal(what, "no sequence of tokens leads there"));
        }
        let num_used = if offset < max_size { offset } else { capacity };
        Ok(LayerState::Rotating { held: held(pair, num_used), offset, keep, max_size, index })
    }

    fn quantized(&self) -> Result<LayerState, Refusal> {
        let group_size = self.setting("kv_group_size", 1, &KV_GROUP_SIZES)?;
        let bits = self.setting("kv_bits", 2, &KV_BITS)?;
        if self.source.find(&format!("{}.0", self.prefix)).is_some() {
            // Nothing was written yet.
            return match (self.pair()?, self.number("offset", 0, 0, 0..=0)?) {
                (None, offset) => {
                    Ok(LayerState::Quantized { held: None, offset, group_size, bits })
                }
                _ => Err(refusal(
                    format!("layer {} is not quantized", self.layer),
                    "its class says so",
                )),
            };
        }
        let (keys, values) = (
            self.quantized_array(0, group_size, bits)?,
            self.quantized_array(1, group_size, bits)?,
        );
        self.check_alike(keys[0], values[0])?;
        let offset = self.number("offset", 0, 0, 0..=keys[0].shape[2])?;
        let used = |parts: [&TensorEntry; 3]| {
            parts.map(|tensor| Rows { tensor: tensor.clone(), num_used: offset })
        };
        let held = (offset > 0).then(|| Box::new([used(keys), used(values)]));
        Ok(LayerState::Quantized { held, offset, group_size, bits })
    }

    fn quantized_array(
        &self,
        index: usize,
        group_size: i32,
        bits: i32,
    ) -> Result<[&'a TensorEntry; 3], Refusal> {
        let part = |part: usize| {
            let name = format!("{}.{index}.{part}", self.prefix);
            self.source.array(&name)?.ok_or_else(|| no_array(&name))
        };
        let [packed, scales, biases] = [part(0)?, part(1)?, part(2)?];
        let is_right = match (packed.shape.as_slice(), scales.shape.as_slice()) {
            ([.., packed_dim], [.., num_groups]) => {
                packed.shape.len() == 4
                    && scales.shape.len() == 4
                    && packed.shape[..3] == scales.shape[..3]
                    && *packed_dim as u64 * 32
                        == *num_groups as u64 * group_size as u64 * bits as u64
            }
            _ => false,
        };
        let has_types = packed.dtype == Dtype::U32 && is_float(scales);
        if !is_right || !has_types || scales.shape != biases.shape || scales.dtype != biases.dtype {
            let what = format!(
                "layer {} has shapes {:?}, {:?} and {:?}",
                self.layer, packed.shape, scales.shape, biases.shape
            );
            let allowed = format!(
                "they must be those of one array, quantized in groups of {group_size} to {bits} bits"
            );
            return Err(refusal(what, &allowed));
        }
        Ok([packed, scales, biases])
    }

    fn chunked(&self) -> Result<LayerState, Refusal> {
        let pair = self.pair()?;
        let capacity = capacity(&pair);
        let chunk_size = self.number("chunk_size", 1, 0, 1..=MAX_TOKENS)?;
        let start = match self.source.layout {
            Layout::Current => self.number("start_position", 2, 1, 0..=MAX_TOKENS)?,
            // That version did not write down where it stood once it had given up tokens.
            Layout::Old => self.number("start_position", 2, 1, 0..=0)?,
        };
        let offset = match self.source.layout {
            Layout::Current => {
                self.number("offset", 0, 0, start..=(start + capacity).min(MAX_TOKENS))?
            }
            Layout::Old => capacity,
        };
        let held = held(pair, offset - start);
        if held.is_none() && offset > 0 {
            return Err(refusal(
                format!("layer {} holds nothing after {offset} tokens", self.layer),
                "it must hold the last ones",
            ));
        }
        Ok(LayerState::Chunked { held, offset, chunk_size, start })
    }

    fn arrays(&self) -> Result<Vec<Option<TensorEntry>>, Refusal> {
        let prefix = &self.prefix;
        let slots = match self.source.layout {
            Layout::Current => {
                for name in [format!("{prefix}.1"), format!("{prefix}.2")] {
                    if self.source.array(&name)?.is_some() {
                        let what = format!("layer {} is the padded state of a batch", self.layer);
                        return Err(refusal(what, "only single prompts are read"));
                    }
                }
                format!("{prefix}.0")
            }
            Layout::Old => prefix.clone(),
        };
        let mut arrays = Vec::new();
        while self.source.find(&format!("{slots}.{}", arrays.len())).is_some() {
            if arrays.len() == MAX_ENTRIES {
                let what = format!("layer {} has too many arrays", self.layer);
                return Err(refusal(what, &format!("at most {MAX_ENTRIES} are read")));
            }
            arrays.push(self.source.array(&format!("{slots}.{}", arrays.len()))?.cloned());
        }
        match arrays.is_empty() {
            true => Err(refusal(
                format!("layer {} has no arrays", self.layer),
                "its class has at least one",
            )),
            false => Ok(arrays),
        }
    }

    fn list(&self) -> Result<Vec<LayerState>, Refusal> {
        if self.source.layout == Layout::Old {
            let what = format!("layer {} is a CacheList of mlx-lm before 0.32", self.layer);
            return Err(refusal(what, "that version does not write down what is in it"));
        }
        let mut entries = Vec::new();
        while self.source.find(&format!("{}.{}.1", self.prefix, entries.len())).is_some() {
            let name = self.source.text(&format!("{}.{}.1", self.prefix, entries.len()))?;
            let class = known_class(self.layer, &name)?;
            if class == Class::List || entries.len() == MAX_ENTRIES {
                let allowed =
                    format!("a list has at most {MAX_ENTRIES} caches, none of them a list");
                return Err(refusal(
                    format!("layer {} is a list of another form", self.layer),
                    &allowed,
                ));
            }
            let prefix = format!("{}.{}.0", self.prefix, entries.len());
            entries.push(State { source: self.source, layer: self.layer, prefix }.read(class)?);
        }
        match entries.is_empty() {
            true => Err(refusal(
                format!("layer {} is an empty list", self.layer),
                "a list has at least one cache",
            )),
            false => Ok(entries),
        }
    }

    /// Keys and values `[B, H, capacity, D]`, or neither.
    fn pair(&self) -> Result<Pair<'a>, Refusal> {
        match (
            self.source.array(&format!("{}.0", self.prefix))?,
            self.source.array(&format!("{}.1", self.prefix))?,
        ) {
            (Some(keys), Some(values)) => {
                self.check_alike(keys, values)?;
                if !is_float(keys) || keys.dtype != values.dtype {
                    let what = format!(
                        "layer {} has keys of {} and values of {}",
                        self.layer,
                        keys.dtype.name(),
                        values.dtype.name()
                    );
                    return Err(refusal(what, "both must be of one floating-point type"));
                }
                Ok(Some([keys, values]))
            }
            (None, None) => Ok(None),
            _ => Err(refusal(
                format!("layer {} has only one of keys and values", self.layer),
                "both are needed",
            )),
        }
    }

    fn check_alike(&self, keys: &TensorEntry, values: &TensorEntry) -> Result<(), Refusal> {
        let (keys, values) = (&keys.shape, &values.shape);
        if keys.len() == 4 && values.len() == 4 && keys[..3] == values[..3] && keys[2] <= MAX_TOKENS
        {
            return Ok(());
        }
        let what =
            format!("layer {} has keys of shape {keys:?} and values of {values:?}", self.layer);
        Err(refusal(what, "both need four axes, the first three of the same lengths"))
    }

    /// The number that stands at `current` after keys and values in today's layout, and at `old` in
    /// 0.30.4's.
    fn number(
        &self,
        name: &str,
        current: usize,
        old: usize,
        allowed: RangeInclusive<usize>,
    ) -> Result<usize, Refusal> {
        let found = self.any_number(name, current, old)?;
        let in_range = usize::try_from(found).ok().filter(|found| allowed.contains(found));
        in_range.ok_or_else(|| {
            let what = format!("layer {} has {name} = {found}", self.layer);
            refusal(what, &format!("it must be from {} to {}", allowed.start(), allowed.end()))
        })
    }

    /// The same of a number that is one of a few, and stands at one place in both layouts.
    fn setting(&self, name: &str, place: usize, allowed: &[i32]) -> Result<i32, Refusal> {
        let found = self.any_number(name, place, place)?;
        let known = i32::try_from(found).ok().filter(|found| allowed.contains(found));
        known.ok_or_else(|| {
            refusal(
                format!("in layer {}, {name} = {found}", self.layer),
                &format!("it must be one of {allowed:?}, which MLX has"),
            )
        })
    }

    fn any_number(&self, name: &str, current: usize, old: usize) -> Result<i64, Refusal> {
        match self.source.layout {
            Layout::Current => self.source.scalar(&format!("{}.{}", self.prefix, current + 2)),
            Layout::Old => {
                let key = format!("0.{}.{old}", self.layer);
                let number =
                    self.source.file.metadata().get(&key).and_then(|text| text.parse().ok());
                let refuse = || {
                    refusal(
                        format!("its metadata has no number at {key:?}"),
                        &format!("its layer needs its {name} there"),
                    )
                };
                number.ok_or_else(refuse)
            }
        }
    }
}

fn capacity(pair: &Pair) -> usize {
    pair.map_or(0, |[keys, _]| keys.shape[2]) // four axes, as `check_alike` saw
}

fn held(pair: Pair, num_used: usize) -> Option<[Rows; 2]> {
    let pair = pair.filter(|_| num_used > 0)?;
    Some(pair.map(|tensor| Rows { tensor: tensor.clone(), num_used }))
}

fn is_float(tensor: &TensorEntry) -> bool {
    matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}
