//! Attention from the projections of its input to its heads' outputs: head norms, RoPE, the cache.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::cache::{AttentionStep, DecodeSlot, LayerCache, RopeOffset};
use crate::device_kernels::{
    DeviceKernels, HeadShape, Kernel, Kernels, MOST_TOKENS, Rotation, run,
};
use crate::ffi;
use crate::nn::{PositionScale, Projected, RmsNorm, Rope, Scores, attention, fused};

/// What normalizes queries and keys.
#[derive(Debug)]
pub enum HeadNorms {
    /// Nothing.
    None,
    /// RMS norms of each head's vector, with one weight for all heads.
    OfEach([RmsNorm; 2]),
    /// RMS norms of the vectors of all heads together.
    OfAll([RmsNorm; 2]),
    /// Layer norms of each head's vector, with a weight for each head.
    OfEachByItself([HeadLayerNorm; 2]),
    /// RMS norms of each head's rotated vector without a weight, with this epsilon.
    Unweighted(f32),
}

impl From<Option<[RmsNorm; 2]>> for HeadNorms {
    fn from(norms: Option<[RmsNorm; 2]>) -> Self {
        norms.map_or(HeadNorms::None, HeadNorms::OfEach)
    }
}

/// A layer norm without a bias, whose weight differs from head to head.
#[derive(Debug)]
pub struct HeadLayerNorm {
    /// `[H, D]`
    pub weight: Array,
    /// Avoids division by zero.
    pub eps: f32,
}

impl HeadLayerNorm {
    /// `x` `[B, H, 1, D]` or `[B, L, H, D]` to the same shape.
    fn forward(&self, x: &Array, is_single: bool) -> Result<Array, Exception> {
        let normed = fused::layer_norm(x, None, None, self.eps)?;
        match is_single {
            true => ops::multiply(normed, self.weight.expand_dims(1)?),
            false => ops::multiply(normed, &self.weight),
        }
    }
}

/// Normalizes (if the model does) and rotates queries and keys (if the layer does), appends keys and
/// values to the cache, and attends.
#[derive(Debug)]
pub struct RopeAttention {
    heads: HeadShape,
    norms: HeadNorms,
    rope: Option<Rope>,
    position_scale: Option<PositionScale>,
    sinks: Option<Array>, // [H]
    kernel: Option<Box<dyn Kernel>>,
    /// What the kernel rotates heads by, as in [`Rope::angles`]; `None` without a kernel.
    angles: Option<(Array, bool)>,
}

impl RopeAttention {
    /// Attention with `norms` for the vectors of query and key heads.
    pub fn new(
        heads: HeadShape,
        norms: impl Into<HeadNorms>,
        rope: impl Into<Option<Rope>>,
        kernels: &Kernels,
    ) -> Result<Self, Exception> {
        let (norms, rope) = (norms.into(), rope.into());
        let mut attention = RopeAttention {
            heads,
            norms,
            rope,
            position_scale: None,
            sinks: None,
            kernel: None,
            angles: None,
        };
        if let Some(kernels) = kernels {
            attention.prepare(kernels.as_ref())?;
        }
        Ok(attention)
    }

    /// Scales queries by their position too. Without kernels only, which do not.
    pub fn scale_positions(&mut self, scale: Option<PositionScale>) {
        self.position_scale = scale;
    }

    /// Adds a score `[H]` without a value to each head's softmax. Without kernels only, which do not.
    pub fn add_sinks(&mut self, sinks: Option<Array>) {
        self.sinks = sinks;
    }

    /// Asks for the kernel.
    fn prepare(&mut self, kernels: &dyn DeviceKernels) -> Result<(), Exception> {
        if let HeadNorms::Unweighted(_) = self.norms {
            return Ok(());
        }
        let Some((angles, traditional)) = self.rope_angles()? else { return Ok(()) };
        let norms = match &self.norms {
            HeadNorms::OfEach(norms) => Some(parts_of_norms(norms)),
            // None, or computed before the kernel.
            _ => None,
        };
        self.kernel =
            kernels.attention(&self.heads, Rotation { norms, angles: &angles, traditional });
        self.angles = self.kernel.is_some().then_some((angles, traditional));
        Ok(())
    }

    /// What a kernel of a whole layer computes of the attention; `None` where the attention has no
    /// kernel, or one that computes only a part of it.
    pub(super) fn parts(&self) -> Option<(HeadShape, Rotation<'_>)> {
        let norms = match &self.norms {
            HeadNorms::None => None,
            HeadNorms::OfEach(norms) => Some(parts_of_norms(norms)),
            HeadNorms::OfAll(_) | HeadNorms::OfEachByItself(_) | HeadNorms::Unweighted(_) => {
                return None;
            }
        };
        let (angles, traditional) = self.angles.as_ref()?;
        Some((self.heads, Rotation { norms, angles, traditional: *traditional }))
    }

    /// What heads are rotated by, as in [`Rope::angles`].
    fn rope_angles(&self) -> Result<Option<(Array, bool)>, Exception> {
        match &self.rope {
            Some(rope) => rope.angles(),
            // A rotation by nothing.
            None => Ok(Some((Array::from_slice(&[0.0f32], &[1]), false))),
        }
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
        let [mut queries, keys, values] = self.rotated(projected, &step.offset)?;
        if let Some(scale) = &self.position_scale {
            queries = scale.forward(&queries, &step.offset)?;
        }
        let keys_values = cache.update_and_fetch(keys, values)?;
        cache.observe(&queries, self.heads)?;
        let scores = Scores::from(self.heads).with_sinks(self.sinks.as_ref());
        attention(&queries, &keys_values, scores, &step.mask)
    }

    /// The kernel's output for a token of each row, or a few of one, that see all before them; `None`
    /// where the plain form has to run.
    fn decode(
        &self,
        joined: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Option<Array>, Exception> {
        let [batch, length, _] = *joined.shape() else { return Ok(None) };
        if length > if batch == 1 { MOST_TOKENS } else { 1 } {
            return Ok(None);
        }
        let Some(kernel) = self.kernel.as_deref() else { return Ok(None) };
        append_in_slot(cache, step, length, |slot, slot_mapping| {
            let DecodeSlot { keys, values, newest_keys, newest_values, counters, .. } = slot;
            let normed = self.normed_joined(joined)?;
            let inputs =
                [&normed, keys, values, newest_keys, newest_values, slot_mapping, counters];
            Ok(run(Some(kernel), &inputs))
        })
    }

    /// Projections of a few tokens, `[B, L, (H + 2 H_kv) D]`, with the norms that kernels do not
    /// compute.
    fn normed_joined(&self, joined: &Array) -> Result<Array, Exception> {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        let ends = [heads * head_dim, (heads + kv_heads) * head_dim];
        let [queries, keys, values] = match &self.norms {
            HeadNorms::OfAll(_) | HeadNorms::OfEachByItself(_) => parts::<3>(joined, &ends, 2)?,
            HeadNorms::None | HeadNorms::OfEach(_) | HeadNorms::Unweighted(_) => {
                return Ok(joined.clone());
            }
        };
        let normed = |x: Array, index, count| {
            let whole = self.normed_whole(x, index)?;
            match &self.norms {
                HeadNorms::OfEachByItself(_) => {
                    let (batch, length) = (whole.dim(0), whole.dim(1));
                    let by_head = whole.reshape(&[batch, length, count, head_dim])?;
                    let normed = self.normed_heads(by_head, index, false)?;
                    normed.reshape(&[batch, length, count * head_dim])
                }
                _ => Ok(whole),
            }
        };
        let [queries, keys] = [normed(queries, 0, heads)?, normed(keys, 1, kv_heads)?];
        ops::concatenate(&[queries, keys, values], 2)
    }

    /// Queries, keys and values, each `[B, heads, L, D]`.
    fn rotated(
        &self,
        projected: Projected<3>,
        offset: &RopeOffset,
    ) -> Result<[Array; 3], Exception> {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        // For a single token the heads are adjacent already; of several, vectors are normalized
        // before their axes are swapped, while each is contiguous.
        let is_single = |array: &Array| array.dim(1) == 1;
        let split = |array: &Array, count: i32| {
            let batch = array.dim(0);
            array.reshape(&match is_single(array) {
                true => [batch, count, 1, head_dim],
                false => [batch, array.dim(1), count, head_dim],
            })
        };
        let by_head = |array: Array, is_single: bool| match is_single {
            true => Ok(array),
            false => array.transpose_axes(&[0, 2, 1, 3]),
        };
        let ([queries, keys, values], is_single) = match (projected, &self.norms) {
            (Projected::Joined(joined), HeadNorms::OfAll(_)) => {
                let ends = [heads * head_dim, (heads + kv_heads) * head_dim];
                let [queries, keys, values] = parts(&joined, &ends, 2)?;
                let [queries, keys] = [self.normed_whole(queries, 0)?, self.normed_whole(keys, 1)?];
                let split =
                    [split(&queries, heads)?, split(&keys, kv_heads)?, split(&values, kv_heads)?];
                (split, is_single(&joined))
            }
            (Projected::Joined(joined), norms) => {
                let is_single = is_single(&joined);
                let all = split(&joined, heads + 2 * kv_heads)?;
                let axis = if is_single { 1 } else { 2 };
                if let HeadNorms::None | HeadNorms::Unweighted(_) = norms {
                    // Queries and keys are adjacent and rotate by the same angles: one RoPE call.
                    let [both, values] = parts(&all, &[heads + kv_heads], axis)?;
                    let both = self.turned(by_head(both, is_single)?, offset)?;
                    let [queries, keys] = parts(&both, &[heads], 1)?;
                    return Ok([queries, keys, by_head(values, is_single)?]);
                }
                (parts(&all, &[heads, heads + kv_heads], axis)?, is_single)
            }
            (Projected::Parts([queries, keys, values]), _) => {
                let is_single = is_single(&queries);
                let [queries, keys] = [self.normed_whole(queries, 0)?, self.normed_whole(keys, 1)?];
                let split =
                    [split(&queries, heads)?, split(&keys, kv_heads)?, split(&values, kv_heads)?];
                (split, is_single)
            }
        };
        let queries = by_head(self.normed_heads(queries, 0, is_single)?, is_single)?;
        let keys = by_head(self.normed_heads(keys, 1, is_single)?, is_single)?;
        let values = by_head(values, is_single)?;
        Ok([self.turned(queries, offset)?, self.turned(keys, offset)?, values])
    }

    fn turned(&self, x: Array, offset: &RopeOffset) -> Result<Array, Exception> {
        let turned = match &self.rope {
            Some(rope) => rope.forward(&x, offset)?,
            None => x,
        };
        match self.norms {
            HeadNorms::Unweighted(eps) => fused::rms_norm(turned, None, eps),
            _ => Ok(turned),
        }
    }

    /// Queries (0) or keys (1) of all heads, `[B, L, H D]`.
    fn normed_whole(&self, x: Array, index: usize) -> Result<Array, Exception> {
        match &self.norms {
            HeadNorms::OfAll(norms) => norms[index].forward(&x),
            _ => Ok(x),
        }
    }

    /// Queries (0) or keys (1), head by head.
    fn normed_heads(&self, x: Array, index: usize, is_single: bool) -> Result<Array, Exception> {
        match &self.norms {
            HeadNorms::OfEach(norms) => norms[index].forward(&x),
            HeadNorms::OfEachByItself(norms) => norms[index].forward(&x, is_single),
            HeadNorms::None | HeadNorms::OfAll(_) | HeadNorms::Unweighted(_) => Ok(x),
        }
    }
}

/// What `launch` computes for `length` tokens that see all before them, given the cache's slot for
/// them and its mapping: an output, and the newest keys and values with theirs, which are appended.
/// `None` where the tokens see less, the cache has no slot for them, or nothing was launched.
fn append_in_slot(
    cache: &mut LayerCache,
    step: &AttentionStep,
    length: i32,
    launch: impl FnOnce(&DecodeSlot, &Array) -> Result<Option<[Array; 3]>, Exception>,
) -> Result<Option<Array>, Exception> {
    if !step.sees_all_before(length) {
        return Ok(None);
    }
    let Some(slot) = cache.decode_slot(length)? else { return Ok(None) };
    let Some([output, keys, values]) = launch(&slot, &step.slot_mapping(&slot)?)? else {
        return Ok(None);
    };
    cache.fill_decode_slot(keys, values, length);
    Ok(Some(output))
}

/// The weights and the epsilon of the norms of query and key heads.
fn parts_of_norms(norms: &[RmsNorm; 2]) -> ([&Array; 2], f32) {
    let [(query, eps), (key, _)] = norms.each_ref().map(RmsNorm::parts);
    ([query, key], eps)
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
