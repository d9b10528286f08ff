//! Decoders from a description: what a family's file says about its layers is all that
//! differs from one family to the next.
//!
//! ```text
//! config.json ─▶ ModelArgs ─▶ Decoder ─┬─▶ CacheSpec, TensorList, Scratch
//!                (a family)  (this)    └─▶ layers, with the operations of nn/
//! ```
//! [`Common::decoder`] describes a llama; a family's file changes in it what the family does
//! otherwise. Mathematics that no family had before is a layer of `nn/` and a choice here.

mod layers;
mod recurrent;
mod runs;
mod scratch;
mod shared_keys;

use std::fmt::Debug;
use std::marker::PhantomData;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use serde::de::DeserializeOwned;

use crate::LmError;
use crate::cache::{
    CacheSpec, KvSizes, KvSpec, LayerCache, LayerCacheSpec, ListSpec, RotatingSpec,
};
use crate::device_kernels::{Activation, HeadShape};
use crate::models::{Architecture, FromConfig, Outline, Scratch};
use crate::nn::{
    Embedding, LayerLaunches, LayerNorm, Linear, Norm, RmsNorm, RopeSpec, scalar, softcap,
};
use crate::published_numbers::PublishedNumbers;
use crate::tensor_list::{Left, TensorList};
use crate::weights::{Layer, Weights};

pub use crate::nn::{
    CachedForm, ClippedSwiGlu, ExpertActivation, ExpertForm, ExpertGroups, GateKind,
    GatedConvSizes, GroupRank, LatentSizes, Mamba2Sizes, MambaSizes, PositionScale, Routing, Score,
    SharedExpertKind, SharedForm, StoredExperts,
};
pub use crate::published_numbers::{MatrixFactor, PublishedFactors};
use layers::{Block, Steps};
pub use recurrent::RecurrentKind;
use runs::LayerRun;
pub use shared_keys::{Common, Usual};

/// A family of decoders, named by its arguments.
pub(crate) trait Family: DeserializeOwned + Debug + 'static {
    /// See [`Architecture::numerics_revision`].
    const NUMERICS_REVISION: u32 = 1;

    /// What a model with these arguments is. Fails on what is not supported.
    fn decoder(&self) -> Result<Decoder, LmError>;
}

/// A decoder, described by sizes that were checked and by choices.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub hidden: i32,
    pub vocab: i32,
    /// The most tokens that it can attend to.
    pub context: i32,
    /// What differs from layer to layer, for each.
    pub layers: Vec<LayerKind>,
    /// Every norm of hidden vectors, but for the last where that is another.
    pub norm: NormKind,
    /// The norm behind the last layer, if it is another.
    pub last_norm: Option<NormKind>,
    pub attention: AttentionKind,
    /// What layers that are recurrent have in place of attention.
    pub recurrent: Option<RecurrentKind>,
    /// The feed-forward network of layers without experts.
    pub mlp: MlpKind,
    pub experts: Option<ExpertsKind>,
    pub wiring: Wiring,
    pub names: Names,
    pub output: Output,
    /// The factor of embeddings.
    pub embedding_multiplier: Option<f32>,
    /// The factor of what a block adds to the residual stream.
    pub residual_multiplier: Option<f32>,
    /// The factor of logits.
    pub logit_multiplier: Option<f32>,
    /// What logits are capped to.
    pub logit_softcap: Option<f32>,
    /// Factors that belong into matrices.
    pub published_factors: Option<PublishedFactors>,
    /// Whether files may hold layers behind the last one, which predict further tokens and are left
    /// there.
    pub has_further_layers: bool,
}

/// What differs from layer to layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerKind {
    /// How many tokens it attends to; `None` is all.
    pub window: Option<i32>,
    /// The length of the chunks within which it attends; `None` is the whole sequence.
    pub chunk: Option<i32>,
    /// How it rotates queries and keys; `None` is not at all.
    pub rope: Option<RopeSpec>,
    /// How queries grow with their position.
    pub position_scale: Option<PositionScale>,
    /// Whether its feed-forward network consists of [`Decoder::experts`].
    pub has_experts: bool,
    pub mixer: Mixer,
    pub blocks: Blocks,
}

/// Which blocks a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// A mixer and a feed-forward network.
    Both,
    Mixer,
    /// A feed-forward network.
    Network,
}

impl Blocks {
    fn has_mixer(self) -> bool {
        matches!(self, Blocks::Both | Blocks::Mixer)
    }

    fn has_network(self) -> bool {
        matches!(self, Blocks::Both | Blocks::Network)
    }
}

/// What mixes a layer's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    Attention,
    /// [`Decoder::recurrent`].
    Recurrent,
    /// Both, of which each reads the same normalized vectors, and both are added.
    Both,
}

/// What parts of a model are below in the weight files.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub embeddings: &'static str,
    pub layers: &'static str,
    /// The norm behind the last layer.
    pub norm: &'static str,
    /// In a layer.
    pub attention: &'static str,
    /// In a layer.
    pub recurrent: &'static str,
}

impl Names {
    /// Those of most families, which are not recurrent.
    pub const USUAL: Names = Names {
        embeddings: "model.embed_tokens",
        layers: "model.layers",
        norm: "model.norm",
        attention: "self_attn",
        recurrent: "recurrent",
    };
}

/// A norm, with epsilon.
#[derive(Debug, Clone, Copy)]
pub enum NormKind {
    Rms(f32),
    /// An RMS norm that is stored less one.
    RmsPlusOne(f32),
    Layer {
        eps: f32,
        has_bias: bool,
    },
}

/// The attention of every layer.
#[derive(Debug, Clone)]
pub struct AttentionKind {
    pub heads: HeadShape,
    pub projections: Projections,
    pub output: Matrix,
    pub head_norms: HeadNormKind,
    /// Whether the softmax of each head has a score without a value: `sinks`.
    pub has_sinks: bool,
}

/// Where queries, keys and values come from.
#[derive(Debug, Clone, Copy)]
pub enum Projections {
    /// `q_proj`, `k_proj` and `v_proj`.
    Separate { has_bias: bool },
    /// One matrix of all three.
    Joined(Matrix),
    /// Short vectors, of which the heads' are made. Heads have no norms then.
    Latent(LatentSizes),
}

/// A matrix in the weight files.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    pub name: &'static str,
    pub has_bias: bool,
}

impl Matrix {
    pub const fn new(name: &'static str, has_bias: bool) -> Self {
        Matrix { name, has_bias }
    }
}

/// What normalizes queries and keys before they are rotated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadNormKind {
    None,
    /// [`NormKind`] of each head's vector: `q_norm` and `k_norm`.
    OfEach,
    /// The same, called `q_layernorm` and `k_layernorm`.
    OfEachCalledLayernorm,
    /// [`NormKind`] of all heads' vectors together: `q_norm` and `k_norm`.
    OfAll,
    /// A layer norm of each head's vector with a weight of its own: `q_norm` and `k_norm`, of
    /// heads times their length.
    OfEachByItself,
    /// The same, stored head by head: `q_layernorm.norms.0` and so on.
    OfEachInPieces,
    /// An RMS norm of each head's vector without a weight, after the rotation; in layers that do not
    /// rotate too, or there none.
    Unweighted {
        eps: f32,
        where_unrotated: bool,
    },
}

/// A feed-forward network.
#[derive(Debug, Clone, Copy)]
pub struct MlpKind {
    /// What holds it.
    pub block: &'static str,
    pub intermediate: i32,
    pub activation: Activation,
    pub inputs: MlpInputs,
    pub output: Matrix,
}

/// Feed-forward networks of which each token uses a few: `silu(gate) * up` each.
#[derive(Debug, Clone, Copy)]
pub struct ExpertsKind {
    /// What holds them and their router.
    pub block: &'static str,
    pub count: i32,
    pub intermediate: i32,
    pub routing: Routing,
    pub form: ExpertForm,
    /// One more that all tokens use.
    pub shared: Option<SharedExpertKind>,
}

/// The first half of a feed-forward network.
#[derive(Debug, Clone, Copy)]
pub enum MlpInputs {
    /// `gate_proj` and `up_proj`: `activation(gate) * up`.
    Gated { has_bias: bool },
    /// The same without biases; it and the output may be called `w1`, `w3` and `w2`.
    GatedOrNumbered,
    /// The same without biases; files may have it as `input_linear` and `output_linear` below this
    /// name, with the gate first.
    GatedOrLinears(&'static str),
    /// The same as one matrix, the gate first.
    GatedJoined(Matrix),
    /// `gelu(up)`.
    Plain(Matrix),
    /// `relu(up)²`.
    SquaredRelu(Matrix),
}

/// How blocks are connected, with the names of their norms.
#[derive(Debug, Clone, Copy)]
pub enum Wiring {
    /// The feed-forward network follows attention.
    Sequential { attention: Around, mlp: Around },
    /// Both read the same normalized vectors, and both are added.
    Parallel { norm: &'static str },
}

/// The norms before and after a block.
#[derive(Debug, Clone, Copy)]
pub struct Around {
    pub before: Option<&'static str>,
    pub after: Option<&'static str>,
}

impl Around {
    pub const fn before(name: &'static str) -> Self {
        Around { before: Some(name), after: None }
    }

    pub const fn after(name: &'static str) -> Self {
        Around { before: None, after: Some(name) }
    }

    pub const fn both(before: &'static str, after: &'static str) -> Self {
        Around { before: Some(before), after: Some(after) }
    }
}

/// Where logits come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The embeddings.
    Tied,
    /// `lm_head`.
    Own { has_bias: bool },
    /// `lm_head` if the weight files hold it, otherwise the embeddings.
    IfStored,
}

impl NormKind {
    /// Takes the norm of vectors of `dimensions` from `layer`.
    fn load(self, layer: &mut Layer, dimensions: i32) -> Result<Norm, LmError> {
        Ok(match self {
            NormKind::Rms(_) | NormKind::RmsPlusOne(_) => {
                Norm::Rms(self.load_rms(layer, dimensions)?)
            }
            NormKind::Layer { eps, has_bias } => {
                Norm::Layer(LayerNorm::load(layer, dimensions, eps, has_bias)?)
            }
        })
    }

    /// As [`NormKind::load`], where `nn` has RMS norms only.
    fn load_rms(self, layer: &mut Layer, dimensions: i32) -> Result<RmsNorm, LmError> {
        match self {
            NormKind::Rms(eps) => RmsNorm::load(layer, dimensions, eps),
            NormKind::RmsPlusOne(eps) => RmsNorm::load_plus_one(layer, dimensions, eps),
            NormKind::Layer { .. } => {
                Err(Exception::custom("no layer norm is written for this place".to_owned()).into())
            }
        }
    }

    fn list(self, list: &mut TensorList, path: &str, dimensions: i32) {
        list.plain(format!("{path}.weight"), &[dimensions]);
        if matches!(self, NormKind::Layer { has_bias: true, .. }) {
            list.plain(format!("{path}.bias"), &[dimensions]);
        }
    }
}

impl Matrix {
    fn load(self, layer: &mut Layer, inputs: i32, outputs: i32) -> Result<Linear, LmError> {
        Linear::load(&mut layer.layer(self.name), inputs, outputs, self.has_bias)
    }

    fn list(self, list: &mut TensorList, path: &str, inputs: i32, outputs: i32) {
        let path = format!("{path}.{}", self.name);
        if self.has_bias {
            list.plain(format!("{path}.bias"), &[outputs]);
        }
        list.matrix(path, inputs, outputs);
    }
}

impl Decoder {
    /// A cache for each layer: of all tokens, of those in its window, or of a state.
    fn cache_spec(&self) -> CacheSpec {
        let sizes = Some(self.attention.cache_sizes());
        let attends = |layer: &LayerKind| match layer.window {
            Some(window) => {
                LayerCacheSpec::Rotating(RotatingSpec { max_size: window as usize, keep: 0, sizes })
            }
            None => LayerCacheSpec::Kv(KvSpec::new(sizes)),
        };
        let of_layer = |layer: &LayerKind| match (layer.mixer, &self.recurrent) {
            (Mixer::Recurrent, Some(recurrent)) => recurrent.cache_spec(),
            (Mixer::Both, Some(recurrent)) => LayerCacheSpec::List(ListSpec {
                entries: vec![recurrent.cache_spec(), attends(layer)],
            }),
            _ => attends(layer),
        };
        let layers = self.layers.iter().filter(|layer| layer.blocks.has_mixer());
        CacheSpec::new(layers.map(of_layer).collect())
    }

    /// What [`FromConfig::load`] takes.
    fn tensors(&self) -> TensorList {
        let &Decoder { hidden, vocab, norm, mlp, .. } = self;
        let mut list = TensorList::default();
        if self.has_further_layers {
            list.leave(Left::OfLayersFrom(self.layers.len(), ""));
            list.leave(Left::Containing("mtp."));
        }
        list.matrix(self.names.embeddings, hidden, vocab);
        for (index, kind) in self.layers.iter().enumerate() {
            let layer = format!("{}.{index}", self.names.layers);
            for name in self.wiring.norms(kind.blocks) {
                norm.list(&mut list, &format!("{layer}.{name}"), hidden);
            }
            if kind.blocks.has_mixer() {
                self.list_mixer(&mut list, &layer, kind.mixer);
            }
            if !kind.blocks.has_network() {
                continue;
            }
            match self.experts.filter(|_| kind.has_experts) {
                Some(ExpertsKind { block, count, intermediate, routing, form, shared }) => {
                    let block = format!("{layer}.{block}");
                    list.experts(&block, hidden, intermediate, count, form);
                    if let Some(name) = routing.correction_bias {
                        let shapes = Routing::correction_bias_shapes(count);
                        let is_optional = routing.may_lack_correction_bias;
                        list.plain_or_none(format!("{block}.{name}"), shapes, is_optional);
                    }
                    match shared {
                        Some(shared) if shared.form == SharedForm::LinearsInLayer => {
                            list.shared_expert(&layer, hidden, shared);
                        }
                        Some(shared) => list.shared_expert(&block, hidden, shared),
                        None => {}
                    }
                }
                None => mlp.list(&mut list, &layer, hidden),
            }
        }
        self.last_norm.unwrap_or(norm).list(&mut list, self.names.norm, hidden);
        match self.output {
            Output::Tied => {}
            Output::IfStored => list.optional_matrix("lm_head", hidden, vocab),
            Output::Own { has_bias } => {
                list.matrix("lm_head", hidden, vocab);
                if has_bias {
                    list.plain("lm_head.bias", &[vocab]);
                }
            }
        }
        list
    }

    /// Adds the tensors of a mixer in the layer at `path`.
    fn list_mixer(&self, list: &mut TensorList, path: &str, mixer: Mixer) {
        if let Some(recurrent) = self.recurrent.as_ref().filter(|_| mixer != Mixer::Attention) {
            recurrent.list(list, &format!("{path}.{}", self.names.recurrent), self.hidden);
        }
        if mixer != Mixer::Recurrent {
            let path = format!("{path}.{}", self.names.attention);
            self.attention.list(list, &path, self.norm, self.hidden);
        }
    }
}

impl Wiring {
    /// The names of all norms of a layer with these blocks.
    fn norms(self, blocks: Blocks) -> Vec<&'static str> {
        match self {
            Wiring::Sequential { attention, mlp } => {
                let of_mixer = [attention.before, attention.after];
                let of_network = [mlp.before, mlp.after];
                let of_mixer = of_mixer.into_iter().filter(|_| blocks.has_mixer());
                let all = of_mixer.chain(of_network.into_iter().filter(|_| blocks.has_network()));
                all.flatten().collect()
            }
            Wiring::Parallel { norm } => vec![norm],
        }
    }
}

impl AttentionKind {
    /// What a cache holds of a token.
    fn cache_sizes(&self) -> KvSizes {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        match self.projections {
            Projections::Latent(sizes) => sizes.cache_sizes(heads),
            _ => KvSizes::new(kv_heads, head_dim),
        }
    }

    /// The length of all heads' outputs.
    fn num_outputs(&self) -> i32 {
        let HeadShape { heads, head_dim, .. } = self.heads;
        match self.projections {
            Projections::Latent(LatentSizes { value_dim, .. }) => heads * value_dim,
            _ => heads * head_dim,
        }
    }

    fn list(&self, list: &mut TensorList, path: &str, norm: NormKind, hidden: i32) {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        let [queries, keys] = [heads * head_dim, kv_heads * head_dim];
        match self.projections {
            Projections::Separate { has_bias } => {
                for (name, outputs) in [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)] {
                    Matrix::new(name, has_bias).list(list, path, hidden, outputs);
                }
            }
            Projections::Joined(matrix) => matrix.list(list, path, hidden, queries + 2 * keys),
            Projections::Latent(sizes) => sizes.list(list, path, hidden, heads),
        }
        if self.has_sinks {
            list.plain(format!("{path}.sinks"), &[heads]);
        }
        self.output.list(list, path, self.num_outputs(), hidden);
        for (name, count) in [('q', heads), ('k', kv_heads)] {
            match self.head_norms {
                HeadNormKind::None | HeadNormKind::Unweighted { .. } => {}
                HeadNormKind::OfEach => norm.list(list, &format!("{path}.{name}_norm"), head_dim),
                HeadNormKind::OfEachCalledLayernorm => {
                    norm.list(list, &format!("{path}.{name}_layernorm"), head_dim);
                }
                HeadNormKind::OfAll => {
                    norm.list(list, &format!("{path}.{name}_norm"), count * head_dim);
                }
                HeadNormKind::OfEachByItself => {
                    list.plain(format!("{path}.{name}_norm.weight"), &[count, head_dim]);
                }
                HeadNormKind::OfEachInPieces => {
                    for head in 0..count {
                        let norm = format!("{path}.{name}_layernorm.norms.{head}.weight");
                        list.plain(norm, &[head_dim]);
                    }
                }
            }
        }
    }
}

impl MlpKind {
    /// Adds its tensors in the layer at `layer`.
    fn list(&self, list: &mut TensorList, layer: &str, hidden: i32) {
        let (path, intermediate) = (&format!("{layer}.{}", self.block), self.intermediate);
        match self.inputs {
            MlpInputs::GatedOrLinears(name) => {
                let linears = format!("{layer}.{name}");
                return list.mlp_or_linears(path, &linears, hidden, intermediate);
            }
            MlpInputs::GatedOrNumbered => return list.numbered_mlp(path, hidden, intermediate),
            MlpInputs::Gated { has_bias } => {
                Matrix::new("gate_proj", has_bias).list(list, path, hidden, intermediate);
                Matrix::new("up_proj", has_bias).list(list, path, hidden, intermediate);
            }
            MlpInputs::GatedJoined(matrix) => matrix.list(list, path, hidden, 2 * intermediate),
            MlpInputs::Plain(matrix) | MlpInputs::SquaredRelu(matrix) => {
                matrix.list(list, path, hidden, intermediate);
            }
        }
        self.output.list(list, path, intermediate, hidden);
    }
}

/// The layer that makes logits of hidden states.
#[derive(Debug)]
enum OutputLayer {
    Tied,
    Own(Linear),
    /// The model makes embeddings and was saved without one.
    Missing,
}

/// A loaded decoder of a family.
#[derive(Debug)]
pub struct DecoderModel<F> {
    decoder: Decoder,
    embed_tokens: Embedding,
    embedding_multiplier: Option<Array>, // scalar
    layers: Vec<LayerRun>,
    norm: Norm,
    output: OutputLayer,
    logit_multiplier: Option<Array>, // scalar
    launches: LayerLaunches,
    family: PhantomData<F>,
}

impl<F: Family> FromConfig for DecoderModel<F> {
    type Args = F;

    fn outline(args: &F) -> Result<Outline, LmError> {
        let decoder = args.decoder()?;
        Ok(Outline {
            cache: decoder.cache_spec(),
            bf16_state_cache: None,
            context_length: decoder.context as usize,
            is_tied: decoder.output == Output::Tied,
            scratch: decoder.scratch(),
            tensors: decoder.tensors(),
            published_numbers: decoder
                .published_factors
                .map_or(PublishedNumbers::Same, PublishedNumbers::WithoutFactors),
            takes_mtp_head: false,
        })
    }

    fn load(args: F, weights: &mut Weights) -> Result<Self, LmError> {
        let decoder = args.decoder()?;
        let (hidden, vocab) = (decoder.hidden, decoder.vocab);
        // Older checkpoints store RoPE frequencies, which follow from the config; tied checkpoints
        // may store the output layer again. Others have parts that predict further tokens.
        let tensors = decoder.tensors();
        weights.ignore(|name| {
            name.ends_with("rotary_emb.inv_freq")
                || name.contains("mtp_")
                || (decoder.output == Output::Tied && name.starts_with("lm_head."))
                || tensors.leaves(name)
        });
        if let Some(published) = &decoder.published_factors {
            weights.factors = published.missing(|name| weights.shape(name)).to_vec();
        }
        let embed_tokens =
            Embedding::load(&mut weights.layer(decoder.names.embeddings), vocab, hidden)?;
        let dtype = embed_tokens.forward(&Array::from_slice(&[0], &[1, 1]))?.dtype();
        let mut layers = Vec::with_capacity(decoder.layers.len());
        for (index, kind) in decoder.layers.iter().enumerate() {
            let mut layer = weights.layer(format!("{}.{index}", decoder.names.layers));
            layers.push(Block::load(&mut layer, &decoder, kind)?);
        }
        let norm = decoder.last_norm.unwrap_or(decoder.norm);
        let norm = norm.load(&mut weights.layer(decoder.names.norm), hidden)?;
        let lacks_output_layer = weights.lacks_output_layer;
        let has_head = weights.contains("lm_head.weight");
        let mut lm_head = |has_bias| -> Result<OutputLayer, LmError> {
            let lm_head = Linear::load(&mut weights.layer("lm_head"), hidden, vocab, has_bias)?;
            lm_head.eval()?;
            Ok(OutputLayer::Own(lm_head))
        };
        let output = match decoder.output {
            Output::Tied => OutputLayer::Tied,
            Output::Own { .. } if lacks_output_layer => OutputLayer::Missing,
            Output::Own { has_bias } => lm_head(has_bias)?,
            Output::IfStored if has_head => lm_head(false)?,
            Output::IfStored => OutputLayer::Tied,
        };
        let multiplier =
            |factor: Option<f32>| factor.map(|factor| scalar(factor, dtype)).transpose();
        Ok(DecoderModel {
            embed_tokens,
            embedding_multiplier: multiplier(decoder.embedding_multiplier)?,
            layers: LayerRun::of_all(layers, &weights.kernels),
            norm,
            output,
            logit_multiplier: multiplier(decoder.logit_multiplier)?,
            launches: LayerLaunches::new(weights),
            decoder,
            family: PhantomData,
        })
    }
}

impl<F: Family> Architecture for DecoderModel<F> {
    fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        Ok(self.embed_tokens.forward(tokens)?)
    }

    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        // Scaled here and not in `embed`, so that embeddings from the caller are scaled too.
        let mut x = match &self.embedding_multiplier {
            Some(multiplier) => ops::multiply(embeddings, multiplier)?,
            None => embeddings,
        };
        let mut steps = Steps::default();
        let mut caches = caches.iter_mut();
        let mut ahead = self.launches.begin(&x);
        for run in &self.layers {
            x = run.forward(x, &mut caches, &mut steps, &mut ahead)?;
        }
        Ok(self.norm.forward(&x)?)
    }

    fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        let mut logits = match &self.output {
            OutputLayer::Own(lm_head) => lm_head.forward(hidden)?,
            OutputLayer::Tied => self.embed_tokens.as_linear(hidden)?,
            OutputLayer::Missing => return Err(LmError::NoOutputLayer),
        };
        if let Some(multiplier) = &self.logit_multiplier {
            logits = ops::multiply(logits, multiplier)?;
        }
        match self.decoder.logit_softcap {
            Some(cap) => Ok(softcap(&logits, cap)?),
            None => Ok(logits),
        }
    }

    fn cache_spec(&self) -> CacheSpec {
        self.decoder.cache_spec()
    }

    fn numerics_revision(&self) -> u32 {
        F::NUMERICS_REVISION
    }

    fn vocab_size(&self) -> usize {
        self.decoder.vocab as usize
    }

    fn context_length(&self) -> usize {
        self.decoder.context as usize
    }
}

/// The key of a config that a family refuses.
#[cfg(test)]
pub(super) fn refused_key<F: Family>(config: &serde_json::Value) -> Option<&'static str> {
    let args = F::deserialize(config).unwrap_or_else(|error| panic!("{config}: {error}"));
    match args.decoder() {
        Ok(_) => None,
        Err(LmError::Config { name, .. }) => Some(name),
        Err(other) => panic!("{config}: {other}"),
    }
}
