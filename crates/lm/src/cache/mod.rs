//! KV caches and recurrent states: what a layer stores of the tokens it has read.
//!
//! A model's [`CacheSpec`] says what its caches are and makes one [`LayerCache`] per layer. Once per
//! forward pass the attention layers ask for an [`AttentionStep`] (position and mask), which layers of
//! one kind share. Each layer then appends its new keys and values and gets back all that it attends
//! to. MLX arrays are handles to immutable data, so a clone of a cache is an exact snapshot and copies
//! nothing; the next write to either of the two does.

mod arrays;
pub mod batch;
mod batch_chunked;
mod batch_kv;
mod batch_rotating;
mod buffer;
pub mod chunk_state;
mod chunked;
mod compare;
mod decode_slot;
mod fit;
mod kind;
mod kv;
mod kv_buffers;
mod list;
mod own_chunk;
mod prompt;
mod prompt_file;
mod quantized;
mod ring_buffers;
mod rotating;
mod rows;
mod shared_prefix;
mod slot_mapping;
mod snapkv;
mod snapshot;
mod spec;
mod tail;
mod traced;

use std::rc::Rc;

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use self::slot_mapping::LastSlotMapping;
pub use arrays::{ArraysCache, ArraysSpec};
pub use batch_chunked::BatchChunkedKvCache;
pub use batch_kv::BatchKvCache;
pub use batch_rotating::BatchRotatingKvCache;
pub use chunked::{ChunkedKvCache, ChunkedSpec};
pub use compare::{Difference, first_difference};
pub use decode_slot::DecodeSlot;
pub(crate) use kind::CacheKind;
pub use kv::{KvCache, KvSpec};
pub use list::{CacheList, ListSpec};
pub use prompt::{KvQuantization, can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache};
pub use prompt_file::{
    PromptFile, PromptFileLayout, check_writable, load_prompt_cache, save_prompt_cache,
};
pub use quantized::{QuantizedArray, QuantizedKvCache, QuantizedSpec};
pub use rotating::{RotatingKvCache, RotatingSpec};
pub(crate) use rows::row_indices;
pub use shared_prefix::SharedPrefixCache;
pub use snapkv::{Choice, Compressed, NUM_OBSERVED, SnapKv, compress, observe_queries};
pub(crate) use snapkv::{forget_queries, not_quantized};
pub use snapshot::CacheSnapshot;
pub use spec::{CacheSpec, KvSizes, LayerCacheSpec, StateSize};
pub use traced::TracedKvCache;
pub(crate) use traced::{TracedMapping, TracedSlot};

/// No position exceeds this, so that the sum of two positions fits an i32 on the host and in MLX.
pub(crate) const MAX_TOKENS: i32 = prompt_file::MAX_TOKENS as i32;

/// The cache of one layer. The set of kinds is closed, so that code which stores caches handles all
/// of them.
#[derive(Debug, Clone)]
pub enum LayerCache {
    /// Keys and values of every token.
    Kv(KvCache),
    /// Keys and values of the last tokens.
    Rotating(RotatingKvCache),
    /// Keys and values of every token, quantized.
    Quantized(QuantizedKvCache),
    /// Keys and values of the last chunk.
    Chunked(ChunkedKvCache),
    /// Recurrent state, of one row or several.
    Arrays(ArraysCache),
    /// Several caches.
    List(CacheList),
    /// Keys and values of every token, for several rows.
    BatchKv(BatchKvCache),
    /// Keys and values of the last chunk, for several rows.
    BatchChunked(BatchChunkedKvCache),
    /// Keys and values of the last tokens, for several rows.
    BatchRotating(BatchRotatingKvCache),
    /// Keys and values of several rows that continue the same tokens.
    SharedPrefix(SharedPrefixCache),
    /// Keys and values of one row while a step is traced.
    Traced(TracedKvCache),
}

/// What the attention layers of one forward pass share: the position of its tokens and their mask.
#[derive(Debug)]
pub struct AttentionStep {
    /// The position of the first new token.
    pub offset: RopeOffset,
    /// Which keys each new token sees.
    pub mask: Mask,
    /// The mask in other words, of one token for each of several rows: the column from which on each row
    /// sees all, counted from the oldest one that is not dropped for the token. Empty where the mask
    /// alone says what is seen.
    first_columns: Vec<i32>,
    /// That of the cache that gave the step.
    last_mapping: LastSlotMapping,
}

/// The position of a step's first token.
#[derive(Debug)]
pub enum RopeOffset {
    /// The same in every row.
    Same(i32),
    /// One for each row, i32 `[B]`.
    PerRow(Array),
}

/// Which keys a query sees.
#[derive(Debug)]
pub enum Mask {
    /// All of them.
    None,
    /// The keys up to its own position; the last query has the last key's position.
    Causal,
    /// The keys where this is true; bool, broadcast to `[B, H, L, T]`. Behind a shared prefix it may
    /// be of the rows' own keys alone: then all of the prefix is seen.
    Array(Array),
}

/// All keys and values that a step attends to.
#[derive(Debug, Clone)]
pub enum KeysValues {
    /// In the model's floating-point type.
    Dense {
        /// `[B, H_kv, T, D]`
        keys: Array,
        /// `[B, H_kv, T, D]`
        values: Array,
    },
    /// Quantized in groups along the last axis.
    Quantized {
        /// `[B, H_kv, T, D]`, packed.
        keys: QuantizedArray,
        /// `[B, H_kv, T, D]`, packed.
        values: QuantizedArray,
        /// How many numbers share a scale.
        group_size: i32,
        /// Bits per number.
        bits: i32,
    },
    /// Those that all rows share, and then each row's own.
    AfterPrefix {
        /// `[1, H_kv, P, D]`, of one of the other forms.
        prefix: Rc<KeysValues>,
        /// `[B, H_kv, T, D]`, of one of the other forms.
        own: Box<KeysValues>,
    },
}

impl AttentionStep {
    fn new(offset: RopeOffset, mask: Mask) -> Self {
        let last_mapping = LastSlotMapping::default();
        AttentionStep { offset, mask, first_columns: Vec::new(), last_mapping }
    }

    /// The step with another position for its first token in every row.
    fn at(self, position: i32) -> Self {
        AttentionStep { offset: RopeOffset::Same(position), ..self }
    }

    /// Whether each of the `length` tokens sees all columns before it, or all from its row's first.
    pub(crate) fn sees_all_before(&self, length: i32) -> bool {
        match &self.mask {
            Mask::None => length == 1,
            Mask::Causal => true,
            Mask::Array(_) => !self.first_columns.is_empty(),
        }
    }

    /// The slot mapping as an array, i32 `[16, 4 B]`, the same in each of the sixteen: of each row
    /// [four numbers](DecodeSlot::mapping), with the first column that the step's row sees. The layers that
    /// share the step mostly share them, and so the array.
    pub fn slot_mapping(&self, slot: &DecodeSlot) -> Result<Array> {
        self.last_mapping.array(slot.mapping(&self.first_columns))
    }

    /// The step with the mapping that its cache made last.
    fn with_last_mapping(self, last: &LastSlotMapping) -> Self {
        AttentionStep { last_mapping: last.clone(), ..self }
    }

    /// The step of `length` tokens after `offset` others, all of which the cache holds.
    fn after(offset: i32, length: i32, window: Option<i32>) -> Result<Self> {
        let mask = match window {
            // A mask array is needed only if the window hides a key.
            Some(window) if offset + length > window => {
                Mask::Array(causal_mask(length, offset, Some(window))?)
            }
            _ if length == 1 => Mask::None,
            _ => Mask::Causal,
        };
        Ok(AttentionStep::new(RopeOffset::Same(offset), mask))
    }
}

impl LayerCache {
    /// What depends on the kind of cache.
    pub(crate) fn as_kind(&self) -> &dyn CacheKind {
        match self {
            LayerCache::Kv(cache) => cache,
            LayerCache::Rotating(cache) => cache,
            LayerCache::Quantized(cache) => cache,
            LayerCache::Chunked(cache) => cache,
            LayerCache::Arrays(cache) => cache,
            LayerCache::List(cache) => cache,
            LayerCache::BatchKv(cache) => cache,
            LayerCache::BatchChunked(cache) => cache,
            LayerCache::BatchRotating(cache) => cache,
            LayerCache::SharedPrefix(cache) => cache,
            LayerCache::Traced(cache) => cache,
        }
    }

    /// As [`LayerCache::kind`], to change the cache.
    pub(crate) fn as_kind_mut(&mut self) -> &mut dyn CacheKind {
        match self {
            LayerCache::Kv(cache) => cache,
            LayerCache::Rotating(cache) => cache,
            LayerCache::Quantized(cache) => cache,
            LayerCache::Chunked(cache) => cache,
            LayerCache::Arrays(cache) => cache,
            LayerCache::List(cache) => cache,
            LayerCache::BatchKv(cache) => cache,
            LayerCache::BatchChunked(cache) => cache,
            LayerCache::BatchRotating(cache) => cache,
            LayerCache::SharedPrefix(cache) => cache,
            LayerCache::Traced(cache) => cache,
        }
    }

    /// The kind of cache, for error messages.
    pub fn kind(&self) -> &'static str {
        self.as_kind().name()
    }

    /// What the cache is, with the sizes of its arrays unless it is empty; `None` for several rows.
    pub fn spec(&self) -> Option<LayerCacheSpec> {
        self.as_kind().spec()
    }

    /// How many tokens the cache has read; with several rows, those of the longest.
    pub fn offset(&self) -> usize {
        self.as_kind().offset()
    }

    /// Position and mask of the next `length` tokens, which attend to all tokens before them or to
    /// the last `window`. Fails for a recurrent state.
    pub fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        self.as_kind().attention_step(length, window)
    }

    /// Appends `keys` and `values` `[B, H_kv, L, D]` and returns all that the step attends to.
    /// Fails for a recurrent state and for a list.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        self.as_kind_mut().append(keys, values)
    }

    /// The recurrent state, for its layer to update. Fails for every other kind.
    pub fn state(&mut self) -> Result<&mut ArraysCache> {
        match self {
            LayerCache::Arrays(cache) => Ok(cache),
            other => Err(other.as_kind().is_not_for("a recurrent layer")),
        }
    }

    /// The entries of a list. Fails for every other kind.
    pub fn entries(&mut self) -> Result<&mut [LayerCache]> {
        match self {
            LayerCache::List(cache) => Ok(cache.entries_mut()),
            other => Err(other.as_kind().is_not_for("a layer of several caches")),
        }
    }

    /// Whether no token was ever appended.
    pub fn is_empty(&self) -> bool {
        self.as_kind().is_empty()
    }

    /// Whether tokens can be removed from the end.
    pub fn is_trimmable(&self) -> bool {
        self.as_kind().is_trimmable()
    }

    /// Removes the last `num_tokens` and returns how many it removed: 0 if it cannot.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        self.as_kind_mut().trim(num_tokens)
    }

    /// Whether tokens can still be removed after `num_ahead` more.
    pub(crate) fn trims_after(&self, num_ahead: usize) -> bool {
        self.as_kind().trims_after(num_ahead)
    }

    /// Writes tokens that wait beside the buffers into them, so that whoever holds the arrays of this
    /// cache shares them with it.
    pub fn materialize(&mut self) -> Result<()> {
        match self {
            LayerCache::Kv(cache) => cache.materialize(),
            LayerCache::BatchKv(cache) => cache.materialize(),
            LayerCache::BatchRotating(cache) => cache.materialize(),
            LayerCache::List(cache) => {
                cache.entries_mut().iter_mut().try_for_each(LayerCache::materialize)
            }
            LayerCache::Rotating(_)
            | LayerCache::Quantized(_)
            | LayerCache::Chunked(_)
            | LayerCache::Arrays(_)
            | LayerCache::BatchChunked(_)
            | LayerCache::SharedPrefix(_)
            | LayerCache::Traced(_) => Ok(()),
        }
    }

    /// The arrays that the cache consists of, capacity included.
    pub fn arrays(&self) -> Vec<&Array> {
        self.as_kind().arrays()
    }

    /// Bytes of [`LayerCache::arrays`].
    pub fn nbytes(&self) -> usize {
        self.arrays().iter().map(|array| array.nbytes()).sum()
    }
}

/// bool `[length, offset + length]`: true where the query at position `offset + row` sees a key,
/// which must not come after it and must be among the last `window` tokens.
pub(crate) fn causal_mask(length: i32, offset: i32, window: Option<i32>) -> Result<Array> {
    let keys = ops::arange::<_, i32>(0, offset + length, 1)?;
    let queries = ops::reshape(ops::arange::<_, i32>(offset, offset + length, 1)?, &[length, 1])?;
    let mask = queries.ge(&keys)?;
    match window {
        Some(window) => mask.logical_and(queries.lt(ops::add(&keys, Array::from_int(window))?)?),
        None => Ok(mask),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
