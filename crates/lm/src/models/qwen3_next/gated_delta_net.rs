//! The recurrent layers: a short convolution over time, then the gated delta rule.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::{ModelArgs, Shape, Storage};
use crate::LmError;
use crate::cache::{ArraysCache, ArraysSpec, LayerCacheSpec, StateSize};
use crate::config::check_range;
use crate::ffi;
use crate::nn::exponential::silu;
use crate::nn::{
    ConvSizes, Elementwise, GatedDelta, GatedDeltaStep, Linear, NormProjections, ProductResidual,
    RmsNorm, ShortConv, fused, step_lengths,
};
use crate::tensor_list::TensorList;
use crate::weights::Layer;

/// The sizes of the linear attention layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinearShape {
    pub(super) key_heads: i32,
    pub(super) value_heads: i32,
    pub(super) key_dim: i32,
    pub(super) value_dim: i32,
    kernel: i32,
    /// In which the matrix of each head is held between steps.
    pub(super) state_dtype: Dtype,
}

impl LinearShape {
    pub(super) fn check(args: &ModelArgs) -> Result<Self, LmError> {
        let value_heads =
            check_range("linear_num_value_heads", args.linear_num_value_heads, 1..=1024)?;
        let key_heads = check_range("linear_num_key_heads", args.linear_num_key_heads, 1..=1024)?;
        if value_heads % key_heads != 0 {
            let allowed = format!("it must divide linear_num_value_heads = {value_heads}");
            return Err(LmError::Config {
                name: "linear_num_key_heads",
                value: key_heads.to_string(),
                allowed,
            });
        }
        let (key_dim, value_dim) = (args.linear_key_head_dim, args.linear_value_head_dim);
        Ok(LinearShape {
            key_heads,
            value_heads,
            key_dim: check_range("linear_key_head_dim", key_dim, 1..=4096)?,
            value_dim: check_range("linear_value_head_dim", value_dim, 1..=4096)?,
            kernel: check_range("linear_conv_kernel_dim", args.linear_conv_kernel_dim, 2..=64)?,
            state_dtype: Dtype::Float32,
        })
    }

    /// The total width of queries, keys and values.
    pub(super) fn channels(&self) -> i32 {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// The last inputs of the convolution, and the matrix of each head, which is computed in f32 whatever
    /// it is held in.
    pub(super) fn cache_spec(&self) -> LayerCacheSpec {
        let inputs = StateSize { shape: vec![self.kernel - 1, self.channels()], dtype: None };
        let shape = vec![self.value_heads, self.value_dim, self.key_dim];
        let matrices = StateSize { shape, dtype: Some(self.state_dtype) };
        LayerCacheSpec::Arrays(ArraysSpec { slots: vec![Some(inputs), Some(matrices)] })
    }

    /// Adds what [`GatedDeltaNet::load`] takes at `path`.
    pub(super) fn add_tensors(
        &self,
        list: &mut TensorList,
        path: &str,
        hidden: i32,
        storage: Storage,
    ) {
        let &LinearShape { value_heads, value_dim, kernel, .. } = self;
        let (values, channels) = (value_heads * value_dim, self.channels());
        let projections = match storage {
            Storage::Grouped => {
                vec![("in_proj_qkvz", channels + values), ("in_proj_ba", 2 * value_heads)]
            }
            Storage::Separate => vec![
                ("in_proj_qkv", channels),
                ("in_proj_z", values),
                ("in_proj_b", value_heads),
                ("in_proj_a", value_heads),
            ],
        };
        for (name, outputs) in projections {
            list.matrix(format!("{path}.{name}"), hidden, outputs);
        }
        // The layouts of mlx-lm and of Hugging Face.
        let shapes = vec![vec![channels, kernel, 1], vec![channels, 1, kernel]];
        list.plain_in(format!("{path}.conv1d.weight"), shapes);
        list.plain(format!("{path}.A_log"), &[value_heads]);
        list.plain(format!("{path}.dt_bias"), &[value_heads]);
        list.plain(format!("{path}.norm.weight"), &[value_dim]);
        list.matrix(format!("{path}.out_proj"), values, hidden);
    }
}

/// A short convolution over time, then the gated delta rule. Its cache holds the convolution's last
/// inputs `[B, K - 1, C]` and the state `[B, Hv, Dv, Dk]` (f32, or bf16 where asked for). C is the total width of queries,
/// keys and values.
#[derive(Debug)]
pub(super) struct GatedDeltaNet {
    /// Queries, keys and values concatenated; the output's gate z; b, which gives beta; a, which
    /// gives the decay.
    projections: NormProjections<4>,
    /// Returns f32, so that everything from here to the output's norm is computed in f32.
    conv: ShortConv,
    query_scale: Array, // [Dk]
    key_scale: Array,   // [Dk]
    decay_scale: Array, // f32 [Hv]: −exp(A_log)
    dt_bias: Array,     // f32 [Hv]
    step: GatedDeltaStep,
    norm: RmsNorm,
    gated: Elementwise<2>,
    out_proj: ProductResidual,
    shape: LinearShape,
}

/// Avoids division by zero when a vector of zeros is normalized.
const NORM_EPS: f32 = 1e-6;

/// The slots of a [`GatedDeltaNet`]'s cache.
const CONV_SLOT: usize = 0;
const STATE_SLOT: usize = 1;

impl GatedDeltaNet {
    pub(super) fn load(layer: &mut Layer, shape: &Shape, norm: RmsNorm) -> Result<Self, LmError> {
        let linear = shape.linear;
        let LinearShape { value_heads, key_dim, value_dim, kernel, .. } = linear;
        let projections = GatedDeltaNet::load_projections(layer, shape, norm)?;
        let channels = linear.channels();
        let conv = ConvSizes { channels, kernel, has_bias: false, activates: true };
        let decay_scale = ops::negative(ops::exp(
            layer.take("A_log", &[value_heads])?.as_dtype(Dtype::Float32)?,
        )?)?;
        let dt_bias = layer.take("dt_bias", &[value_heads])?.as_dtype(Dtype::Float32)?;
        let scale = (key_dim as f32).powf(-0.5);
        let everywhere =
            |number: f32| Array::from_slice(&vec![number; key_dim as usize], &[key_dim]);
        let out_proj = Linear::load(
            &mut layer.layer("out_proj"),
            value_heads * value_dim,
            shape.hidden,
            false,
        )?;
        mlx_rs::transforms::eval([&decay_scale, &dt_bias])?;
        Ok(GatedDeltaNet {
            projections,
            conv: ShortConv::load(&mut layer.layer("conv1d"), conv)?,
            step: GatedDeltaStep::new(&decay_scale, &dt_bias, linear.key_heads)?,
            query_scale: everywhere(scale * scale),
            key_scale: everywhere(scale),
            decay_scale,
            dt_bias,
            // Neither layout stores this weight minus one.
            norm: RmsNorm::load(&mut layer.layer("norm"), value_dim, shape.eps)?,
            gated: Elementwise::new(|[normed, z]| {
                let gate = silu(&z.as_dtype(Dtype::Float32)?)?;
                ops::multiply(normed, gate)?.as_dtype(z.dtype())
            }),
            out_proj: ProductResidual::new(out_proj)?,
            shape: linear,
        })
    }

    /// Grouped storage joins q, k, v and z by key head, and likewise b and a; here the groups are
    /// taken apart.
    fn load_projections(
        layer: &mut Layer,
        shape: &Shape,
        norm: RmsNorm,
    ) -> Result<NormProjections<4>, LmError> {
        let LinearShape { key_heads, value_heads, key_dim, value_dim, .. } = shape.linear;
        if shape.storage == Storage::Separate {
            let mut linear = |name: &str, outputs| {
                Linear::load(&mut layer.layer(name), shape.hidden, outputs, false)
            };
            let projections = [
                linear("in_proj_qkv", shape.linear.channels())?,
                linear("in_proj_z", value_heads * value_dim)?,
                linear("in_proj_b", value_heads)?,
                linear("in_proj_a", value_heads)?,
            ];
            return Ok(NormProjections::new(norm, projections)?);
        }
        let sharing = value_heads / key_heads;
        let widths = [key_dim, key_dim, sharing * value_dim, sharing * value_dim];
        let in_proj_qkvz = Linear::load(
            &mut layer.layer("in_proj_qkvz"),
            shape.hidden,
            key_heads * widths.iter().sum::<i32>(),
            false,
        )?;
        let in_proj_ba =
            Linear::load(&mut layer.layer("in_proj_ba"), shape.hidden, 2 * value_heads, false)?;
        let [q, k, v, z] = [0, 1, 2, 3].map(|part| part_of_each(&widths, part, key_heads));
        let [b, a] = [0, 1].map(|part| part_of_each(&[sharing, sharing], part, key_heads));
        let projections = [
            in_proj_qkvz.select_outputs(&[q, k, v].concat())?,
            in_proj_qkvz.select_outputs(&z)?,
            in_proj_ba.select_outputs(&b)?,
            in_proj_ba.select_outputs(&a)?,
        ];
        Ok(NormProjections::new(norm, projections)?)
    }

    /// The residual stream `[B, L, D]` with the outputs added.
    pub(super) fn forward(
        &self,
        x: &Array,
        cache: &mut ArraysCache,
        mask: Option<&Array>,
    ) -> Result<Array, Exception> {
        let &[batch, length, _] = x.shape() else {
            return Err(Exception::custom(format!(
                "the gated delta rule takes three axes, got {:?}",
                x.shape()
            )));
        };
        let LinearShape { value_heads, value_dim, .. } = self.shape;
        let [mut qkv, z, b, a] = self.projections.forward_split(x)?;
        if let Some(mask) = mask {
            qkv = ops::select(
                ops::expand_dims(mask, -1)?,
                &qkv,
                Array::from_slice(&[0.0f32], &[1]).as_dtype(qkv.dtype())?,
            )?;
        }
        let mixed = self.conv.forward(&qkv, cache, CONV_SLOT)?; // f32 [B, L, C]
        let [queries, keys, values] = self.heads(&mixed)?;
        let before = cache.get(STATE_SLOT);
        let (outputs, state) = match (length, mask) {
            (1, None) => self.step.forward(before, [&queries, &keys, &values], [&b, &a])?,
            _ => {
                let decay = self.decay(&a)?;
                let beta = ops::sigmoid(b.as_dtype(Dtype::Float32)?)?;
                GatedDelta { queries, keys, values, decay, beta }.update(before, mask)?
            }
        };
        cache.set(STATE_SLOT, state.as_dtype(self.shape.state_dtype)?);
        cache.advance(length as usize);

        let z = ops::reshape(z, &[batch, length, value_heads, value_dim])?;
        let gated = self.gated.call([&self.norm.forward(&outputs)?, &z])?;
        let gated = ops::reshape(gated, &[batch, length, -1])?;
        self.out_proj.forward(&gated, x)
    }

    /// Queries and keys `[B, L, Hk, Dk]` and values `[B, L, Hv, Dv]` from `[B, L, C]`.
    fn heads(&self, qkv: &Array) -> Result<[Array; 3], Exception> {
        let LinearShape { key_heads, value_heads, key_dim, value_dim, .. } = self.shape;
        let (batch, length) = (qkv.dim(0), qkv.dim(1));
        let heads = |from: i32, count: i32, dim: i32| {
            let part = ffi::slice(qkv, &[0, 0, from], &[batch, length, from + count * dim])?;
            ops::reshape(part, &[batch, length, count, dim])
        };
        // Normalization to unit length by rms_norm; the factor between the two is in the scales.
        let unit = |vectors: &Array, scale: &Array| {
            fused::rms_norm(vectors, Some(scale), NORM_EPS / key_dim as f32)
        };
        Ok([
            unit(&heads(0, key_heads, key_dim)?, &self.query_scale)?,
            unit(&heads(key_heads * key_dim, key_heads, key_dim)?, &self.key_scale)?,
            heads(2 * key_heads * key_dim, value_heads, value_dim)?,
        ])
    }

    /// The factors by which tokens scale the state before them, from the projection a `[B, L, Hv]`.
    fn decay(&self, a: &Array) -> Result<Array, Exception> {
        let steps = step_lengths(a, &self.dt_bias, [0.0, f32::INFINITY])?;
        ops::exp(ops::multiply(steps, &self.decay_scale)?)
    }
}

/// The indices of part `part` of every group, if each group concatenates parts of `widths`.
fn part_of_each(widths: &[i32], part: usize, num_groups: i32) -> Vec<i32> {
    let group: i32 = widths.iter().sum();
    let before: i32 = widths[..part].iter().sum();
    (0..num_groups)
        .flat_map(|index| index * group + before..index * group + before + widths[part])
        .collect()
}
