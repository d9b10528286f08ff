//! A decoder's layers, from its description.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::{
    Around, AttentionKind, Decoder, ExpertsKind, HeadNormKind, LayerKind, Matrix, Mixer, MlpInputs,
    MlpKind, NormKind, Projections, Routing, Wiring, recurrent::RecurrentLayer,
};
use crate::LmError;
use crate::cache::{ArraysCache, AttentionStep, LayerCache};
use crate::device_kernels::{HeadShape, Kernels, LayerParts};
use crate::nn::stored_experts::single_names;
use crate::nn::{
    ExpertBlend, ExpertSizes, HeadLayerNorm, HeadNorms, LatentAttention, LayerOperations, Linear,
    Norm, NormGatedUp, NormProjections, NormResidual, NormUp, ProductResidual, Rope, RopeAttention,
    SharedExpert, SharedForm, UpActivation, WholeLayers,
};
use crate::weights::Layer;

/// A layer: what mixes tokens, and a feed-forward network.
#[derive(Debug)]
pub(super) struct Block {
    /// What both read, where they are parallel.
    shared_norm: Option<Norm>,
    mixer: Option<MixerLayer>,
    mlp: Option<FeedForward>,
    /// Mixer and network of one token, where the device computes them in one launch.
    whole: Option<WholeLayers>,
}

#[derive(Debug)]
enum MixerLayer {
    Attention(Box<Attention>),
    Recurrent(Box<Recurrent>),
    Both { norm: Norm, recurrent: Box<Recurrent>, attention: Box<Attention> },
}

/// What layers of one pass share.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Of layers that attend, by their window and chunk.
    of_attention: Vec<([Option<i32>; 2], AttentionStep)>,
    /// Which tokens belong to their row, of recurrent layers.
    mask: Option<Option<Array>>,
}

impl Steps {
    /// The step of a layer with this window and chunk: layers that attend as far back share one.
    pub(super) fn of_attention(
        &mut self,
        length: i32,
        [window, chunk]: [Option<i32>; 2],
        cache: &LayerCache,
    ) -> Result<&AttentionStep, Exception> {
        let reach = [window, chunk];
        let known = self.of_attention.iter().position(|(known, _)| *known == reach);
        let index = match known {
            Some(index) => index,
            None => {
                let step = match chunk {
                    Some(chunk) => cache.attention_step_in_chunks(length, chunk)?,
                    None => cache.attention_step(length, window)?,
                };
                self.of_attention.push((reach, step));
                self.of_attention.len() - 1
            }
        };
        Ok(&self.of_attention[index].1)
    }

    fn mask(&mut self, length: i32, cache: &ArraysCache) -> Option<&Array> {
        self.mask.get_or_insert_with(|| cache.mask(length)).as_ref()
    }
}

impl Block {
    pub(super) fn load(
        layer: &mut Layer,
        decoder: &Decoder,
        kind: &LayerKind,
    ) -> Result<Self, LmError> {
        let none = Around { before: None, after: None };
        let (shared, mixer, mlp) = match decoder.wiring {
            Wiring::Sequential { attention, mlp } => (None, attention, mlp),
            Wiring::Parallel { norm } => (Some(norm), none, none),
        };
        let shared_norm = shared.map(|name| load_norm(layer, decoder, name)).transpose()?;
        let mixer = match kind.blocks.has_mixer() {
            true => Some(MixerLayer::load(layer, decoder, kind, mixer)?),
            false => None,
        };
        let mlp = match decoder.experts.filter(|_| kind.has_experts) {
            _ if !kind.blocks.has_network() => None,
            Some(experts) => Some(FeedForward::load_experts(layer, decoder, experts, mlp)?),
            None => Some(FeedForward::Dense(Box::new(Mlp::load(layer, decoder, mlp)?))),
        };
        Ok(Block { shared_norm, mixer, mlp, whole: None })
    }

    /// Asks for the kernel of the whole layer.
    pub(super) fn prepare_whole(&mut self, kernels: &Kernels) {
        let whole = self.parts().and_then(|parts| WholeLayers::new(kernels, &[parts]));
        self.whole = whole;
    }

    /// What a kernel of whole layers computes; `None` for layers that it does not know.
    pub(super) fn parts(&self) -> Option<LayerParts<'_>> {
        self.operations()?.parts()
    }

    /// How far the layer attends: its window and chunk; `None` for layers that do more than attend, or
    /// do not.
    pub(super) fn reach(&self) -> Option<[Option<i32>; 2]> {
        match &self.mixer {
            Some(MixerLayer::Attention(attention)) => Some(attention.reach),
            _ => None,
        }
    }

    /// The operations of a layer that attends and then has a gated network; `None` for others, and
    /// where something else is computed between them.
    fn operations(&self) -> Option<LayerOperations<'_>> {
        let (None, Some(MixerLayer::Attention(mixer)), Some(FeedForward::Dense(mlp))) =
            (&self.shared_norm, &self.mixer, &self.mlp)
        else {
            return None;
        };
        let (Heads::Projected(heads), Added::Product(attention_output)) =
            (&mixer.heads, &mixer.output)
        else {
            return None;
        };
        let (Inputs::Gated(gate_up), Added::Product(down)) = (&mlp.inputs, &mlp.output) else {
            return None;
        };
        let ProjectedHeads { projections, attention } = heads.as_ref();
        Some(LayerOperations { projections, attention, attention_output, gate_up, down })
    }

    /// The residual stream of one token after the layer, computed in one launch; `None` where the
    /// mixer and the network have to run.
    fn forward_whole(
        &self,
        x: &Array,
        cache: &mut LayerCache,
        steps: &mut Steps,
    ) -> Result<Option<Array>, Exception> {
        let (Some(whole), Some(reach), [1, 1, _]) = (&self.whole, self.reach(), x.shape()) else {
            return Ok(None);
        };
        let step = steps.of_attention(1, reach, cache)?;
        whole.forward(x, &mut [cache], step)
    }

    /// The residual stream `[B, L, D]` after the layer. A layer with a mixer takes the next cache.
    pub(super) fn forward<'a>(
        &self,
        mut x: Array,
        caches: &mut impl Iterator<Item = &'a mut LayerCache>,
        steps: &mut Steps,
    ) -> Result<Array, Exception> {
        let normed = self.shared_norm.as_ref().map(|norm| norm.forward(&x)).transpose()?;
        if let Some(mixer) = &self.mixer {
            let Some(cache) = caches.next() else {
                return Err(Exception::custom("a layer has no cache".to_owned()));
            };
            if let Some(output) = self.forward_whole(&x, cache, steps)? {
                return Ok(output);
            }
            x = mixer.forward(normed.as_ref().unwrap_or(&x), &x, cache, steps)?;
        }
        match &self.mlp {
            Some(mlp) => mlp.forward(normed.as_ref().unwrap_or(&x), &x),
            None => Ok(x),
        }
    }
}

impl MixerLayer {
    fn load(
        layer: &mut Layer,
        decoder: &Decoder,
        kind: &LayerKind,
        around: Around,
    ) -> Result<Self, LmError> {
        Ok(match kind.mixer {
            Mixer::Attention => {
                let attention = Attention::load(layer, decoder, kind, around)?;
                MixerLayer::Attention(Box::new(attention))
            }
            Mixer::Recurrent => {
                MixerLayer::Recurrent(Box::new(Recurrent::load(layer, decoder, around)?))
            }
            Mixer::Both => {
                let own = Around { before: None, after: around.after };
                MixerLayer::Both {
                    norm: load_before(layer, decoder, around)?,
                    recurrent: Box::new(Recurrent::load(layer, decoder, own)?),
                    attention: Box::new(Attention::load(layer, decoder, kind, own)?),
                }
            }
        })
    }

    /// The residual stream `[B, L, D]` with the output for `x` added.
    fn forward(
        &self,
        x: &Array,
        residual: &Array,
        cache: &mut LayerCache,
        steps: &mut Steps,
    ) -> Result<Array, Exception> {
        match self {
            MixerLayer::Attention(attention) => attention.forward(x, residual, cache, steps),
            MixerLayer::Recurrent(recurrent) => recurrent.forward(x, residual, cache, steps),
            MixerLayer::Both { norm, recurrent, attention } => {
                let [states, keys] = cache.entries()? else {
                    return Err(Exception::custom("a layer has two caches".to_owned()));
                };
                let normed = norm.forward(x)?;
                let h = recurrent.forward(&normed, residual, states, steps)?;
                attention.forward(&normed, &h, keys, steps)
            }
        }
    }
}

/// A recurrent layer with the norms around it and the residual.
#[derive(Debug)]
struct Recurrent {
    layer: RecurrentLayer,
    output: Added,
}

impl Recurrent {
    fn load(layer: &mut Layer, decoder: &Decoder, around: Around) -> Result<Self, LmError> {
        let Some(kind) = &decoder.recurrent else {
            return Err(Exception::custom("no recurrent layers are described".to_owned()).into());
        };
        let norm = load_before(layer, decoder, around)?;
        let mut own = layer.layer(decoder.names.recurrent);
        let recurrent = RecurrentLayer::load(&mut own, kind, norm, decoder.hidden)?;
        let output = kind.load_output(&mut own, decoder.hidden)?;
        Ok(Recurrent { layer: recurrent, output: Added::load(layer, decoder, around, output)? })
    }

    /// The residual stream `[B, L, D]` with the output for `x` added.
    fn forward(
        &self,
        x: &Array,
        residual: &Array,
        cache: &mut LayerCache,
        steps: &mut Steps,
    ) -> Result<Array, Exception> {
        let state = cache.state()?;
        let mask = steps.mask(x.dim(1), state);
        let mixed = self.layer.forward(x, state, mask)?;
        self.output.forward(&mixed, residual)
    }
}

fn load_norm(layer: &mut Layer, decoder: &Decoder, name: &str) -> Result<Norm, LmError> {
    decoder.norm.load(&mut layer.layer(name), decoder.hidden)
}

/// The norm before a block, if it has one.
fn load_before(layer: &mut Layer, decoder: &Decoder, around: Around) -> Result<Norm, LmError> {
    around.before.map_or(Ok(Norm::None), |name| load_norm(layer, decoder, name))
}

/// How a block's output is added to the residual stream.
#[derive(Debug)]
enum Added {
    Product(ProductResidual),
    /// Normalized before it is added.
    Normed {
        product: Linear,
        norm: NormResidual,
    },
}

impl Added {
    /// Adds what `product` computes, after the norm behind the block if it has one.
    fn load(
        layer: &mut Layer,
        decoder: &Decoder,
        around: Around,
        product: Linear,
    ) -> Result<Self, LmError> {
        let Some(name) = around.after else {
            let scaled = ProductResidual::scaled(product, decoder.residual_multiplier)?;
            return Ok(Added::Product(scaled));
        };
        product.eval()?;
        let norm = decoder.norm.load_rms(&mut layer.layer(name), decoder.hidden)?;
        Ok(Added::Normed { product, norm: NormResidual::new(norm, &layer.kernels()) })
    }

    fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        match self {
            Added::Product(product) => product.forward(x, residual),
            Added::Normed { product, norm } => norm.forward(&product.forward(x)?, residual),
        }
    }
}

/// Attention with the norms around it and the residual.
#[derive(Debug)]
struct Attention {
    /// How far it attends: its window and chunk.
    reach: [Option<i32>; 2],
    heads: Heads,
    output: Added,
}

/// From the input to the heads' outputs.
#[derive(Debug)]
enum Heads {
    Projected(Box<ProjectedHeads>),
    Latent(Box<LatentAttention>),
}

#[derive(Debug)]
struct ProjectedHeads {
    projections: NormProjections<3>,
    attention: RopeAttention,
}

impl Attention {
    fn load(
        layer: &mut Layer,
        decoder: &Decoder,
        kind: &LayerKind,
        around: Around,
    ) -> Result<Self, LmError> {
        let (attention, hidden) = (&decoder.attention, decoder.hidden);
        let norm = load_before(layer, decoder, around)?;
        let kernels = layer.kernels();
        let mut own = layer.layer(decoder.names.attention);
        let rope = kind.rope.clone().map(Rope::new);
        let output = attention.output.load(&mut own, attention.num_outputs(), hidden)?;
        let heads = match attention.projections {
            Projections::Latent(sizes) => {
                let Some(rope) = rope else {
                    let missing = "latent attention rotates a part of each key";
                    return Err(Exception::custom(missing.to_owned()).into());
                };
                let heads = attention.heads;
                let latent = LatentAttention::load(&mut own, norm, hidden, heads, sizes, rope)?;
                Heads::Latent(Box::new(latent))
            }
            _ => {
                let projections = attention.load_projections(&mut own, hidden)?;
                let HeadShape { heads, kv_heads, head_dim, .. } = attention.heads;
                let sizes = [(heads, 'q'), (kv_heads, 'k')];
                let norms = match (attention.head_norms, &kind.rope) {
                    (HeadNormKind::Unweighted { where_unrotated: false, .. }, None) => {
                        HeadNorms::None
                    }
                    (norms, _) => norms.load(&mut own, decoder.norm, sizes, head_dim)?,
                };
                let sinks = match attention.has_sinks {
                    true => Some(own.take("sinks", &[heads])?.as_dtype(projections[0].dtype())?),
                    false => None,
                };
                // No kernel knows them.
                let is_plain = kind.position_scale.is_none() && sinks.is_none();
                let kernels = kernels.filter(|_| is_plain);
                let mut heads = RopeAttention::new(attention.heads, norms, rope, &kernels)?;
                heads.scale_positions(kind.position_scale);
                heads.add_sinks(sinks);
                let projections = NormProjections::new(norm, projections)?;
                Heads::Projected(Box::new(ProjectedHeads { projections, attention: heads }))
            }
        };
        let output = Added::load(layer, decoder, around, output)?;
        Ok(Attention { reach: [kind.window, kind.chunk], heads, output })
    }

    /// The residual stream `[B, L, D]` with the attention output of `x` added.
    fn forward(
        &self,
        x: &Array,
        residual: &Array,
        cache: &mut LayerCache,
        steps: &mut Steps,
    ) -> Result<Array, Exception> {
        let step = steps.of_attention(x.dim(1), self.reach, cache)?;
        let attended = match &self.heads {
            Heads::Projected(heads) => {
                heads.attention.forward(heads.projections.forward(x)?, cache, step)?
            }
            Heads::Latent(attention) => attention.forward(x, cache, step)?,
        };
        self.output.forward(&attended, residual)
    }
}

impl AttentionKind {
    fn load_projections(&self, layer: &mut Layer, hidden: i32) -> Result<[Linear; 3], LmError> {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        let sizes @ [queries, keys, values] =
            [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim];
        match self.projections {
            Projections::Separate { has_bias } => {
                let mut load =
                    |name, outputs| Matrix::new(name, has_bias).load(layer, hidden, outputs);
                Ok([load("q_proj", queries)?, load("k_proj", keys)?, load("v_proj", values)?])
            }
            Projections::Joined(matrix) => {
                let all = matrix.load(layer, hidden, sizes.iter().sum())?;
                Ok(all.into_parts(sizes)?)
            }
            Projections::Latent(_) => {
                Err(Exception::custom("they come from short vectors".to_owned()).into())
            }
        }
    }
}

impl HeadNormKind {
    /// The norms of queries and keys, of so many heads, with the first letter of their names.
    fn load(
        self,
        layer: &mut Layer,
        norm: NormKind,
        heads: [(i32, char); 2],
        head_dim: i32,
    ) -> Result<HeadNorms, LmError> {
        let [queries, keys] = heads;
        let called = if self == HeadNormKind::OfEachCalledLayernorm { "layernorm" } else { "norm" };
        let mut rms = |(_, name): (i32, char), dimensions| {
            norm.load_rms(&mut layer.layer(&format!("{name}_{called}")), dimensions)
        };
        match self {
            HeadNormKind::None => Ok(HeadNorms::None),
            HeadNormKind::Unweighted { eps, .. } => Ok(HeadNorms::Unweighted(eps)),
            HeadNormKind::OfEach | HeadNormKind::OfEachCalledLayernorm => {
                Ok(HeadNorms::OfEach([rms(queries, head_dim)?, rms(keys, head_dim)?]))
            }
            HeadNormKind::OfAll => Ok(HeadNorms::OfAll([
                rms(queries, queries.0 * head_dim)?,
                rms(keys, keys.0 * head_dim)?,
            ])),
            HeadNormKind::OfEachByItself | HeadNormKind::OfEachInPieces => {
                let (NormKind::Rms(eps) | NormKind::RmsPlusOne(eps) | NormKind::Layer { eps, .. }) =
                    norm;
                let mut weight = |(count, name): (i32, char)| {
                    if self == HeadNormKind::OfEachByItself {
                        return layer
                            .layer(&format!("{name}_norm"))
                            .take("weight", &[count, head_dim]);
                    }
                    let mut norms = layer.layer(&format!("{name}_layernorm"));
                    let mut norms = norms.layer("norms");
                    let each = (0..count)
                        .map(|head| norms.layer(&head.to_string()).take("weight", &[head_dim]));
                    let each = each.collect::<Result<Vec<_>, _>>()?;
                    let weight = ops::stack(&each, 0)?;
                    weight.eval()?;
                    Ok(weight)
                };
                let [queries, keys] = [weight(queries)?, weight(keys)?];
                let norm = |weight| HeadLayerNorm { weight, eps };
                Ok(HeadNorms::OfEachByItself([norm(queries), norm(keys)]))
            }
        }
    }
}

/// The second half of a layer.
#[derive(Debug)]
enum FeedForward {
    Dense(Box<Mlp>),
    Experts { norm: Norm, blend: Box<ExpertBlend>, shared: Option<Box<SharedExpert>> },
}

impl FeedForward {
    fn load_experts(
        layer: &mut Layer,
        decoder: &Decoder,
        experts: ExpertsKind,
        around: Around,
    ) -> Result<Self, LmError> {
        let multiplier = decoder.residual_multiplier;
        let has_share = experts.shared.is_some_and(|shared| shared.share.is_some());
        if around.after.is_some() || (multiplier.is_some() && has_share) {
            let missing = "a share of an expert is added to the residual stream as it is";
            return Err(Exception::custom(missing.to_owned()).into());
        }
        let scale = match (experts.routing.scale, multiplier) {
            (Some(scale), Some(multiplier)) => Some(scale * multiplier),
            (scale, multiplier) => scale.or(multiplier),
        };
        let routing = Routing { scale, ..experts.routing };
        let sizes = ExpertSizes {
            hidden: decoder.hidden,
            intermediate: experts.intermediate,
            num_experts: experts.count,
            routing,
            form: experts.form,
        };
        let norm = load_before(layer, decoder, around)?;
        let shared = match experts.shared {
            Some(kind) => {
                let hidden = decoder.hidden;
                let shared = match kind.form {
                    SharedForm::LinearsInLayer => {
                        SharedExpert::scaled(layer, hidden, kind, multiplier)?
                    }
                    SharedForm::Gated | SharedForm::Ungated => {
                        let mut block = layer.layer(experts.block);
                        SharedExpert::scaled(&mut block, hidden, kind, multiplier)?
                    }
                };
                Some(Box::new(shared))
            }
            None => None,
        };
        let mut block = layer.layer(experts.block);
        let blend = Box::new(ExpertBlend::load(&mut block, sizes)?);
        Ok(FeedForward::Experts { norm, blend, shared })
    }

    /// The residual stream `[B, L, D]` with the output for `x` added.
    fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        match self {
            FeedForward::Dense(mlp) => mlp.forward(x, residual),
            FeedForward::Experts { norm, blend, shared } => {
                let normed = norm.forward(x)?;
                let sum = blend.forward(&normed, residual)?;
                match shared {
                    Some(shared) => shared.forward(&normed, &sum),
                    None => Ok(sum),
                }
            }
        }
    }
}

/// A matrix of a gated network under the name that the files have.
fn numbered(name: &'static str, layer: &Layer) -> Matrix {
    let is_held = |name: &&str| layer.holds(&format!("{name}.weight"));
    Matrix::new(single_names(name).into_iter().find(is_held).unwrap_or(name), false)
}

/// A feed-forward network with the norms around it and the residual.
#[derive(Debug)]
struct Mlp {
    inputs: Inputs,
    output: Added,
}

#[derive(Debug)]
enum Inputs {
    Gated(NormGatedUp),
    Plain(NormUp),
}

/// The matrices of a network's first half.
enum UpMatrices {
    /// The gate's and the other.
    Gated([Linear; 2]),
    Plain(Linear, UpActivation),
}

impl MlpKind {
    /// Takes the matrices of the first half and of the output from the layer.
    fn load(self, layer: &mut Layer, hidden: i32) -> Result<(UpMatrices, Linear), LmError> {
        let MlpKind { block, intermediate, inputs, .. } = self;
        if let MlpInputs::GatedOrLinears(name) = inputs
            && layer.holds(&format!("{name}.output_linear.weight"))
        {
            let mut own = layer.layer(name);
            let both = Matrix::new("input_linear", false);
            let gate_up = load_joined(&mut own, both, hidden, intermediate)?;
            let output = Matrix::new("output_linear", false);
            return Ok((gate_up, output.load(&mut own, intermediate, hidden)?));
        }
        let mut own = layer.layer(block);
        let mut output = self.output;
        let usual = |has_bias| ["gate_proj", "up_proj"].map(|name| Matrix::new(name, has_bias));
        let first_half = match inputs {
            MlpInputs::GatedOrLinears(_) => {
                load_pair(&mut own, usual(false), hidden, intermediate)?
            }
            MlpInputs::Gated { has_bias } => {
                load_pair(&mut own, usual(has_bias), hidden, intermediate)?
            }
            MlpInputs::GatedOrNumbered => {
                output = numbered("down_proj", &own);
                let pair = ["gate_proj", "up_proj"].map(|name| numbered(name, &own));
                load_pair(&mut own, pair, hidden, intermediate)?
            }
            MlpInputs::GatedJoined(matrix) => load_joined(&mut own, matrix, hidden, intermediate)?,
            MlpInputs::Plain(matrix) => {
                let up = matrix.load(&mut own, hidden, intermediate)?;
                UpMatrices::Plain(up, UpActivation::Gelu)
            }
            MlpInputs::SquaredRelu(matrix) => {
                let up = matrix.load(&mut own, hidden, intermediate)?;
                UpMatrices::Plain(up, UpActivation::SquaredRelu)
            }
        };
        Ok((first_half, output.load(&mut own, intermediate, hidden)?))
    }
}

/// A gate and the rest.
fn load_pair(
    layer: &mut Layer,
    matrices: [Matrix; 2],
    hidden: i32,
    intermediate: i32,
) -> Result<UpMatrices, LmError> {
    let [gate, up] = matrices.map(|matrix| matrix.load(layer, hidden, intermediate));
    Ok(UpMatrices::Gated([gate?, up?]))
}

/// A gate and the rest, which are one matrix in the files.
fn load_joined(
    layer: &mut Layer,
    matrix: Matrix,
    hidden: i32,
    intermediate: i32,
) -> Result<UpMatrices, LmError> {
    let both = matrix.load(layer, hidden, 2 * intermediate)?;
    Ok(UpMatrices::Gated(both.into_parts([intermediate; 2])?))
}

impl Mlp {
    fn load(layer: &mut Layer, decoder: &Decoder, around: Around) -> Result<Self, LmError> {
        let norm = load_before(layer, decoder, around)?;
        let (first_half, output) = decoder.mlp.load(layer, decoder.hidden)?;
        let inputs = match first_half {
            UpMatrices::Gated(gate_up) => {
                Inputs::Gated(NormGatedUp::new(norm, gate_up, decoder.mlp.activation)?)
            }
            UpMatrices::Plain(up, activation) => Inputs::Plain(NormUp::new(norm, up, activation)?),
        };
        Ok(Mlp { inputs, output: Added::load(layer, decoder, around, output)? })
    }

    /// The residual stream `[B, L, D]` with the network's output for `x` added.
    fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        let activated = match &self.inputs {
            Inputs::Gated(gated) => gated.forward(x)?,
            Inputs::Plain(plain) => plain.forward(x)?,
        };
        self.output.forward(&activated, residual)
    }
}
