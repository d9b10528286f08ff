//! What both kernels of attention are launched with: inputs, outputs, and the constants that they are
//! compiled with.

use std::ffi::CStr;

use crate::device_kernels::{HeadShape, Rotation};

/// The threads of a block.
pub(super) const THREADS: i32 = 256;

/// The inputs of `attention.cu` and `row_attention.cu`.
pub(super) const INPUTS: &[&str] = &[
    "qkv",
    "k",
    "v",
    "tail_k",
    "tail_v",
    "slot_mapping",
    "finished",
    "angles",
    "query_norm",
    "key_norm",
];

/// The outputs of both.
pub(super) const OUTPUTS: &[&str] = &["y", "next_k", "next_v", "parts"];

/// What a layer's launches are compiled with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Constants {
    pub(super) heads: HeadShape,
    pairs: i32,
    traditional: bool,
    has_norms: bool,
    eps: f32,
}

impl Constants {
    pub(super) fn new(heads: HeadShape, rotation: &Rotation<'_>) -> Self {
        let Rotation { norms, angles, traditional } = *rotation;
        Constants {
            heads,
            pairs: angles.dim(0),
            traditional,
            has_norms: norms.is_some(),
            eps: norms.map_or(0.0, |(_, eps)| eps),
        }
    }

    /// Those that both kernels have.
    pub(super) fn shared(&self) -> [(&'static CStr, i32); 9] {
        let HeadShape { heads, kv_heads, head_dim, scale, .. } = self.heads;
        [
            (c"HEADS", heads),
            (c"KV_HEADS", kv_heads),
            (c"D", head_dim),
            (c"THREADS", THREADS),
            (c"PAIRS", self.pairs),
            (c"TRADITIONAL", i32::from(self.traditional)),
            (c"NORM", i32::from(self.has_norms)),
            (c"EPS_BITS", self.eps.to_bits() as i32),
            (c"SCALE_BITS", scale.to_bits() as i32),
        ]
    }
}
