//! Scaled dot-product attention over what a layer's cache holds.

use mlx_rs::error::Exception;
use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
use mlx_rs::{Array, ops};

/// Attends from `queries` `[B, H, L, D]` to `keys` and `values` `[B, H_kv, T, D]`, whose last L positions are the queries' own.
///
/// Causal; H is a multiple of H_kv (grouped-query attention). Returns `[B, L, H * D]`.
pub fn attention(queries: &Array, keys: &Array, values: &Array, scale: f32) -> Result<Array, Exception> {
    let [batch, _, length, _] = *queries.shape() else {
        return Err(Exception::custom(format!("attention takes queries of four axes, got {:?}", queries.shape())));
    };
    // A single query sees everything before it: no mask needed.
    let mask = (length > 1).then_some(ScaledDotProductAttentionMask::Causal);
    let output = match mask {
        Some(mask) => scaled_dot_product_attention(queries, keys, values, scale, mask, None)?,
        None => scaled_dot_product_attention(queries, keys, values, scale, None::<ScaledDotProductAttentionMask>, None)?,
    };
    ops::reshape(output.transpose_axes(&[0, 2, 1, 3])?, &[batch, length, -1])
}
