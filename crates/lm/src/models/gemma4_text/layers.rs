//! Gemma 4's layers, and what they are given of a token.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::experts::Experts;
use super::{LayerShape, NORMS, Shape, Source};
use crate::LmError;
use crate::cache::{AttentionStep, KeysValues, LayerCache};
use crate::device_kernels::{Activation, HeadShape};
use crate::ffi;
use crate::nn::{
    Elementwise, Embedding, GatedActivation, Linear, NormGatedUp, NormProjections, NormResidual,
    Projected, RmsNorm, Rope, attention, fused, scalar,
};
use crate::weights::{Layer, Weights};

/// What each layer is given of a token, beside the residual stream.
#[derive(Debug)]
pub(super) struct LayerInputs {
    embed: Embedding,
    projection: Linear,
    norm: RmsNorm,
    /// The normalized projection plus the scaled embedding, scaled.
    sum: Elementwise<2>,
    width: i32,
}

impl LayerInputs {
    pub(super) fn load(weights: &mut Weights, shape: &Shape, width: i32) -> Result<Self, LmError> {
        let all = width * shape.layers.len() as i32;
        let embed = Embedding::load(
            &mut weights.layer("model.embed_tokens_per_layer"),
            shape.input_vocab,
            all,
        )?;
        let dtype = embed.forward(&Array::from_slice(&[0], &[1, 1]))?.dtype();
        let mut projection = weights.layer("model.per_layer_model_projection");
        let projection = Linear::load(&mut projection, shape.hidden, all, false)?;
        projection.eval()?;
        let mut norm = weights.layer("model.per_layer_projection_norm");
        // What is normalized is the projection times hidden^-0.5: that factor is one of epsilon.
        let norm = RmsNorm::load(&mut norm, width, shape.eps * shape.hidden as f32)?;
        let embed_scale = scalar((width as f32).sqrt(), dtype)?;
        let sum_scale = scalar(0.5f32.sqrt(), dtype)?;
        let sum = Elementwise::new(move |[normed, of_token]| {
            let both = ops::add(normed, ops::multiply(of_token, &embed_scale)?)?;
            ops::multiply(both, &sum_scale)
        });
        Ok(LayerInputs { embed, projection, norm, sum, width })
    }

    /// Of token ids `[B, L]` and their scaled embeddings `x` `[B, L, D]`: `[B, L, layers P]`.
    pub(super) fn forward(&self, tokens: &Array, x: &Array) -> Result<Array, Exception> {
        let of_tokens = self.embed.forward(tokens)?;
        let projected = self.projection.forward(x)?;
        let by_layer = projected.reshape(&[x.dim(0), x.dim(1), -1, self.width])?;
        let normed = self.norm.forward(&by_layer)?.reshape(of_tokens.shape())?;
        self.sum.call([&normed, &of_tokens])
    }
}

#[derive(Debug)]
pub(super) struct DecoderLayer {
    pub(super) attention: Attention,
    attention_norm: NormResidual,
    gate_up: NormGatedUp,
    down_proj: Linear,
    experts: Option<Experts>,
    mlp_norm: NormResidual,
    input: Option<InputGate>,
    layer_scalar: Array, // [1]
    scaled: Elementwise<2>,
}

impl DecoderLayer {
    pub(super) fn load(
        layer: &mut Layer,
        shape: &Shape,
        kind: &LayerShape,
    ) -> Result<Self, LmError> {
        let (hidden, eps, kernels) = (shape.hidden, shape.eps, layer.kernels());
        let [before, attention_norm, before_mlp, mlp_norm] =
            NORMS.map(|name| RmsNorm::load(&mut layer.layer(name), hidden, eps));
        let attention = Attention::load(&mut layer.layer("self_attn"), hidden, kind, before?, eps)?;
        let mut linear =
            |name, inputs, outputs| Linear::load(&mut layer.layer(name), inputs, outputs, false);
        let gate_up = [
            linear("mlp.gate_proj", hidden, kind.intermediate)?,
            linear("mlp.up_proj", hidden, kind.intermediate)?,
        ];
        let down_proj = linear("mlp.down_proj", kind.intermediate, hidden)?;
        down_proj.eval()?;
        let experts =
            shape.experts.map(|sizes| Experts::load(layer, hidden, sizes, eps)).transpose()?;
        let input =
            shape.input_dim.map(|width| InputGate::load(layer, shape, width)).transpose()?;
        Ok(DecoderLayer {
            attention,
            attention_norm: NormResidual::new(attention_norm?, &kernels),
            gate_up: NormGatedUp::new(before_mlp?, gate_up, Activation::GeluApprox)?,
            down_proj,
            experts,
            mlp_norm: NormResidual::new(mlp_norm?, &kernels),
            input,
            layer_scalar: layer.take("layer_scalar", &[1])?,
            scaled: Elementwise::new(|[x, scale]| ops::multiply(x, scale)),
        })
    }

    /// The residual stream after the layer, of the one before it and the output of attention,
    /// `[B, L, D]`, and what the layer is given, `[B, L, P]`.
    pub(super) fn forward(
        &self,
        x: &Array,
        attended: &Array,
        input: Option<&Array>,
    ) -> Result<Array, Exception> {
        let h = self.attention_norm.forward(attended, x)?;
        let dense = self.down_proj.forward(&self.gate_up.forward(&h)?)?;
        let mixed = match &self.experts {
            Some(experts) => experts.forward(&h, &dense)?,
            None => dense,
        };
        let mut h = self.mlp_norm.forward(&mixed, &h)?;
        if let (Some(gate), Some(input)) = (&self.input, input) {
            h = gate.forward(&h, input)?;
        }
        self.scaled.call([&h, &self.layer_scalar])
    }
}

/// Adds what a layer is given, as far as the residual stream opens a gate to it.
#[derive(Debug)]
struct InputGate {
    gate: Linear,
    activation: GatedActivation,
    projection: Linear,
    norm: NormResidual,
}

impl InputGate {
    fn load(layer: &mut Layer, shape: &Shape, width: i32) -> Result<Self, LmError> {
        let mut linear =
            |name, inputs, outputs| Linear::load(&mut layer.layer(name), inputs, outputs, false);
        let gate = linear("per_layer_input_gate", shape.hidden, width)?;
        let projection = linear("per_layer_projection", width, shape.hidden)?;
        gate.eval()?;
        projection.eval()?;
        let activation = GatedActivation::new(Activation::GeluApprox, gate.dtype())?;
        let mut norm = layer.layer("post_per_layer_input_norm");
        let norm = RmsNorm::load(&mut norm, shape.hidden, shape.eps)?;
        Ok(InputGate {
            gate,
            activation,
            projection,
            norm: NormResidual::new(norm, &layer.kernels()),
        })
    }

    fn forward(&self, x: &Array, input: &Array) -> Result<Array, Exception> {
        let gated = self.activation.forward(&self.gate.forward(x)?, input)?;
        self.norm.forward(&self.projection.forward(&gated)?, x)
    }
}

/// Attention with the norm before it.
#[derive(Debug)]
pub(super) struct Attention {
    projections: Projections,
    q_norm: RmsNorm,
    keys: Option<Keys>, // none where they come from another layer
    rope: Rope,
    o_proj: Linear,
    heads: HeadShape,
    eps: f32,
}

/// What a layer with keys of its own does with them.
#[derive(Debug)]
struct Keys {
    norm: RmsNorm,
    /// The weights of the norms of all query and key heads, `[H + KV, 1, D]`.
    head_weights: Array,
    weighted: Elementwise<2>,
}

#[derive(Debug)]
enum Projections {
    QueriesKeysValues(NormProjections<3>),
    QueriesKeys(NormProjections<2>),
    Queries(NormProjections<1>),
}

impl Attention {
    fn load(
        layer: &mut Layer,
        hidden: i32,
        kind: &LayerShape,
        norm: RmsNorm,
        eps: f32,
    ) -> Result<Self, LmError> {
        let HeadShape { heads, kv_heads, head_dim, .. } = kind.heads;
        let mut linear =
            |name, inputs, outputs| Linear::load(&mut layer.layer(name), inputs, outputs, false);
        let queries = linear("q_proj", hidden, heads * head_dim)?;
        let o_proj = linear("o_proj", heads * head_dim, hidden)?;
        o_proj.eval()?;
        let mut of_keys = |name| linear(name, hidden, kv_heads * head_dim);
        let projections = match kind.keys_values {
            Source::Projections => {
                let all = [queries, of_keys("k_proj")?, of_keys("v_proj")?];
                Projections::QueriesKeysValues(NormProjections::new(norm, all)?)
            }
            Source::KeyProjection => {
                let both = [queries, of_keys("k_proj")?];
                Projections::QueriesKeys(NormProjections::new(norm, both)?)
            }
            Source::Layer(_) => Projections::Queries(NormProjections::new(norm, [queries])?),
        };
        let mut head_norm = |name| RmsNorm::load(&mut layer.layer(name), head_dim, eps);
        let has_keys = !matches!(kind.keys_values, Source::Layer(_));
        let q_norm = head_norm("q_norm")?;
        let k_norm = has_keys.then(|| head_norm("k_norm")).transpose()?;
        Ok(Attention {
            projections,
            keys: k_norm.map(|norm| Keys::new(norm, &q_norm, kind.heads)).transpose()?,
            q_norm,
            rope: Rope::new(kind.rope.clone()),
            o_proj,
            heads: kind.heads,
            eps,
        })
    }

    /// The output `[B, L, D]`, and the keys and values that were attended to.
    pub(super) fn forward(
        &self,
        x: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<(Array, KeysValues), Exception> {
        let Some(of_keys) = &self.keys else { return Err(no_keys()) };
        if x.dim(1) == 1
            && let Some([queries, keys, values]) = self.of_one_token(x, of_keys, step)?
        {
            let keys_values = cache.update_and_fetch(keys, values)?;
            cache.observe(&queries, self.heads)?;
            return Ok((self.attend(&queries, &keys_values, step)?, keys_values));
        }
        let (queries, keys, values) = match &self.projections {
            Projections::QueriesKeysValues(projections) => {
                let [queries, keys, values] = projections.forward_split(x)?;
                let values = self.split(&values)?;
                (queries, self.split(&keys)?, values)
            }
            Projections::QueriesKeys(projections) => {
                let [queries, keys] = projections.forward_split(x)?;
                let keys = self.split(&keys)?;
                (queries, keys.clone(), keys)
            }
            Projections::Queries(_) => return Err(no_keys()),
        };
        let length = x.dim(1);
        let keys = by_head(of_keys.norm.forward(&keys)?, length)?;
        let keys = self.rope.forward(&keys, &step.offset)?;
        let values = by_head(fused::rms_norm(&values, None, self.eps)?, length)?;
        let keys_values = cache.update_and_fetch(keys, values)?;
        let queries = self.heads_of(&queries, step)?;
        cache.observe(&queries, self.heads)?;
        Ok((self.attend(&queries, &keys_values, step)?, keys_values))
    }

    /// Queries, keys and values `[B, H, 1, D]` of a single token, whose projections are one array: all
    /// heads are normalized by one operation, and queries and keys rotated by one. None where the
    /// projections are several.
    fn of_one_token(
        &self,
        x: &Array,
        of_keys: &Keys,
        step: &AttentionStep,
    ) -> Result<Option<[Array; 3]>, Exception> {
        let projected = match &self.projections {
            Projections::QueriesKeysValues(all) if all.is_joined() => joined(all.forward(x)?),
            Projections::QueriesKeys(both) if both.is_joined() => joined(both.forward(x)?),
            _ => None,
        };
        let Some(projected) = projected else { return Ok(None) };
        let HeadShape { heads, kv_heads, .. } = self.heads;
        // Values are normalized without a weight.
        let normed = fused::rms_norm(self.split(&projected)?, None, self.eps)?;
        let cut = |x: &Array, from: i32, to: i32| {
            let (batch, width) = (x.dim(0), x.dim(3));
            ffi::slice(x, &[0, from, 0, 0], &[batch, to, 1, width])
        };
        let end_of_keys = heads + kv_heads;
        let num_heads = normed.dim(1);
        // The last heads, which are the keys where those are values too.
        let values = cut(&normed, num_heads - kv_heads, num_heads)?;
        let both = if num_heads == end_of_keys { normed } else { cut(&normed, 0, end_of_keys)? };
        let weighted = of_keys.weighted.call([&both, &of_keys.head_weights])?;
        let rotated = self.rope.forward(&weighted, &step.offset)?;
        let (queries, keys) = (cut(&rotated, 0, heads)?, cut(&rotated, heads, end_of_keys)?);
        Ok(Some([queries, keys, values]))
    }

    /// The output `[B, L, D]` of a layer that attends to another one's keys and values.
    pub(super) fn forward_shared(
        &self,
        x: &Array,
        keys_values: &KeysValues,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let Projections::Queries(projections) = &self.projections else { return Err(no_keys()) };
        let [queries] = projections.forward_split(x)?;
        self.attend(&self.heads_of(&queries, step)?, keys_values, step)
    }

    /// Projected queries to those of each head, `[B, H, L, D]`.
    fn heads_of(&self, queries: &Array, step: &AttentionStep) -> Result<Array, Exception> {
        let length = queries.dim(1);
        let queries = by_head(self.q_norm.forward(&self.split(queries)?)?, length)?;
        self.rope.forward(&queries, &step.offset)
    }

    fn attend(
        &self,
        queries: &Array,
        keys_values: &KeysValues,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        self.o_proj.forward(&attention(queries, keys_values, self.heads, &step.mask)?)
    }

    /// `[B, L, H D]` to `[B, L, H, D]`, or for a single token `[B, H, 1, D]`.
    fn split(&self, x: &Array) -> Result<Array, Exception> {
        let (batch, length, head_dim) = (x.dim(0), x.dim(1), self.heads.head_dim);
        match length {
            1 => x.reshape(&[batch, -1, 1, head_dim]),
            _ => x.reshape(&[batch, length, -1, head_dim]),
        }
    }
}

impl Keys {
    fn new(norm: RmsNorm, q_norm: &RmsNorm, heads: HeadShape) -> Result<Self, Exception> {
        let HeadShape { heads, kv_heads, head_dim, .. } = heads;
        let of_heads =
            |norm: &RmsNorm, count| ops::broadcast_to(norm.parts().0, &[count, 1, head_dim]);
        let weights = [of_heads(q_norm, heads)?, of_heads(&norm, kv_heads)?];
        let head_weights = ops::concatenate(&weights, 0)?;
        head_weights.eval()?;
        let weighted = Elementwise::new(|[x, weights]| ops::multiply(x, weights));
        Ok(Keys { norm, head_weights, weighted })
    }
}

fn joined<const N: usize>(projected: Projected<N>) -> Option<Array> {
    match projected {
        Projected::Joined(joined) => Some(joined),
        Projected::Parts(_) => None,
    }
}

/// What [`Attention::split`] returned of so many tokens, as `[B, H, L, D]`.
fn by_head(x: Array, length: i32) -> Result<Array, Exception> {
    if length == 1 { Ok(x) } else { x.transpose_axes(&[0, 2, 1, 3]) }
}

fn no_keys() -> Exception {
    Exception::custom("a layer without keys has no cache".to_owned())
}
