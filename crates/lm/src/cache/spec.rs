//! What the caches of a model are: their kinds, settings and sizes.
//!
//! ```text
//! config.json ─▶ ModelArgs ─▶ Shape ─▶ CacheSpec ─┬─▶ empty caches
//!                                                 ├─▶ bytes in memory
//!                                                 ├─▶ which rows may share a batch
//!                                                 ├─▶ what has to be stored to continue
//!                                                 ├─▶ chunk states, and the caches made of them
//!                                                 └─▶ which prompt-cache files are admitted
//! ```
//! A [`LayerCacheSpec`] has one variant for each kind of cache. All that depends on the kind is in
//! the file of that kind, behind `KindSpec`.

use std::fmt::{self, Display};

use mlx_rs::{Array, Dtype};

use super::arrays::ArraysSpec;
use super::chunk_state::{CacheLayout, LayerLayout};
use super::chunked::ChunkedSpec;
use super::kind::KindSpec;
use super::kv::KvSpec;
use super::list::ListSpec;
use super::prompt_file::{KvBuffer, LayerState};
use super::quantized::QuantizedSpec;
use super::rotating::RotatingSpec;
use super::{KvQuantization, LayerCache, MAX_TOKENS};
use crate::LmError;
use crate::dtype::{item_size, mlx_dtype};

/// The caches of all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec(Vec<LayerCacheSpec>);

/// The cache of one layer, of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerCacheSpec {
    /// Keys and values of every token.
    Kv(KvSpec),
    /// Keys and values of the last tokens.
    Rotating(RotatingSpec),
    /// Keys and values of every token, quantized.
    Quantized(QuantizedSpec),
    /// Keys and values of the last chunk.
    Chunked(ChunkedSpec),
    /// Recurrent state.
    Arrays(ArraysSpec),
    /// Several caches.
    List(ListSpec),
}

impl LayerCacheSpec {
    /// What depends on the kind.
    pub(super) fn as_kind(&self) -> &dyn KindSpec {
        match self {
            LayerCacheSpec::Kv(spec) => spec,
            LayerCacheSpec::Rotating(spec) => spec,
            LayerCacheSpec::Quantized(spec) => spec,
            LayerCacheSpec::Chunked(spec) => spec,
            LayerCacheSpec::Arrays(spec) => spec,
            LayerCacheSpec::List(spec) => spec,
        }
    }

    /// The cache in a prompt-cache file, from its checked header.
    pub(super) fn of_state(state: &LayerState) -> LayerCacheSpec {
        match state {
            LayerState::Kv { buffers, .. } => {
                LayerCacheSpec::Kv(KvSpec::new(KvSizes::of_buffers(buffers)))
            }
            LayerState::Rotating { buffers, max_size, keep, .. } => {
                let sizes = KvSizes::of_buffers(buffers);
                LayerCacheSpec::Rotating(RotatingSpec { max_size: *max_size, keep: *keep, sizes })
            }
            LayerState::Quantized { buffers, group_size, bits, .. } => {
                let (group_size, bits) = (*group_size, *bits);
                // One scale stands for `group_size` numbers.
                let scales = buffers.as_deref();
                let scales = scales.map(|[[_, keys, _], [_, values, _]]| [keys, values]);
                let sizes = scales.and_then(|scales| KvSizes::of_tensors(scales, group_size));
                LayerCacheSpec::Quantized(QuantizedSpec { group_size, bits, sizes })
            }
            LayerState::Chunked { buffers, chunk_size, .. } => {
                let sizes = KvSizes::of_buffers(buffers);
                LayerCacheSpec::Chunked(ChunkedSpec { chunk_size: *chunk_size, sizes })
            }
            LayerState::Arrays(slots) => {
                let slots = slots.iter().map(|slot| {
                    slot.as_ref()
                        .map(|slot| StateSize::new(&slot.shape, Some(mlx_dtype(slot.dtype))))
                });
                LayerCacheSpec::Arrays(ArraysSpec { slots: slots.collect() })
            }
            LayerState::List(entries) => {
                let entries = entries.iter().map(LayerCacheSpec::of_state).collect();
                LayerCacheSpec::List(ListSpec { entries })
            }
        }
    }
}

impl CacheSpec {
    /// A spec of these layers.
    pub fn new(layers: Vec<LayerCacheSpec>) -> CacheSpec {
        CacheSpec(layers)
    }

    /// What `caches` are, with the sizes of those that are not empty; `None` if one of them has
    /// several rows.
    pub fn of(caches: &[LayerCache]) -> Option<CacheSpec> {
        caches.iter().map(LayerCache::spec).collect::<Option<_>>().map(CacheSpec)
    }

    /// Its layers.
    pub fn layers(&self) -> &[LayerCacheSpec] {
        &self.0
    }

    /// Empty caches, one per layer.
    pub fn make(&self) -> Vec<LayerCache> {
        self.kinds().map(KindSpec::make).collect()
    }

    /// Bytes of the caches after `num_tokens`, with the room that buffers grow by. `float_bytes` is
    /// the size of a number whose type is not known yet.
    ///
    /// Exact after a prompt of `num_tokens - 1` and one more token; a ring that is not full takes
    /// less after more single tokens, up to [`KvCache::STEP`](super::KvCache::STEP) of them.
    pub fn num_bytes(&self, num_tokens: usize, float_bytes: u64) -> u64 {
        self.kinds().map(|kind| kind.num_bytes(num_tokens as u64, float_bytes)).sum()
    }

    /// As [`CacheSpec::num_bytes`], during a pass over the last `length` of the tokens.
    pub fn num_bytes_while_reading(
        &self,
        num_tokens: usize,
        length: usize,
        float_bytes: u64,
    ) -> u64 {
        let (num_tokens, length) = (num_tokens as u64, length as u64);
        self.kinds().map(|kind| kind.num_bytes_while_reading(num_tokens, length, float_bytes)).sum()
    }

    /// To how many tokens one attends at most, during a pass over the last `length` of `num_tokens`
    /// that computes caches only: the last layer does not attend then.
    pub fn num_keys_while_reading(&self, num_tokens: usize, length: usize) -> u64 {
        let (num_tokens, length) = (num_tokens as u64, length as u64);
        let before_last = self.kinds().take(self.0.len().saturating_sub(1));
        let keys = before_last.map(|kind| kind.num_keys_while_reading(num_tokens, length));
        keys.max().unwrap_or(0)
    }

    /// Bytes of the largest layer's cache.
    pub fn num_bytes_of_largest(&self, num_tokens: usize, float_bytes: u64) -> u64 {
        let bytes = self.kinds().map(|kind| kind.num_bytes(num_tokens as u64, float_bytes));
        bytes.max().unwrap_or(0)
    }

    /// Bytes of the layers with recurrent states, which do not grow.
    pub fn num_state_bytes(&self, float_bytes: u64) -> u64 {
        let states = self.kinds().filter(|kind| kind.has_state());
        states.map(|kind| kind.num_bytes(1, float_bytes)).sum()
    }

    /// Bytes that one more token takes while nothing is dropped.
    pub fn num_bytes_per_token(&self, float_bytes: u64) -> u64 {
        self.kinds().map(|kind| kind.num_bytes_per_token(float_bytes)).sum()
    }

    /// Whether the caches can be trimmed to any earlier position, whatever they have read.
    pub fn is_trimmable(&self) -> bool {
        self.kinds().all(KindSpec::is_trimmable)
    }

    /// The size of the widest window; `None` if all tokens are held.
    pub fn window(&self) -> Option<usize> {
        self.kinds().filter_map(KindSpec::window).max()
    }

    /// Whether a layer has a recurrent state, which is valid at one position only.
    pub fn has_state(&self) -> bool {
        self.kinds().any(KindSpec::has_state)
    }

    /// Whether a recurrent state is held in bf16 whatever type the weights have, see
    /// [`LoadOptions::bf16_state`](crate::LoadOptions::bf16_state).
    pub fn has_bf16_state(&self) -> bool {
        self.kinds().any(|kind| kind.has_state() && kind.types().contains(&Some(Dtype::Bfloat16)))
    }

    /// Whether generation can continue only from a [`Checkpoint`](super::chunk_state::Checkpoint)
    /// or from the end of the caches.
    pub fn needs_checkpoints(&self) -> bool {
        self.window().is_some() || self.has_state()
    }

    /// The layout that is written into chunk files; `None` if a layer cannot be stored in chunks.
    pub fn layout(&self) -> Option<CacheLayout> {
        self.0.iter().map(LayerLayout::of).collect::<Option<_>>().map(CacheLayout::new)
    }

    /// The caches with at most `max_size` tokens in each layer that decides nothing by itself, the
    /// first `keep` among them.
    pub(crate) fn bounded(&self, max_size: usize, keep: i32) -> CacheSpec {
        let max_size = max_size.clamp(keep as usize + 1, MAX_TOKENS as usize) as i32;
        let bounded = |layer: &LayerCacheSpec| layer.as_kind().bounded(max_size, keep);
        self.changed(bounded)
    }

    /// The kind of a layer that cannot be bounded, for error messages.
    pub(super) fn unbounded_kind(&self) -> Option<&'static str> {
        self.kinds().find(|kind| kind.bounded(1, 0).is_none()).map(KindSpec::name)
    }

    /// The caches after all keys and values that can be have been quantized. Fails on settings that
    /// are invalid for every model.
    pub fn quantized(&self, quantization: &KvQuantization) -> Result<CacheSpec, LmError> {
        quantization.check()?;
        let KvQuantization { group_size, bits, .. } = *quantization;
        Ok(self.changed(|layer| layer.as_kind().quantized(group_size, bits)))
    }

    /// The caches after [`compress`](super::compress) has dropped tokens; `None` for a model that has
    /// no layer of which any are dropped.
    pub fn compressed(&self) -> Option<CacheSpec> {
        let compressed = self.changed(|layer| layer.as_kind().compressed());
        (compressed != *self).then_some(compressed)
    }

    /// Whether these are the caches of a model of whose tokens some have been dropped.
    pub fn is_compressed(&self) -> bool {
        self.compressed().is_none() && self.kinds().any(|kind| kind.compressed().is_some())
    }

    /// The size of the groups in which keys and values can be quantized: 64 where that divides the
    /// head sizes, else 32; `None` where they cannot be quantized, or none are left that can.
    pub fn kv_group_size(&self) -> Option<i32> {
        if self.make().iter().any(|cache| cache.as_kind().forbids_quantization()) {
            return None;
        }
        [64, 32].into_iter().find(|&group_size| {
            let quantized = KvQuantization { bits: 8, group_size, start: 0 };
            self.check_group_size(group_size).is_ok()
                && self.quantized(&quantized).is_ok_and(|spec| spec.quantization().is_some())
        })
    }

    /// How the first quantized layer is; `None` if there is none.
    pub fn quantization(&self) -> Option<KvQuantization> {
        let (group_size, bits) = self.kinds().find_map(KindSpec::quantization)?;
        Some(KvQuantization { bits, group_size, start: 0 })
    }

    /// Fails if a group size does not divide the head sizes.
    pub(crate) fn check_group_size(&self, group_size: i32) -> Result<(), LmError> {
        self.kinds().try_for_each(|kind| kind.check_group_size(group_size))
    }

    /// Fails with [`LmError::NotBatchable`] for a kind of cache that has no batched form.
    pub fn check_batch(&self) -> Result<(), LmError> {
        self.kinds().try_for_each(KindSpec::check_batch)
    }

    /// Whether requests with these caches and with `other` can be rows of one batch.
    pub fn can_batch_with(&self, other: &CacheSpec) -> bool {
        self.check_batch().is_ok()
            && self.0.len() == other.0.len()
            && std::iter::zip(&self.0, &other.0).all(|(one, other)| one.is_same_kind(other))
    }

    /// Whether sizes and types of all arrays are known.
    pub fn is_typed(&self) -> bool {
        self.kinds().all(|kind| {
            let types = kind.types();
            !types.is_empty() && types.iter().all(Option::is_some)
        })
    }

    fn kinds(&self) -> impl Iterator<Item = &dyn KindSpec> {
        self.0.iter().map(LayerCacheSpec::as_kind)
    }

    fn changed(&self, change: impl Fn(&LayerCacheSpec) -> Option<LayerCacheSpec>) -> CacheSpec {
        CacheSpec(
            self.0.iter().map(|layer| change(layer).unwrap_or_else(|| layer.clone())).collect(),
        )
    }
}

impl LayerCacheSpec {
    /// Whether caches of this spec and of `other` can be rows of one batch.
    pub(super) fn is_same_kind(&self, other: &LayerCacheSpec) -> bool {
        self.as_kind().without_sizes() == other.as_kind().without_sizes()
    }
}

impl Display for LayerCacheSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a {}", self.as_kind().name())?;
        self.as_kind().describe(out)
    }
}

/// The keys and values of one token in one layer. Quantized ones have the sizes that they had
/// before, and the type of their scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSizes {
    /// How many heads keys and values have.
    pub heads: i32,
    /// The numbers of one head's key.
    pub key_dim: i32,
    /// The numbers of one head's value.
    pub value_dim: i32,
    /// The types of keys and values, where they are known.
    pub types: Option<[Dtype; 2]>,
}

impl KvSizes {
    /// Keys and values of one size, of a type that only the weights tell.
    pub fn new(heads: i32, head_dim: i32) -> KvSizes {
        KvSizes { heads, key_dim: head_dim, value_dim: head_dim, types: None }
    }

    /// The sizes of `keys` and `values` `[B, H, T, D / group_size]`.
    pub(super) fn of_arrays([keys, values]: [&Array; 2], group_size: i32) -> KvSizes {
        KvSizes {
            heads: keys.dim(1),
            key_dim: keys.dim(3) * group_size,
            value_dim: values.dim(3) * group_size,
            types: Some([keys.dtype(), values.dtype()]),
        }
    }

    fn of_buffers(buffers: &Option<[KvBuffer; 2]>) -> Option<KvSizes> {
        buffers.as_ref().and_then(|[keys, values]| KvSizes::of_tensors([keys, values], 1))
    }

    /// `None` unless both have four axes, as the header's check found.
    fn of_tensors([keys, values]: [&KvBuffer; 2], group_size: i32) -> Option<KvSizes> {
        let (&[_, heads, _, key_dim], &[_, _, _, value_dim]) =
            (keys.tensor.shape.as_slice(), values.tensor.shape.as_slice())
        else {
            return None;
        };
        Some(KvSizes {
            heads: axis(heads),
            key_dim: axis(key_dim).saturating_mul(group_size),
            value_dim: axis(value_dim).saturating_mul(group_size),
            types: Some([keys, values].map(|buffer| mlx_dtype(buffer.tensor.dtype))),
        })
    }

    /// Whether both have the same heads and dimensions, whatever their types are.
    pub(super) fn has_sizes_of(&self, other: &KvSizes) -> bool {
        KvSizes { types: None, ..*self } == KvSizes { types: None, ..*other }
    }

    /// Bytes of one token; `float_bytes` is the size of a number of unknown type.
    pub(super) fn num_bytes(&self, float_bytes: u64) -> u64 {
        let [keys, values] = match self.types {
            Some(types) => types.map(|dtype| item_size(dtype) as u64),
            None => [float_bytes; 2],
        };
        self.heads as u64 * (self.key_dim as u64 * keys + self.value_dim as u64 * values)
    }

    /// The types of keys and values, or an unknown one for each.
    pub(super) fn types(sizes: &Option<KvSizes>) -> Vec<Option<Dtype>> {
        let types = sizes.and_then(|sizes| sizes.types);
        types.map_or(vec![None; 2], |types| types.map(Some).to_vec())
    }

    /// Whether keys and values of `given` fit those of `own`, where both are known: floating-point
    /// numbers of the same sizes.
    pub(super) fn fit(own: &Option<KvSizes>, given: &Option<KvSizes>) -> bool {
        let are_floats =
            |sizes: &KvSizes| sizes.types.into_iter().flatten().all(|dtype| dtype.is_float());
        match (own, given) {
            (Some(own), Some(given)) => own.has_sizes_of(given) && are_floats(given),
            _ => true,
        }
    }

    /// Writes the sizes for error messages.
    pub(super) fn describe(sizes: &Option<KvSizes>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *sizes {
            Some(KvSizes { heads, key_dim, value_dim, .. }) if key_dim == value_dim => {
                write!(out, " with {heads} heads of {key_dim} numbers")
            }
            Some(KvSizes { heads, key_dim, value_dim, .. }) => {
                write!(out, " with {heads} heads of {key_dim} and {value_dim} numbers")
            }
            None => Ok(()),
        }
    }
}

/// One array of a recurrent state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSize {
    /// Its axes without the first, which counts rows.
    pub shape: Vec<i32>,
    /// Its type, where it is known.
    pub dtype: Option<Dtype>,
}

impl StateSize {
    /// An array with the axes `shape` after the first.
    pub(super) fn new(shape: &[usize], dtype: Option<Dtype>) -> StateSize {
        let shape = shape.iter().skip(1).map(|&length| axis(length)).collect();
        StateSize { shape, dtype }
    }

    /// The size of `array` `[B, ...]`.
    pub(super) fn of_array(array: &Array) -> StateSize {
        let shape = array.shape().iter().skip(1).copied().collect();
        StateSize { shape, dtype: Some(array.dtype()) }
    }

    pub(super) fn num_bytes(&self, float_bytes: u64) -> u64 {
        let item = self.dtype.map_or(float_bytes, |dtype| item_size(dtype) as u64);
        self.shape.iter().map(|&length| length as u64).product::<u64>() * item
    }
}

/// An axis in a file's header, which may be longer than any of a model's.
fn axis(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}
