//! Attention of several queries in few different shapes.
//!
//! On a CUDA device MLX leaves attention over prompts to cuDNN, which plans every combination of
//! shapes anew. A plan takes some 50 ms: as long as an H200 reads five thousand tokens of a model of
//! 1B parameters. So the numbers of queries and of keys are rounded up here, and prompts of all
//! lengths share few plans.

use mlx_rs::error::Exception;
use mlx_rs::fast::ScaledDotProductAttentionMask;
use mlx_rs::{Array, Dtype, ops};

use crate::cache::{Mask, causal_mask};
use crate::device_kernels::MOST_TOKENS;
use crate::ffi;
use crate::nn::fused::scaled_dot_product_attention;

/// What lengths are rounded up to: multiples of the first up to [`FEW`], of the second beyond.
const STEPS: [i32; 2] = [64, 256];
const FEW: i32 = 512;

/// Beyond these, the work is more than a plan, and so are the copies of keys and values.
const MOST_KEYS: i32 = 16_384;

/// Whether the current device plans attention for each shape.
pub(super) fn plans_for_each_shape() -> bool {
    thread_local!(static IS_CUDA: bool = ffi::computes_on_cuda());
    IS_CUDA.with(|&is_cuda| is_cuda)
}

/// As MLX's attention with `mask`; see [`attention`](super::attention::attention) for the shapes.
/// Returns `[B, H, L, D]`.
pub(super) fn attention_in_few_shapes(
    queries: &Array,
    keys: &Array,
    values: &Array,
    (scale, sinks): (f32, Option<&Array>),
    mask: &Mask,
) -> Result<Array, Exception> {
    let (num_queries, num_keys) = (queries.dim(2), keys.dim(2));
    let offset = num_keys - num_queries;
    let more_queries = rounded(num_queries) - num_queries;
    // Behind the last query's key: no query that counts sees what is appended there.
    let causal_keys = num_keys + more_queries;
    let more_keys = rounded(causal_keys) - num_keys;
    let array;
    let mask = match mask {
        Mask::None => return Err(Exception::custom("several queries see all keys".to_owned())),
        Mask::Causal if more_keys == more_queries => ScaledDotProductAttentionMask::Causal,
        Mask::Causal => {
            let mask = causal_mask(num_queries + more_queries, offset, None)?;
            array = appended(&mask, -1, more_keys - more_queries, false)?;
            ScaledDotProductAttentionMask::Array(&array)
        }
        Mask::Array(mask) => {
            let is_along =
                |axis: i32, length: i32| mask.ndim() as i32 >= -axis && mask.dim(axis) == length;
            let more = |axis, length, more| if is_along(axis, length) { more } else { 0 };
            let by_key = appended(mask, -1, more(-1, num_keys, more_keys), false)?;
            // Queries that see nothing would compute what is not a number.
            array = appended(&by_key, -2, more(-2, num_queries, more_queries), true)?;
            ScaledDotProductAttentionMask::Array(&array)
        }
    };
    let queries = lengthened(queries, more_queries)?;
    let keys = lengthened(keys, more_keys)?;
    let values = lengthened(values, more_keys)?;
    let output = scaled_dot_product_attention(&queries, &keys, &values, scale, Some(mask), sinks)?;
    let [batch, heads, _, head_dim] = *output.shape() else { return Ok(output) };
    ffi::slice(&output, &[0; 4], &[batch, heads, num_queries, head_dim])
}

/// Whether so few queries attend, several of a sequence that speculates, that two products are less
/// work than what rounding copies: a plan for each number of keys would take as long as 40 tokens.
pub(super) fn is_of_few(queries: &Array, keys: &Array) -> bool {
    (2..=MOST_TOKENS).contains(&queries.dim(2)) && keys.dim(2) <= MOST_KEYS
}

/// Whether this attention is worth being rounded: one that is planned, and sees not all keys.
pub(super) fn suits(queries: &Array, keys: &Array, mask: &Mask) -> bool {
    is_planned(queries, keys.dim(2)) && !matches!(mask, Mask::None)
}

/// Whether cuDNN plans this attention: of several queries, on few enough keys that a plan counts,
/// and in a type that it computes.
pub(super) fn is_planned(queries: &Array, num_keys: i32) -> bool {
    queries.dim(2) > 1
        && num_keys <= MOST_KEYS
        && matches!(queries.dtype(), Dtype::Bfloat16 | Dtype::Float16)
}

fn rounded(length: i32) -> i32 {
    let [step, large_step] = STEPS;
    let step = if length <= FEW { step } else { large_step };
    (length + step - 1) / step * step
}

/// `[B, H, L, D]` with `more` zeros along the third axis.
fn lengthened(x: &Array, more: i32) -> Result<Array, Exception> {
    match more {
        0 => Ok(x.clone()),
        _ => ops::pad(x, &[(0, 0), (0, 0), (0, more), (0, 0)][..], None, None),
    }
}

/// A bool mask with `more` times `value` at the end of `axis`, which counts from the last.
fn appended(mask: &Array, axis: i32, more: i32, value: bool) -> Result<Array, Exception> {
    if more == 0 {
        return Ok(mask.clone());
    }
    let mut shape = mask.shape().to_vec();
    let index = (mask.ndim() as i32 + axis) as usize;
    shape[index] = more;
    ops::concatenate(&[mask, &ops::full::<bool>(&shape, Array::from_bool(value))?], axis)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use mlx_rs::random;

    /// The result is that of MLX's attention for `num_queries` at the end of `num_keys`.
    fn check(num_queries: i32, num_keys: i32, mask: &Mask) {
        let normal = |heads, length| {
            random::normal::<f32>(&[2, heads, length, 8], None, None, None).unwrap()
        };
        let (queries, keys, values) =
            (normal(4, num_queries), normal(2, num_keys), normal(2, num_keys));
        let sinks = Array::from_slice(&[-1.0f32, 0.0, 1.0, 2.0], &[4]);
        for sinks in [None, Some(&sinks)] {
            let plain = match mask {
                Mask::Array(mask) => ScaledDotProductAttentionMask::Array(mask),
                _ => ScaledDotProductAttentionMask::Causal,
            };
            let expected =
                scaled_dot_product_attention(&queries, &keys, &values, 0.3, Some(plain), sinks)
                    .unwrap();
            let found =
                attention_in_few_shapes(&queries, &keys, &values, (0.3, sinks), mask).unwrap();
            assert_eq!(found.shape(), expected.shape());
            let off = ops::subtract(&found, &expected).unwrap().abs().unwrap().max(None).unwrap();
            // Sums of other lengths are taken in another order.
            let off = off.item_exact::<f32>();
            assert!(off <= 2e-6, "{num_queries} of {num_keys}: off by {off}");
        }
    }

    #[test]
    fn rounded_attention_is_that_of_mlx() {
        for (num_queries, num_keys) in [(2, 2), (63, 63), (64, 64), (5, 70), (100, 133), (64, 577)]
        {
            check(num_queries, num_keys, &Mask::Causal);
            let offset = num_keys - num_queries;
            let window = causal_mask(num_queries, offset, Some(7)).unwrap();
            check(num_queries, num_keys, &Mask::Array(window));
            let columns = ops::arange::<_, i32>(0, num_keys, 1).unwrap();
            let begins = Array::from_slice(&[0, num_keys.min(3) - 1], &[2, 1, 1, 1]);
            let rows = columns.ge(begins).unwrap();
            check(num_queries, num_keys, &Mask::Array(rows));
        }
    }

    #[test]
    fn prompts_of_many_lengths_share_few_shapes() {
        let shapes: std::collections::BTreeSet<i32> = (2..=2048).map(rounded).collect();
        assert_eq!(shapes.len(), 14);
        assert!((1..5000).all(|length| rounded(length) >= length));
    }
}
