//! Scaled dot-product attention over what a layer's cache holds.

use mlx_rs::error::Exception;
use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
use mlx_rs::{Array, ops};

use crate::cache::{KeysValues, Mask};
use crate::nn::RmsNorm;

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

/// `[B, L, H * D]` to `[B, H, L, D]`, each head's vector normalised by `norm` where there is one.
pub fn split_heads(x: &Array, num_heads: i32, norm: Option<&RmsNorm>) -> Result<Array, Exception> {
    let [batch, length, width] = *x.shape() else {
        return Err(Exception::custom(format!("heads are split from three axes, got {:?}", x.shape())));
    };
    let head_dim = width / num_heads;
    // Before the axes are swapped each vector is contiguous, which the norm wants; a single token needs no swap.
    let shape = if length == 1 { [batch, num_heads, 1, head_dim] } else { [batch, length, num_heads, head_dim] };
    let mut heads = ops::reshape(x, &shape)?;
    if let Some(norm) = norm {
        heads = norm.forward(&heads)?;
    }
    if length == 1 { Ok(heads) } else { heads.transpose_axes(&[0, 2, 1, 3]) }
}
