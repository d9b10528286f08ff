//! Attention of one token: head norms, RoPE, the append to the newest tokens, and the scores.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::{CudaKernels, is_bfloat16, traced};
use crate::device_kernels::{HeadShape, Kernel, Rotation};
use crate::ffi::{Compiled, CudaKernel, Launch};

/// The inputs of `attention.cu`.
pub(super) const INPUTS: &[&str] =
    &["qkv", "k", "v", "tail_k", "tail_v", "sizes", "angles", "query_norm", "key_norm"];

/// See [`DeviceKernels::attention`](crate::device_kernels::DeviceKernels::attention).
#[derive(Debug)]
pub(super) struct Attention {
    compiled: Compiled,
    heads: HeadShape,
}

/// The constants of a layer.
#[derive(Debug)]
struct Constants {
    heads: HeadShape,
    pairs: i32,
    traditional: bool,
    has_norms: bool,
    eps: f32,
}

impl Attention {
    pub(super) fn new(
        kernels: &CudaKernels,
        heads: HeadShape,
        rotation: Rotation<'_>,
    ) -> Option<Self> {
        let Rotation { norms, angles, traditional } = rotation;
        let are_bfloat16 =
            |([query, key], _): ([&Array; 2], f32)| is_bfloat16(query) && is_bfloat16(key);
        if !matches!(heads.head_dim, 64 | 128 | 256)
            || heads.softcap.is_some()
            || !norms.is_none_or(are_bfloat16)
        {
            return None;
        }
        let constants = Constants {
            heads,
            pairs: angles.dim(0),
            traditional,
            has_norms: norms.is_some(),
            eps: norms.map_or(0.0, |(_, eps)| eps),
        };
        let angles = angles.clone();
        let weights = norms.map(|(weights, _)| weights.map(Array::clone));
        let (attention, combine) = (kernels.attention.clone(), kernels.combine.clone());
        let compiled = traced(move |slot: &[Array; 6]| {
            let [qkv, keys, values, newest_keys, newest_values, sizes] = slot;
            let [query_norm, key_norm] = match &weights {
                Some(weights) => weights.each_ref(),
                None => [qkv, qkv], // not read
            };
            let inputs = [
                qkv,
                keys,
                values,
                newest_keys,
                newest_values,
                sizes,
                &angles,
                query_norm,
                key_norm,
            ];
            constants.launch(&attention, &combine, inputs)
        })?;
        Some(Attention { compiled, heads })
    }
}

impl Kernel for Attention {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        /// Every step copies the newest tokens, which pays only if they are few bytes.
        const MAX_NEWEST_BYTES: usize = 1 << 20;
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        let (arrays, newest) = (&inputs[..5], inputs[3]);
        let fits = *inputs[0].shape() == [1, 1, (heads + 2 * kv_heads) * head_dim]
            && inputs[1].shape()[..2] == [1, kv_heads]
            && newest.nbytes() <= MAX_NEWEST_BYTES
            && arrays.iter().all(|array| is_bfloat16(array));
        if !fits {
            return Ok(None);
        }
        self.compiled.call::<3>(inputs).map(|outputs| Some(outputs.into()))
    }
}

impl Constants {
    fn launch(
        &self,
        attention: &CudaKernel,
        combine: &CudaKernel,
        inputs: [&Array; 9],
    ) -> Result<Vec<Array>, Exception> {
        let HeadShape { heads, kv_heads, head_dim, scale, .. } = self.heads;
        let (capacity, newest) = (inputs[1].dim(2), inputs[3].dim(2));
        // Keys are split into parts, so that long contexts occupy the device.
        let splits = if capacity <= 2048 { 1 } else { 16 };
        let threads = if splits == 1 { 1024 } else { 256 };
        let (whole, parts) = ([1, 1, heads * head_dim], [heads, splits, head_dim + 2]);
        let first: (&[i32], _) =
            if splits == 1 { (&whole, Dtype::Bfloat16) } else { (&parts, Dtype::Float32) };
        let next: (&[i32], _) = (&[1, kv_heads, newest, head_dim], Dtype::Bfloat16);
        let [mut attended, keys, values] = attention.apply(
            &inputs,
            Launch {
                constants: &[
                    (c"HEADS", heads),
                    (c"KV_HEADS", kv_heads),
                    (c"D", head_dim),
                    (c"TAIL", newest),
                    (c"SPLITS", splits),
                    (c"THREADS", threads),
                    (c"PAIRS", self.pairs),
                    (c"TRADITIONAL", i32::from(self.traditional)),
                    (c"NORM", i32::from(self.has_norms)),
                    (c"EPS_BITS", self.eps.to_bits() as i32),
                    (c"SCALE_BITS", scale.to_bits() as i32),
                ],
                blocks: [heads, splits, 1],
                threads,
                outputs: [first, next, next],
            },
        )?;
        if splits > 1 {
            [attended] = combine.apply(
                &[&attended],
                Launch {
                    constants: &[(c"SPLITS", splits), (c"D", head_dim)],
                    blocks: [heads, 1, 1],
                    threads: head_dim,
                    outputs: [(&whole, Dtype::Bfloat16)],
                },
            )?;
        }
        Ok(vec![attended, keys, values])
    }
}
