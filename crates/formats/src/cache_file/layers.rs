//! The state of each layer: scalars that a cache can have, and tensors whose shapes fit them.

use std::ops::RangeInclusive;

use super::class::{CacheClass, known_class};
use super::error::{CacheFileError, no_array, refusal};
use super::layout::{Layout, LayoutReader};
use crate::safetensors::{Dtype, TensorEntry};

/// No position is above this, so that sums of two fit an i32 on the host and in MLX.
pub const MAX_TOKENS: usize = 1 << 30;
/// Bits a value that MLX quantizes keys and values to.
pub const KV_BITS: [i32; 5] = [2, 3, 4, 6, 8];
/// How many values may share a scale.
pub const KV_GROUP_SIZES: [i32; 3] = [32, 64, 128];
/// More slots, or caches in a list, than any layer has.
const MAX_ENTRIES: usize = 16;

/// The state of a layer's cache: scalars that it can have, and tensors whose shapes fit them.
///
/// `offset` counts the tokens that the layer has read. Buffers are `None` before the first one.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // as on the caches of these classes
pub enum LayerState {
    Kv {
        buffers: Option<[KvBuffer; 2]>,
        offset: usize,
    },
    Rotating {
        buffers: Option<[KvBuffer; 2]>,
        offset: usize,
        keep: usize,
        max_size: usize,
        index: usize,
    },
    Quantized {
        buffers: Option<Box<[QuantizedBuffers; 2]>>,
        offset: usize,
        group_size: i32,
        bits: i32,
    },
    Chunked {
        buffers: Option<[KvBuffer; 2]>,
        offset: usize,
        chunk_size: usize,
        start: usize,
    },
    Arrays(Vec<Option<TensorEntry>>),
    List(Vec<LayerState>),
}

impl LayerState {
    /// Tokens read; 0 for recurrent states, which do not record it.
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

    /// Whether it consists of recurrent states alone.
    pub fn is_recurrent(&self) -> bool {
        match self {
            LayerState::Arrays(_) => true,
            LayerState::List(entries) => entries.iter().all(LayerState::is_recurrent),
            _ => false,
        }
    }

    /// The cache's class.
    pub fn class(&self) -> CacheClass {
        match self {
            LayerState::Kv { .. } => CacheClass::Kv,
            LayerState::Rotating { .. } => CacheClass::Rotating,
            LayerState::Quantized { .. } => CacheClass::Quantized,
            LayerState::Chunked { .. } => CacheClass::Chunked,
            LayerState::Arrays(_) => CacheClass::Arrays,
            LayerState::List(_) => CacheClass::List,
        }
    }

    /// The class's numbers as the layout of 0.32.0 orders them, or how many slots or entries there
    /// are.
    pub fn numbers(&self) -> Vec<usize> {
        match self {
            LayerState::Kv { offset, .. } => vec![*offset],
            LayerState::Rotating { offset, keep, max_size, index, .. } => {
                vec![*offset, *keep, *max_size, *index]
            }
            LayerState::Quantized { offset, group_size, bits, .. } => {
                vec![*offset, *group_size as usize, *bits as usize]
            }
            LayerState::Chunked { offset, chunk_size, start, .. } => {
                vec![*offset, *chunk_size, *start]
            }
            LayerState::Arrays(slots) => vec![slots.len()],
            LayerState::List(entries) => vec![entries.len()],
        }
    }

    /// Keys and values that are not quantized; `None` before the first token.
    pub fn pair(&self) -> Option<&[KvBuffer; 2]> {
        match self {
            LayerState::Kv { buffers, .. }
            | LayerState::Rotating { buffers, .. }
            | LayerState::Chunked { buffers, .. } => buffers.as_ref(),
            LayerState::Quantized { .. } | LayerState::Arrays(_) | LayerState::List(_) => None,
        }
    }

    /// Every tensor of the state.
    pub fn tensors(&self) -> Vec<&TensorEntry> {
        match self {
            LayerState::Kv { buffers, .. }
            | LayerState::Rotating { buffers, .. }
            | LayerState::Chunked { buffers, .. } => {
                buffers.iter().flatten().map(|buffer| &buffer.tensor).collect()
            }
            LayerState::Quantized { buffers, .. } => {
                let parts = buffers.iter().flat_map(|buffers| buffers.iter()).flatten();
                parts.map(|buffer| &buffer.tensor).collect()
            }
            LayerState::Arrays(slots) => slots.iter().flatten().collect(),
            LayerState::List(entries) => entries.iter().flat_map(LayerState::tensors).collect(),
        }
    }
}

/// A tensor `[B, H, capacity, D]` with room for more tokens than are in use; only those are read.
#[derive(Debug, Clone, PartialEq)]
pub struct KvBuffer {
    /// The whole tensor.
    pub tensor: TensorEntry,
    /// Tokens in use, at least one, at most the capacity.
    pub num_used: usize,
}

/// Quantized keys or values: packed values, scales and biases, each `[B, H, capacity, …]`.
pub type QuantizedBuffers = [KvBuffer; 3];

impl KvBuffer {
    /// `[B, H, num_used, D]`
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.tensor.shape.clone();
        if let Some(capacity) = shape.get_mut(2) {
            *capacity = self.num_used;
        }
        shape
    }
}

/// Reads the state of one layer, or of an entry of its list.
pub struct LayerReader<'a> {
    pub source: &'a LayoutReader<'a>,
    pub layer: usize,
    /// The beginning of the names of its tensors.
    pub prefix: String,
}

/// Keys and values of equal length; `None` before the first token.
type Pair<'a> = Option<[&'a TensorEntry; 2]>;

impl<'a> LayerReader<'a> {
    /// Reads and checks the state of that class.
    pub fn read(&self, class: CacheClass) -> Result<LayerState, CacheFileError> {
        match class {
            CacheClass::Kv => self.kv(),
            CacheClass::Rotating => self.rotating(),
            CacheClass::Quantized => self.quantized(),
            CacheClass::Chunked => self.chunked(),
            CacheClass::Arrays => self.arrays().map(LayerState::Arrays),
            CacheClass::List => self.list().map(LayerState::List),
        }
    }

    fn kv(&self) -> Result<LayerState, CacheFileError> {
        let pair = self.pair()?;
        let capacity = capacity(&pair);
        let offset = match self.source.layout {
            Layout::V0_32 => self.number("offset", 0, 0, 0..=capacity)?,
            Layout::V0_30 => capacity,
        };
        Ok(LayerState::Kv { buffers: buffers(pair, offset), offset })
    }

    fn rotating(&self) -> Result<LayerState, CacheFileError> {
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
            return Err(refusal(what, "no sequence of tokens produces such a cache"));
        }
        let num_used = if offset < max_size { offset } else { capacity };
        Ok(LayerState::Rotating { buffers: buffers(pair, num_used), offset, keep, max_size, index })
    }

    fn quantized(&self) -> Result<LayerState, CacheFileError> {
        let group_size = self.setting("kv_group_size", 1, &KV_GROUP_SIZES)?;
        let bits = self.setting("kv_bits", 2, &KV_BITS)?;
        if self.source.find(&format!("{}.0", self.prefix)).is_some() {
            // Nothing was written yet.
            return match (self.pair()?, self.number("offset", 0, 0, 0..=0)?) {
                (None, offset) => {
                    Ok(LayerState::Quantized { buffers: None, offset, group_size, bits })
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
            parts.map(|tensor| KvBuffer { tensor: tensor.clone(), num_used: offset })
        };
        let buffers = (offset > 0).then(|| Box::new([used(keys), used(values)]));
        Ok(LayerState::Quantized { buffers, offset, group_size, bits })
    }

    fn quantized_array(
        &self,
        index: usize,
        group_size: i32,
        bits: i32,
    ) -> Result<[&'a TensorEntry; 3], CacheFileError> {
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

    fn chunked(&self) -> Result<LayerState, CacheFileError> {
        let pair = self.pair()?;
        let capacity = capacity(&pair);
        let chunk_size = self.number("chunk_size", 1, 0, 1..=MAX_TOKENS)?;
        let start = match self.source.layout {
            Layout::V0_32 => self.number("start_position", 2, 1, 0..=MAX_TOKENS)?,
            // That layout has no offset, so a cache that dropped tokens cannot be read back.
            Layout::V0_30 => self.number("start_position", 2, 1, 0..=0)?,
        };
        let offset = match self.source.layout {
            Layout::V0_32 => {
                self.number("offset", 0, 0, start..=(start + capacity).min(MAX_TOKENS))?
            }
            Layout::V0_30 => capacity,
        };
        let buffers = buffers(pair, offset - start);
        if buffers.is_none() && offset > 0 {
            return Err(refusal(
                format!("layer {} holds nothing after {offset} tokens", self.layer),
                "it must hold the last ones",
            ));
        }
        Ok(LayerState::Chunked { buffers, offset, chunk_size, start })
    }

    fn arrays(&self) -> Result<Vec<Option<TensorEntry>>, CacheFileError> {
        let prefix = &self.prefix;
        let slots = match self.source.layout {
            Layout::V0_32 => {
                for name in [format!("{prefix}.1"), format!("{prefix}.2")] {
                    if self.source.array(&name)?.is_some() {
                        let what = format!("layer {} is the padded state of a batch", self.layer);
                        return Err(refusal(what, "only single prompts are read"));
                    }
                }
                format!("{prefix}.0")
            }
            Layout::V0_30 => prefix.clone(),
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

    fn list(&self) -> Result<Vec<LayerState>, CacheFileError> {
        if self.source.layout == Layout::V0_30 {
            let what = format!("layer {} is a CacheList of mlx-lm before 0.32", self.layer);
            return Err(refusal(what, "that version does not write down what is in it"));
        }
        let mut entries = Vec::new();
        while self.source.find(&format!("{}.{}.1", self.prefix, entries.len())).is_some() {
            let name = self.source.text(&format!("{}.{}.1", self.prefix, entries.len()))?;
            let class = known_class(self.layer, &name)?;
            if class == CacheClass::List || entries.len() == MAX_ENTRIES {
                let allowed =
                    format!("a list has at most {MAX_ENTRIES} caches, none of them a list");
                return Err(refusal(
                    format!("layer {} is a list of another form", self.layer),
                    &allowed,
                ));
            }
            let prefix = format!("{}.{}.0", self.prefix, entries.len());
            entries
                .push(LayerReader { source: self.source, layer: self.layer, prefix }.read(class)?);
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
    fn pair(&self) -> Result<Pair<'a>, CacheFileError> {
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

    fn check_alike(&self, keys: &TensorEntry, values: &TensorEntry) -> Result<(), CacheFileError> {
        let (keys, values) = (&keys.shape, &values.shape);
        if keys.len() == 4 && values.len() == 4 && keys[..3] == values[..3] && keys[2] <= MAX_TOKENS
        {
            return Ok(());
        }
        let what =
            format!("layer {} has keys of shape {keys:?} and values of {values:?}", self.layer);
        Err(refusal(what, "both need four axes, the first three of the same lengths"))
    }

    /// A number, at index `current` after keys and values in 0.32's layout and at `old` in 0.30's.
    fn number(
        &self,
        name: &str,
        current: usize,
        old: usize,
        allowed: RangeInclusive<usize>,
    ) -> Result<usize, CacheFileError> {
        let found = self.any_number(name, current, old)?;
        let in_range = usize::try_from(found).ok().filter(|found| allowed.contains(found));
        in_range.ok_or_else(|| {
            let what = format!("layer {} has {name} = {found}", self.layer);
            refusal(what, &format!("it must be from {} to {}", allowed.start(), allowed.end()))
        })
    }

    /// A number that is one of a few, at the same index in both layouts.
    fn setting(&self, name: &str, index: usize, allowed: &[i32]) -> Result<i32, CacheFileError> {
        let found = self.any_number(name, index, index)?;
        let known = i32::try_from(found).ok().filter(|found| allowed.contains(found));
        known.ok_or_else(|| {
            refusal(
                format!("in layer {}, {name} = {found}", self.layer),
                &format!("it must be one of {allowed:?}, which MLX has"),
            )
        })
    }

    fn any_number(&self, name: &str, current: usize, old: usize) -> Result<i64, CacheFileError> {
        match self.source.layout {
            Layout::V0_32 => self.source.scalar(&format!("{}.{}", self.prefix, current + 2)),
            Layout::V0_30 => {
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

fn buffers(pair: Pair, num_used: usize) -> Option<[KvBuffer; 2]> {
    let pair = pair.filter(|_| num_used > 0)?;
    Some(pair.map(|tensor| KvBuffer { tensor: tensor.clone(), num_used }))
}

fn is_float(tensor: &TensorEntry) -> bool {
    matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}
