//! Attention of several rows that continue the same tokens, whose keys and values are held once.
//!
//! Each part of the keys is attended to by itself, and the two outputs are weighted by their shares
//! of the softmax. In the product with the shared keys the queries of all rows are one matrix, so
//! that its cost is that of one large product, and nothing of the prefix is copied.
//!
//! ```text
//! queries ─┬─ shared keys: softmax · values, total ─┐
//!          └─ own keys:    softmax · values, total ─┴─ sum, weighted by the totals
//! ```

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::attention::{Scores, Side, constant, least};
use crate::cache::{KeysValues, Mask, causal_mask};
use crate::device::ComputeDevice;
use crate::ffi;
use crate::nn::exponential::{Exponentials, MAX_SIZE, exponentials};

/// What one part of the keys gives, as if there were no others.
struct Part {
    /// `[H_kv, B, G L, D]`
    output: Array,
    /// The logarithm of the sum of the scores' exponentials, f32 `[H_kv, B, G L, 1]`.
    total: Array,
}

/// Sizes of one step, and what its scores are. The G query heads of a key head share its keys.
#[derive(Clone, Copy)]
struct Sizes<'a> {
    rows: i32,
    kv_heads: i32,
    group: i32,
    length: i32,
    head_dim: i32,
    scoring: Scores<'a>,
}

/// Attention of `queries` `[B, H, L, D]` over `prefix` `[1, H_kv, P, D]` and `own`
/// `[B, H_kv, T, D]`. A mask is over all columns or over those of `own`, `[L, P + T]` or `[L, T]`, or
/// with a first axis for the rows and one of length 1. Returns `[B, H, L, D]`.
pub(super) fn attention_after_prefix(
    queries: &Array,
    prefix: &KeysValues,
    own: &KeysValues,
    scoring: Scores<'_>,
    mask: &Mask,
) -> Result<Array, Exception> {
    let (num_shared, num_own) = (num_columns(prefix)?, num_columns(own)?);
    let kv_heads = num_heads(prefix)?;
    let sizes = Sizes {
        rows: queries.dim(0),
        kv_heads,
        group: queries.dim(1) / kv_heads,
        length: queries.dim(2),
        head_dim: queries.dim(3),
        scoring,
    };
    let Sizes { rows, group, length, head_dim, .. } = sizes;
    let queries = ops::multiply(queries, constant(scoring.scale, queries.dtype())?)?;
    let by_head = queries
        .reshape(&[rows, kv_heads, group * length, head_dim])?
        .transpose_axes(&[1, 0, 2, 3])?; // [H_kv, B, G L, D]
    let (shared_mask, own_mask) = parts_of_mask(mask, sizes, num_shared, num_own)?;
    // All rows are one matrix here: [H_kv, 1, B G L, D].
    let one_matrix = by_head.reshape(&[kv_heads, 1, rows * group * length, head_dim])?;
    let shared = attend(&one_matrix, prefix, shared_mask.as_ref(), sizes)?;
    let own = attend(&by_head, own, own_mask.as_ref(), sizes)?;

    // The share of the prefix in the sum of all exponentials.
    let share = ops::sigmoid(ops::subtract(&shared.total, &own.total)?)?;
    let share = share.as_dtype(own.output.dtype())?;
    let difference = ops::subtract(&shared.output, &own.output)?;
    let mut output = ops::add(&own.output, ops::multiply(difference, share)?)?;
    if let Some(sinks) = scoring.sinks {
        // The share of all keys, beside the sinks.
        let sinks = sinks.as_dtype(Dtype::Float32)?.reshape(&[kv_heads, 1, group, 1])?;
        let sinks = ops::broadcast_to(&sinks, &[kv_heads, 1, group, length])?.reshape(&[
            kv_heads,
            1,
            group * length,
            1,
        ])?;
        let total = ops::logaddexp(&shared.total, &own.total)?;
        let share = ops::sigmoid(ops::subtract(total, sinks)?)?;
        output = ops::multiply(&output, share.as_dtype(output.dtype())?)?;
    }
    output.transpose_axes(&[1, 0, 2, 3])?.reshape(&[rows, kv_heads * group, length, -1])
}

/// Attention of scaled `queries` `[H_kv, N, M, D]` over the keys and values of N rows.
fn attend(
    queries: &Array,
    keys_values: &KeysValues,
    mask: Option<&Array>,
    sizes: Sizes<'_>,
) -> Result<Part, Exception> {
    let Sizes { rows, kv_heads, group, length, scoring, .. } = sizes;
    let by_row = |array: Array| array.reshape(&[kv_heads, rows, group * length, -1]);
    if mask.is_none()
        && let Some(parts) = few_queries_at_once(queries, num_columns(keys_values)?)?
    {
        let parts = parts.iter().map(|queries| attend_unmasked(queries, keys_values, scoring));
        let (outputs, totals): (Vec<Array>, Vec<Array>) =
            parts.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let output = by_row(ops::concatenate(&outputs, 2)?)?;
        return Ok(Part { output, total: by_row(ops::concatenate(&totals, 2)?)? });
    }
    let (num_matrices, num_queries) = (queries.dim(1), queries.dim(2));
    let mut scores = scoring.capped(product(queries, keys_values, Side::Keys)?)?; // [H_kv, N, M, T]
    if let Some(mask) = mask {
        // The lowest finite number: where the window hides the whole prefix, its total is that
        // low, and its share 0.
        let hidden = constant(least(scores.dtype()), scores.dtype())?;
        let by_token = scores.reshape(&[kv_heads, rows, group, length, -1])?;
        scores = ops::select(mask, by_token, hidden)?.reshape(&[
            kv_heads,
            num_matrices,
            num_queries,
            -1,
        ])?;
    }
    let (output, total) = weighted(&scores, keys_values)?;
    Ok(Part { output: by_row(output)?, total: by_row(total)? })
}

/// As few queries that a product still pays.
const MIN_QUERIES: usize = 64;

/// The queries in parts whose scores over so many keys are in a processor's cache, on a CPU; `None`
/// where one part has all.
fn few_queries_at_once(queries: &Array, num_keys: i32) -> Result<Option<Vec<Array>>, Exception> {
    let per_query = (queries.dim(0) * queries.dim(1) * num_keys) as usize;
    let (all, most) = (queries.dim(2), (MAX_SIZE / per_query.max(1)).max(MIN_QUERIES) as i32);
    if all <= most
        || queries.dtype() != Dtype::Float32
        || ComputeDevice::current() != ComputeDevice::Cpu
    {
        return Ok(None);
    }
    let parts = (0..all).step_by(most as usize).map(|start| {
        let (mut from, mut to) = ([0; 4], [queries.dim(0), queries.dim(1), 0, queries.dim(3)]);
        (from[2], to[2]) = (start, all.min(start + most));
        ffi::slice(queries, &from, &to)
    });
    parts.collect::<Result<Vec<_>, _>>().map(Some)
}

/// Output and total of queries that see all keys.
fn attend_unmasked(
    queries: &Array,
    keys_values: &KeysValues,
    scoring: Scores<'_>,
) -> Result<(Array, Array), Exception> {
    let scores = scoring.capped(product(queries, keys_values, Side::Keys)?)?;
    weighted(&scores, keys_values)
}

/// The values weighted by the softmax of the scores, and the totals.
fn weighted(scores: &Array, keys_values: &KeysValues) -> Result<(Array, Array), Exception> {
    if let Some(Exponentials { weights, sum, total }) = exponentials(scores)? {
        // The sum divides fewer numbers behind the product than before it.
        let output = ops::divide(product(&weights, keys_values, Side::Values)?, sum)?;
        return Ok((output, total));
    }
    let weights = ops::softmax_axes(scores, &[-1], true)?;
    let total = total(scores, &weights)?;
    Ok((product(&weights, keys_values, Side::Values)?, total))
}

/// The logarithm of the sum of the scores' exponentials, f32, along the last axis.
///
/// The largest weight is the exponential of the largest score divided by that sum, so that two maxima
/// replace as many exponentials as there are scores. In half precision the weight is not exact enough.
fn total(scores: &Array, weights: &Array) -> Result<Array, Exception> {
    if scores.dtype() != Dtype::Float32 {
        return scores.as_dtype(Dtype::Float32)?.logsumexp_axis(-1, true);
    }
    ops::subtract(scores.max_axis(-1, true)?, ops::log(weights.max_axis(-1, true)?)?)
}

/// The product of `left` `[H_kv, N, M, ...]` with the keys or values of N rows.
fn product(left: &Array, keys_values: &KeysValues, side: Side) -> Result<Array, Exception> {
    let by_head = |array: &Array| array.transpose_axes(&[1, 0, 2, 3]);
    match keys_values {
        KeysValues::Dense { keys, .. } if side == Side::Keys => {
            left.matmul(keys.transpose_axes(&[1, 0, 3, 2])?)
        }
        KeysValues::Dense { values, .. } => left.matmul(by_head(values)?),
        &KeysValues::Quantized { ref keys, ref values, group_size, bits } => {
            let array = if side == Side::Keys { keys } else { values };
            ops::quantized_matmul(
                left,
                by_head(&array.packed)?,
                by_head(&array.scales)?,
                &by_head(&array.biases)?,
                side == Side::Keys,
                group_size,
                bits,
            )
        }
        KeysValues::AfterPrefix { .. } => Err(nested()),
    }
}

/// The masks of both parts, each with columns as its last axis; `None` where all is seen.
fn parts_of_mask(
    mask: &Mask,
    sizes: Sizes<'_>,
    num_shared: i32,
    num_own: i32,
) -> Result<(Option<Array>, Option<Array>), Exception> {
    let length = sizes.length;
    match mask {
        Mask::None => Ok((None, None)),
        Mask::Causal => Ok((None, Some(causal_mask(length, num_own - length, None)?))),
        Mask::Array(mask) if mask.dim(-1) == num_own => Ok((None, Some(mask.clone()))),
        Mask::Array(mask) => {
            let columns = |from, to| {
                let (mut first, mut last) = (vec![0; mask.ndim()], mask.shape().to_vec());
                (first[mask.ndim() - 1], last[mask.ndim() - 1]) = (from, to);
                ffi::slice(mask, &first, &last)
            };
            let (shared, own) =
                (columns(0, num_shared)?, columns(num_shared, num_shared + num_own)?);
            Ok((Some(shared), Some(own)))
        }
    }
}

fn num_columns(keys_values: &KeysValues) -> Result<i32, Exception> {
    Ok(keys_of(keys_values)?.dim(2))
}

fn num_heads(keys_values: &KeysValues) -> Result<i32, Exception> {
    Ok(keys_of(keys_values)?.dim(1))
}

/// An array with one entry per head and column.
fn keys_of(keys_values: &KeysValues) -> Result<&Array, Exception> {
    match keys_values {
        KeysValues::Dense { keys, .. } => Ok(keys),
        KeysValues::Quantized { keys, .. } => Ok(&keys.packed),
        KeysValues::AfterPrefix { .. } => Err(nested()),
    }
}

fn nested() -> Exception {
    Exception::custom("a shared prefix cannot follow another one".to_owned())
}
