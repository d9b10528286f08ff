//! Keys and values of every token, for several rows at once.

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::buffer::{round_up, token_range};
use super::kind::CacheKind;
use super::kv::Dropped;
use super::kv_buffers::KvBuffers;
use super::rows::{Block, RowColumns, from_first, kept_rows, rolled, rope_offset, stacked};
use super::{
    AttentionStep, DecodeSlot, KeysValues, KvCache, LayerCache, LayerCacheSpec, Mask, RopeOffset,
    causal_mask,
};
use crate::LmError;

/// Several [`KvCache`]s as the rows of one. As mlx-lm's BatchKVCache.
///
/// Rows stand in the buffers as [`RowColumns`] says.
#[derive(Debug, Clone)]
pub struct BatchKvCache {
    buffers: KvBuffers,
    rows: RowColumns,
    /// What each row has dropped before it came.
    dropped: Vec<Dropped>,
}

impl BatchKvCache {
    /// Merges the `caches` of single rows, left-padded to the longest, with capacity for the next
    /// step.
    ///
    /// Panics if `caches` is empty.
    pub fn merge(caches: &[KvCache]) -> Result<Self> {
        assert!(!caches.is_empty(), "a batch has at least one row");
        let stop = caches.iter().map(KvCache::num_columns).max().unwrap_or(0);
        let materialized = caches.iter().map(KvCache::materialized).collect::<Result<Vec<_>>>()?;
        let stack = |index: usize| {
            let blocks: Vec<Block> = std::iter::zip(caches, &materialized)
                .map(|(cache, buffers)| Block {
                    buffer: buffers.as_ref().map(|buffers| &buffers[index]),
                    num_rows: 1,
                    columns: 0..cache.num_columns(),
                })
                .collect();
            stacked(&blocks, stop, round_up(stop + 1))
        };
        Ok(BatchKvCache {
            buffers: KvBuffers::of(stack(0)?.zip(stack(1)?).map(Into::into)),
            rows: RowColumns::new(
                caches.iter().map(|cache| stop - cache.num_columns()).collect(),
                stop,
            ),
            dropped: caches.iter().map(KvCache::dropped).collect(),
        })
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.rows.num_rows()
    }

    /// How many tokens the longest row has read.
    pub fn offset(&self) -> usize {
        self.offsets().into_iter().max().unwrap_or(0) as usize
    }

    /// How many tokens each row has read.
    pub fn offsets(&self) -> Vec<i32> {
        let lengths = std::iter::zip(self.rows.lengths(), &self.dropped);
        lengths.map(|(length, dropped)| length + dropped.num_tokens).collect()
    }

    /// Announces how many tokens of the coming steps belong to each row; the remaining columns of a
    /// row are right padding.
    pub fn prepare(&mut self, lengths: &[i32]) {
        self.rows.prepare(lengths);
    }

    /// Ends the steps that [`BatchKvCache::prepare`] announced: right padding becomes left padding.
    pub fn finalize(&mut self) -> Result<()> {
        self.rows.finalize();
        self.move_padding()
    }

    /// How many columns are in use.
    pub(super) fn num_columns(&self) -> i32 {
        self.rows.stop
    }

    /// The column of the first token that each row holds, and its position.
    pub(super) fn first_tokens(&self) -> Vec<[i32; 2]> {
        let columns = std::iter::zip(&self.rows.left_padding, &self.dropped);
        columns.map(|(&column, dropped)| [column, dropped.num_tokens]).collect()
    }

    /// Drops the first `num_columns`, with the tokens in them.
    pub(super) fn drop_columns(&mut self, num_columns: i32) -> Result<()> {
        self.move_padding()?;
        self.materialize()?;
        for (dropped, num_tokens) in self.dropped.iter_mut().zip(self.rows.cut(num_columns)) {
            dropped.num_tokens += num_tokens;
        }
        self.replace_buffers(|buffer| token_range(buffer, num_columns, buffer.dim(2)))
    }

    /// The step of one token for each row, which sees all columns from its row's first on.
    pub(super) fn single_step(
        &self,
        offset: RopeOffset,
        first_columns: Vec<i32>,
    ) -> Result<AttentionStep> {
        let mask = match first_columns.iter().all(|&first| first == 0) {
            true => Mask::None,
            false => {
                let columns = ops::arange::<_, i32>(0, self.rows.stop + 1, 1)?;
                Mask::Array(from_first(&columns, &first_columns)?)
            }
        };
        let step = AttentionStep::new(offset, mask).with_last_mapping(self.buffers.last_mapping());
        Ok(AttentionStep { first_columns, ..step })
    }

    fn move_padding(&mut self) -> Result<()> {
        if let Some(shifts) = self.rows.take_shifts() {
            let stop = self.rows.stop;
            self.replace_buffers(|buffer| rolled(buffer, &shifts, stop))?;
        }
        Ok(())
    }

    /// Makes buffers that hold all tokens into others.
    fn replace_buffers(&mut self, with: impl Fn(&Array) -> Result<Array>) -> Result<()> {
        if let Some([keys, values]) = self.materialized()? {
            self.buffers = KvBuffers::new(with(&keys)?, with(&values)?);
        }
        Ok(())
    }

    /// Both buffers, with the tail in them; `None` for empty rows.
    fn materialized(&self) -> Result<Option<[Array; 2]>> {
        self.buffers.materialized(self.rows.stop)
    }

    /// Writes the tail into the buffers.
    pub(super) fn materialize(&mut self) -> Result<()> {
        self.buffers.materialize(self.rows.stop)
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns the whole cache, `[B, H, stop, D]`.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        self.move_padding()?;
        let views = self.buffers.append(&keys, &values, self.rows.stop)?;
        self.rows.appended(keys.dim(2));
        Ok(views.into())
    }

    /// Keeps only the rows `kept`, in that order, and drops the left padding that they share.
    pub fn filter(&mut self, kept: &[usize]) -> Result<()> {
        self.move_padding()?;
        self.materialize()?;
        let shared = self.rows.keep(kept);
        self.dropped = kept.iter().map(|&row| self.dropped[row]).collect();
        self.replace_buffers(|buffer| kept_rows(buffer, kept, shared..buffer.dim(2)))
    }

    /// Appends the rows of `other`.
    pub fn extend(&mut self, mut other: BatchKvCache) -> Result<()> {
        self.finalize()?;
        other.finalize()?;
        let rows = self.rows.joined(&other.rows);
        let [own, others] = [self.materialized()?, other.materialized()?];
        let stack = |index: usize| {
            let buffers = [&own, &others].map(|pair| pair.as_ref().map(|pair| &pair[index]));
            let blocks = [(buffers[0], &self.rows), (buffers[1], &other.rows)];
            stacked(&blocks.map(Block::of), rows.stop, round_up(rows.stop + 1))
        };
        let buffers = KvBuffers::of(stack(0)?.zip(stack(1)?).map(Into::into));
        (self.buffers, self.rows) = (buffers, rows);
        self.dropped.extend(other.dropped);
        Ok(())
    }

    /// A copy of one row as a [`KvCache`], in buffers of exactly its length.
    pub fn extract(&self, row: usize) -> Result<KvCache> {
        let columns = self.rows.of_row(row);
        let length = columns.end - columns.start;
        let held = match columns.is_empty() {
            true => None,
            false => self.buffers.of_row(row, columns, self.rows.stop)?,
        };
        let Some([keys, values]) = held else { return Ok(KvCache::new()) };
        let cache = KvCache::from_buffers(keys, values, length);
        Ok(cache.with_dropped(self.dropped[row]))
    }
}

impl CacheKind for BatchKvCache {
    fn name(&self) -> &'static str {
        "batch of caches of keys and values"
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        None
    }

    fn offset(&self) -> usize {
        self.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        self.buffers.arrays().collect()
    }

    fn columns(&self) -> Option<[i32; 2]> {
        Some([0, self.rows.stop])
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.update_and_fetch(keys, values)?;
        Ok(KeysValues::Dense { keys, values })
    }

    /// The tokens attend to those before them in their row.
    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        let offset = rope_offset(&self.offsets());
        let RowColumns { stop: start, left_padding, .. } = &self.rows;
        let (start, stop) = (*start, start + length);
        let columns = || ops::arange::<_, i32>(0, stop, 1);
        if length == 1 {
            let first_in_window = window.map_or(0, |window| stop - window);
            let first: Vec<i32> =
                left_padding.iter().map(|&padding| padding.max(first_in_window).max(0)).collect();
            return self.single_step(offset, first);
        }
        let mask = {
            let window = window.filter(|&window| stop > window);
            match (self.rows.is_padded(), window) {
                (false, None) => Mask::Causal,
                (false, window) => Mask::Array(causal_mask(length, start, window)?),
                (true, window) => Mask::Array(
                    causal_mask(length, start, window)?
                        .logical_and(from_first(&columns()?, left_padding)?)?,
                ),
            }
        };
        Ok(AttentionStep::new(offset, mask))
    }

    /// Of one token for each row. A row alone is not told from one that begins at the first column.
    fn decode_slot(&mut self, length: i32) -> Result<Option<DecodeSlot>> {
        if length > 1 || self.num_rows() == 1 || self.rows.is_prepared() {
            return Ok(None);
        }
        self.move_padding()?;
        self.buffers.slot(self.offsets(), self.rows.stop, length)
    }

    fn fill_decode_slot(&mut self, newest_keys: Array, newest_values: Array, length: i32) {
        self.buffers.fill_slot(newest_keys, newest_values, length);
        self.rows.appended(length);
    }

    /// Not while rows end with right padding, and not where a row has dropped tokens.
    fn is_trimmable(&self) -> bool {
        let has_dropped = self.dropped.iter().any(|dropped| dropped.num_tokens > 0);
        !self.rows.is_moving() && !has_dropped
    }

    /// At most as many as the shortest row has.
    fn trim(&mut self, num_tokens: usize) -> usize {
        let trimmed = if self.is_trimmable() { self.rows.trim(num_tokens) } else { 0 };
        self.buffers.trimmed(trimmed as i32);
        trimmed
    }

    fn trims_after(&self, _num_ahead: usize) -> bool {
        true
    }

    fn extend(&mut self, other: LayerCache) -> std::result::Result<(), LmError> {
        match other {
            LayerCache::BatchKv(other) => Ok(self.extend(other)?),
            _ => Err(LmError::MixedCaches),
        }
    }

    fn filter(&mut self, kept: &[usize]) -> std::result::Result<(), LmError> {
        Ok(self.filter(kept)?)
    }

    fn extract(&self, row: usize) -> std::result::Result<LayerCache, LmError> {
        Ok(LayerCache::Kv(self.extract(row)?))
    }

    fn prepare(&mut self, lengths: &[i32]) -> std::result::Result<(), LmError> {
        self.prepare(lengths);
        Ok(())
    }

    fn finalize(&mut self) -> std::result::Result<(), LmError> {
        Ok(self.finalize()?)
    }
}
