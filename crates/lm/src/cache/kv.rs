//! Keys and values of every token: the cache of plain attention.

use std::fmt;

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype};

use super::buffer::{self, front, joined, room, round_up, token_range};
use super::chunk_state::ChunkForm;
use super::kind::{CacheKind, HeldTokens, KindSpec};
use super::kv_buffers::KvBuffers;
use super::prompt_file::{CacheClass, FileForm, FileReading, FileTensors, LayerState};
use super::quantized::{QuantizedSpec, check_head_dims};
use super::rotating::RotatingSpec;
use super::shared_prefix::OwnForm;
use super::snapkv::ObservedQueries;
use super::{
    AttentionStep, BatchKvCache, DecodeSlot, KeysValues, KvSizes, LayerCache, LayerCacheSpec,
    QuantizedKvCache, SharedPrefixCache, TracedMapping, TracedSlot,
};
use crate::LmError;

/// Keys and values of every token, in buffers that grow in steps and are written in place.
///
/// After [`compress`](super::compress) those of some tokens are left out. The tokens that are left
/// stand in the first columns, in order, and each head may hold others of them.
#[derive(Debug, Clone, Default)]
pub struct KvCache {
    buffers: KvBuffers,
    /// How many columns are in use.
    num_columns: i32,
    dropped: Dropped,
    /// The newest queries, while they are wanted.
    observed: Option<ObservedQueries>,
}

/// Which tokens a [`KvCache`] has dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    /// How many.
    pub(super) num_tokens: i32,
    /// How many columns hold what was chosen before the newest tokens. Behind them every token has its
    /// column, so only those can be trimmed.
    pub(super) num_chosen: i32,
}

impl KvCache {
    /// Buffers grow by this many tokens, so that most steps write in place.
    pub const STEP: i32 = buffer::STEP;

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
            buffers: KvBuffers::new(with_room(keys)?, with_room(values)?),
            num_columns: offset,
            ..KvCache::default()
        })
    }

    /// How many tokens the cache has read.
    pub fn offset(&self) -> usize {
        (self.num_columns + self.dropped.num_tokens) as usize
    }

    /// A cache that holds the first `offset` tokens of `keys` and `values` `[B, H, capacity, D]`.
    pub(super) fn from_buffers(keys: Array, values: Array, offset: i32) -> Self {
        let buffers = KvBuffers::new(keys, values);
        KvCache { buffers, num_columns: offset, ..KvCache::default() }
    }

    /// How many columns are in use: one for each token that has not been dropped.
    pub(super) fn num_columns(&self) -> i32 {
        self.num_columns
    }

    pub(super) fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The cache, as one that has dropped tokens.
    pub(super) fn with_dropped(self, dropped: Dropped) -> Self {
        KvCache { dropped, ..self }
    }

    /// Whether tokens have been dropped.
    pub(super) fn is_compressed(&self) -> bool {
        self.dropped.num_tokens > 0
    }

    /// From now on the newest queries are remembered, and those from before are not: their tokens may
    /// have been trimmed.
    pub(super) fn observe(&mut self) {
        self.observed = Some(ObservedQueries::default());
    }

    pub(super) fn is_observed(&self) -> bool {
        self.observed.is_some()
    }

    pub(super) fn observed(&self) -> Option<&ObservedQueries> {
        self.observed.as_ref()
    }

    pub(super) fn observed_mut(&mut self) -> Option<&mut ObservedQueries> {
        self.observed.as_mut()
    }

    /// The newest queries, which are not remembered any longer.
    pub(super) fn take_observed(&mut self) -> Option<ObservedQueries> {
        self.observed.take()
    }

    /// Keeps of each head the columns that `columns` (i32 `[1, H, N, 1]`, ascending) names, and drops
    /// the others. The last ones are the newest `num_newest` columns.
    pub(super) fn keep(&mut self, columns: &Array, num_newest: i32) -> Result<()> {
        let Some((keys, values)) = self.tokens_in_use()? else { return Ok(()) };
        let kept = |tokens: Array| tokens.take_along_axis(columns, 2);
        let dropped = Dropped {
            num_tokens: self.dropped.num_tokens + self.num_columns - columns.dim(2),
            num_chosen: columns.dim(2) - num_newest,
        };
        *self = KvCache::from_parts(&[kept(keys)?], &[kept(values)?])?.with_dropped(dropped);
        Ok(())
    }

    /// The keys and values in use, `[B, H, offset, D]`, as views; `None` for an empty cache.
    pub(super) fn tokens_in_use(&self) -> Result<Option<(Array, Array)>> {
        match self.materialized()? {
            Some([keys, values]) if self.num_columns > 0 => {
                Ok(Some((front(&keys, self.num_columns)?, front(&values, self.num_columns)?)))
            }
            _ => Ok(None),
        }
    }

    /// A quantized copy of this cache. Fails on settings that [`QuantizedKvCache::new`] refuses,
    /// when `group_size` does not divide the head size, and when tokens have been dropped.
    pub fn to_quantized(
        &self,
        group_size: i32,
        bits: i32,
    ) -> std::result::Result<QuantizedKvCache, LmError> {
        if self.is_compressed() {
            return Err(super::snapkv::not_quantized(bits));
        }
        match self.materialized()? {
            Some([keys, values]) => {
                QuantizedKvCache::quantize(&keys, &values, self.offset(), group_size, bits)
            }
            _ => QuantizedKvCache::new(group_size, bits),
        }
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns the whole cache, `[B, H, T, D]` of the T
    /// tokens that it holds.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        let views = self.buffers.append(&keys, &values, self.num_columns)?;
        self.num_columns += keys.dim(2);
        Ok(views.into())
    }

    /// Both buffers, `[B, H, capacity, D]`, with the tail written into them; `None` for an empty
    /// cache.
    pub(super) fn materialized(&self) -> Result<Option<[Array; 2]>> {
        self.buffers.materialized(self.num_columns)
    }

    /// Writes the tail into the buffers for good.
    pub(super) fn materialize(&mut self) -> Result<()> {
        self.buffers.materialize(self.num_columns)
    }

    /// Keys and values of the tokens `start..stop`, `[B, H, stop - start, D]`, as contiguous
    /// arrays; `None` if the range is empty or ends behind the last token, and where tokens have been
    /// dropped.
    pub fn token_range(&self, start: usize, stop: usize) -> Result<Option<(Array, Array)>> {
        if start >= stop || stop > self.num_columns as usize || self.is_compressed() {
            return Ok(None);
        }
        let num_stored = self.num_columns - self.buffers.tail_len();
        let buffers = match self.buffers.stored() {
            Some(buffers) if stop <= num_stored as usize => Some(buffers.clone()),
            _ => self.materialized()?,
        };
        let Some([keys, values]) = buffers else { return Ok(None) };
        Ok(Some((
            token_range(&keys, start as i32, stop as i32)?.contiguous()?,
            token_range(&values, start as i32, stop as i32)?.contiguous()?,
        )))
    }

    /// Removes the last `num_tokens` and returns how many it removed: all if there are fewer, and not
    /// those before which others have been dropped.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        let trimmed = num_tokens.min((self.num_columns - self.dropped.num_chosen) as usize);
        self.num_columns -= trimmed as i32;
        self.buffers.trimmed(trimmed as i32);
        trimmed
    }
}

const NAME: &str = CacheClass::Kv.kind();

/// The name of one that has dropped tokens.
const COMPRESSED: &str = "compressed cache of keys and values";

impl CacheKind for KvCache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        let arrays = self.buffers.stored();
        let sizes = arrays.map(|arrays| KvSizes::of_arrays(arrays.each_ref(), 1));
        Some(LayerCacheSpec::Kv(KvSpec { sizes, is_compressed: self.is_compressed() }))
    }

    fn offset(&self) -> usize {
        self.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        let queries = self.observed.iter().flat_map(ObservedQueries::arrays);
        self.buffers.arrays().chain(queries).collect()
    }

    /// Columns stand in the order of their tokens, so a mask is the same whether or not tokens have been
    /// dropped; a window would count columns.
    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        if window.is_some() && self.is_compressed() {
            return Err(self.is_not_for("a window, because it has dropped tokens"));
        }
        let step = AttentionStep::after(self.num_columns, length, window)?;
        Ok(step.at(self.offset() as i32).with_last_mapping(self.buffers.last_mapping()))
    }

    fn columns(&self) -> Option<[i32; 2]> {
        Some([0, self.num_columns])
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = self.update_and_fetch(keys, values)?;
        Ok(KeysValues::Dense { keys, values })
    }

    fn traced_slot(&mut self) -> Result<Option<TracedSlot>> {
        if self.is_observed() || self.is_compressed() {
            return Ok(None);
        }
        self.materialize()?;
        let Some([keys, values]) = self.buffers.stored() else { return Ok(None) };
        let column = self.num_columns;
        let with_room = |buffer: &Array| match buffer.dim(2) - column {
            0 => joined(&[buffer.clone(), room(buffer, Self::STEP)?]),
            _ => Ok(buffer.clone()),
        };
        let (keys, values) = (with_room(keys)?, with_room(values)?);
        let mapping = TracedMapping { position: column, column, num_in_use: column + 1 };
        Ok(Some(TracedSlot { keys, values, mapping, ring: None }))
    }

    fn fill_traced_slot(&mut self, keys: Array, values: Array) {
        self.num_columns += 1;
        self.buffers = KvBuffers::new(keys, values);
    }

    /// Columns of the tail. Kernels keep their queries to themselves.
    fn decode_slot(&mut self, length: i32) -> Result<Option<DecodeSlot>> {
        if self.observed.is_some() {
            return Ok(None);
        }
        self.buffers.slot(vec![self.offset() as i32], self.num_columns, length)
    }

    fn fill_decode_slot(&mut self, newest_keys: Array, newest_values: Array, length: i32) {
        self.buffers.fill_slot(newest_keys, newest_values, length);
        self.num_columns += length;
    }

    /// Not where tokens have been dropped: then only the newest can be trimmed.
    fn is_trimmable(&self) -> bool {
        !self.is_compressed()
    }

    fn trim(&mut self, num_tokens: usize) -> usize {
        self.trim(num_tokens)
    }

    fn trims_after(&self, _num_ahead: usize) -> bool {
        true
    }

    /// Also where tokens have been dropped: what came later is held, and can be trimmed.
    fn only_appends(&self) -> bool {
        true
    }

    /// Those that are left, where others have been dropped.
    fn state_arrays(&self) -> Result<Option<Vec<Option<Array>>>> {
        let tokens = if self.is_compressed() { self.tokens_in_use()? } else { None };
        Ok(tokens.map(|(keys, values)| vec![Some(keys), Some(values)]))
    }

    fn quantized(
        &self,
        group_size: i32,
        bits: i32,
    ) -> std::result::Result<Option<LayerCache>, LmError> {
        Ok(Some(LayerCache::Quantized(self.to_quantized(group_size, bits)?)))
    }

    fn held_tokens(&self) -> Result<Option<HeldTokens>> {
        if self.is_compressed() {
            return Ok(None);
        }
        let held = self.materialized()?.map(|[keys, values]| HeldTokens {
            tokens: KeysValues::Dense { keys, values },
            first: 0,
            num_kept: 0,
            is_window: false,
        });
        Ok(held)
    }

    fn continued_by_rows(&self, num_rows: usize) -> std::result::Result<LayerCache, LmError> {
        if self.is_compressed() {
            return Err(LmError::NotBatchable { kind: COMPRESSED });
        }
        SharedPrefixCache::after(self.held_tokens()?, self.offset(), num_rows, OwnForm::default())
    }

    fn to_file(&self) -> Result<FileForm> {
        if self.is_compressed() {
            let why = "a context of which tokens were dropped has no place in a prompt-cache file";
            return Err(Exception::custom(why));
        }
        Ok(FileForm {
            class: CacheClass::Kv,
            tensors: FileTensors::Pair(self.tokens_in_use()?),
            numbers: vec![self.num_columns],
            numbers_v0_30: Ok(Vec::new()),
        })
    }
}

/// The spec of a [`KvCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    /// Its keys and values; `None` for an empty cache.
    pub sizes: Option<KvSizes>,
    /// Whether tokens have been dropped. What is left is valid at one position, as a recurrent state
    /// is.
    pub is_compressed: bool,
}

impl KvSpec {
    /// The spec of a cache of every token.
    pub fn new(sizes: Option<KvSizes>) -> Self {
        KvSpec { sizes, is_compressed: false }
    }

    /// The cache after `num_tokens` that holds the columns `keys` and `values` `[1, H, N, D]`.
    fn join_kept(
        &self,
        [keys, values]: [Array; 2],
        num_tokens: i32,
    ) -> std::result::Result<LayerCache, LmError> {
        let refused = |what: String| LmError::ChunkState { what };
        let (&[1, heads, num_columns, key_dim], &[1, _, _, value_dim]) =
            (keys.shape(), values.shape())
        else {
            return Err(refused("what is kept of a context is not one row".to_owned()));
        };
        let given =
            KvSizes { heads, key_dim, value_dim, types: Some([keys.dtype(), values.dtype()]) };
        let is_like_own = self.sizes.is_none_or(|own| {
            own.has_sizes_of(&given) && own.types.is_none_or(|types| given.types == Some(types))
        });
        let is_pair = values.shape()[..3] == keys.shape()[..3];
        if !is_like_own || !is_pair || !(1..=num_tokens).contains(&num_columns) {
            let what =
                format!("{:?} and {:?} of {num_tokens} tokens", keys.shape(), values.shape());
            return Err(refused(format!("what is kept of a context is {what}")));
        }
        // How many of them were chosen is not known, so none can be trimmed.
        let num_chosen = num_columns;
        let dropped = Dropped { num_tokens: num_tokens - num_columns, num_chosen };
        Ok(LayerCache::Kv(KvCache::from_parts(&[keys], &[values])?.with_dropped(dropped)))
    }
}

impl KindSpec for KvSpec {
    fn name(&self) -> &'static str {
        if self.is_compressed { COMPRESSED } else { NAME }
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
        !self.is_compressed
    }

    fn has_state(&self) -> bool {
        self.is_compressed
    }

    fn compressed(&self) -> Option<LayerCacheSpec> {
        Some(LayerCacheSpec::Kv(KvSpec { is_compressed: true, ..*self }))
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
        LayerCacheSpec::Kv(KvSpec::new(None))
    }

    fn types(&self) -> Vec<Option<Dtype>> {
        KvSizes::types(&self.sizes)
    }

    /// A model with plain caches also continues from bounded and from quantized ones.
    fn admits(&self, given: &LayerCacheSpec) -> bool {
        match given {
            LayerCacheSpec::Kv(KvSpec { sizes, .. })
            | LayerCacheSpec::Rotating(RotatingSpec { sizes, .. })
            | LayerCacheSpec::Quantized(QuantizedSpec { sizes, .. }) => {
                KvSizes::fit(&self.sizes, sizes)
            }
            _ => false,
        }
    }

    fn chunk_form(&self, num_tokens: usize) -> Option<ChunkForm> {
        if self.is_compressed {
            // How many tokens are left, the chunk says.
            return Some(ChunkForm::State(vec![None, None]));
        }
        let capacity = round_up(num_tokens as i32 + 1) as usize;
        Some(ChunkForm::plain(&self.sizes, 0, capacity))
    }

    fn join_chunks(
        &self,
        arrays: Vec<Array>,
        num_tokens: i32,
    ) -> std::result::Result<LayerCache, LmError> {
        let [keys, values] = <[Array; 2]>::try_from(arrays).map_err(|_| self.is_not_in_chunks())?;
        if self.is_compressed {
            return self.join_kept([keys, values], num_tokens);
        }
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
    use super::super::tail::Tail;
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
    fn a_first_chunk_that_fills_its_buffer_is_stored_in_rows() {
        // As a layer gives them: stored by token, seen by head.
        const HEADS: i32 = 3;
        let numbers = vec![1.0f32; (KvCache::STEP * HEADS * 2) as usize];
        let by_token = Array::from_slice(&numbers, &[1, KvCache::STEP, HEADS, 2]);
        let by_head = by_token.transpose_axes(&[0, 2, 1, 3]).expect("by head");
        let mut cache = KvCache::new();
        cache.update_and_fetch(by_head.clone(), by_head).expect("update");
        for array in cache.arrays() {
            array.eval().expect("evaluated");
            let [_, _, length, width] = buffer::shape(array).expect("four axes");
            let strides = [(length * width) as usize, width as usize, 1];
            assert_eq!(array.strides()[1..], strides, "heads, tokens, numbers");
        }
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
        assert!(cache.decode_slot(1).expect("slot").is_none());
        cache.update_and_fetch(tokens(0, 200), tokens(0, 200)).expect("update");
        // Enough tokens, one or six at a time, to fill the tail twice and to outgrow the first
        // allocation.
        for length in [1, 6].into_iter().cycle().take(40) {
            let position = cache.offset() as i32;
            let slot = cache.decode_slot(length).expect("slot").expect("room");
            let tail_len = cache.buffers.tail_len();
            assert!(tail_len + length <= Tail::CAPACITY);
            let new = tokens(position, position + length);
            let with_new = buffer::write(&slot.newest_keys, &new, tail_len).expect("write");
            cache.fill_decode_slot(with_new.clone(), with_new, length);
            assert_eq!(cache.offset() as i32, position + length);
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
