//! A cache of every token's keys and values, quantized in MLX's affine mode.

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, ops};

use super::AttentionStep;
use super::buffer::{append, front};
use super::prompt_file::{KV_BITS, KV_GROUP_SIZES};
use crate::LmError;

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
        check_head_dim(cache.group_size, keys)?;
        check_head_dim(cache.group_size, values)?;
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

    /// Whether no token was ever appended.
    pub fn is_empty(&self) -> bool {
        self.keys.is_none()
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns the whole cache. Fails if the group
    /// size does not divide D.
    pub fn update_and_fetch(
        &mut self,
        keys: &Array,
        values: &Array,
    ) -> Result<(QuantizedArray, QuantizedArray)> {
        if self.is_empty() {
            // A layer's keys never change their head size, so one check is enough.
            for array in [keys, values] {
                check_head_dim(self.group_size, array)
                    .map_err(|error| Exception::custom(error.to_string()))?;
            }
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

    /// Position and mask of the next `length` tokens, which attend to all tokens before them or to
    /// the last `window`.
    pub fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        AttentionStep::after(self.offset, length, window)
    }

    /// Removes the last `num_tokens` (or all, if there are fewer) and returns how many it removed.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        let trimmed = num_tokens.min(self.offset as usize);
        self.offset -= trimmed as i32;
        trimmed
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

    /// The arrays that the cache consists of, capacity included.
    pub fn arrays(&self) -> Vec<&Array> {
        self.keys
            .iter()
            .chain(&self.values)
            .flat_map(|held| [&held.packed, &held.scales, &held.biases])
            .collect()
    }
}

impl QuantizedArray {
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

/// Fails unless `group_size` divides the head size of `array` `[B, H, L, D]`.
pub(super) fn check_head_dim(group_size: i32, array: &Array) -> std::result::Result<(), LmError> {
    let head_dim = array.dim(-1);
    if head_dim % group_size == 0 {
        return Ok(());
    }
    let allowed = format!("it must divide the model's head size, {head_dim}");
    Err(LmError::CacheSetting { name: "kv_group_size", value: group_size.to_string(), allowed })
}
