//! Scaled dot-product attention over a layer's cache, dense or quantized.

use mlx_rs::error::Exception;
use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
use mlx_rs::{Array, Dtype, ops};

use crate::cache::{KeysValues, Mask, QuantizedArray, causal_mask};
use crate::device_kernels::HeadShape;
use crate::ffi;
use crate::nn::attention_after_prefix::attention_after_prefix;
use crate::nn::attention_shapes::{attention_in_few_shapes, plans_for_each_shape, suits};

/// How products of queries and keys become scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scores {
    /// Their factor.
    pub scale: f32,
    /// What they are capped to after that, c: `c tanh(score / c)`.
    pub softcap: Option<f32>,
}

impl From<f32> for Scores {
    fn from(scale: f32) -> Self {
        Scores { scale, softcap: None }
    }
}

impl From<HeadShape> for Scores {
    fn from(HeadShape { scale, softcap, .. }: HeadShape) -> Self {
        Scores { scale, softcap }
    }
}

impl Scores {
    /// Scores of products with scaled queries.
    pub(super) fn capped(self, scores: Array) -> Result<Array, Exception> {
        match self.softcap {
            Some(cap) => softcap(&scores, cap),
            None => Ok(scores),
        }
    }
}

/// `c tanh(x / c)` of each number.
pub fn softcap(x: &Array, cap: f32) -> Result<Array, Exception> {
    let small = ops::divide(x, constant(cap, x.dtype())?)?;
    ops::multiply(ops::tanh(&small)?, constant(cap, x.dtype())?)
}

/// Attention of `queries` `[B, H, L, D]` over the keys and values that the layer's cache returned
/// for this step; H is a multiple of H_kv (grouped-query attention). Returns `[B, L, H * D]`.
pub fn attention(
    queries: &Array,
    keys_values: &KeysValues,
    scores: impl Into<Scores>,
    mask: &Mask,
) -> Result<Array, Exception> {
    let scores = scores.into();
    let Scores { scale, softcap } = scores;
    let [batch, _, length, _] = *queries.shape() else {
        return Err(Exception::custom(format!(
            "attention takes queries of four axes, got {:?}",
            queries.shape()
        )));
    };
    let output = match keys_values {
        KeysValues::Dense { keys, values } if softcap.is_some() => {
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
            attention_in_few_shapes(queries, keys, values, scale, mask)?
        }
        KeysValues::Dense { keys, values } => {
            let mask = match mask {
                Mask::None => None,
                Mask::Causal => Some(ScaledDotProductAttentionMask::Causal),
                Mask::Array(mask) => Some(ScaledDotProductAttentionMask::Array(mask)),
            };
            scaled_dot_product_attention(queries, keys, values, scale, mask, None)?
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

/// Which of the two a product takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Transposed.
    Keys,
    Values,
}

/// Attention over quantized keys and values, as mlx-lm's quantized_scaled_dot_product_attention;
/// returns `[B, H, L, D]`.
fn quantized_attention(
    queries: &Array,
    keys: &QuantizedArray,
    values: &QuantizedArray,
    (group_size, bits): (i32, i32),
    scores: Scores,
    mask: &Mask,
) -> Result<Array, Exception> {
    let product = |left: &Array, side| {
        let right = if side == Side::Keys { keys } else { values };
        ops::quantized_matmul(
            left,
            &right.packed,
            &right.scales,
            &right.biases,
            side == Side::Keys,
            group_size,
            bits,
        )
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
    scoring: Scores,
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
    let output = product(&ops::softmax_axes(scores, &[-1], true)?, Side::Values)?;
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

/// A scalar of this dtype, so that operations with it keep the dtype.
pub(super) fn constant(number: f32, dtype: Dtype) -> Result<Array, Exception> {
    match dtype {
        Dtype::Float32 => Ok(Array::from_f32(number)),
        // Rounded here: a conversion would be a node of every graph.
        Dtype::Bfloat16 => {
            let high = (bfloat16(number).to_bits() >> 16) as u16;
            ffi::array_from_bytes(&high.to_le_bytes(), &[], dtype)
        }
        _ => Array::from_f32(number).as_dtype(dtype),
    }
}

/// The bfloat16 nearest to a finite number.
pub fn bfloat16(number: f32) -> f32 {
    let bits = number.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

pub(super) fn least(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Float16 => -65504.0,
        // The lowest bfloat16; f32::MIN itself would round to minus infinity.
        Dtype::Bfloat16 => f32::from_bits(0xff7f_0000),
        _ => f32::MIN,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::path::Path;

    use super::*;
    use crate::weights::mlx_dtype;
    use cairn_formats::safetensors::{Limits, SafetensorsFile};

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
}
