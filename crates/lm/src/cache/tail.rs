//! The newest tokens of a cache, beside its buffers.

use mlx_rs::Array;
use mlx_rs::error::Result;

use super::buffer::{front, room};

/// The newest tokens, in small buffers that every step replaces (see
/// [`DecodeSlot`](super::DecodeSlot)); the large ones stay as they are for as many steps as the tail has
/// columns.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    pub(super) buffers: [Array; 2], // [B, H, capacity, D]
    pub(super) count: i32,          // how many of the leading columns are in use
}

impl Tail {
    /// The most tokens that stand in a tail.
    pub(super) const CAPACITY: i32 = 64;

    /// A tail with room for `capacity` tokens behind those of `buffers`.
    pub(super) fn behind([keys, values]: &[Array; 2], capacity: i32) -> Result<Self> {
        Ok(Tail { buffers: [room(keys, capacity)?, room(values, capacity)?], count: 0 })
    }

    /// The keys and values in use, as views.
    pub(super) fn in_use(&self) -> Result<[Array; 2]> {
        let [keys, values] = &self.buffers;
        Ok([front(keys, self.count)?, front(values, self.count)?])
    }
}
