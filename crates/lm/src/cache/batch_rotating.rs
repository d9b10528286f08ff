//! A cache of the last `max_size` tokens, for several rows at once.

use std::ops::Range;

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::buffer::{STEP, front, joined, room, round_up, token_range, write};
use super::kind::CacheKind;
use super::rows::{
    Block, from_first, kept_rows, rolled, rope_offset, row_tokens, stacked, take_lengths,
};
use super::{
    AttentionStep, KeysValues, LayerCache, LayerCacheSpec, Mask, RotatingKvCache, causal_mask,
};
use crate::LmError;

/// Several [`RotatingKvCache`]s with `keep == 0` as the rows of one. As mlx-lm's
/// BatchRotatingKVCache.
///
/// - The oldest column stands at `head`, the others follow it and wrap around; `head` is above 0
///   only in a full ring of `max_size`.
/// - Every row ends with the newest column. Counted from the oldest column, the first
///   `left_padding` columns of a row are padding.
/// - Several tokens at once are appended to the last `max_size - 1` columns, so that each sees
///   `max_size`; the next single token drops the columns beyond `max_size`.
/// - Right padding is handled as in `BatchKvCache`: offsets count it as moved at once, the next
///   step moves it.
#[derive(Debug, Clone)]
pub struct BatchRotatingKvCache {
    keys: Option<Array>,   // [B, H, capacity, D]
    values: Option<Array>, // [B, H, capacity, D]
    max_size: i32,
    num_columns: i32,
    head: i32,
    left_padding: Vec<i32>,
    offsets: Vec<i32>,
    remaining: Option<Vec<i32>>,
    pending_shifts: Option<Vec<i32>>,
}

impl BatchRotatingKvCache {
    /// Merges the `caches` of single rows, left-padded to the longest.
    ///
    /// Panics if `caches` is empty, and unless all have the same `max_size` and `keep == 0`.
    pub fn merge(caches: &[RotatingKvCache]) -> Result<Self> {
        let max_size = caches.first().map(RotatingKvCache::max_size);
        assert!(
            max_size.is_some()
                && caches
                    .iter()
                    .all(|cache| Some(cache.max_size()) == max_size && cache.keep() == 0),
            "rings in one batch have one size and keep nothing"
        );
        let max_size = max_size.unwrap_or(1) as i32;
        let held = caches.iter().map(RotatingKvCache::temporal).collect::<Result<Vec<_>>>()?;
        let columns: Vec<Range<i32>> = held
            .iter()
            .map(|held| {
                held.as_ref().map_or(0..0, |(keys, _)| (keys.dim(2) - max_size).max(0)..keys.dim(2))
            })
            .collect();
        let num_columns =
            columns.iter().map(|columns| columns.end - columns.start).max().unwrap_or(0);
        let stack = |part: &dyn Fn(&(Array, Array)) -> Array| {
            let buffers: Vec<Option<Array>> =
                held.iter().map(|held| held.as_ref().map(part)).collect();
            let blocks: Vec<Block> = buffers
                .iter()
                .zip(&columns)
                .map(|(buffer, columns)| Block {
                    buffer: buffer.as_ref(),
                    num_rows: 1,
                    columns: columns.clone(),
                })
                .collect();
            stacked(&blocks, num_columns, capacity(num_columns, max_size))
        };
        Ok(BatchRotatingKvCache {
            keys: stack(&|held| held.0.clone())?,
            values: stack(&|held| held.1.clone())?,
            max_size,
            num_columns,
            head: 0,
            left_padding: columns
                .iter()
                .map(|columns| num_columns - (columns.end - columns.start))
                .collect(),
            offsets: caches.iter().map(|cache| cache.offset() as i32).collect(),
            remaining: None,
            pending_shifts: None,
        })
    }

    /// The most tokens that a single one attends to.
    pub fn max_size(&self) -> usize {
        self.max_size as usize
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.offsets.len()
    }

    /// How many tokens the longest row has read.
    pub fn offset(&self) -> usize {
        self.offsets.iter().copied().max().unwrap_or(0) as usize
    }

    /// How many tokens each row has read, those that have been overwritten included.
    pub fn offsets(&self) -> Vec<i32> {
        self.offsets.clone()
    }

    /// Announces how many tokens of the coming steps belong to each row, at least one each; the
    /// remaining columns of a row are right padding.
    pub fn prepare(&mut self, lengths: &[i32]) {
        self.remaining = Some(lengths.to_vec());
    }

    /// Ends the steps that [`BatchRotatingKvCache::prepare`] announced: right padding becomes left
    /// padding.
    pub fn finalize(&mut self) -> Result<()> {
        self.remaining = None;
        self.move_padding()
    }

    fn move_padding(&mut self) -> Result<()> {
        // Only steps of several tokens have right padding, and after them the buffer is in temporal
        // order.
        if let Some(shifts) = self.pending_shifts.take() {
            self.change(|buffer, num_columns| rolled(buffer, &shifts, num_columns))?;
        }
        Ok(())
    }

    fn change(&mut self, change: impl Fn(&Array, i32) -> Result<Array>) -> Result<()> {
        for buffer in [&mut self.keys, &mut self.values].into_iter().flatten() {
            *buffer = change(buffer, self.num_columns)?;
        }
        Ok(())
    }

    /// Brings the columns into temporal order and drops all but the last `kept`.
    fn keep_last(&mut self, kept: i32) -> Result<()> {
        let surplus = (self.num_columns - kept).max(0);
        if self.head == 0 && surplus == 0 {
            return Ok(());
        }
        let head = self.head;
        self.change(|buffer, num_columns| {
            let from = head + surplus;
            if head == 0 {
                token_range(buffer, surplus, num_columns)
            } else if from >= num_columns {
                token_range(buffer, from - num_columns, head)
            } else {
                joined(&[token_range(buffer, from, num_columns)?, front(buffer, head)?])
            }
        })?;
        self.head = 0;
        self.num_columns -= surplus;
        self.dropped(surplus);
        Ok(())
    }

    fn dropped(&mut self, num_columns: i32) {
        for padding in &mut self.left_padding {
            *padding = (*padding - num_columns).max(0);
        }
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns all that the step attends to: in the
    /// ring's order for L = 1, otherwise in temporal order.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        self.move_padding()?;
        let length = keys.dim(2);
        let views = if length == 1 {
            self.append_one(&keys, &values)?
        } else {
            self.append_several(keys, values)?
        };
        self.pending_shifts = take_lengths(&mut self.remaining, length)
            .filter(|padding| padding.iter().any(|&columns| columns > 0));
        for (row, offset) in self.offsets.iter_mut().enumerate() {
            let padding =
                self.pending_shifts.as_ref().map_or(0, |pending_shifts| pending_shifts[row]);
            *offset += length - padding;
            self.left_padding[row] += padding;
        }
        Ok(views)
    }

    fn append_several(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        self.keep_last(self.max_size - 1)?;
        self.num_columns += keys.dim(2);
        let behind = |buffer: &Option<Array>, new: Array, old: i32| match buffer {
            Some(buffer) if old > 0 => joined(&[front(buffer, old)?, new]),
            _ => Ok(new),
        };
        let old = self.num_columns - keys.dim(2);
        let all_keys = behind(&self.keys, keys, old)?;
        let all_values = behind(&self.values, values, old)?;
        self.keys = Some(all_keys.clone());
        self.values = Some(all_values.clone());
        Ok((all_keys, all_values))
    }

    fn append_one(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        if self.num_columns > self.max_size {
            self.keep_last(self.max_size)?;
        }
        let slot = if self.num_columns < self.max_size { self.num_columns } else { self.head };
        let num_columns = (self.num_columns + 1).min(self.max_size);
        let written = |buffer: &Option<Array>, new: &Array| match buffer {
            None => write(&room(new, STEP.min(self.max_size))?, new, slot),
            Some(buffer) if slot < buffer.dim(2) => write(buffer, new, slot),
            Some(buffer) => {
                let more = room(new, capacity(num_columns, self.max_size) - slot)?;
                write(&joined(&[front(buffer, slot)?, more])?, new, slot)
            }
        };
        let all_keys = written(&self.keys, keys)?;
        let all_values = written(&self.values, values)?;
        if self.num_columns == self.max_size {
            self.head = (self.head + 1) % self.max_size;
            self.dropped(1);
        }
        self.num_columns = num_columns;
        let views = (front(&all_keys, num_columns)?, front(&all_values, num_columns)?);
        self.keys = Some(all_keys);
        self.values = Some(all_values);
        Ok(views)
    }

    /// i32 `[total]`: the column that each slot of the buffer holds after one more token has been
    /// written, counted from the oldest.
    fn ages_after_one(&self, total: i32) -> Array {
        // A buffer longer than the ring is brought into order first and overwritten from its start.
        let head = match self.num_columns {
            columns if columns < self.max_size => 0,
            columns if columns == self.max_size => (self.head + 1) % self.max_size,
            _ => 1 % self.max_size,
        };
        let ages: Vec<i32> = (0..total).map(|slot| (slot - head).rem_euclid(total)).collect();
        Array::from_slice(&ages, &[total])
    }

    /// Keeps only the rows `kept`, in that order, and drops the left padding that they share.
    pub fn filter(&mut self, kept: &[usize]) -> Result<()> {
        self.move_padding()?;
        let shared = kept.iter().map(|&row| self.left_padding[row]).min().unwrap_or(0);
        if shared > 0 {
            self.keep_last(self.num_columns - shared)?;
        }
        self.change(|buffer, _| kept_rows(buffer, kept, 0..buffer.dim(2)))?;
        self.left_padding = kept.iter().map(|&row| self.left_padding[row]).collect();
        self.offsets = kept.iter().map(|&row| self.offsets[row]).collect();
        if let Some(remaining) = &mut self.remaining {
            *remaining = kept.iter().map(|&row| remaining[row]).collect();
        }
        Ok(())
    }

    /// Appends the rows of `other`.
    ///
    /// Panics unless both have the same `max_size`.
    pub fn extend(&mut self, mut other: BatchRotatingKvCache) -> Result<()> {
        assert_eq!(self.max_size, other.max_size, "rings in one batch have one size");
        for cache in [&mut *self, &mut other] {
            cache.finalize()?;
            cache.keep_last(cache.max_size)?;
        }
        let num_columns = self.num_columns.max(other.num_columns);
        let stack = |buffers: [Option<&Array>; 2]| {
            let blocks = [
                Block {
                    buffer: buffers[0],
                    num_rows: self.num_rows(),
                    columns: 0..self.num_columns,
                },
                Block {
                    buffer: buffers[1],
                    num_rows: other.num_rows(),
                    columns: 0..other.num_columns,
                },
            ];
            stacked(&blocks, num_columns, capacity(num_columns, self.max_size))
        };
        let keys = stack([self.keys.as_ref(), other.keys.as_ref()])?;
        let values = stack([self.values.as_ref(), other.values.as_ref()])?;
        let padding = |cache: &BatchRotatingKvCache| -> Vec<i32> {
            cache
                .left_padding
                .iter()
                .map(|padding| padding + num_columns - cache.num_columns)
                .collect()
        };
        self.left_padding = [padding(self), padding(&other)].concat();
        self.offsets.extend(other.offsets);
        (self.keys, self.values, self.num_columns) = (keys, values, num_columns);
        Ok(())
    }

    /// A copy of one row as a [`RotatingKvCache`].
    pub fn extract(&self, row: usize) -> Result<RotatingKvCache> {
        let pending_shifts =
            self.pending_shifts.as_ref().map_or(0, |pending_shifts| pending_shifts[row]);
        let columns = self.left_padding[row] - pending_shifts..self.num_columns - pending_shifts;
        let (Some(keys), Some(values), false) = (&self.keys, &self.values, columns.is_empty())
        else {
            return Ok(RotatingKvCache::new(self.max_size, 0));
        };
        let tokens = |buffer: &Array| -> Result<Array> {
            let (from, to) = (self.head + columns.start, self.head + columns.end);
            if to <= self.num_columns {
                return row_tokens(buffer, row, from..to)?.contiguous();
            }
            if from >= self.num_columns {
                return row_tokens(buffer, row, from - self.num_columns..to - self.num_columns)?
                    .contiguous();
            }
            joined(&[
                row_tokens(buffer, row, from..self.num_columns)?,
                row_tokens(buffer, row, 0..to - self.num_columns)?,
            ])
        };
        Ok(RotatingKvCache::from_temporal(
            self.max_size,
            0,
            tokens(keys)?,
            tokens(values)?,
            self.offsets[row],
        ))
    }
}

impl CacheKind for BatchRotatingKvCache {
    fn name(&self) -> &'static str {
        "batch of rotating caches"
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        None
    }

    fn offset(&self) -> usize {
        self.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        self.keys.iter().chain(&self.values).collect()
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.update_and_fetch(keys, values)?;
        Ok(KeysValues::Dense { keys, values })
    }

    /// The tokens attend to the last `window` of their row, at most `max_size`.
    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        let window = window.map_or(self.max_size, |window| window.min(self.max_size));
        let kept = self.num_columns.min(self.max_size - 1);
        let total = kept + length;
        let dropped = self.num_columns - kept;
        let left_padding: Vec<i32> =
            self.left_padding.iter().map(|padding| (padding - dropped).max(0)).collect();
        let is_padded = left_padding.iter().any(|&padding| padding > 0);
        let mask = if length == 1 {
            let first: Vec<i32> =
                left_padding.iter().map(|&padding| padding.max(total - window)).collect();
            match first.iter().all(|&first| first <= 0) {
                true => Mask::None,
                false => Mask::Array(from_first(&self.ages_after_one(total), &first)?),
            }
        } else {
            let window = Some(window).filter(|&window| total > window);
            match (is_padded, window) {
                (false, None) => Mask::Causal,
                (false, window) => Mask::Array(causal_mask(length, kept, window)?),
                (true, window) => {
                    let columns = ops::arange::<_, i32>(0, total, 1)?;
                    Mask::Array(
                        causal_mask(length, kept, window)?
                            .logical_and(from_first(&columns, &left_padding)?)?,
                    )
                }
            }
        };
        Ok(AttentionStep::new(rope_offset(&self.offsets), mask))
    }

    fn forbids_quantization(&self) -> bool {
        true
    }

    fn extend(&mut self, other: LayerCache) -> std::result::Result<(), LmError> {
        match other {
            LayerCache::BatchRotating(other) if other.max_size == self.max_size => {
                Ok(self.extend(other)?)
            }
            _ => Err(LmError::MixedCaches),
        }
    }

    fn filter(&mut self, kept: &[usize]) -> std::result::Result<(), LmError> {
        Ok(self.filter(kept)?)
    }

    fn extract(&self, row: usize) -> std::result::Result<LayerCache, LmError> {
        Ok(LayerCache::Rotating(self.extract(row)?))
    }

    fn prepare(&mut self, lengths: &[i32]) -> std::result::Result<(), LmError> {
        self.prepare(lengths);
        Ok(())
    }

    fn finalize(&mut self) -> std::result::Result<(), LmError> {
        Ok(self.finalize()?)
    }
}

/// The capacity for one more than `num_columns` columns: whole steps, at most `max_size`.
fn capacity(num_columns: i32, max_size: i32) -> i32 {
    round_up(num_columns + 1).min(max_size).max(num_columns)
}
