//! Keys and values of several rows that continue the same tokens, which are held once.

use std::rc::Rc;

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, ops};

use super::buffer::{append_in_steps, front, round_up_to, token_range};
use super::kind::{CacheKind, HeldTokens};
use super::rows::{
    Block, RowColumns, from_first, kept_rows, rolled, rope_offset, row_tokens, stacked,
};
use super::{
    AttentionStep, KeysValues, KvCache, LayerCache, LayerCacheSpec, Mask, QuantizedArray,
    QuantizedKvCache, RotatingKvCache, causal_mask,
};
use crate::LmError;

/// The cache of one row as the beginning of several rows, and each row's own tokens behind it.
///
/// - The columns are those of the prefix, then the rows' own, which stand as [`RowColumns`] says. A
///   row's first own token follows the prefix, whatever padding is between them.
/// - A token sees what is before it. So rows may be padded on the right without
///   [`SharedPrefixCache::prepare`], where nothing is read after them.
/// - What is read first is in arrays of exactly its size, because most rows are read at once.
/// - Nothing is dropped that a window hides.
#[derive(Debug, Clone)]
pub struct SharedPrefixCache {
    /// `[1, H, P, D]`; none where nothing was read. The same for all that were continued together.
    prefix: Option<Rc<KeysValues>>,
    num_columns: i32, // P: fewer than `num_read` where a window has dropped tokens
    num_read: i32,
    own: Option<KeysValues>, // [B, H, capacity, D]
    rows: RowColumns,
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

/// The rows' own arrays grow by this many tokens.
const OWN_STEP: i32 = 32;

impl SharedPrefixCache {
    /// The cache of `num_rows` rows behind `held`, the tokens of a cache that has read `num_read`.
    pub(super) fn after(
        held: Option<HeldTokens>,
        num_read: usize,
        num_rows: usize,
        form: OwnForm,
    ) -> std::result::Result<LayerCache, LmError> {
        let num_columns = held.as_ref().map_or(0, |held| num_read - held.first) as i32;
        let prefix = match held {
            Some(held) if num_columns > 0 => Some(Rc::new(held.tokens.front(num_columns)?)),
            _ => None,
        };
        Ok(LayerCache::SharedPrefix(SharedPrefixCache {
            prefix,
            num_columns,
            num_read: num_read as i32,
            own: None,
            rows: RowColumns::new(vec![0; num_rows], 0),
            form,
        }))
    }

    fn move_padding(&mut self) -> Result<()> {
        if let (Some(shifts), Some(own)) = (self.rows.take_shifts(), &self.own) {
            self.own = Some(own.map(|_, array| rolled(array, &shifts, self.rows.stop))?);
        }
        Ok(())
    }

    /// Keys and values as the rows' own tokens are held.
    fn own_form(&self, keys: Array, values: Array) -> Result<KeysValues> {
        let Some((group_size, bits)) = self.form.quantization else {
            return Ok(KeysValues::Dense { keys, values });
        };
        let quantized = |array: &Array| {
            let (packed, scales, biases) = ops::quantize(array, group_size, bits)?;
            Ok::<_, Exception>(QuantizedArray { packed, scales, biases })
        };
        let (keys, values) = (quantized(&keys)?, quantized(&values)?);
        Ok(KeysValues::Quantized { keys, values, group_size, bits })
    }

    /// bool `[B, 1, L or 1, T]`, or `[B, 1, L, P + T]` where a window hides some of the prefix: what
    /// the next `length` tokens of rows of different lengths see.
    fn padded_mask(&self, length: i32, window: Option<i32>) -> Result<Array> {
        let RowColumns { stop, left_padding, .. } = &self.rows;
        let (num_shared, num_own) = (self.num_columns, stop + length);
        let mut own = from_first(&ops::arange::<_, i32>(0, num_own, 1)?, left_padding)?;
        let window = window.filter(|&window| num_shared + num_own > window);
        if length > 1 || window.is_some() {
            own = causal_mask(length, *stop, window)?.logical_and(own)?;
        }
        let Some(window) = window.filter(|_| num_shared > 0) else { return Ok(own) };
        // The columns from the first of the prefix to a query, padding left out.
        let before: Vec<i32> = left_padding.iter().map(|padding| num_shared - padding).collect();
        let before = Array::from_slice(&before, &[before.len() as i32, 1, 1, 1]);
        let queries = ops::arange::<_, i32>(*stop, num_own, 1)?.reshape(&[length, 1])?;
        let columns = ops::arange::<_, i32>(0, num_shared, 1)?;
        let distance = ops::subtract(ops::add(before, queries)?, columns)?; // [B, 1, L, P]
        let shared = distance.lt(Array::from_int(window))?;
        ops::concatenate(&[shared, own], -1)
    }

    /// Whether both continue the same arrays.
    fn is_behind_the_same(&self, other: &SharedPrefixCache) -> bool {
        let is_same = match (&self.prefix, &other.prefix) {
            (Some(one), Some(other)) => Rc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same && self.num_read == other.num_read
    }

    /// Appends the rows of `other`, which continue the same prefix.
    fn join(&mut self, mut other: SharedPrefixCache) -> Result<()> {
        self.rows.finalize();
        other.rows.finalize();
        self.move_padding()?;
        other.move_padding()?;
        let rows = self.rows.joined(&other.rows);
        let stack = |index: usize, _: &Array| {
            let part = |cache: &SharedPrefixCache| {
                cache.own.as_ref().map(|own| own.arrays()[index].clone())
            };
            let (one, two) = (part(self), part(&other));
            let blocks = [(one.as_ref(), &self.rows), (two.as_ref(), &other.rows)];
            let capacity = round_up_to(OWN_STEP, rows.stop + 1);
            let all = stacked(&blocks.map(Block::of), rows.stop, capacity)?;
            all.ok_or_else(|| Exception::custom("rows without tokens have no arrays"))
        };
        let own = self.own.as_ref().or(other.own.as_ref());
        let own = own.map(|own| own.map(stack)).transpose()?;
        (self.own, self.rows) = (own, rows);
        Ok(())
    }

    /// All tokens of a row, those of the prefix first; `None` if there are none.
    fn row(&self, row: usize) -> Result<Option<KeysValues>> {
        let columns = self.rows.of_row(row);
        let own = self.own.as_ref().filter(|_| !columns.is_empty());
        let own = own.map(|own| own.map(|_, array| row_tokens(array, row, columns.clone())));
        let all = match (&self.prefix, own.transpose()?) {
            (Some(prefix), Some(own)) => {
                prefix.zip(&own, |shared, own| ops::concatenate(&[shared, own], 2))?
            }
            (Some(prefix), None) => (**prefix).clone(),
            (None, Some(own)) => own,
            (None, None) => return Ok(None),
        };
        all.map(|_, array| array.contiguous()).map(Some)
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
        (self.num_read + self.rows.longest()) as usize
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
        if !self.rows.is_padded() {
            let stop = self.rows.stop;
            let step = AttentionStep::after(self.num_columns + stop, length, window)?;
            return Ok(step.at(self.num_read + stop));
        }
        let offsets: Vec<i32> =
            self.rows.lengths().iter().map(|length| self.num_read + length).collect();
        let mask = Mask::Array(self.padded_mask(length, window)?);
        Ok(AttentionStep::new(rope_offset(&offsets), mask))
    }

    fn columns(&self) -> Option<[i32; 2]> {
        (self.num_columns == self.num_read).then_some([self.num_columns, self.rows.stop])
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        self.move_padding()?;
        let (start, length) = (self.rows.stop, keys.dim(2));
        let new = self.own_form(keys, values)?;
        let all = match &self.own {
            Some(own) => {
                own.zip(&new, |own, new| append_in_steps(Some(own), new, start, OWN_STEP))?
            }
            None => new,
        };
        self.rows.appended(length);
        let own = all.front(self.rows.stop)?;
        self.own = Some(all);
        Ok(match &self.prefix {
            Some(prefix) => {
                KeysValues::AfterPrefix { prefix: Rc::clone(prefix), own: Box::new(own) }
            }
            None => own,
        })
    }

    fn extend(&mut self, other: LayerCache) -> std::result::Result<(), LmError> {
        match other {
            LayerCache::SharedPrefix(other) if self.is_behind_the_same(&other) => {
                Ok(self.join(other)?)
            }
            _ => Err(LmError::MixedCaches),
        }
    }

    fn filter(&mut self, kept: &[usize]) -> std::result::Result<(), LmError> {
        self.move_padding()?;
        let shared = self.rows.keep(kept);
        if let Some(own) = &self.own {
            let kept = own.map(|_, array| kept_rows(array, kept, shared..array.dim(2)))?;
            self.own = Some(kept);
        }
        Ok(())
    }

    /// The cache that was continued, with the row's own tokens.
    fn extract(&self, row: usize) -> std::result::Result<LayerCache, LmError> {
        let length = self.num_read + self.rows.of_row(row).len() as i32;
        let all = self.row(row)?;
        Ok(match (all, self.form) {
            (Some(KeysValues::Dense { keys, values }), OwnForm { window: Some(window), .. }) => {
                let held = keys.dim(2);
                let last = |array: &Array| token_range(array, held - held.min(window), held);
                let (keys, values) = (last(&keys)?, last(&values)?);
                let ring = RotatingKvCache::from_temporal(window, 0, keys, values, length);
                LayerCache::Rotating(ring)
            }
            (Some(KeysValues::Dense { keys, values }), _) => {
                LayerCache::Kv(KvCache::from_buffers(keys, values, length))
            }
            (Some(KeysValues::Quantized { keys, values, group_size, bits }), _) => {
                let cache = QuantizedKvCache::new(group_size, bits)?;
                LayerCache::Quantized(cache.with_contents(keys, values, length))
            }
            (_, OwnForm { window: Some(window), .. }) => {
                LayerCache::Rotating(RotatingKvCache::new(window, 0))
            }
            (_, OwnForm { quantization: Some((group_size, bits)), .. }) => {
                LayerCache::Quantized(QuantizedKvCache::new(group_size, bits)?)
            }
            _ => LayerCache::Kv(KvCache::new()),
        })
    }

    fn prepare(&mut self, lengths: &[i32]) -> std::result::Result<(), LmError> {
        self.rows.prepare(lengths);
        Ok(())
    }

    fn finalize(&mut self) -> std::result::Result<(), LmError> {
        self.rows.finalize();
        Ok(self.move_padding()?)
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
        self.map(|_, array| front(array, stop))
    }

    /// The same with each array made of it and that of `other`, which has the same form.
    fn zip(&self, other: &Self, change: impl Fn(&Array, &Array) -> Result<Array>) -> Result<Self> {
        let other = other.arrays();
        self.map(|index, array| change(array, other[index]))
    }
}
