//! A cache of the last `max_size` tokens: for sliding-window attention, and for `max_kv_size`.

use std::fmt;
use std::ops::Range;

use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype};

use super::buffer::{STEP, front, joined, room, token_range, write};
use super::chunk_state::ChunkForm;
use super::decode_slot::{Counters, SlotColumns};
use super::kind::{CacheKind, HeldTokens, KindSpec};
use super::prompt_file::{CacheClass, FileForm, FileReading, FileTensors, LayerState};
use super::shared_prefix::OwnForm;
use super::slot_mapping::LastSlotMapping;
use super::{
    AttentionStep, BatchRotatingKvCache, DecodeSlot, KeysValues, KvSizes, LayerCache,
    LayerCacheSpec, Mask, RopeOffset, SharedPrefixCache, TracedMapping, TracedSlot, causal_mask,
};
use crate::LmError;

/// The last `max_size` tokens; the first `keep` of the sequence are never overwritten. As mlx-lm's
/// RotatingKVCache.
///
/// - Single tokens go into a ring: once it holds `max_size` tokens, each overwrites the oldest.
/// - Several tokens at once are appended in temporal order to the last `max_size - 1`, so that each
///   of them sees `max_size` tokens; the buffer then exceeds `max_size` until the next single
///   token.
/// - While `offset < max_size` no token has been dropped: `index == offset`, and tokens can be
///   trimmed.
/// - Otherwise the buffer has at least `max_size` tokens, and either `index` is its length
///   (temporal order), or the buffer is a ring of exactly `max_size` tokens whose newest one stands
///   before `index`.
#[derive(Debug, Clone)]
pub struct RotatingKvCache {
    keys: Option<Array>,   // [B, H, capacity, D]
    values: Option<Array>, // [B, H, capacity, D]
    max_size: i32,
    keep: i32,
    offset: i32,
    index: i32,
    counters: Counters,
    last_mapping: LastSlotMapping,
}

impl RotatingKvCache {
    /// An empty cache.
    ///
    /// Panics unless `0 <= keep < max_size`: a ring needs at least one slot to overwrite.
    pub fn new(max_size: i32, keep: i32) -> Self {
        assert!((0..max_size).contains(&keep), "a ring of {max_size} tokens cannot keep {keep}");
        let (counters, last_mapping) = (Counters::default(), LastSlotMapping::default());
        let (keys, values) = (None, None);
        RotatingKvCache {
            keys,
            values,
            max_size,
            keep,
            offset: 0,
            index: 0,
            counters,
            last_mapping,
        }
    }

    /// A cache after `offset` tokens, of which it holds the last T in temporal order: keys and
    /// values `[B, H, T, D]`.
    pub fn from_temporal(
        max_size: i32,
        keep: i32,
        keys: Array,
        values: Array,
        offset: i32,
    ) -> Self {
        RotatingKvCache {
            index: keys.dim(2),
            keys: Some(keys),
            values: Some(values),
            offset,
            ..RotatingKvCache::new(max_size, keep)
        }
    }

    /// A cache in any of the states that [`RotatingKvCache`] lists; cuts the buffers to the tokens
    /// in use.
    pub(super) fn from_buffers(
        max_size: i32,
        keep: i32,
        keys: Array,
        values: Array,
        offset: i32,
        index: i32,
    ) -> Result<Self> {
        // A file from another program may hold more spare capacity than the ring's size.
        let in_use = if offset < max_size { offset } else { keys.dim(2) };
        if in_use == 0 {
            return Ok(RotatingKvCache::new(max_size, keep));
        }
        let (keys, values) = (Some(front(&keys, in_use)?), Some(front(&values, in_use)?));
        let (counters, last_mapping) = (Counters::default(), LastSlotMapping::default());
        Ok(RotatingKvCache { keys, values, max_size, keep, offset, index, counters, last_mapping })
    }

    /// The keys and values in use, in the buffer's order, as views; `None` for an empty cache.
    pub(super) fn tokens_in_use(&self) -> Result<Option<(Array, Array)>> {
        match (&self.keys, &self.values) {
            (Some(keys), Some(values)) if self.offset > 0 => {
                let in_use = self.offset.min(keys.dim(2));
                Ok(Some((front(keys, in_use)?, front(values, in_use)?)))
            }
            _ => Ok(None),
        }
    }

    /// The most tokens that a single one attends to.
    pub fn max_size(&self) -> usize {
        self.max_size as usize
    }

    /// How many of the sequence's first tokens are never overwritten.
    pub fn keep(&self) -> usize {
        self.keep as usize
    }

    /// How many tokens were appended, those that have been overwritten included.
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns all that the step attends to: in the
    /// ring's order for L = 1, since attention does not depend on the order of keys, otherwise in
    /// temporal order.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        if keys.dim(2) == 1 {
            self.replace_oldest(&keys, &values)
        } else {
            self.append(keys, values)
        }
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        let length = keys.dim(2);
        let (all_keys, all_values) = match (&self.keys, &self.values) {
            (Some(old_keys), Some(old_values)) => {
                let mut held = self.temporal_ranges(old_keys.dim(2)).to_vec();
                let num_held: i32 = held.iter().map(|span| span.end - span.start).sum();
                let surplus = num_held - (self.max_size - 1);
                if surplus > 0 {
                    held = without(&held, self.keep..self.keep + surplus);
                }
                (gathered(old_keys, &held, Some(keys))?, gathered(old_values, &held, Some(values))?)
            }
            _ => (keys, values),
        };
        self.offset += length;
        self.index = all_keys.dim(2);
        self.keys = Some(all_keys.clone());
        self.values = Some(all_values.clone());
        Ok((all_keys, all_values))
    }

    fn replace_oldest(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let (old_keys, old_values, index) = self.with_free_slot(keys, values)?;
        let all_keys = write(&old_keys, keys, index)?;
        let all_values = write(&old_values, values, index)?;
        self.offset += 1;
        self.index = index + 1;
        let held = self.offset.min(all_keys.dim(2));
        let views = (front(&all_keys, held)?, front(&all_values, held)?);
        self.keys = Some(all_keys);
        self.values = Some(all_values);
        Ok(views)
    }

    /// Keys, values and the index at which the next single token is written: of at most `max_size`
    /// tokens, with room for it. `new_keys` and `new_values` `[B, H, .., D]` give the shape of an
    /// empty cache.
    fn with_free_slot(&self, new_keys: &Array, new_values: &Array) -> Result<(Array, Array, i32)> {
        let capacity = self.keys.as_ref().map_or(0, |keys| keys.dim(2));
        let prepare = |held: &Option<Array>, new: &Array| match held {
            None => room(new, STEP.min(self.max_size)),
            Some(held) if self.offset >= capacity && capacity < self.max_size => {
                joined(&[held.clone(), room(new, STEP.min(self.max_size - self.offset))?])
            }
            Some(held) if capacity > self.max_size => gathered(
                held,
                &[0..self.keep, capacity - self.max_size + self.keep..capacity],
                None,
            ),
            Some(held) => Ok(held.clone()),
        };
        let index = if self.index >= self.max_size { self.keep } else { self.index };
        Ok((prepare(&self.keys, new_keys)?, prepare(&self.values, new_values)?, index))
    }

    /// bool `[T]`: which slots the next single token sees after it has been written, its own
    /// included.
    fn single_mask(&self, window: i32) -> Array {
        let num_slots = self.max_size.min(self.offset + 1);
        let slot = if self.index >= self.max_size { self.keep } else { self.index };
        let seen: Vec<bool> = (0..num_slots)
            .map(|other| {
                let age = if self.offset < self.max_size || other < self.keep {
                    self.offset - other
                } else {
                    (slot - other).rem_euclid(self.max_size - self.keep)
                };
                age < window
            })
            .collect();
        Array::from_slice(&seen, &[num_slots])
    }

    /// Keys and values of the tokens in the cache, oldest first, `[B, H, T, D]`; `None` for an
    /// empty cache. T exceeds `max_size` after several tokens at once.
    pub fn temporal(&self) -> Result<Option<(Array, Array)>> {
        let (Some(keys), Some(values)) = (&self.keys, &self.values) else { return Ok(None) };
        let held = self.temporal_ranges(keys.dim(2));
        Ok(Some((gathered(keys, &held, None)?, gathered(values, &held, None)?)))
    }

    /// The position in the sequence of the first token that [`RotatingKvCache::temporal`] returns,
    /// by counting back from the newest. With `keep > 0` and after an overwrite, the first `keep`
    /// entries are the sequence's first tokens instead of those at that position.
    pub fn first_held(&self) -> usize {
        let capacity = self.keys.as_ref().map_or(0, |keys| keys.dim(2));
        let num_held: i32 =
            self.temporal_ranges(capacity).iter().map(|span| span.end - span.start).sum();
        (self.offset - num_held).max(0) as usize
    }

    /// The parts of the buffer that hold tokens, oldest first.
    fn temporal_ranges(&self, capacity: i32) -> [Range<i32>; 3] {
        if self.index < self.offset && self.index < capacity {
            [0..self.keep, self.index..capacity, self.keep..self.index]
        } else {
            [0..self.index, 0..0, 0..0]
        }
    }
}

/// Why a ring that keeps its first tokens is no row of a batch.
const KEEPS_FIRST: LmError =
    LmError::NotBatchable { kind: "rotating cache that keeps its first tokens" };

const NAME: &str = CacheClass::Rotating.kind();

impl CacheKind for RotatingKvCache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        let arrays = self.keys.as_ref().zip(self.values.as_ref());
        let sizes = arrays.map(|(keys, values)| KvSizes::of_arrays([keys, values], 1));
        let (max_size, keep) = (self.max_size(), self.keep());
        Some(LayerCacheSpec::Rotating(RotatingSpec { max_size, keep, sizes }))
    }

    fn offset(&self) -> usize {
        self.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        self.keys.iter().chain(&self.values).collect()
    }

    /// The tokens attend to the last `window`, at most `max_size`.
    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        let mask = if length == 1 {
            match window {
                // Only a window narrower than the ring hides a slot.
                Some(window) if self.offset >= window && self.max_size > window => {
                    Mask::Array(self.single_mask(window))
                }
                _ => Mask::None,
            }
        } else {
            let window = window.unwrap_or(self.max_size);
            let offset = self.offset.min(self.max_size - 1);
            if offset + length > window {
                Mask::Array(causal_mask(length, offset, Some(window))?)
            } else {
                Mask::Causal
            }
        };
        Ok(AttentionStep::new(RopeOffset::Same(self.offset), mask)
            .with_last_mapping(&self.last_mapping))
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.update_and_fetch(keys, values)?;
        Ok(KeysValues::Dense { keys, values })
    }

    /// The ring is small, and every step may replace it.
    fn decode_slot(&mut self, length: i32) -> Result<Option<DecodeSlot>> {
        let (Some(keys), Some(values)) = (&self.keys, &self.values) else { return Ok(None) };
        if length > 1 || self.max_size > DecodeSlot::MOST_IN_RING {
            return Ok(None);
        }
        let (keys, values, column) = self.with_free_slot(keys, values)?;
        let num_in_use = self.offset.min(keys.dim(2));
        Ok(Some(DecodeSlot {
            keys: keys.clone(),
            values: values.clone(),
            newest_keys: keys,
            newest_values: values,
            counters: self.counters.array()?,
            positions: vec![self.offset],
            columns: SlotColumns::Ring { num_in_use, column },
        }))
    }

    fn fill_decode_slot(&mut self, newest_keys: Array, newest_values: Array, _length: i32) {
        self.index = if self.index >= self.max_size { self.keep } else { self.index } + 1;
        self.offset += 1;
        (self.keys, self.values) = (Some(newest_keys), Some(newest_values));
    }

    fn traced_slot(&mut self) -> Result<Option<TracedSlot>> {
        let (Some(keys), Some(values)) = (&self.keys, &self.values) else { return Ok(None) };
        let (keys, values, column) = self.with_free_slot(keys, values)?;
        let num_in_use = (self.offset + 1).min(keys.dim(2));
        let mapping = TracedMapping { position: self.offset, column, num_in_use };
        Ok(Some(TracedSlot { keys, values, mapping, ring: Some(self.max_size) }))
    }

    fn fill_traced_slot(&mut self, keys: Array, values: Array) {
        self.fill_decode_slot(keys, values, 1);
    }

    /// Not once tokens have overwritten older ones.
    fn is_trimmable(&self) -> bool {
        self.offset < self.max_size
    }

    fn trim(&mut self, num_tokens: usize) -> usize {
        if !self.is_trimmable() {
            return 0;
        }
        let trimmed = num_tokens.min(self.offset as usize);
        self.offset -= trimmed as i32;
        self.index -= trimmed as i32;
        trimmed
    }

    fn trims_after(&self, num_ahead: usize) -> bool {
        self.offset().saturating_add(num_ahead) < self.max_size()
    }

    /// A full ring with `keep > 0` shows its first tokens to single tokens only.
    fn reads_one_by_one(&self, length: usize) -> bool {
        length > 1 && self.keep > 0 && self.offset() + length > self.max_size()
    }

    fn forbids_quantization(&self) -> bool {
        true
    }

    fn held_tokens(&self) -> Result<Option<HeldTokens>> {
        let held = self.temporal()?.map(|(keys, values)| {
            let first = self.first_held();
            let num_kept = if first > 0 { self.keep() } else { 0 };
            let tokens = KeysValues::Dense { keys, values };
            HeldTokens { tokens, first, num_kept, is_window: true }
        });
        Ok(held)
    }

    /// The rows hold all of their own tokens: a mask hides those outside the window.
    fn continued_by_rows(&self, num_rows: usize) -> std::result::Result<LayerCache, LmError> {
        if self.keep > 0 {
            return Err(KEEPS_FIRST);
        }
        let form = OwnForm { window: Some(self.max_size), ..OwnForm::default() };
        SharedPrefixCache::after(self.held_tokens()?, self.offset(), num_rows, form)
    }

    fn to_file(&self) -> Result<FileForm> {
        let &RotatingKvCache { max_size, keep, offset, index, .. } = self;
        Ok(FileForm {
            class: CacheClass::Rotating,
            tensors: FileTensors::Pair(self.tokens_in_use()?),
            numbers: vec![offset, keep, max_size, index],
            numbers_v0_30: Ok(vec![keep, max_size, offset, index]),
        })
    }
}

/// The spec of a [`RotatingKvCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotatingSpec {
    /// The most tokens that a single one attends to.
    pub max_size: usize,
    /// How many of the sequence's first tokens are never overwritten, fewer than `max_size`.
    pub keep: usize,
    /// Its keys and values; `None` for an empty cache.
    pub sizes: Option<KvSizes>,
}

impl KindSpec for RotatingSpec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn make(&self) -> LayerCache {
        LayerCache::Rotating(RotatingKvCache::new(self.max_size as i32, self.keep as i32))
    }

    /// Single tokens grow the buffer by steps.
    fn num_bytes(&self, num_tokens: u64, float_bytes: u64) -> u64 {
        let capacity = (num_tokens.saturating_sub(1) + STEP as u64).min(self.max_size as u64);
        let capacity = if num_tokens == 0 { 0 } else { capacity };
        capacity * self.num_bytes_per_token(float_bytes)
    }

    fn num_bytes_while_reading(&self, num_tokens: u64, length: u64, float_bytes: u64) -> u64 {
        let held = self.num_keys_while_reading(num_tokens, length);
        let bytes = held * self.num_bytes_per_token(float_bytes);
        bytes.max(self.num_bytes(num_tokens, float_bytes))
    }

    /// Several tokens at once follow the last `max_size - 1`.
    fn num_keys_while_reading(&self, num_tokens: u64, length: u64) -> u64 {
        let length = length.min(num_tokens);
        (num_tokens - length).min(self.max_size as u64 - 1) + length
    }

    fn num_bytes_per_token(&self, float_bytes: u64) -> u64 {
        self.sizes.map_or(0, |sizes| sizes.num_bytes(float_bytes))
    }

    fn window(&self) -> Option<usize> {
        Some(self.max_size)
    }

    fn merge(&self, rows: Vec<LayerCache>) -> std::result::Result<LayerCache, LmError> {
        self.check_batch()?;
        let own = |row| if let LayerCache::Rotating(cache) = row { Some(cache) } else { None };
        let rows: Option<Vec<RotatingKvCache>> = rows.into_iter().map(own).collect();
        let merged = BatchRotatingKvCache::merge(&rows.ok_or(LmError::MixedCaches)?)?;
        Ok(LayerCache::BatchRotating(merged))
    }

    fn check_batch(&self) -> std::result::Result<(), LmError> {
        match self.keep {
            0 => Ok(()),
            _ => Err(KEEPS_FIRST),
        }
    }

    fn without_sizes(&self) -> LayerCacheSpec {
        LayerCacheSpec::Rotating(RotatingSpec { sizes: None, ..*self })
    }

    fn types(&self) -> Vec<Option<Dtype>> {
        KvSizes::types(&self.sizes)
    }

    fn admits(&self, given: &LayerCacheSpec) -> bool {
        matches!(given, LayerCacheSpec::Rotating(given)
            if (given.max_size, given.keep) == (self.max_size, self.keep)
                && KvSizes::fit(&self.sizes, &given.sizes))
    }

    /// Which tokens a ring that keeps its first ones holds does not follow from its number of
    /// tokens.
    fn chunk_form(&self, num_tokens: usize) -> Option<ChunkForm> {
        let first = num_tokens.saturating_sub(self.max_size);
        (self.keep == 0).then(|| ChunkForm::plain(&self.sizes, first, num_tokens - first))
    }

    fn join_chunks(
        &self,
        arrays: Vec<Array>,
        num_tokens: i32,
    ) -> std::result::Result<LayerCache, LmError> {
        let [keys, values] = <[Array; 2]>::try_from(arrays).map_err(|_| self.is_not_in_chunks())?;
        let max_size = self.max_size as i32;
        let cache = RotatingKvCache::from_temporal(max_size, 0, keys, values, num_tokens);
        Ok(LayerCache::Rotating(cache))
    }

    fn read_from_file(
        &self,
        state: &LayerState,
        reading: &mut FileReading<'_>,
    ) -> std::result::Result<LayerCache, LmError> {
        let (max_size, keep) = (self.max_size as i32, self.keep as i32);
        let held = reading.keys_values(state)?;
        let (Some((keys, values)), &LayerState::Rotating { offset, index, .. }) = (held, state)
        else {
            return Ok(self.make());
        };
        let (offset, index) = (offset as i32, index as i32);
        Ok(LayerCache::Rotating(RotatingKvCache::from_buffers(
            max_size, keep, keys, values, offset, index,
        )?))
    }

    fn describe(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, " of {} tokens", self.max_size)?;
        if self.keep > 0 {
            write!(out, " that keeps the first {}", self.keep)?;
        }
        KvSizes::describe(&self.sizes, out)
    }
}

/// `spans` without the tokens `removed`, whose numbers count through all spans in order.
fn without(spans: &[Range<i32>], removed: Range<i32>) -> Vec<Range<i32>> {
    let mut rest = Vec::with_capacity(spans.len() + 1);
    let mut counted = 0;
    for span in spans {
        let shift = span.start - counted;
        rest.push(span.start..span.end.min(removed.start + shift));
        rest.push(span.start.max(removed.end + shift)..span.end);
        counted += span.end - span.start;
    }
    rest
}

/// The tokens of `spans`, followed by `more`.
fn gathered(buffer: &Array, spans: &[Range<i32>], more: Option<Array>) -> Result<Array> {
    let mut parts = Vec::with_capacity(spans.len() + 1);
    for part in spans.iter().filter(|part| part.start < part.end) {
        parts.push(if *part == (0..buffer.dim(2)) {
            buffer.clone()
        } else {
            token_range(buffer, part.start, part.end)?
        });
    }
    parts.extend(more);
    // One part needs no copy.
    if parts.len() == 1 { Ok(parts.remove(0)) } else { joined(&parts) }
}

#[cfg(test)]
mod tests;
