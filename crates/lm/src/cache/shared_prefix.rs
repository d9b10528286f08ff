//! Keys and values of several rows that continue the same tokens, which are held once.

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::kind::{CacheKind, HeldTokens};
use super::{AttentionStep, KeysValues, LayerCache, LayerCacheSpec, QuantizedArray};
use crate::{LmError, ffi};

/// The cache of one row as the beginning of several rows, and each row's own tokens behind it.
///
/// - The columns are those of the prefix, then the rows' own, at consecutive positions.
/// - Rows of different lengths are padded on the right. A token sees what is before it, so padding
///   changes nothing for the tokens of its row; what is computed for padding is of no use.
/// - The rows' own tokens are in arrays of exactly their number, because most rows are read at once.
#[derive(Debug, Clone)]
pub struct SharedPrefixCache {
    prefix: Option<KeysValues>, // [1, H, P, D]; none where nothing was read
    num_columns: i32,           // P: fewer than `num_read` where a window has dropped tokens
    num_read: i32,
    own: Option<KeysValues>, // [B, H, T, D]
    num_own: i32,
    form: OwnForm,
}

/// What the rows' own tokens are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnForm {
    /// The most tokens that a token sees; with none, all before it.
    pub(super) window: Option<i32>,
    /// Group size and bits, if keys and values are quantized.
    pub(super) quantization: Option<(i32, i32)>,
}

impl SharedPrefixCache {
    /// The cache of rows behind `held`, the tokens of a cache that has read `num_read`.
    pub(super) fn after(
        held: Option<HeldTokens>,
        num_read: usize,
        form: OwnForm,
    ) -> std::result::Result<LayerCache, LmError> {
        let num_columns = held.as_ref().map_or(0, |held| num_read - held.first) as i32;
        let prefix = match held {
            Some(held) if num_columns > 0 => Some(held.tokens.front(num_columns)?),
            _ => None,
        };
        Ok(LayerCache::SharedPrefix(SharedPrefixCache {
            prefix,
            num_columns,
            num_read: num_read as i32,
            own: None,
            num_own: 0,
            form,
        }))
    }
}

impl CacheKind for SharedPrefixCache {
    fn name(&self) -> &'static str {
        "cache of rows with a shared prefix"
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        None
    }

    fn offset(&self) -> usize {
        (self.num_read + self.num_own) as usize
    }

    fn is_empty(&self) -> bool {
        self.offset() == 0
    }

    /// The rows' own arrays: the prefix is another cache's.
    fn arrays(&self) -> Vec<&Array> {
        self.own.iter().flat_map(KeysValues::arrays).collect()
    }

    /// The tokens attend to the prefix and to those before them in their row.
    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        let window = [window, self.form.window].into_iter().flatten().min();
        let step = AttentionStep::after(self.num_columns + self.num_own, length, window)?;
        Ok(step.at(self.num_read + self.num_own))
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        self.num_own += keys.dim(2);
        let new = match self.form.quantization {
            None => KeysValues::Dense { keys, values },
            Some((group_size, bits)) => {
                let quantized = |array: &Array| {
                    let (packed, scales, biases) = ops::quantize(array, group_size, bits)?;
                    Ok::<_, mlx_rs::error::Exception>(QuantizedArray { packed, scales, biases })
                };
                let (keys, values) = (quantized(&keys)?, quantized(&values)?);
                KeysValues::Quantized { keys, values, group_size, bits }
            }
        };
        let own = match &self.own {
            Some(own) => own.followed_by(&new)?,
            None => new,
        };
        self.own = Some(own.clone());
        Ok(match &self.prefix {
            Some(prefix) => {
                KeysValues::AfterPrefix { prefix: Box::new(prefix.clone()), own: Box::new(own) }
            }
            None => own,
        })
    }
}

impl KeysValues {
    /// Every array that holds keys or values.
    fn arrays(&self) -> Vec<&Array> {
        match self {
            KeysValues::Dense { keys, values } => vec![keys, values],
            KeysValues::Quantized { keys, values, .. } => [keys, values]
                .into_iter()
                .flat_map(|side| [&side.packed, &side.scales, &side.biases])
                .collect(),
            KeysValues::AfterPrefix { prefix, own } => [prefix.arrays(), own.arrays()].concat(),
        }
    }

    /// The same with each array replaced. `change` gets the array and its index in
    /// [`KeysValues::arrays`].
    fn map(&self, change: impl Fn(usize, &Array) -> Result<Array>) -> Result<Self> {
        Ok(match self {
            KeysValues::Dense { keys, values } => {
                KeysValues::Dense { keys: change(0, keys)?, values: change(1, values)? }
            }
            &KeysValues::Quantized { ref keys, ref values, group_size, bits } => {
                let side = |first: usize, array: &QuantizedArray| {
                    Ok::<_, mlx_rs::error::Exception>(QuantizedArray {
                        packed: change(first, &array.packed)?,
                        scales: change(first + 1, &array.scales)?,
                        biases: change(first + 2, &array.biases)?,
                    })
                };
                let (keys, values) = (side(0, keys)?, side(3, values)?);
                KeysValues::Quantized { keys, values, group_size, bits }
            }
            KeysValues::AfterPrefix { .. } => self.clone(),
        })
    }

    /// The first `stop` columns, as views.
    fn front(&self, stop: i32) -> Result<Self> {
        self.map(|_, array| {
            ffi::slice(array, &[0; 4], &[array.dim(0), array.dim(1), stop, array.dim(3)])
        })
    }

    /// The columns, then those of `new`, which has the same form.
    fn followed_by(&self, new: &KeysValues) -> Result<Self> {
        let new = new.arrays();
        self.map(|index, array| ops::concatenate(&[array, new[index]], 2))
    }
}
