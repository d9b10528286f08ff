//! A cache of every token's keys and values, quantized in MLX's affine mode.

use std::fmt;

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype, ops};

use super::buffer::{STEP, append, front, round_up};
use super::chunk_state::{ChunkForm, QUANTIZED, TokenTensor};
use super::kind::{CacheKind, HeldTokens, KindSpec};
use super::prompt_file::{
    CacheClass, FileForm, FileReading, FileTensors, KV_BITS, KV_GROUP_SIZES, LayerState,
};
use super::shared_prefix::OwnForm;
use super::{AttentionStep, KeysValues, KvSizes, LayerCache, LayerCacheSpec, SharedPrefixCache};
use crate::LmError;
use crate::config::Quantization;
use crate::device_kernels::QuantizedRows;
use crate::dtype::item_size;

/// An array quantized in groups along its last axis (MLX's affine mode).
#[derive(Debug, Clone)]
pub struct QuantizedArray {
    /// u32 `[B, H, T, D * bits / 32]`
    pub packed: Array,
    /// `[B, H, T, D / group_size]`
    pub scales: Array,
    /// `[B, H, T, D / group_size]`
    pub biases: Array,
}

/// A [`KvCache`](super::KvCache) that quantizes keys and values when they are appended. As mlx-lm's
/// QuantizedKVCache.
#[derive(Debug, Clone)]
pub struct QuantizedKvCache {
    keys: Option<QuantizedArray>,   // [B, H, capacity, ...]
    values: Option<QuantizedArray>, // [B, H, capacity, ...]
    offset: i32,
    group_size: i32,
    bits: i32,
}

impl QuantizedKvCache {
    /// The allowed bits per number.
    pub const BITS: [i32; 5] = KV_BITS;
    /// The allowed group sizes: how many numbers share a scale.
    pub const GROUP_SIZES: [i32; 3] = KV_GROUP_SIZES;

    /// An empty cache. Fails on settings outside [`Self::GROUP_SIZES`] and [`Self::BITS`].
    pub fn new(group_size: i32, bits: i32) -> std::result::Result<Self, LmError> {
        let check = |name, value: i32, allowed: &[i32]| match allowed.contains(&value) {
            true => Ok(()),
            false => Err(LmError::CacheSetting {
                name,
                value: value.to_string(),
                allowed: format!("it must be one of {allowed:?}"),
            }),
        };
        check("kv_group_size", group_size, &Self::GROUP_SIZES)?;
        check("kv_bits", bits, &Self::BITS)?;
        Ok(QuantizedKvCache { keys: None, values: None, offset: 0, group_size, bits })
    }

    /// A cache that holds `keys` and `values` `[B, H, capacity, D]`, of which `offset` tokens are
    /// in use.
    pub(super) fn quantize(
        keys: &Array,
        values: &Array,
        offset: usize,
        group_size: i32,
        bits: i32,
    ) -> std::result::Result<Self, LmError> {
        let mut cache = QuantizedKvCache::new(group_size, bits)?;
        check_head_dims(cache.group_size, [keys.dim(-1), values.dim(-1)])?;
        cache.offset = offset as i32;
        cache.keys = Some(cache.quantized(keys)?);
        cache.values = Some(cache.quantized(values)?);
        Ok(cache)
    }

    /// `self` with the contents of a file that has been checked.
    pub(super) fn with_contents(
        self,
        keys: QuantizedArray,
        values: QuantizedArray,
        offset: i32,
    ) -> Self {
        QuantizedKvCache { keys: Some(keys), values: Some(values), offset, ..self }
    }

    /// How many numbers share a scale.
    pub fn group_size(&self) -> i32 {
        self.group_size
    }

    /// Bits per number.
    pub fn bits(&self) -> i32 {
        self.bits
    }

    /// How many tokens the cache holds.
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns the whole cache. Fails if the group
    /// size does not divide D.
    pub fn update_and_fetch(
        &mut self,
        keys: &Array,
        values: &Array,
    ) -> Result<(QuantizedArray, QuantizedArray)> {
        if self.keys.is_none() {
            // A layer's keys never change their head size, so one check is enough.
            check_head_dims(self.group_size, [keys.dim(-1), values.dim(-1)])
                .map_err(|error| Exception::custom(error.to_string()))?;
        }
        let start = self.offset;
        let stop = start + keys.dim(2);
        let all_keys = appended(self.keys.as_ref(), &self.quantized(keys)?, start)?;
        let all_values = appended(self.values.as_ref(), &self.quantized(values)?, start)?;
        self.offset = stop;
        let views = (all_keys.front(stop)?, all_values.front(stop)?);
        self.keys = Some(all_keys);
        self.values = Some(all_values);
        Ok(views)
    }

    fn quantized(&self, array: &Array) -> Result<QuantizedArray> {
        let (packed, scales, biases) = ops::quantize(array, self.group_size, self.bits)?;
        Ok(QuantizedArray { packed, scales, biases })
    }

    /// The keys and values in use, as views; `None` for an empty cache.
    pub(super) fn tokens_in_use(&self) -> Result<Option<(QuantizedArray, QuantizedArray)>> {
        match (&self.keys, &self.values) {
            (Some(keys), Some(values)) if self.offset > 0 => {
                Ok(Some((keys.front(self.offset)?, values.front(self.offset)?)))
            }
            _ => Ok(None),
        }
    }
}

const NAME: &str = CacheClass::Quantized.kind();

impl CacheKind for QuantizedKvCache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        let &QuantizedKvCache { group_size, bits, .. } = self;
        let arrays = self.keys.as_ref().zip(self.values.as_ref());
        let sizes = arrays
            .map(|(keys, values)| KvSizes::of_arrays([&keys.scales, &values.scales], group_size));
        Some(LayerCacheSpec::Quantized(QuantizedSpec { group_size, bits, sizes }))
    }

    fn offset(&self) -> usize {
        self.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        self.keys
            .iter()
            .chain(&self.values)
            .flat_map(|held| [&held.packed, &held.scales, &held.biases])
            .collect()
    }

    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        AttentionStep::after(self.offset, length, window)
    }

    fn columns(&self) -> Option<[i32; 2]> {
        Some([0, self.offset])
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.update_and_fetch(&keys, &values)?;
        Ok(KeysValues::Quantized { keys, values, group_size: self.group_size, bits: self.bits })
    }

    fn is_trimmable(&self) -> bool {
        true
    }

    /// Removes all tokens if there are fewer.
    fn trim(&mut self, num_tokens: usize) -> usize {
        let trimmed = num_tokens.min(self.offset as usize);
        self.offset -= trimmed as i32;
        trimmed
    }

    fn trims_after(&self, _num_ahead: usize) -> bool {
        true
    }

    fn only_appends(&self) -> bool {
        true
    }

    fn held_tokens(&self) -> Result<Option<HeldTokens>> {
        let &QuantizedKvCache { group_size, bits, .. } = self;
        let held = self.keys.clone().zip(self.values.clone()).map(|(keys, values)| HeldTokens {
            tokens: KeysValues::Quantized { keys, values, group_size, bits },
            first: 0,
            num_kept: 0,
            is_window: false,
        });
        Ok(held)
    }

    fn continued_by_rows(&self, num_rows: usize) -> std::result::Result<LayerCache, LmError> {
        let quantization = Some((self.group_size, self.bits));
        let form = OwnForm { quantization, ..OwnForm::default() };
        SharedPrefixCache::after(self.held_tokens()?, self.offset(), num_rows, form)
    }

    fn to_file(&self) -> Result<FileForm> {
        let numbers = vec![self.offset, self.group_size, self.bits];
        Ok(FileForm {
            class: CacheClass::Quantized,
            tensors: FileTensors::Quantized(self.tokens_in_use()?),
            numbers_v0_30: Ok(numbers.clone()),
            numbers,
        })
    }
}

/// The spec of a [`QuantizedKvCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizedSpec {
    /// How many numbers share a scale.
    pub group_size: i32,
    /// Bits per number.
    pub bits: i32,
    /// Its keys and values as they were before; `None` for an empty cache.
    pub sizes: Option<KvSizes>,
}

impl QuantizedSpec {
    /// Packed numbers, scales and biases of keys or values with heads of `head_dim`.
    fn tensors(
        &self,
        [packed, scales, biases]: [&'static str; 3],
        side: Option<(i32, i32, Option<Dtype>)>,
    ) -> [TokenTensor; 3] {
        let size = |numbers: i32, shared_by: i32| {
            side.map(|(heads, head_dim, _)| {
                [heads, head_dim * numbers / shared_by].map(|n| n as usize)
            })
        };
        let (packed_size, group_size) = (size(self.bits, 32), size(1, self.group_size));
        let dtype = side.and_then(|(.., dtype)| dtype);
        [
            TokenTensor { name: packed, size: packed_size, dtype: Some(Dtype::Uint32) },
            TokenTensor { name: scales, size: group_size, dtype },
            TokenTensor { name: biases, size: group_size, dtype },
        ]
    }
}

impl KindSpec for QuantizedSpec {
    fn name(&self) -> &'static str {
        NAME
    }

    /// A cache of other settings than MLX's does not come to be: they are checked where they come
    /// from.
    fn make(&self) -> LayerCache {
        let &QuantizedSpec { group_size, bits, .. } = self;
        LayerCache::Quantized(QuantizedKvCache {
            keys: None,
            values: None,
            offset: 0,
            group_size,
            bits,
        })
    }

    fn num_bytes(&self, num_tokens: u64, float_bytes: u64) -> u64 {
        let capacity = num_tokens.next_multiple_of(STEP as u64);
        capacity * self.num_bytes_per_token(float_bytes)
    }

    fn num_bytes_per_token(&self, float_bytes: u64) -> u64 {
        let Some(KvSizes { heads, key_dim, value_dim, types }) = self.sizes else { return 0 };
        let scale = types.map_or(float_bytes, |[dtype, _]| item_size(dtype) as u64);
        let numbers = heads as u64 * (key_dim + value_dim) as u64;
        numbers * self.bits as u64 / 8 + numbers / self.group_size as u64 * 2 * scale
    }

    fn is_trimmable(&self) -> bool {
        true
    }

    fn quantization(&self) -> Option<(i32, i32)> {
        Some((self.group_size, self.bits))
    }

    fn without_sizes(&self) -> LayerCacheSpec {
        LayerCacheSpec::Quantized(QuantizedSpec { sizes: None, ..*self })
    }

    fn types(&self) -> Vec<Option<Dtype>> {
        KvSizes::types(&self.sizes)
    }

    fn admits(&self, given: &LayerCacheSpec) -> bool {
        matches!(given, LayerCacheSpec::Quantized(given)
            if (given.group_size, given.bits) == (self.group_size, self.bits)
                && KvSizes::fit(&self.sizes, &given.sizes))
    }

    fn chunk_form(&self, num_tokens: usize) -> Option<ChunkForm> {
        let side = |key_or_value: usize| {
            self.sizes.map(|KvSizes { heads, key_dim, value_dim, types }| {
                let head_dim = [key_dim, value_dim][key_or_value];
                (heads, head_dim, types.map(|types| types[key_or_value]))
            })
        };
        let [keys, values] = QUANTIZED;
        let tensors = [self.tensors(keys, side(0)), self.tensors(values, side(1))].concat();
        let capacity = round_up(num_tokens as i32 + 1) as usize;
        Some(ChunkForm::Tokens { tensors, first: 0, capacity })
    }

    fn join_chunks(
        &self,
        arrays: Vec<Array>,
        num_tokens: i32,
    ) -> std::result::Result<LayerCache, LmError> {
        let [key, key_scales, key_biases, value, value_scales, value_biases] =
            <[Array; 6]>::try_from(arrays).map_err(|_| self.is_not_in_chunks())?;
        let keys = QuantizedArray { packed: key, scales: key_scales, biases: key_biases };
        let values = QuantizedArray { packed: value, scales: value_scales, biases: value_biases };
        let cache = QuantizedKvCache::new(self.group_size, self.bits)?;
        Ok(LayerCache::Quantized(cache.with_contents(keys, values, num_tokens)))
    }

    fn read_from_file(
        &self,
        state: &LayerState,
        reading: &mut FileReading<'_>,
    ) -> std::result::Result<LayerCache, LmError> {
        let cache = QuantizedKvCache::new(self.group_size, self.bits)?;
        Ok(LayerCache::Quantized(match reading.quantized(state)? {
            Some([keys, values]) => cache.with_contents(keys, values, state.offset() as i32),
            None => cache,
        }))
    }

    fn describe(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        KvSizes::describe(&self.sizes, out)
    }
}

impl QuantizedArray {
    /// The rows `[B, H, T, D]`.
    pub(crate) fn rows(&self, group_size: i32, bits: i32) -> QuantizedRows<'_> {
        QuantizedRows {
            packed: &self.packed,
            scales: &self.scales,
            biases: Some(&self.biases),
            settings: Quantization::affine(group_size, bits),
        }
    }

    fn front(&self, stop: i32) -> Result<QuantizedArray> {
        Ok(QuantizedArray {
            packed: front(&self.packed, stop)?,
            scales: front(&self.scales, stop)?,
            biases: front(&self.biases, stop)?,
        })
    }
}

fn appended(
    buffer: Option<&QuantizedArray>,
    update: &QuantizedArray,
    start: i32,
) -> Result<QuantizedArray> {
    Ok(QuantizedArray {
        packed: append(buffer.map(|buffer| &buffer.packed), &update.packed, start)?,
        scales: append(buffer.map(|buffer| &buffer.scales), &update.scales, start)?,
        biases: append(buffer.map(|buffer| &buffer.biases), &update.biases, start)?,
    })
}

/// Fails unless `group_size` divides the head sizes of keys and values.
pub(super) fn check_head_dims(
    group_size: i32,
    head_dims: [i32; 2],
) -> std::result::Result<(), LmError> {
    let Some(head_dim) = head_dims.into_iter().find(|head_dim| head_dim % group_size != 0) else {
        return Ok(());
    };
    let allowed = format!("it must divide the model's head size, {head_dim}");
    Err(LmError::CacheSetting { name: "kv_group_size", value: group_size.to_string(), allowed })
}
