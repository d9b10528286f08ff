//! Attention from the projections of its input to its heads' outputs: head norms, RoPE, the cache.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::cache::{AttentionStep, DecodeSlot, LayerCache, Mask, RopeOffset};
use crate::device_kernels::{HeadShape, Kernel, Kernels, Rotation, run};
use crate::ffi;
use crate::nn::{Projected, RmsNorm, Rope, attention, split_heads};

/// Normalizes (if the model does) and rotates queries and keys, appends keys and values to the
/// cache, and attends.
#[derive(Debug)]
pub struct RopeAttention {
    heads: HeadShape,
    norms: Option<[RmsNorm; 2]>,
    rope: Rope,
    kernel: Option<Box<dyn Kernel>>,
}

impl RopeAttention {
    /// Attention with `norms` for the vectors of query and key heads.
    pub fn new(
        heads: HeadShape,
        norms: Option<[RmsNorm; 2]>,
        rope: Rope,
        kernels: &Kernels,
    ) -> Result<Self, Exception> {
        let kernel = match kernels {
            Some(kernels) => {
                let (angles, traditional) = rope.angles()?;
                let norms = norms.as_ref().map(|norms| {
                    let [(query, eps), (key, _)] = norms.each_ref().map(RmsNorm::parts);
                    ([query, key], eps)
                });
                kernels.attention(&heads, Rotation { norms, angles: &angles, traditional })
            }
            None => None,
        };
        Ok(RopeAttention { heads, norms, rope, kernel })
    }

    /// Projections of queries, keys and values to the heads' outputs, `[B, L, H D]`.
    pub fn forward(
        &self,
        projected: Projected<3>,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        if let Projected::Joined(joined) = &projected
            && let Some(attended) = self.decode(joined, cache, step)?
        {
            return Ok(attended);
        }
        let [queries, keys, values] = self.rotated(projected, &step.offset)?;
        let keys_values = cache.update_and_fetch(keys, values)?;
        attention(&queries, &keys_values, self.heads.scale, &step.mask)
    }

    /// The kernel's output for one token; `None` where the plain form has to run.
    fn decode(
        &self,
        joined: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Option<Array>, Exception> {
        let is_single = matches!(joined.shape(), [1, 1, _]);
        if self.kernel.is_none() || !is_single || !matches!(step.mask, Mask::None) {
            return Ok(None);
        }
        let Some(slot) = cache.decode_slot()? else { return Ok(None) };
        let sizes = step.sizes(slot.sizes);
        let DecodeSlot { keys, values, newest_keys, newest_values, .. } = &slot;
        let inputs = [joined, keys, values, newest_keys, newest_values, &sizes];
        let Some([attended, keys, values]) = run(self.kernel.as_deref(), &inputs) else {
            return Ok(None);
        };
        cache.fill_decode_slot(keys, values);
        Ok(Some(attended))
    }

    /// Queries, keys and values, each `[B, heads, L, D]`.
    fn rotated(
        &self,
        projected: Projected<3>,
        offset: &RopeOffset,
    ) -> Result<[Array; 3], Exception> {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        let [queries, keys, values] = match projected {
            Projected::Parts([queries, keys, values]) => [
                split_heads(&queries, heads, self.norm(0))?,
                split_heads(&keys, kv_heads, self.norm(1))?,
                split_heads(&values, kv_heads, None)?,
            ],
            Projected::Joined(joined) => {
                let (batch, length) = (joined.dim(0), joined.dim(1));
                let all = heads + 2 * kv_heads;
                // For a single token the heads are adjacent already.
                let (shape, axis) = match length {
                    1 => ([batch, all, 1, head_dim], 1),
                    _ => ([batch, length, all, head_dim], 2),
                };
                let all = joined.reshape(&shape)?;
                let by_head = |array: Array| match length {
                    1 => Ok(array),
                    _ => array.transpose_axes(&[0, 2, 1, 3]),
                };
                if self.norms.is_none() {
                    // Queries and keys are adjacent and rotate by the same angles: one RoPE call.
                    let [both, values] = parts(&all, &[heads + kv_heads], axis)?;
                    let both = self.rope.forward(&by_head(both)?, offset)?;
                    let [queries, keys] = parts(&both, &[heads], 1)?;
                    return Ok([queries, keys, by_head(values)?]);
                }
                let [queries, keys, values] = parts(&all, &[heads, heads + kv_heads], axis)?;
                let normed = |array: Array, norm: Option<&RmsNorm>| match norm {
                    Some(norm) => norm.forward(&array),
                    None => Ok(array),
                };
                [
                    by_head(normed(queries, self.norm(0))?)?,
                    by_head(normed(keys, self.norm(1))?)?,
                    by_head(values)?,
                ]
            }
        };
        Ok([self.rope.forward(&queries, offset)?, self.rope.forward(&keys, offset)?, values])
    }

    fn norm(&self, index: usize) -> Option<&RmsNorm> {
        self.norms.as_ref().map(|norms| &norms[index])
    }
}

/// The N parts of an array, cut at `ends` along `axis`.
fn parts<const N: usize>(
    array: &Array,
    ends: &[i32],
    axis: usize,
) -> Result<[Array; N], Exception> {
    ffi::cut(array, ends, axis)?.try_into().map_err(|parts: Vec<Array>| {
        Exception::custom(format!("an array was cut into {} parts, not {N}", parts.len()))
    })
}
