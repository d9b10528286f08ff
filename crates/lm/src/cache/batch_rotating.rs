//! A cache of the last `max_size` tokens, for several rows at once.

use std::ops::Range;

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::kind::CacheKind;
use super::ring_buffers::{RingBuffers, capacity};
use super::rows::{Block, from_first, kept_rows, rolled, rope_offset, stacked, take_lengths};
use super::{
    AttentionStep, DecodeSlot, KeysValues, LayerCache, LayerCacheSpec, Mask, RotatingKvCache,
    causal_mask,
};
use crate::LmError;

/// Several [`RotatingKvCache`]s with `keep == 0` as the rows of one. As mlx-lm's
/// BatchRotatingKVCache.
///
/// - Every row ends with the newest column. Counted from the oldest column, the first
///   `left_padding` columns of a row are padding.
/// - Right padding is handled as in `BatchKvCache`: offsets count it as moved at once, the next
///   step moves it.
#[derive(Debug, Clone)]
pub struct BatchRotatingKvCache {
    ring: RingBuffers,
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
        let buffers = stack(&|held| held.0.clone())?.zip(stack(&|held| held.1.clone())?);
        Ok(BatchRotatingKvCache {
            ring: RingBuffers::new(buffers.map(Into::into), num_columns, max_size),
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
        self.ring.max_size() as usize
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
        // Only steps of several tokens have right padding, and after them the buffers are in temporal
        // order.
        if let Some(shifts) = self.pending_shifts.take() {
            self.ring.replace(|buffer, num_columns| rolled(buffer, &shifts, num_columns))?;
        }
        Ok(())
    }

    /// Writes the tail into the buffers.
    pub(super) fn materialize(&mut self) -> Result<()> {
        self.ring.materialize()
    }

    /// Brings the columns into temporal order and drops all but the last `kept`.
    fn keep_last(&mut self, kept: i32) -> Result<()> {
        let num_dropped = self.ring.keep_last(kept)?;
        self.drop_padding(num_dropped);
        Ok(())
    }

    fn drop_padding(&mut self, num_columns: i32) {
        for padding in &mut self.left_padding {
            *padding = (*padding - num_columns).max(0);
        }
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns all that the step attends to: in the
    /// ring's order for L = 1, otherwise in temporal order.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        self.move_padding()?;
        let length = keys.dim(2);
        self.drop_padding(self.ring.num_dropped());
        let views = self.ring.append(keys, values)?;
        self.pending_shifts = take_lengths(&mut self.remaining, length)
            .filter(|padding| padding.iter().any(|&columns| columns > 0));
        for (row, offset) in self.offsets.iter_mut().enumerate() {
            let padding =
                self.pending_shifts.as_ref().map_or(0, |pending_shifts| pending_shifts[row]);
            *offset += length - padding;
            self.left_padding[row] += padding;
        }
        Ok(views.into())
    }

    /// Keeps only the rows `kept`, in that order, and drops the left padding that they share.
    pub fn filter(&mut self, kept: &[usize]) -> Result<()> {
        self.move_padding()?;
        let shared = kept.iter().map(|&row| self.left_padding[row]).min().unwrap_or(0);
        if shared > 0 {
            self.keep_last(self.ring.num_columns() - shared)?;
        }
        self.ring.replace(|buffer, _| kept_rows(buffer, kept, 0..buffer.dim(2)))?;
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
        let max_size = self.ring.max_size();
        assert_eq!(max_size, other.ring.max_size(), "rings in one batch have one size");
        for cache in [&mut *self, &mut other] {
            cache.finalize()?;
            cache.keep_last(max_size)?;
        }
        let both = [&*self, &other];
        let num_columns = both.map(|cache| cache.ring.num_columns()).into_iter().max().unwrap_or(0);
        let stack = |index: usize| {
            let blocks = both.map(|cache| Block {
                buffer: cache.ring.stored().map(|buffers| &buffers[index]),
                num_rows: cache.num_rows(),
                columns: 0..cache.ring.num_columns(),
            });
            stacked(&blocks, num_columns, capacity(num_columns, max_size))
        };
        let buffers = stack(0)?.zip(stack(1)?);
        let left_padding = both.into_iter().flat_map(|cache| {
            let more = num_columns - cache.ring.num_columns();
            cache.left_padding.iter().map(move |padding| padding + more)
        });
        self.left_padding = left_padding.collect();
        self.offsets.extend(other.offsets);
        self.ring = RingBuffers::new(buffers.map(Into::into), num_columns, max_size);
        Ok(())
    }

    /// A copy of one row as a [`RotatingKvCache`].
    pub fn extract(&self, row: usize) -> Result<RotatingKvCache> {
        let shift = self.pending_shifts.as_ref().map_or(0, |shifts| shifts[row]);
        let columns = self.left_padding[row] - shift..self.ring.num_columns() - shift;
        let max_size = self.ring.max_size();
        let held = match columns.is_empty() {
            true => None,
            false => self.ring.of_row(row, columns)?,
        };
        let Some([keys, values]) = held else { return Ok(RotatingKvCache::new(max_size, 0)) };
        let offset = self.offsets[row];
        Ok(RotatingKvCache::from_temporal(max_size, 0, keys, values, offset))
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
        self.ring.arrays().collect()
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.update_and_fetch(keys, values)?;
        Ok(KeysValues::Dense { keys, values })
    }

    /// The tokens attend to the last `window` of their row, at most `max_size`.
    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        let max_size = self.ring.max_size();
        let window = window.map_or(max_size, |window| window.min(max_size));
        let dropped = self.ring.num_dropped();
        let kept = self.ring.num_columns() - dropped;
        let total = kept + length;
        let left_padding: Vec<i32> =
            self.left_padding.iter().map(|padding| (padding - dropped).max(0)).collect();
        let is_padded = left_padding.iter().any(|&padding| padding > 0);
        let mut first_columns = Vec::new();
        let mask = if length == 1 {
            first_columns =
                left_padding.iter().map(|&padding| padding.max(total - window)).collect();
            match first_columns.iter().all(|&first| first == 0) {
                true => Mask::None,
                false => Mask::Array(from_first(&self.ring.ages_after_one(), &first_columns)?),
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
        let step = AttentionStep::new(rope_offset(&self.offsets), mask);
        Ok(AttentionStep { first_columns, ..step.with_last_mapping(self.ring.last_mapping()) })
    }

    /// One token for each row. `None` for a batch of one row: `attention.cu`, which would compute it, does
    /// not know where a ring begins.
    fn decode_slot(&mut self, length: i32) -> Result<Option<DecodeSlot>> {
        if length > 1 || self.num_rows() == 1 || self.remaining.is_some() {
            return Ok(None);
        }
        self.move_padding()?;
        if self.ring.num_columns() > self.ring.max_size() {
            self.keep_last(self.ring.max_size())?;
        }
        self.ring.slot(self.offsets.clone())
    }

    fn fill_decode_slot(&mut self, newest_keys: Array, newest_values: Array, _length: i32) {
        self.drop_padding(self.ring.num_dropped());
        self.ring.fill_slot(newest_keys, newest_values);
        for offset in &mut self.offsets {
            *offset += 1;
        }
    }

    fn forbids_quantization(&self) -> bool {
        true
    }

    fn extend(&mut self, other: LayerCache) -> std::result::Result<(), LmError> {
        match other {
            LayerCache::BatchRotating(other) if other.max_size() == self.max_size() => {
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
