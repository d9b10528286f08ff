//! Scaled dot-product attention over a layer's cache, dense or quantized.

use mlx_rs::error::Exception;
use mlx_rs::fast::ScaledDotProductAttentionMask;
use mlx_rs::transforms::eval;
use mlx_rs::{Array, ops};

use crate::cache::{KeysValues, Mask, QuantizedArray, causal_mask};
use crate::device::ComputeDevice;
use crate::ffi;
use crate::nn::attention_after_prefix::attention_after_prefix;
use crate::nn::attention_shapes::{
    attention_in_few_shapes, is_of_few, plans_for_each_shape, suits,
};
use crate::nn::fused::scaled_dot_product_attention;
use crate::nn::packed_product::{Side, packed_side_product};
use crate::nn::scalar::{constant, least};
use crate::nn::scores::Scores;

/// The most scores in one array, a number for each head, query and key: 512 MB in f32. The prompt of
/// a long conversation would need many times as much. Up to three such arrays live at once: scores,
/// those beside the sinks, and their shares. One query is never divided, however many scores it has.
pub(crate) const MOST_STORED_SCORES: u64 = 1 << 27;

/// The lengths of keys and values in 16 bits for which MLX's attention over prompts stores no scores,
/// on Metal and on CUDA. For other lengths it does or does not, by its version and the device.
const KERNEL_LENGTHS: [i32; 3] = [64, 80, 128];

/// Whether a GPU attends to dense keys and values of these lengths with a kernel that stores no scores.
/// Both the attention and the estimate of its memory ask this. On CUDA it does so without a mask of its
/// own only: with one, cuDNN stores them (`decode_speed check attention` shows it), which the attention
/// bounds and the estimate does not count.
pub fn has_kernel([key_dim, value_dim]: [i32; 2], softcap: Option<f32>) -> bool {
    key_dim == value_dim && KERNEL_LENGTHS.contains(&key_dim) && softcap.is_none()
}

/// Attention of `queries` `[B, H, L, D]` over the keys and values that the layer's cache returned
/// for this step; H is a multiple of H_kv (grouped-query attention). Returns `[B, L, H * D]`.
///
/// Where scores are stored, an array of them has no more than `MOST_STORED_SCORES` unless one query
/// has, except of rows that share a prefix.
pub fn attention<'a>(
    queries: &Array,
    keys_values: &KeysValues,
    scores: impl Into<Scores<'a>>,
    mask: &Mask,
) -> Result<Array, Exception> {
    let scores = scores.into();
    match turns(queries, keys_values, (scores.softcap, mask), MOST_STORED_SCORES) {
        Some((num_keys, most)) => {
            attention_by_queries(queries, keys_values, (scores, num_keys), mask, most)
        }
        None => attention_at_once(queries, keys_values, scores, mask),
    }
}

/// The number of keys, and of the queries that attend at a time, where an array of the scores of all
/// would have more than `most_scores`.
fn turns(
    queries: &Array,
    keys_values: &KeysValues,
    (softcap, mask): (Option<f32>, &Mask),
    most_scores: u64,
) -> Option<(i32, i32)> {
    let &[batch, heads, length, _] = queries.shape() else { return None };
    let (num_keys, dense_lengths) = match keys_values {
        KeysValues::Quantized { keys, .. } => (keys.packed.dim(2), None),
        KeysValues::Dense { keys, values } => (keys.dim(2), Some([keys.dim(3), values.dim(3)])),
        KeysValues::AfterPrefix { .. } => return None,
    };
    let for_each_query = batch as u64 * heads as u64 * num_keys as u64;
    let most = (most_scores / for_each_query.max(1)).max(1);
    let stores_none = || {
        dense_lengths.is_some_and(|lengths| has_kernel(lengths, softcap))
            && ComputeDevice::current() == ComputeDevice::Gpu
            && !(matches!(mask, Mask::Array(_)) && plans_for_each_shape())
    };
    (length as u64 > most && !stores_none()).then_some((num_keys, most as i32))
}

/// [`attention`] of `most` queries at a time, over `num_keys` keys.
fn attention_by_queries(
    queries: &Array,
    keys_values: &KeysValues,
    (scores, num_keys): (Scores<'_>, i32),
    mask: &Mask,
    most: i32,
) -> Result<Array, Exception> {
    let (batch, heads, length, width) =
        (queries.dim(0), queries.dim(1), queries.dim(2), queries.dim(3));
    let mut outputs = Vec::new();
    for start in (0..length).step_by(most as usize) {
        let stop = length.min(start + most);
        let some = ffi::slice(queries, &[0, 0, start, 0], &[batch, heads, stop, width])?;
        let mask = match mask {
            Mask::None => Mask::None,
            Mask::Causal => {
                let offset = num_keys - length;
                let rows = ops::arange::<_, i32>(offset + start, offset + stop, 1)?;
                let columns = ops::arange::<_, i32>(0, num_keys, 1)?;
                Mask::Array(rows.reshape(&[stop - start, 1])?.ge(columns)?)
            }
            Mask::Array(mask) if mask.ndim() > 1 && mask.dim(-2) == length => {
                Mask::Array(rows_of_mask(mask, start, stop)?)
            }
            Mask::Array(mask) => Mask::Array(mask.clone()),
        };
        let output = attention_at_once(&some, keys_values, scores, &mask)?;
        // Together they would store all scores after all.
        eval([&output])?;
        outputs.push(output);
    }
    ops::concatenate(&outputs, 1)
}

/// The rows `start..stop` of a mask `[..., L, T]`.
fn rows_of_mask(mask: &Array, start: i32, stop: i32) -> Result<Array, Exception> {
    let axis = mask.ndim() - 2;
    let (mut first, mut last) = (vec![0; mask.ndim()], mask.shape().to_vec());
    (first[axis], last[axis]) = (start, stop);
    ffi::slice(mask, &first, &last)
}

/// [`attention`] without a bound on what is stored.
fn attention_at_once(
    queries: &Array,
    keys_values: &KeysValues,
    scores: Scores<'_>,
    mask: &Mask,
) -> Result<Array, Exception> {
    let Scores { scale, softcap, sinks } = scores;
    let [batch, _, length, _] = *queries.shape() else {
        return Err(Exception::custom(format!(
            "attention takes queries of four axes, got {:?}",
            queries.shape()
        )));
    };
    let output = match keys_values {
        KeysValues::Dense { keys, values }
            if softcap.is_some() || plans_for_each_shape() && is_of_few(queries, keys) =>
        {
            let product = |left: &Array, side| match side {
                Side::Keys => left.matmul(keys.transpose_axes(&[0, 1, 3, 2])?),
                Side::Values => left.matmul(values),
            };
            let (kv_heads, num_keys) = (keys.dim(1), keys.dim(2));
            attention_in_two_products(queries, product, (kv_heads, num_keys), scores, mask)?
        }
        KeysValues::Dense { keys, values }
            if plans_for_each_shape() && suits(queries, keys, mask) =>
        {
            attention_in_few_shapes(queries, keys, values, (scale, sinks), mask)?
        }
        KeysValues::Dense { keys, values } => {
            let mask = match mask {
                Mask::None => None,
                Mask::Causal => Some(ScaledDotProductAttentionMask::Causal),
                Mask::Array(mask) => Some(ScaledDotProductAttentionMask::Array(mask)),
            };
            scaled_dot_product_attention(queries, keys, values, scale, mask, sinks)?
        }
        KeysValues::Quantized { keys, values, group_size, bits } => {
            quantized_attention(queries, keys, values, (*group_size, *bits), scores, mask)?
        }
        KeysValues::AfterPrefix { prefix, own } => {
            attention_after_prefix(queries, prefix, own, scores, mask)?
        }
    };
    // For a single token the heads are adjacent already.
    let by_token = if length == 1 { output } else { output.transpose_axes(&[0, 2, 1, 3])? };
    ops::reshape(by_token, &[batch, length, -1])
}

/// Attention over quantized keys and values, as mlx-lm's quantized_scaled_dot_product_attention;
/// returns `[B, H, L, D]`.
fn quantized_attention(
    queries: &Array,
    keys: &QuantizedArray,
    values: &QuantizedArray,
    (group_size, bits): (i32, i32),
    scores: Scores<'_>,
    mask: &Mask,
) -> Result<Array, Exception> {
    let product = |left: &Array, side| {
        let right = if side == Side::Keys { keys } else { values };
        packed_side_product(left, right.rows(group_size, bits), side)
    };
    let (kv_heads, num_keys) = (keys.packed.dim(1), keys.packed.dim(2));
    attention_in_two_products(queries, product, (kv_heads, num_keys), scores, mask)
}

/// Attention with its scores stored; returns `[B, H, L, D]`. `product` multiplies with the keys or
/// the values of all heads.
///
/// The queries that share a key head are rows of one product; the mask is applied with their heads
/// on a fifth axis.
fn attention_in_two_products(
    queries: &Array,
    product: impl Fn(&Array, Side) -> Result<Array, Exception>,
    (kv_heads, num_keys): (i32, i32),
    scoring: Scores<'_>,
    mask: &Mask,
) -> Result<Array, Exception> {
    let (batch, heads, length, head_dim) =
        (queries.dim(0), queries.dim(1), queries.dim(2), queries.dim(3));
    let rows = heads / kv_heads * length;
    let queries = ops::multiply(queries, constant(scoring.scale, queries.dtype())?)?;
    let queries = ops::reshape(queries, &[batch, kv_heads, rows, head_dim])?;
    let mut scores = scoring.capped(product(&queries, Side::Keys)?)?; // [B, H_kv, rows, T]
    let causal;
    let mask = match mask {
        Mask::None => None,
        Mask::Causal => {
            causal = causal_mask(length, num_keys - length, None)?;
            Some(&causal)
        }
        Mask::Array(mask) => Some(mask),
    };
    if let Some(mask) = mask {
        // The lowest finite number instead of minus infinity, because a fully masked row of a
        // padded batch would become NaN.
        let hidden = constant(least(scores.dtype()), scores.dtype())?;
        let mask = grouped(mask, heads, kv_heads)?;
        let grouped_scores =
            ops::reshape(scores, &[batch, kv_heads, heads / kv_heads, length, num_keys])?;
        scores = ops::reshape(
            ops::select(mask, grouped_scores, hidden)?,
            &[batch, kv_heads, rows, num_keys],
        )?;
    }
    let weights = match scoring.sinks {
        Some(sinks) => {
            // [B, H_kv, rows, 1]
            let sinks =
                sinks.as_dtype(scores.dtype())?.reshape(&[1, kv_heads, heads / kv_heads, 1])?;
            let sinks = ops::broadcast_to(&sinks, &[batch, kv_heads, heads / kv_heads, length])?;
            let sinks = sinks.reshape(&[batch, kv_heads, rows, 1])?;
            let weights = ops::concatenate(&[&scores, &sinks], -1)?;
            let weights = ops::softmax_axes(weights, &[-1], true)?;
            ffi::slice(&weights, &[0; 4], &[batch, kv_heads, rows, num_keys])?
        }
        None => ops::softmax_axes(scores, &[-1], true)?,
    };
    let output = product(&weights, Side::Values)?;
    ops::reshape(output, &[batch, heads, length, -1])
}

/// Reshapes a mask that broadcasts to `[B, H, L, T]` so that it broadcasts to
/// `[B, H_kv, H / H_kv, L, T]`.
fn grouped(mask: &Array, heads: i32, kv_heads: i32) -> Result<Array, Exception> {
    match *mask.shape() {
        [batch, 1, length, num_keys] => ops::reshape(mask, &[batch, 1, 1, length, num_keys]),
        [batch, _, length, num_keys] => {
            ops::reshape(mask, &[batch, kv_heads, heads / kv_heads, length, num_keys])
        }
        [1, length, num_keys] => ops::reshape(mask, &[length, num_keys]),
        [_, length, num_keys] => {
            ops::reshape(mask, &[kv_heads, heads / kv_heads, length, num_keys])
        }
        _ => Ok(mask.clone()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::path::Path;

    use super::*;
    use crate::device::as_on_gpu;
    use crate::dtype::mlx_dtype;
    use cairn_formats::safetensors::{Limits, SafetensorsFile};
    use mlx_rs::Dtype;

    /// The cases of tests/goldens/caches.py: what mlx-lm's quantized attention returns.
    fn check(name: &str, file: &SafetensorsFile) {
        let tensor = |name: &str| {
            let tensor = file.tensor(name).unwrap();
            let shape: Vec<i32> = tensor.shape.iter().map(|&length| length as i32).collect();
            ffi::array_from_bytes(&file.read_tensor(name).unwrap(), &shape, mlx_dtype(tensor.dtype))
                .unwrap()
        };
        let &[dim, bits, group_size, mask, length, dtype] =
            &name.split('.').collect::<Vec<_>>()[..]
        else {
            panic!("{name}")
        };
        let (bits, group_size, length): (i32, i32, i32) =
            (bits.parse().unwrap(), group_size.parse().unwrap(), length.parse().unwrap());
        let input =
            |what: &str| tensor(&format!("{dim}.{what}")).as_dtype(tensor(name).dtype()).unwrap();
        let quantized = |what: &str| {
            let (packed, scales, biases) = ops::quantize(input(what), group_size, bits).unwrap();
            QuantizedArray { packed, scales, biases }
        };
        let keys_values = KeysValues::Quantized {
            keys: quantized("keys"),
            values: quantized("values"),
            group_size,
            bits,
        };
        let mask = match mask {
            "none" => Mask::None,
            "causal" => Mask::Causal,
            "window" => Mask::Array(causal_mask(length, 7 - length, Some(2)).unwrap()),
            "rows" => {
                let columns = ops::arange::<_, i32>(0, 7, 1).unwrap();
                let unpadded = columns.ge(Array::from_slice(&[0, 5], &[2, 1, 1, 1])).unwrap();
                Mask::Array(
                    causal_mask(length, 7 - length, None).unwrap().logical_and(unpadded).unwrap(),
                )
            }
            other => panic!("{other}"),
        };
        let all = input("queries");
        let queries = ffi::slice(&all, &[0; 4], &[2, 4, length, all.dim(3)]).unwrap();
        let scale = (all.dim(3) as f32).powf(-0.5);
        let found = attention(&queries, &keys_values, scale, &mask).unwrap();
        let expected =
            tensor(name).transpose_axes(&[0, 2, 1, 3]).unwrap().reshape(&[2, length, -1]).unwrap();
        assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{name}");
        let off = ops::subtract(&found, &expected)
            .unwrap()
            .abs()
            .unwrap()
            .max(None)
            .unwrap()
            .as_dtype(Dtype::Float32)
            .unwrap()
            .item_exact::<f32>();
        // Rows are grouped differently than in mlx-lm, so sums may be taken in another order: a few
        // last bits of numbers around 1.
        let tolerance = match dtype {
            "f32" => 2e-6,
            "f16" => 2e-3,
            _ => 1.6e-2,
        };
        assert!(off <= tolerance, "{name} is off by {off}");
    }

    #[test]
    fn quantized_attention_is_that_of_mlx_lm() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/goldens/caches/attention.safetensors");
        let file = SafetensorsFile::open(&path, Limits::CACHE).unwrap();
        let names: Vec<_> = file
            .tensors()
            .iter()
            .map(|tensor| &tensor.name)
            .filter(|name| name.split('.').count() > 2)
            .collect();
        assert_eq!(names.len(), 14);
        names.into_iter().for_each(|name| check(name, &file));
    }

    #[test]
    fn queries_that_take_turns_attend_as_all_at_once() {
        let (keys, values) = (normal(KV_HEADS, 11), normal(KV_HEADS, 11));
        let quantize = |array: &Array| {
            let (packed, scales, biases) = ops::quantize(array, 32, 8).unwrap();
            QuantizedArray { packed, scales, biases }
        };
        let (group_size, bits) = (32, 8);
        let (quantized_keys, quantized_values) = (quantize(&keys), quantize(&values));
        let quantized = KeysValues::Quantized {
            keys: quantized_keys,
            values: quantized_values,
            group_size,
            bits,
        };
        let sinks = Array::from_slice(&[-1.0_f32, 0.0, 1.5, 3.0], &[HEADS as i32]);
        let scores = Scores::from(0.2).with_sinks(Some(&sinks));
        let queries = normal(HEADS, 7);
        let window = causal_mask(7, 4, Some(3)).unwrap();
        let columns = ops::arange::<_, i32>(0, 11, 1).unwrap().ge(Array::from_int(2)).unwrap();
        for keys_values in [KeysValues::Dense { keys, values }, quantized] {
            let masks = [
                Mask::None,
                Mask::Causal,
                Mask::Array(window.clone()),
                Mask::Array(window.reshape(&[1, 1, 7, 11]).unwrap()),
                Mask::Array(columns.clone()),
            ];
            for mask in &masks {
                let expected = attention_at_once(&queries, &keys_values, scores, mask).unwrap();
                for most in [1, 2, 6] {
                    let found =
                        attention_by_queries(&queries, &keys_values, (scores, 11), mask, most);
                    let found = found.unwrap();
                    assert_eq!(found.shape(), expected.shape());
                    let off = ops::subtract(&found, &expected).unwrap().abs().unwrap();
                    let off = off.max(None).unwrap().item_exact::<f32>();
                    assert!(off < 2e-6, "{mask:?}, {most} at a time: off by {off}");
                }
            }
        }
    }

    #[test]
    fn on_a_gpu_only_what_a_kernel_takes_attends_at_once() {
        let of_length = |length| ops::zeros::<f32>(&[1, 2, 6, length]).unwrap();
        let turns_of = |key_dim, value_dim, softcap| {
            let (queries, keys, values) =
                (of_length(key_dim), of_length(key_dim), of_length(value_dim));
            let keys_values = KeysValues::Dense { keys, values };
            turns(&queries, &keys_values, (softcap, &Mask::Causal), 24)
        };
        // Two heads and six keys make twelve scores a query.
        let two_at_a_time = Some((6, 2));
        assert_eq!(turns_of(128, 128, None), two_at_a_time, "on a CPU none has a kernel");
        as_on_gpu(|| {
            assert_eq!(turns_of(128, 128, None), None);
            assert_eq!(turns_of(128, 128, Some(50.0)), two_at_a_time);
            assert_eq!(turns_of(192, 128, None), two_at_a_time);
            assert_eq!(turns_of(64, 128, None), two_at_a_time);
            assert_eq!(turns_of(256, 256, None), two_at_a_time);
            let (packed, scales, biases) = ops::quantize(of_length(64), 32, 8).unwrap();
            let half = QuantizedArray { packed, scales, biases };
            let keys_values =
                KeysValues::Quantized { keys: half.clone(), values: half, group_size: 32, bits: 8 };
            let found = turns(&of_length(64), &keys_values, (None, &Mask::Causal), 24);
            assert_eq!(found, two_at_a_time);
        });
    }

    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const HEAD_DIM: usize = 32;

    fn normal(heads: usize, length: usize) -> Array {
        let shape = [1, heads as i32, length as i32, HEAD_DIM as i32];
        mlx_rs::random::normal::<f32>(&shape, None, None, None).unwrap()
    }

    /// `[heads, L, D]` as rows of numbers.
    fn rows(array: &Array) -> Vec<Vec<f32>> {
        let numbers = array.contiguous().unwrap();
        numbers.as_slice::<f32>().chunks(HEAD_DIM).map(<[f32]>::to_vec).collect()
    }

    /// Attention as its formula says, `[L, H D]`: the last query has the last key's position.
    fn by_formula(
        [queries, keys, values]: [&Array; 3],
        scale: f32,
        sinks: [f32; HEADS],
        window: usize,
    ) -> Vec<f32> {
        let (length, num_keys) = (queries.dim(2) as usize, keys.dim(2) as usize);
        let [queries, keys, values] = [queries, keys, values].map(rows);
        let mut output = Vec::new();
        for index in 0..length {
            let position = num_keys - length + index;
            let seen = (position + 1).saturating_sub(window)..position + 1;
            for (head, sink) in sinks.into_iter().enumerate() {
                let of_head = |column| head / (HEADS / KV_HEADS) * num_keys + column;
                let query = &queries[head * length + index];
                let weight = |column| {
                    let products = query.iter().zip(&keys[of_head(column)]).map(|(q, k)| q * k);
                    (scale * products.sum::<f32>()).exp()
                };
                let sum = sink.exp() + seen.clone().map(weight).sum::<f32>();
                let number = |at: usize| {
                    let value = |column| weight(column) / sum * values[of_head(column)][at];
                    seen.clone().map(value).sum::<f32>()
                };
                output.extend((0..HEAD_DIM).map(number));
            }
        }
        output
    }

    #[test]
    fn a_sink_takes_its_share_in_every_form_of_attention() {
        const PREFIX: i32 = 5;
        const NUM_KEYS: usize = 9;
        const SINKS: [f32; HEADS] = [-1.0, 0.0, 1.5, 3.0];
        let sinks = Array::from_slice(&SINKS, &[HEADS as i32]);
        let (keys, values) = (normal(KV_HEADS, NUM_KEYS), normal(KV_HEADS, NUM_KEYS));
        let (group_size, bits) = (32, 8);
        let quantize = |array: &Array| {
            let (packed, scales, biases) = ops::quantize(array, group_size, bits).unwrap();
            QuantizedArray { packed, scales, biases }
        };
        let dequantize = |array: &QuantizedArray| {
            let QuantizedArray { packed, scales, biases } = array;
            ops::dequantize(packed, scales, biases, group_size, bits).unwrap()
        };
        let columns = |array: &Array, from: i32, to: i32| {
            ffi::slice(array, &[0, 0, from, 0], &[1, array.dim(1), to, array.dim(3)]).unwrap()
        };
        let dense = |from, to| KeysValues::Dense {
            keys: columns(&keys, from, to),
            values: columns(&values, from, to),
        };
        let packed = [quantize(&keys), quantize(&values)];
        let [close_keys, close_values] = packed.each_ref().map(dequantize);
        let [quantized_keys, quantized_values] = packed;
        let quantized = KeysValues::Quantized {
            keys: quantized_keys,
            values: quantized_values,
            group_size,
            bits,
        };
        let after_prefix = KeysValues::AfterPrefix {
            prefix: dense(0, PREFIX).into(),
            own: dense(PREFIX, NUM_KEYS as i32).into(),
        };
        let forms = [
            ("dense", dense(0, NUM_KEYS as i32), [&keys, &values]),
            ("quantized", quantized, [&close_keys, &close_values]),
            ("after a prefix", after_prefix, [&keys, &values]),
        ];
        for length in [1, 3] {
            let queries = normal(HEADS, length as usize);
            let all = if length == 1 { Mask::None } else { Mask::Causal };
            let some = causal_mask(length, NUM_KEYS as i32 - length, Some(6)).unwrap();
            for (window, mask) in [(NUM_KEYS, all), (6, Mask::Array(some))] {
                for (name, keys_values, [keys, values]) in &forms {
                    let expected = by_formula([&queries, keys, values], 0.2, SINKS, window);
                    let scores = Scores::from(0.2).with_sinks(Some(&sinks));
                    let found = attention(&queries, keys_values, scores, &mask).unwrap();
                    let found = found.contiguous().unwrap();
                    let off = found.as_slice::<f32>().iter().zip(&expected);
                    let off = off.map(|(found, expected)| (found - expected).abs());
                    let off = off.fold(0.0, f32::max);
                    assert!(off < 2e-6, "{name}, {length} tokens, window {window}: off by {off}");
                }
            }
        }
    }
}
