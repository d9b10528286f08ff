//! The cache of one layer while a decode step is traced: its arrays are those of a cache of another
//! kind, and where the next token goes is an array too, so that the trace holds for every position.

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::kind::CacheKind;
use super::{AttentionStep, KeysValues, LayerCacheSpec, Mask, RopeOffset};
use crate::ffi;

/// Where a cache takes the next token: its buffers, with room for it.
#[derive(Debug)]
pub(crate) struct TracedSlot {
    /// `[1, H, capacity, D]`
    pub(crate) keys: Array,
    /// `[1, H, capacity, D]`
    pub(crate) values: Array,
    pub(crate) mapping: TracedMapping,
    /// The size of a ring; `None` where a column stands for each position.
    pub(crate) ring: Option<i32>,
}

/// The slot mapping of a traced step, which takes it as an array, i32 `[3]`: not packed, as that of
/// [`DecodeSlot`](super::DecodeSlot) is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TracedMapping {
    /// The token's position.
    pub(crate) position: i32,
    /// Its column.
    pub(crate) column: i32,
    /// How many of the first columns are in use once it is there.
    pub(crate) num_in_use: i32,
}

impl TracedMapping {
    pub(crate) fn array(self) -> Array {
        Array::from_slice(&[self.position, self.column, self.num_in_use], &[3])
    }
}

/// Keys and values of one row during a trace. It takes one token.
#[derive(Debug, Clone)]
pub struct TracedKvCache {
    keys: Array,    // [1, H, capacity, D]
    values: Array,  // [1, H, capacity, D]
    mapping: Array, // i32 [3], see `TracedMapping`
    ring: Option<i32>,
}

impl TracedKvCache {
    pub(crate) fn new([keys, values, mapping]: [Array; 3], ring: Option<i32>) -> Self {
        TracedKvCache { keys, values, mapping, ring }
    }

    pub(crate) fn into_arrays(self) -> [Array; 2] {
        [self.keys, self.values]
    }

    fn number(&self, index: i32) -> Result<Array> {
        ffi::slice(&self.mapping, &[index], &[index + 1])
    }
}

impl CacheKind for TracedKvCache {
    fn name(&self) -> &'static str {
        "traced cache"
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        None
    }

    /// Not known: it is an input of the trace.
    fn offset(&self) -> usize {
        0
    }

    fn arrays(&self) -> Vec<&Array> {
        vec![&self.keys, &self.values]
    }

    fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        if length != 1 || self.ring.zip(window).is_some_and(|(ring, window)| window < ring) {
            return Err(self.is_not_for("several tokens or a part of its ring"));
        }
        let columns = ops::arange::<_, i32>(0, self.keys.dim(2), 1)?;
        let position = self.number(0)?;
        let mut seen = columns.lt(&self.number(2)?)?;
        if let (None, Some(window)) = (self.ring, window) {
            let age = ops::subtract(&position, &columns)?;
            seen = seen.logical_and(age.lt(Array::from_int(window))?)?;
        }
        Ok(AttentionStep::new(RopeOffset::PerRow(position), Mask::Array(seen)))
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<KeysValues> {
        let column = self.number(1)?;
        self.keys = ffi::slice_update_at(&self.keys, &keys, &column, 2)?;
        self.values = ffi::slice_update_at(&self.values, &values, &column, 2)?;
        Ok(KeysValues::Dense { keys: self.keys.clone(), values: self.values.clone() })
    }
}
