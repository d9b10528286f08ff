//! Keys and values of every token: the cache of plain attention.

use std::fmt;

use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype};

use super::buffer::{self, append, front, joined, room, round_up, token_range};
use super::chunk_state::ChunkForm;
use super::kind::{CacheKind, HeldTokens, KindSpec};
use super::prompt_file::{CacheClass, FileForm, FileReading, FileTensors, LayerState};
use super::quantized::{QuantizedSpec, check_head_dims};
use super::rotating::RotatingSpec;
use super::shared_prefix::OwnForm;
use super::{
    AttentionStep, BatchKvCache, DecodeSlot, KeysValues, KvSizes, LayerCache, LayerCacheSpec,
    QuantizedKvCache, SharedPrefixCache,
};
use crate::LmError;

/// Keys and values of every token, in buffers that grow in steps and are written in place.
#[derive(Debug, Clone, Default)]
pub struct KvCache {
    keys: Option<Array>,      // [B, H, capacity, D]
    values: Option<Array>,    // [B, H, capacity, D]
    tail: Option<TailBuffer>, // the newest tokens, not yet in `keys` and `values`
    offset: i32,
}

/// The newest tokens of a cache, in a small buffer of their own that every step replaces (see
/// [`DecodeSlot`]); the large buffers stay as they are for [`KvCache::TAIL_CAPACITY`] steps.
#[derive(Debug, Clone)]
struct TailBuffer {
    keys: Array,   // [B, H, TAIL_CAPACITY, D]
    values: Array, // [B, H, TAIL_CAPACITY, D]
    count: i32,    // how many of the leading columns are in use
}

impl KvCache {
    /// Buffers grow by this many tokens, so that most steps write in place.
    pub const STEP: i32 = buffer::STEP;

    /// The most tokens that a [`TailBuffer`] holds.
    const TAIL_CAPACITY: i32 = 64;

    /// An empty cache.
    pub fn new() -> Self {
        KvCache::default()
    }

    /// A cache of the concatenated `keys` and `values`, each `[B, H, T_i, D]`, with capacity for
    /// the next step.
    pub fn from_parts(keys: &[Array], values: &[Array]) -> Result<Self> {
        let offset: i32 = keys.iter().map(|part| part.dim(2)).sum();
        if offset == 0 {
            return Ok(KvCache::new());
        }
        let with_room = |parts: &[Array]| {
            let mut parts = parts.to_vec();
            parts.push(room(&parts[0], round_up(offset + 1) - offset)?); // a sum above zero has a first part
            joined(&parts)
        };
        Ok(KvCache {
            keys: Some(with_room(keys)?),
            values: Some(with_room(values)?),
            tail: None,
            offset,
        })
    }

    /// How many tokens the cache holds.
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// A cache that holds the first `offset` tokens of `keys` and `values` `[B, H, capacity, D]`.
    pub(super) fn from_buffers(keys: Array, values: Array, offset: i32) -> Self {
        KvCache { keys: Some(keys), values: Some(values), tail: None, offset }
    }

    /// The keys and values in use, `[B, H, offset, D]`, as views; `None` for an empty cache.
    pub(super) fn tokens_in_use(&self) -> Result<Option<(Array, Array)>> {
        match self.materialized()? {
            Some((keys, values)) if self.offset > 0 => {
                Ok(Some((front(&keys, self.offset)?, front(&values, self.offset)?)))
            }
            _ => Ok(None),
        }
    }

    /// A quantized copy of this cache. Fails on settings that [`QuantizedKvCache::new`] refuses,
    /// and when `group_size` does not divide the head size.
    pub fn to_quantized(
        &self,
        group_size: i32,
        bits: i32,
    ) -> std::result::Result<QuantizedKvCache, LmError> {
        match self.materialized()? {
            Some((keys, values)) => {
                QuantizedKvCache::quantize(&keys, &values, self.offset(), group_size, bits)
            }
            _ => QuantizedKvCache::new(group_size, bits),
        }
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns the whole cache, `[B, H, offset, D]`.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        self.materialize()?;
        let all_keys = append(self.keys.as_ref(), &keys, self.offset)?;
        let all_values = append(self.values.as_ref(), &values, self.offset)?;
        self.offset += keys.dim(2);
        let views = (front(&all_keys, self.offset)?, front(&all_values, self.offset)?);
        self.keys = Some(all_keys);
        self.values = Some(all_values);
        Ok(views)
    }

    /// Both buffers, `[B, H, capacity, D]`, with the tail written into them; `None` for an empty
    /// cache.
    pub(super) fn materialized(&self) -> Result<Option<(Array, Array)>> {
        let (Some(keys), Some(values)) = (&self.keys, &self.values) else { return Ok(None) };
        match &self.tail {
            Some(tail) if tail.count > 0 => {
                let start = self.offset - tail.count;
                let with = |buffer: &Array, tail_tokens: &Array| {
                    append(Some(buffer), &front(tail_tokens, tail.count)?, start)
                };
                Ok(Some((with(keys, &tail.keys)?, with(values, &tail.values)?)))
            }
            _ => Ok(Some((keys.clone(), values.clone()))),
        }
    }

    /// Writes the tail into the buffers for good.
    pub(super) fn materialize(&mut self) -> Result<()> {
        if self.tail.is_some()
            && let Some((keys, values)) = self.materialized()?
        {
            (self.keys, self.values, self.tail) = (Some(keys), Some(values), None);
        }
        Ok(())
    }

    /// Keys, values (`[B, H, capacity, D]`) and a tail with room for at least one more token;
    /// `None` for an empty cache.
    fn with_tail_room(&mut self) -> Result<Option<(&Array, &Array, &TailBuffer)>> {
        if self.tail.as_ref().is_some_and(|tail| tail.count == Self::TAIL_CAPACITY) {
            self.materialize()?;
        }
        let (Some(keys), Some(values)) = (&self.keys, &self.values) else { return Ok(None) };
        if self.tail.is_none() {
            let empty = |buffer: &Array| room(buffer, Self::TAIL_CAPACITY);
            self.tail = Some(TailBuffer { keys: empty(keys)?, values: empty(values)?, count: 0 });
        }
        Ok(self.tail.as_ref().map(|tail| (keys, values, tail)))
    }

    /// Replaces the tail that [`KvCache::decode_slot`] returned by one with one more token.
    pub(super) fn replace_tail(&mut self, keys: Array, values: Array) {
        let count = self.tail.as_ref().map_or(0, |tail| tail.count) + 1;
        self.tail = Some(TailBuffer { keys, values, count });
        self.offset += 1;
    }

    /// Keys and values of the tokens `start..stop`, `[B, H, stop - start, D]`, as contiguous
    /// arrays; `None` if the range is empty or ends behind the last token.
    pub fn token_range(&self, start: usize, stop: usize) -> Result<Option<(Array, Array)>> {
        if start >= stop || stop > self.offset as usize {
            return Ok(None);
        }
        let num_stored = self.offset - self.tail.as_ref().map_or(0, |tail| tail.count);
        let buffers = match (&self.keys, &self.values) {
            (Some(keys), Some(values)) if stop <= num_stored as usize => {
                Some((keys.clone(), values.clone()))
            }
            _ => self.materialized()?,
        };
        let Some((keys, values)) = buffers else { return Ok(None) };
        Ok(Some((
            token_range(&keys, start as i32, stop as i32)?.contiguous()?,
            token_range(&values, start as i32, stop as i32)?.contiguous()?,
        )))
    }

    /// Removes the last `num_tokens` (or all, if there are fewer) and returns how many it removed.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        let trimmed = num_tokens.min(self.offset as usize);
        self.offset -= trimmed as i32;
        if let Some(tail) = &mut self.tail {
            tail.count = (tail.count - trimmed as i32).max(0);
        }
        trimmed
    }
}

const NAME: &str = CacheClass::Kv.kind();

impl CacheKind for KvCache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        let arrays = self.keys.as_ref().zip(self.values.as_ref());
        let sizes = arrays.map(|(keys, values)| KvSizes::of_arrays([keys, values], 1));
        Some(LayerCacheSpec::Kv(KvSpec { sizes }))
    }

    fn offset(&self) -> usize {
        self.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        let tail = self.tail.iter().flat_map(|tail| [&tail.keys, &tail.values]);
        self.keys.iter().chain(&self.values).chain(tail).collect()
    }

    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        AttentionStep::after(self.offset, length, window)
    }

    fn columns(&self) -> Option<[i32; 2]> {
        Some([0, self.offset])
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.update_and_fetch(keys, values)?;
        Ok(KeysValues::Dense { keys, values })
    }

    /// A column of the tail.
    fn decode_slot(&mut self) -> Result<Option<DecodeSlot>> {
        let offset = self.offset;
        let slot = self.with_tail_room()?.map(|(keys, values, tail)| DecodeSlot {
            keys: keys.clone(),
            values: values.clone(),
            newest_keys: tail.keys.clone(),
            newest_values: tail.values.clone(),
            sizes: [offset - tail.count, tail.count, tail.count, offset],
        });
        Ok(slot)
    }

    fn fill_decode_slot(&mut self, newest_keys: Array, newest_values: Array) {
        self.replace_tail(newest_keys, newest_values);
    }

    fn is_trimmable(&self) -> bool {
        true
    }

    fn trim(&mut self, num_tokens: usize) -> usize {
        self.trim(num_tokens)
    }

    fn trims_after(&self, _num_ahead: usize) -> bool {
        true
    }

    fn holds_all_tokens(&self) -> bool {
        true
    }

    fn quantized(
        &self,
        group_size: i32,
        bits: i32,
    ) -> std::result::Result<Option<LayerCache>, LmError> {
        Ok(Some(LayerCache::Quantized(self.to_quantized(group_size, bits)?)))
    }

    fn held_tokens(&self) -> Result<Option<HeldTokens>> {
        let held = self.materialized()?.map(|(keys, values)| HeldTokens {
            tokens: KeysValues::Dense { keys, values },
            first: 0,
            num_kept: 0,
            is_window: false,
        });
        Ok(held)
    }

    fn continued_by_rows(&self, num_rows: usize) -> std::result::Result<LayerCache, LmError> {
        SharedPrefixCache::after(self.held_tokens()?, self.offset(), num_rows, OwnForm::default())
    }

    fn to_file(&self) -> Result<FileForm> {
        Ok(FileForm {
            class: CacheClass::Kv,
            tensors: FileTensors::Pair(self.tokens_in_use()?),
            numbers: vec![self.offset],
            numbers_v0_30: Ok(Vec::new()),
        })
    }
}

/// The spec of a [`KvCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    /// Its keys and values; `None` for an empty cache.
    pub sizes: Option<KvSizes>,
}

impl KindSpec for KvSpec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn make(&self) -> LayerCache {
        LayerCache::Kv(KvCache::new())
    }

    fn num_bytes(&self, num_tokens: u64, float_bytes: u64) -> u64 {
        num_tokens.next_multiple_of(KvCache::STEP as u64) * self.num_bytes_per_token(float_bytes)
    }

    fn num_bytes_per_token(&self, float_bytes: u64) -> u64 {
        self.sizes.map_or(0, |sizes| sizes.num_bytes(float_bytes))
    }

    fn is_trimmable(&self) -> bool {
        true
    }

    fn bounded(&self, max_size: i32, keep: i32) -> Option<LayerCacheSpec> {
        let (max_size, keep, sizes) = (max_size as usize, keep as usize, self.sizes);
        Some(LayerCacheSpec::Rotating(RotatingSpec { max_size, keep, sizes }))
    }

    fn quantized(&self, group_size: i32, bits: i32) -> Option<LayerCacheSpec> {
        let sizes = self.sizes;
        Some(LayerCacheSpec::Quantized(QuantizedSpec { group_size, bits, sizes }))
    }

    fn check_group_size(&self, group_size: i32) -> std::result::Result<(), LmError> {
        self.sizes
            .map_or(Ok(()), |sizes| check_head_dims(group_size, [sizes.key_dim, sizes.value_dim]))
    }

    fn merge(&self, rows: Vec<LayerCache>) -> std::result::Result<LayerCache, LmError> {
        let own = |row| if let LayerCache::Kv(cache) = row { Some(cache) } else { None };
        let rows: Option<Vec<KvCache>> = rows.into_iter().map(own).collect();
        Ok(LayerCache::BatchKv(BatchKvCache::merge(&rows.ok_or(LmError::MixedCaches)?)?))
    }

    fn check_batch(&self) -> std::result::Result<(), LmError> {
        Ok(())
    }

    fn without_sizes(&self) -> LayerCacheSpec {
        LayerCacheSpec::Kv(KvSpec { sizes: None })
    }

    fn types(&self) -> Vec<Option<Dtype>> {
        KvSizes::types(&self.sizes)
    }

    /// A model with plain caches also continues from bounded and from quantized ones.
    fn admits(&self, given: &LayerCacheSpec) -> bool {
        match given {
            LayerCacheSpec::Kv(KvSpec { sizes })
            | LayerCacheSpec::Rotating(RotatingSpec { sizes, .. })
            | LayerCacheSpec::Quantized(QuantizedSpec { sizes, .. }) => {
                KvSizes::fit(&self.sizes, sizes)
            }
            _ => false,
        }
    }

    fn chunk_form(&self, num_tokens: usize) -> Option<ChunkForm> {
        let capacity = round_up(num_tokens as i32 + 1) as usize;
        Some(ChunkForm::plain(&self.sizes, 0, capacity))
    }

    fn join_chunks(
        &self,
        arrays: Vec<Array>,
        num_tokens: i32,
    ) -> std::result::Result<LayerCache, LmError> {
        let [keys, values] = <[Array; 2]>::try_from(arrays).map_err(|_| self.is_not_in_chunks())?;
        Ok(LayerCache::Kv(KvCache::from_buffers(keys, values, num_tokens)))
    }

    fn read_from_file(
        &self,
        state: &LayerState,
        reading: &mut FileReading<'_>,
    ) -> std::result::Result<LayerCache, LmError> {
        let held = reading.keys_values(state)?;
        Ok(LayerCache::Kv(held.map_or_else(KvCache::new, |(keys, values)| {
            KvCache::from_buffers(keys, values, state.offset() as i32)
        })))
    }

    fn describe(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        KvSizes::describe(&self.sizes, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(from: i32, to: i32) -> Array {
        let numbers: Vec<f32> =
            (from..to).flat_map(|token| [token as f32, -token as f32]).collect();
        Array::from_slice(&numbers, &[1, 1, to - from, 2])
    }

    /// Appends tokens in steps of the given lengths, trimming where the length is negative, and
    /// compares with the plain sequence.
    fn check(steps: &[i32]) {
        let mut cache = KvCache::new();
        let mut length = 0;
        for &step in steps {
            if step < 0 {
                assert_eq!(cache.trim(-step as usize) as i32, (-step).min(length));
                length = (length + step).max(0);
                continue;
            }
            let new = tokens(length, length + step);
            let (keys, values) = cache.update_and_fetch(new.clone(), new).expect("update");
            length += step;
            let expected = tokens(0, length);
            assert_eq!(
                keys.contiguous().expect("contiguous").as_slice::<f32>(),
                expected.as_slice::<f32>(),
                "keys after {steps:?}"
            );
            assert_eq!(
                values.contiguous().expect("contiguous").as_slice::<f32>(),
                expected.as_slice::<f32>(),
                "values after {steps:?}"
            );
        }
        assert_eq!(cache.offset(), length as usize);
    }

    #[test]
    fn holds_what_was_appended() {
        check(&[1]);
        check(&[5, 1, 1, 1]);
        check(&[255, 1, 1, 1]);
        check(&[256, 1, 300, 1]);
        check(&[1000, 24, 1]);
        check(&[10, -3, 2, 1]);
        check(&[300, -290, 1, 300]);
        check(&[3, -5, 4]);
    }

    #[test]
    fn parts_restore_a_cache_that_continues() {
        let mut cache = KvCache::from_parts(
            &[tokens(0, 256), tokens(256, 300)],
            &[tokens(0, 256), tokens(256, 300)],
        )
        .expect("parts");
        assert_eq!(cache.offset(), 300);
        let (keys, _) = cache.update_and_fetch(tokens(300, 600), tokens(300, 600)).expect("update");
        assert_eq!(
            keys.contiguous().expect("contiguous").as_slice::<f32>(),
            tokens(0, 600).as_slice::<f32>()
        );
        let (span, _) = cache.token_range(250, 310).expect("span").expect("held");
        assert_eq!(span.as_slice::<f32>(), tokens(250, 310).as_slice::<f32>());
        assert!(cache.token_range(590, 601).expect("span").is_none());
    }

    #[test]
    fn recent_tokens_are_remembered_like_the_others() {
        let held = |cache: &KvCache| {
            let (keys, values) = cache.tokens_in_use().expect("held").expect("tokens");
            let numbers =
                |array: Array| array.contiguous().expect("contiguous").as_slice::<f32>().to_vec();
            (numbers(keys), numbers(values))
        };
        let plain = |length: i32| tokens(0, length).as_slice::<f32>().to_vec();
        let mut cache = KvCache::new();
        assert!(cache.with_tail_room().expect("tail").is_none());
        cache.update_and_fetch(tokens(0, 200), tokens(0, 200)).expect("update");
        // Enough tokens to fill the tail twice and to outgrow the first allocation.
        for position in 200..340 {
            let (_, _, tail) = cache.with_tail_room().expect("tail").expect("room");
            let with_new = buffer::write(&tail.keys, &tokens(position, position + 1), tail.count)
                .expect("write");
            let count = tail.count;
            assert!(count < KvCache::TAIL_CAPACITY);
            cache.replace_tail(with_new.clone(), with_new);
            assert_eq!(cache.offset() as i32, position + 1);
        }
        assert_eq!(held(&cache), (plain(340), plain(340)));
        let (span, _) = cache.token_range(100, 335).expect("span").expect("held");
        assert_eq!(span.as_slice::<f32>(), tokens(100, 335).as_slice::<f32>());
        let copy = cache.clone();
        for (trimmed, length) in [(5, 335), (100, 235)] {
            assert_eq!(cache.trim(trimmed), trimmed);
            assert_eq!(held(&cache), (plain(length), plain(length)));
        }
        let (keys, _) = cache.update_and_fetch(tokens(235, 240), tokens(235, 240)).expect("update");
        assert_eq!(keys.contiguous().expect("contiguous").as_slice::<f32>(), plain(240));
        assert_eq!(held(&copy).0, plain(340));
    }
}
