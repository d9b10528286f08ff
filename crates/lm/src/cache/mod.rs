//! What layers remember of the tokens before: keys and values, or recurrent state.
//!
//! A model makes one [`LayerCache`] per layer. Attention layers ask theirs once per forward pass for an [`AttentionStep`], which layers of
//! one kind share, and then exchange new keys and values for all of them. Arrays are handles to immutable data, so a clone of a cache is an
//! exact and cheap snapshot of it; the first write after it copies.

mod arrays;
pub mod batch;
mod batch_kv;
mod batch_rotating;
mod buffer;
mod kv;
mod rotating;
mod rows;

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, ops};

pub use arrays::ArraysCache;
pub use batch_kv::BatchKvCache;
pub use batch_rotating::BatchRotatingKvCache;
pub use kv::KvCache;
pub use rotating::RotatingKvCache;

/// A layer's memory. The set is closed, so that whatever stores caches handles every kind.
#[derive(Debug, Clone)]
pub enum LayerCache {
    /// Keys and values of every token.
    Kv(KvCache),
    /// Keys and values of the last tokens.
    Rotating(RotatingKvCache),
    /// Recurrent state, of one row or several.
    Arrays(ArraysCache),
    /// Keys and values of every token, for several rows.
    BatchKv(BatchKvCache),
    /// Keys and values of the last tokens, for several rows.
    BatchRotating(BatchRotatingKvCache),
}

/// What the attention layers of one forward pass share: where its tokens stand and what they may see.
#[derive(Debug)]
pub struct AttentionStep {
    /// The position of the first new token.
    pub offset: RopeOffset,
    /// Which keys each new token sees.
    pub mask: Mask,
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
    /// Those up to its own position, counted from the end.
    Causal,
    /// Those where this is true; bool, broadcast to `[B, H, L, T]`.
    Array(Array),
}

/// All keys and values that a step attends to.
#[derive(Debug)]
pub enum KeysValues {
    /// As they are.
    Dense {
        /// `[B, H_kv, T, D]`
        keys: Array,
        /// `[B, H_kv, T, D]`
        values: Array,
    },
}

impl LayerCache {
    /// Tokens read; of the longest row, where there are several.
    pub fn offset(&self) -> usize {
        match self {
            LayerCache::Kv(cache) => cache.offset(),
            LayerCache::Rotating(cache) => cache.offset(),
            LayerCache::Arrays(cache) => cache.offset(),
            LayerCache::BatchKv(cache) => cache.offset(),
            LayerCache::BatchRotating(cache) => cache.offset(),
        }
    }

    /// Where the next `length` tokens stand and what they see: all before them, or the last `window`.
    pub fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        match self {
            LayerCache::Kv(cache) => cache.attention_step(length, window),
            LayerCache::Rotating(cache) => cache.attention_step(length, window),
            LayerCache::BatchKv(cache) => cache.attention_step(length, window),
            LayerCache::BatchRotating(cache) => cache.attention_step(length, window),
            LayerCache::Arrays(_) => Err(self.not_for_attention()),
        }
    }

    /// Appends `keys` and `values` `[B, H_kv, L, D]` and returns all that the step attends to.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let (keys, values) = match self {
            LayerCache::Kv(cache) => cache.update_and_fetch(keys, values)?,
            LayerCache::Rotating(cache) => cache.update_and_fetch(keys, values)?,
            LayerCache::BatchKv(cache) => cache.update_and_fetch(keys, values)?,
            LayerCache::BatchRotating(cache) => cache.update_and_fetch(keys, values)?,
            LayerCache::Arrays(_) => return Err(self.not_for_attention()),
        };
        Ok(KeysValues::Dense { keys, values })
    }

    /// The recurrent state to replace, for layers that keep one.
    pub fn state(&mut self) -> Result<&mut ArraysCache> {
        match self {
            LayerCache::Arrays(cache) => Ok(cache),
            LayerCache::Kv(_) | LayerCache::Rotating(_) | LayerCache::BatchKv(_) | LayerCache::BatchRotating(_) => {
                Err(Exception::custom("a recurrent layer was given a cache of keys and values".to_owned()))
            }
        }
    }

    /// Whether tokens can be forgotten from the end.
    pub fn is_trimmable(&self) -> bool {
        match self {
            LayerCache::Kv(_) => true,
            LayerCache::Rotating(cache) => cache.is_trimmable(),
            LayerCache::BatchKv(_) => true,
            LayerCache::Arrays(_) | LayerCache::BatchRotating(_) => false,
        }
    }

    /// Forgets the last `num_tokens`; returns how many it forgot.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        match self {
            LayerCache::Kv(cache) => cache.trim(num_tokens),
            LayerCache::Rotating(cache) => cache.trim(num_tokens),
            LayerCache::BatchKv(cache) => cache.trim(num_tokens),
            LayerCache::Arrays(_) | LayerCache::BatchRotating(_) => 0,
        }
    }

    /// The arrays behind it.
    pub fn arrays(&self) -> Vec<&Array> {
        match self {
            LayerCache::Kv(cache) => cache.arrays(),
            LayerCache::Rotating(cache) => cache.arrays(),
            LayerCache::Arrays(cache) => cache.arrays(),
            LayerCache::BatchKv(cache) => cache.arrays(),
            LayerCache::BatchRotating(cache) => cache.arrays(),
        }
    }

    fn not_for_attention(&self) -> Exception {
        Exception::custom("an attention layer was given a cache of recurrent state".to_owned())
    }
}

/// bool `[length, offset + length]`: true where a query at `offset + row` sees a key, that is, one not after it and within `window` of it.
pub(crate) fn causal_mask(length: i32, offset: i32, window: Option<i32>) -> Result<Array> {
    let keys = ops::arange::<_, i32>(0, offset + length, 1)?;
    let queries = ops::reshape(ops::arange::<_, i32>(offset, offset + length, 1)?, &[length, 1])?;
    let mask = queries.ge(&keys)?;
    match window {
        Some(window) => mask.logical_and(queries.lt(ops::add(&keys, Array::from_int(window))?)?),
        None => Ok(mask),
    }
}
