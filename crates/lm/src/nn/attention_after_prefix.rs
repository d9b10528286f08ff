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
//! On a CUDA device a pass over few rows is one row of attention instead, whose mask hides the other
//! rows.

use std::cell::RefCell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::attention_shapes::{attention_in_few_shapes, is_planned, plans_for_each_shape};
use super::packed_product::{Side, packed_side_product};
use super::scalar::{constant, least};
use super::scores::Scores;
use crate::cache::{KeysValues, Mask, QuantizedArray, causal_mask};
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
    if plans_for_each_shape()
        && let (Mask::Causal, None) = (mask, scoring.softcap)
        && let KeysValues::Dense { keys: shared_keys, values: shared_values } = prefix
        && let KeysValues::Dense { keys, values } = own
        && one_row_pays(queries, num_shared, num_own)
    {
        let (shared, own) = ([shared_keys, shared_values], [keys, values]);
        return attention_as_one_row(queries, shared, own, scoring);
    }
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

/// So many own keys of all rows together are always few.
const FEW_OWN_KEYS: i32 = 1024;

/// Whether [`attention_as_one_row`] is worth it: where the keys of other rows, which each row's
/// queries pass over, are not most of the work.
fn one_row_pays(queries: &Array, num_shared: i32, num_own: i32) -> bool {
    let all_own = queries.dim(0) * num_own;
    all_own <= num_shared.max(FEW_OWN_KEYS) && is_planned(queries, num_shared + all_own)
}

/// The same attention as one row `[1, H, B L, D]` on the keys `[1, H_kv, P + B T, D]` of the prefix
/// and of all rows, in which a mask hides the other rows: one call of MLX's attention, which keeps
/// no scores, in place of some ten operations on `[H_kv, B, G L, P]` of them. `shared` and `own` are
/// keys and values.
fn attention_as_one_row(
    queries: &Array,
    shared: [&Array; 2],
    own: [&Array; 2],
    scoring: Scores<'_>,
) -> Result<Array, Exception> {
    let [rows, heads, length, _] = *queries.shape() else {
        return Err(Exception::custom("queries have four axes".to_owned()));
    };
    let (num_shared, num_own) = (shared[0].dim(2), own[0].dim(2));
    // [B, H, n, D] to [1, H, B n, D]
    let one_row = |array: &Array| {
        let by_head = array.transpose_axes(&[1, 0, 2, 3])?;
        by_head.reshape(&[1, array.dim(1), rows * array.dim(2), array.dim(3)])
    };
    let joined = |side: usize| ops::concatenate(&[shared[side], &one_row(own[side])?], 2);
    let (keys, values) = (joined(0)?, joined(1)?);
    let mask = Mask::Array(mask_of_one_row([rows, length, num_own, num_shared])?);
    let scores = (scoring.scale, scoring.sinks);
    let output = attention_in_few_shapes(&one_row(queries)?, &keys, &values, scores, &mask)?;
    output.reshape(&[heads, rows, length, -1])?.transpose_axes(&[1, 0, 2, 3])
}

/// Which keys the queries of all rows see, bool `[B L, P + B T]`: the prefix, and of their own row
/// those up to their own token. `sizes` are B, L, T and P.
fn mask_of_one_row(sizes: [i32; 4]) -> Result<Array, Exception> {
    // All layers of a pass want the same one.
    thread_local!(static LAST: RefCell<Option<([i32; 4], Array)>> = const { RefCell::new(None) });
    LAST.with_borrow_mut(|last| {
        if let Some((known, mask)) = last
            && *known == sizes
        {
            return Ok(mask.clone());
        }
        let [rows, length, num_own, num_shared] = sizes;
        let is_own = ops::eye::<bool>(rows, None, None)?.reshape(&[rows, 1, rows, 1])?;
        let is_before = causal_mask(length, num_own - length, None)?;
        let is_before = is_before.reshape(&[1, length, 1, num_own])?;
        let own =
            ops::logical_and(&is_own, &is_before)?.reshape(&[rows * length, rows * num_own])?;
        let shared = ops::full::<bool>(&[rows * length, num_shared], Array::from_bool(true))?;
        let mask = ops::concatenate(&[shared, own], 1)?;
        *last = Some((sizes, mask.clone()));
        Ok(mask)
    })
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
            let array = QuantizedArray {
                packed: by_head(&array.packed)?,
                scales: by_head(&array.scales)?,
                biases: by_head(&array.biases)?,
            };
            packed_side_product(left, array.rows(group_size, bits), side)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use mlx_rs::random;

    use super::*;

    fn drawn(seed: u64, shape: [i32; 4]) -> Array {
        random::normal::<f32>(&shape[..], None, None, Some(&random::key(seed).unwrap())).unwrap()
    }

    fn dense([keys, values]: &[Array; 2]) -> KeysValues {
        KeysValues::Dense { keys: keys.clone(), values: values.clone() }
    }

    /// Both ways for `rows` rows of `length` queries, each after `num_own - length` own tokens.
    fn check(rows: i32, length: i32, num_own: i32, num_shared: i32, sinks: Option<&Array>) {
        let queries = drawn(1, [rows, 4, length, 16]);
        let prefix = [2, 3].map(|seed| drawn(seed, [1, 2, num_shared, 16]));
        let own = [4, 5].map(|seed| drawn(seed, [rows, 2, num_own, 16]));
        let scoring = Scores { scale: 0.25, softcap: None, sinks };
        let [shared, rest] = [&prefix, &own].map(|pair| pair.each_ref());
        let one = attention_as_one_row(&queries, shared, rest, scoring).unwrap();
        let [prefix, own] = [&prefix, &own].map(dense);
        let parts =
            attention_after_prefix(&queries, &prefix, &own, scoring, &Mask::Causal).unwrap();
        assert_eq!(one.shape(), parts.shape());
        let off = ops::subtract(&one, &parts).unwrap().abs().unwrap().max(None).unwrap();
        let off = off.item_exact::<f32>();
        assert!(off < 1e-5, "{rows} rows of {length} after {num_own} and {num_shared}: {off}");
    }

    #[test]
    fn one_row_computes_what_its_parts_do() {
        check(1, 3, 3, 5, None);
        check(3, 4, 4, 70, None);
        check(5, 2, 9, 33, None);
        check(2, 7, 7, 600, Some(&Array::from_slice(&[0.5f32, -1.0, 2.0, 0.0], &[4])));
    }
}
