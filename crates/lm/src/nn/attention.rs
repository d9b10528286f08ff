//! Scaled dot-product attention over what a layer's cache holds.

use mlx_rs::error::Exception;
use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
use mlx_rs::{Array, ops};

use crate::cache::{KeysValues, Mask};

/// Attends from `queries` `[B, H, L, D]` to all that the layer's cache returned for this step; H is a multiple of H_kv (grouped-query
/// attention). Returns `[B, L, H * D]`.
pub fn attention(queries: &Array, keys_values: &KeysValues, scale: f32, mask: &Mask) -> Result<Array, Exception> {
    let [batch, _, length, _] = *queries.shape() else {
        return Err(Exception::custom(format!("attention takes queries of four axes, got {:?}", queries.shape())));
    };
    let output = match keys_values {
        KeysValues::Dense { keys, values } => {
            let mask = match mask {
                Mask::None => None,
                Mask::Causal => Some(ScaledDotProductAttentionMask::Causal),
                Mask::Array(mask) => Some(ScaledDotProductAttentionMask::Array(mask)),
            };
            scaled_dot_product_attention(queries, keys, values, scale, mask, None)?
        }
    };
    ops::reshape(output.transpose_axes(&[0, 2, 1, 3])?, &[batch, length, -1])
}
