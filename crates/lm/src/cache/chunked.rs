//! A cache of the last chunk or two: for attention that looks back only to the start of its own
//! chunk (Llama 4).

use std::fmt;

use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype, ops};

use super::buffer::{STEP, append, token_range};
use super::chunk_state::ChunkForm;
use super::kind::{CacheKind, KindSpec};
use super::kv::Dropped;
use super::prompt_file::{CacheClass, FileForm, FileReading, FileTensors, LayerState};
use super::{
    AttentionStep, BatchChunkedKvCache, KeysValues, KvCache, KvSizes, LayerCache, LayerCacheSpec,
    Mask, RopeOffset,
};
use crate::LmError;

/// At most `chunk_size` tokens before a step, and the step's own. As mlx-lm's ChunkedKVCache.
///
/// Each step first drops the tokens that no later one can attend to, by advancing `start`. They
/// leave the buffer only when it has to grow, so that most steps write in place: slot 0 holds the
/// token at position `base`, and `base <= start <= offset`.
#[derive(Debug, Clone)]
pub struct ChunkedKvCache {
    keys: Option<Array>,   // [B, H, capacity, D]
    values: Option<Array>, // [B, H, capacity, D]
    chunk_size: i32,
    base: i32,
    start: i32,
    offset: i32,
}

impl ChunkedKvCache {
    /// An empty cache.
    ///
    /// Panics unless `chunk_size` is above 0.
    pub fn new(chunk_size: i32) -> Self {
        assert!(chunk_size > 0, "a chunk has at least one token");
        ChunkedKvCache { keys: None, values: None, chunk_size, base: 0, start: 0, offset: 0 }
    }

    /// A cache that holds the tokens `start..offset` in `keys` and `values` `[B, H, capacity, D]`.
    pub(super) fn from_buffers(
        chunk_size: i32,
        keys: Array,
        values: Array,
        start: i32,
        offset: i32,
    ) -> Self {
        ChunkedKvCache {
            keys: Some(keys),
            values: Some(values),
            base: start,
            start,
            offset,
            ..ChunkedKvCache::new(chunk_size)
        }
    }

    /// How many tokens a step can look back to.
    pub fn chunk_size(&self) -> usize {
        self.chunk_size as usize
    }

    /// How many tokens were appended, dropped ones included.
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// The position of the first token that has not been dropped.
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns the tokens that the step can look
    /// back to, followed by its own.
    pub fn update_and_fetch(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let (start, stop) = (self.next_start(), self.offset + keys.dim(2));
        let is_full = self.keys.as_ref().is_some_and(|keys| stop - self.base > keys.dim(2));
        let base = if is_full { start } else { self.base };
        let appended = |buffer: &Option<Array>, update: &Array| match buffer {
            Some(buffer) if is_full => append(
                Some(&token_range(buffer, start - self.base, self.offset - self.base)?),
                update,
                self.offset - base,
            ),
            buffer => append(buffer.as_ref(), update, self.offset - base),
        };
        let (all_keys, all_values) = (appended(&self.keys, keys)?, appended(&self.values, values)?);
        (self.base, self.start, self.offset) = (base, start, stop);
        let views = (
            token_range(&all_keys, start - base, stop - base)?,
            token_range(&all_values, start - base, stop - base)?,
        );
        self.keys = Some(all_keys);
        self.values = Some(all_values);
        Ok(views)
    }

    /// The keys and values in use, as views; `None` for an empty cache.
    pub(super) fn tokens_in_use(&self) -> Result<Option<(Array, Array)>> {
        let held = |buffer| token_range(buffer, self.start - self.base, self.offset - self.base);
        match (&self.keys, &self.values) {
            (Some(keys), Some(values)) if self.start < self.offset => {
                Ok(Some((held(keys)?, held(values)?)))
            }
            _ => Ok(None),
        }
    }

    /// The tokens in use, as a cache that has dropped those before them.
    pub(super) fn to_plain(&self) -> Result<KvCache> {
        Ok(match self.tokens_in_use()? {
            Some((keys, values)) => {
                let dropped = Dropped { num_tokens: self.start, num_chosen: 0 };
                KvCache::from_buffers(keys, values, self.offset - self.start).with_dropped(dropped)
            }
            None => KvCache::new(),
        })
    }

    /// A cache of the tokens that `plain` holds.
    pub(super) fn of_plain(chunk_size: i32, plain: &KvCache) -> Result<Self> {
        let (start, offset) = (plain.dropped().num_tokens, plain.offset() as i32);
        let held = plain.tokens_in_use()?;
        Ok(held.map_or_else(
            || ChunkedKvCache::new(chunk_size),
            |(keys, values)| Self::from_buffers(chunk_size, keys, values, start, offset),
        ))
    }

    fn next_start(&self) -> i32 {
        self.start.max(self.offset - self.chunk_size)
    }
}

const NAME: &str = CacheClass::Chunked.kind();

impl CacheKind for ChunkedKvCache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        let arrays = self.keys.as_ref().zip(self.values.as_ref());
        let sizes = arrays.map(|(keys, values)| KvSizes::of_arrays([keys, values], 1));
        Some(LayerCacheSpec::Chunked(ChunkedSpec { chunk_size: self.chunk_size(), sizes }))
    }

    fn offset(&self) -> usize {
        self.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        self.keys.iter().chain(&self.values).collect()
    }

    /// The tokens attend to those before them in their own chunk.
    fn attention_step(&self, length: i32, _window: Option<i32>) -> Result<AttentionStep> {
        let (start, stop) = (self.next_start(), self.offset + length);
        let chunk_of = |position: i32| position / self.chunk_size * self.chunk_size;
        let is_one_chunk =
            start >= chunk_of(self.offset) && chunk_of(self.offset) == chunk_of(stop - 1);
        let mask = if !is_one_chunk {
            let chunks: Vec<i32> = (self.offset..stop).map(chunk_of).collect();
            let chunks = Array::from_slice(&chunks, &[length, 1]);
            let queries = ops::reshape(ops::arange::<_, i32>(self.offset, stop, 1)?, &[length, 1])?;
            let keys = ops::arange::<_, i32>(start, stop, 1)?;
            Mask::Array(queries.ge(&keys)?.logical_and(chunks.le(&keys)?)?)
        } else if length == 1 {
            Mask::None
        } else {
            Mask::Causal
        };
        Ok(AttentionStep::new(RopeOffset::Same(self.offset), mask))
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.update_and_fetch(&keys, &values)?;
        Ok(KeysValues::Dense { keys, values })
    }

    /// Not once tokens have been dropped at the front. mlx-lm still trims then, but the tokens
    /// before the new end may lack the start of their chunk.
    fn is_trimmable(&self) -> bool {
        self.start == 0
    }

    fn trim(&mut self, num_tokens: usize) -> usize {
        if !self.is_trimmable() {
            return 0;
        }
        let trimmed = num_tokens.min(self.offset as usize);
        self.offset -= trimmed as i32;
        trimmed
    }

    fn to_file(&self) -> Result<FileForm> {
        let &ChunkedKvCache { chunk_size, start, offset, .. } = self;
        Ok(FileForm {
            class: CacheClass::Chunked,
            tensors: FileTensors::Pair(self.tokens_in_use()?),
            numbers: vec![offset, chunk_size, start],
            numbers_v0_30: match start {
                0 => Ok(vec![chunk_size, 0]),
                _ => Err("that layout does not record which tokens were dropped"),
            },
        })
    }
}

/// The spec of a [`ChunkedKvCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkedSpec {
    /// How many tokens a step can look back to.
    pub chunk_size: usize,
    /// Its keys and values; `None` for an empty cache.
    pub sizes: Option<KvSizes>,
}

impl KindSpec for ChunkedSpec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn make(&self) -> LayerCache {
        LayerCache::Chunked(ChunkedKvCache::new(self.chunk_size as i32))
    }

    /// An upper bound: dropped tokens leave the buffer when it has to grow.
    fn num_bytes(&self, num_tokens: u64, float_bytes: u64) -> u64 {
        let most = (self.chunk_size as u64 + 1).next_multiple_of(STEP as u64);
        let capacity = num_tokens.next_multiple_of(STEP as u64).min(most);
        capacity * self.num_bytes_per_token(float_bytes)
    }

    fn num_bytes_while_reading(&self, num_tokens: u64, length: u64, float_bytes: u64) -> u64 {
        let most = (self.chunk_size as u64 + length).next_multiple_of(STEP as u64);
        let capacity = num_tokens.next_multiple_of(STEP as u64).min(most);
        capacity * self.num_bytes_per_token(float_bytes)
    }

    fn num_keys_while_reading(&self, num_tokens: u64, length: u64) -> u64 {
        num_tokens.min(self.chunk_size as u64 + length)
    }

    fn num_bytes_per_token(&self, float_bytes: u64) -> u64 {
        self.sizes.map_or(0, |sizes| sizes.num_bytes(float_bytes))
    }

    fn window(&self) -> Option<usize> {
        Some(self.chunk_size)
    }

    fn merge(&self, rows: Vec<LayerCache>) -> std::result::Result<LayerCache, LmError> {
        let chunked = |row| match row {
            LayerCache::Chunked(cache) => Some(cache),
            _ => None,
        };
        let rows: Option<Vec<_>> = rows.into_iter().map(chunked).collect();
        let merged = BatchChunkedKvCache::merge(&rows.ok_or(LmError::MixedCaches)?)?;
        Ok(LayerCache::BatchChunked(merged))
    }

    fn check_batch(&self) -> std::result::Result<(), LmError> {
        Ok(())
    }

    fn without_sizes(&self) -> LayerCacheSpec {
        LayerCacheSpec::Chunked(ChunkedSpec { sizes: None, ..*self })
    }

    fn types(&self) -> Vec<Option<Dtype>> {
        KvSizes::types(&self.sizes)
    }

    fn admits(&self, given: &LayerCacheSpec) -> bool {
        matches!(given, LayerCacheSpec::Chunked(given) if KvSizes::fit(&self.sizes, &given.sizes))
    }

    /// mlx-lm's caches of this kind are not stored in chunks yet: no architecture here has them.
    fn chunk_form(&self, _num_tokens: usize) -> Option<ChunkForm> {
        None
    }

    fn read_from_file(
        &self,
        state: &LayerState,
        reading: &mut FileReading<'_>,
    ) -> std::result::Result<LayerCache, LmError> {
        let held = reading.keys_values(state)?;
        let (Some((keys, values)), &LayerState::Chunked { offset, start, .. }) = (held, state)
        else {
            return Ok(self.make());
        };
        let (chunk_size, start, offset) = (self.chunk_size as i32, start as i32, offset as i32);
        let cache = ChunkedKvCache::from_buffers(chunk_size, keys, values, start, offset);
        Ok(LayerCache::Chunked(cache))
    }

    fn describe(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        KvSizes::describe(&self.sizes, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(from: i32, to: i32) -> Array {
        let numbers: Vec<f32> = (from..to).map(|token| token as f32).collect();
        Array::from_slice(&numbers, &[1, 1, to - from, 1])
    }

    /// Appends steps of the given lengths (trims where negative) and compares which positions the
    /// last one returned and its mask.
    fn check(
        chunk_size: i32,
        steps: &[i32],
        expected: std::ops::Range<i32>,
        seen: Option<&[&str]>,
    ) {
        let mut cache = ChunkedKvCache::new(chunk_size);
        let mut last = (Vec::new(), None);
        for &step in steps {
            let offset = cache.offset() as i32;
            if step < 0 {
                let expected = if cache.start == 0 { (-step).min(offset) } else { 0 };
                assert_eq!(cache.trim(-step as usize) as i32, expected, "trim in {steps:?}");
                continue;
            }
            let mask = cache.attention_step(step, None).expect("step").mask;
            let new = tokens(offset, offset + step);
            let (keys, values) = cache.update_and_fetch(&new, &new).expect("update");
            let keys = keys.contiguous().expect("contiguous").as_slice::<f32>().to_vec();
            assert_eq!(values.contiguous().expect("contiguous").as_slice::<f32>(), keys);
            let rows = match mask {
                Mask::Array(mask) => {
                    let row_of = |row: &[bool]| {
                        row.iter().map(|&seen| if seen { 'T' } else { 'F' }).collect::<String>()
                    };
                    Some(
                        mask.as_slice::<bool>()
                            .chunks(mask.dim(-1) as usize)
                            .map(row_of)
                            .collect::<Vec<_>>(),
                    )
                }
                Mask::None | Mask::Causal => None,
            };
            last = (keys, rows);
        }
        assert_eq!(
            last.0,
            tokens(expected.start, expected.end).as_slice::<f32>(),
            "chunks of {chunk_size} after {steps:?}"
        );
        assert_eq!(
            last.1,
            seen.map(|rows| rows.iter().map(|row| (*row).to_owned()).collect()),
            "chunks of {chunk_size} after {steps:?}"
        );
    }

    #[test]
    fn a_step_sees_its_own_chunk() {
        check(4, &[3], 0..3, None);
        check(4, &[3, 1], 0..4, None);
        check(4, &[4, 1], 0..5, Some(&["FFFFT"]));
        check(4, &[4, 1, 1], 1..6, Some(&["FFFTT"]));
        check(4, &[2, 4], 0..6, Some(&["TTTFFF", "TTTTFF", "FFFFTF", "FFFFTT"]));
        check(4, &[9, 2], 5..11, Some(&["FFFTTF", "FFFTTT"]));
        check(4, &[9, -2, 1], 3..8, Some(&["FTTTT"]));
        check(4, &[9, 1, -2, 1], 6..11, Some(&["FFTTT"]));
        check(300, &[250, 2, 2, 2, 2, 2], 0..260, None);
        check(300, &[290, 290, 1], 280..581, Some(&[&("F".repeat(20) + &"T".repeat(281))]));
    }
}
