//! The place of one new token in a cache, for kernels that attend and append in one launch.

use mlx_rs::Array;
use mlx_rs::error::Result;

use super::LayerCache;

/// What one token attends to, and where its key and value go.
///
/// A cache keeps its newest tokens in arrays of their own, which every step replaces: MLX copies a
/// buffer that is written while an earlier step still reads it, which would copy the whole cache
/// for every token when the host runs ahead of the device.
#[derive(Debug)]
pub struct DecodeSlot {
    /// `[1, H, capacity, D]`: the older tokens.
    pub keys: Array,
    /// `[1, H, capacity, D]`
    pub values: Array,
    /// `[1, H, C, D]`: the newest tokens.
    pub newest_keys: Array,
    /// `[1, H, C, D]`
    pub newest_values: Array,
    /// How many older and how many newest tokens there are, the token's own column among the
    /// newest (which may be in use: a ring overwrites its oldest token), and the token's position.
    pub sizes: [i32; 4],
}

impl LayerCache {
    /// The place of the next token; `None` for an empty cache and for kinds whose tokens only MLX's
    /// own operations read.
    pub fn decode_slot(&mut self) -> Result<Option<DecodeSlot>> {
        self.as_kind_mut().decode_slot()
    }

    /// Appends the token whose key and value were written into the newest tokens of
    /// [`LayerCache::decode_slot`]; does nothing for kinds that have none.
    pub fn fill_decode_slot(&mut self, newest_keys: Array, newest_values: Array) {
        self.as_kind_mut().fill_decode_slot(newest_keys, newest_values);
    }
}
