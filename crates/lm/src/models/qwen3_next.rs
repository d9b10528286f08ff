//! Qwen3-Next (Qwen Team 2025): most layers use linear attention (the gated delta rule), every
//! fourth full attention; a mixture of experts with one shared expert. Reference: mlx-lm's
//! qwen3_next.py. Its layers are those of `qwen3_5.rs` too.

mod gated_delta_net;
mod mtp;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::marker::PhantomData;

use gated_delta_net::{GatedDeltaNet, LinearShape};
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::LmError;
use crate::cache::{AttentionStep, CacheSpec, KvSizes, KvSpec, LayerCache, LayerCacheSpec};
use crate::config::{Size, check_heads, check_positive, check_range, check_rope_entry};
use crate::device_kernels::{Activation, HeadShape};
use crate::ffi;
use crate::models::{Architecture, FromConfig, MtpHead, NoMtpHead, Outline, Scratch};
use crate::nn::{
    Elementwise, Embedding, ExpertBlend, ExpertForm, ExpertSizes, GatedDelta, LayerLaunches,
    Linear, NormGatedUp, NormProjections, ProductResidual, Projected, RmsNorm, Rope, RopeAttention,
    RopeSpec, Routing, SharedExpert, SharedExpertKind, has_kernel,
};
use crate::published_numbers::{PublishedNumbers, Sign};
use crate::tensor_list::TensorList;
use crate::weights::{Layer, Weights};

pub(crate) use mtp::{SIGNS as MTP_SIGNS, beside as mtp_file};

/// A family with these layers, named by its arguments.
pub(crate) trait Family: DeserializeOwned + Debug + 'static {
    /// See [`Architecture::numerics_revision`].
    const NUMERICS_REVISION: u32 = 1;

    /// What a model with these arguments is. Fails on what is not supported.
    fn shape(&self) -> Result<Shape, LmError>;
}

/// The fields of config.json, with its defaults.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    pub(super) hidden_size: i64,
    pub(super) num_hidden_layers: i64,
    pub(super) intermediate_size: i64,
    pub(super) num_attention_heads: i64,
    pub(super) num_key_value_heads: i64,
    pub(super) head_dim: i64,
    pub(super) linear_num_value_heads: i64,
    pub(super) linear_num_key_heads: i64,
    pub(super) linear_key_head_dim: i64,
    pub(super) linear_value_head_dim: i64,
    pub(super) linear_conv_kernel_dim: i64,
    pub(super) num_experts: i64,
    pub(super) num_experts_per_tok: i64,
    pub(super) decoder_sparse_step: i64,
    #[serde(default)]
    pub(super) mlp_only_layers: Vec<i64>,
    pub(super) moe_intermediate_size: i64,
    pub(super) shared_expert_intermediate_size: i64,
    pub(super) rms_norm_eps: f64,
    pub(super) vocab_size: i64,
    pub(super) max_position_embeddings: i64,
    pub(super) rope_theta: Option<f64>,
    pub(super) partial_rotary_factor: Option<f64>,
    pub(super) rope_scaling: Option<serde_json::Value>,
    #[serde(default)]
    pub(super) norm_topk_prob: bool,
    #[serde(default)]
    pub(super) tie_word_embeddings: bool,
    #[serde(default)]
    pub(super) attention_bias: bool,
    #[serde(default = "default_full_attention_interval")]
    pub(super) full_attention_interval: i64,
    pub(super) layer_types: Option<Vec<String>>,
}

fn default_full_attention_interval() -> i64 {
    4
}

impl Family for ModelArgs {
    fn shape(&self) -> Result<Shape, LmError> {
        Shape::check(self, Storage::Grouped)
    }
}

/// How a family's files store what its layers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// `in_proj_qkvz` and `in_proj_ba`, by key heads. Hugging Face's files have separate experts.
    Grouped,
    /// A matrix for each part; queries, keys and values are one. Hugging Face's files have
    /// convolution weights of another shape.
    Separate,
}

/// [`ModelArgs`] after its checks.
#[derive(Debug)]
pub(crate) struct Shape {
    hidden: i32,
    layers: i32,
    intermediate: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    attention_bias: bool,
    rope: RopeSpec,
    /// Layers whose number (from 1) is divisible by this have full attention.
    full_attention_interval: i32,
    linear: LinearShape,
    experts: Experts,
    vocab: i32,
    context: i32,
    eps: f32,
    is_tied: bool,
    storage: Storage,
}

/// The settings of the experts.
#[derive(Debug, Default)]
struct Experts {
    /// 0: all layers are dense.
    count: i32,
    per_token: i32,
    intermediate: i32,
    shared_intermediate: i32,
    norm_topk_prob: bool,
    /// Every layer whose number (from 1) is divisible by this has experts.
    step: i32,
    /// Layers (from 0) that have none nevertheless.
    mlp_only_layers: Vec<i64>,
}

impl Experts {
    fn check(args: &ModelArgs) -> Result<Self, LmError> {
        let count = Size::EXPERTS.check(args.num_experts)?;
        if count == 0 {
            return Ok(Experts::default());
        }
        let max_per_token = i64::from(count);
        let (intermediate, shared_intermediate) =
            (args.moe_intermediate_size, args.shared_expert_intermediate_size);
        Ok(Experts {
            count,
            per_token: check_range(
                "num_experts_per_tok",
                args.num_experts_per_tok,
                1..=max_per_token,
            )?,
            intermediate: Size::EXPERT_INTERMEDIATE.check(intermediate)?,
            shared_intermediate: check_range(
                "shared_expert_intermediate_size",
                shared_intermediate,
                1..=1 << 20,
            )?,
            norm_topk_prob: args.norm_topk_prob,
            step: check_range("decoder_sparse_step", args.decoder_sparse_step, 1..=1024)?,
            mlp_only_layers: args.mlp_only_layers.clone(),
        })
    }

    /// Adds what [`SparseMoe::load`] takes at `path`.
    fn add_tensors(&self, list: &mut TensorList, path: &str, hidden: i32) {
        list.experts(path, hidden, self.intermediate, self.count, ExpertForm::USUAL);
        list.shared_expert(path, hidden, self.shared());
    }

    fn shared(&self) -> SharedExpertKind {
        SharedExpertKind::with_share(self.shared_intermediate)
    }

    fn are_in(&self, layer: i32) -> bool {
        self.count > 0
            && (layer + 1) % self.step == 0
            && !self.mlp_only_layers.contains(&i64::from(layer))
    }
}

impl Shape {
    pub(super) fn check(args: &ModelArgs, storage: Storage) -> Result<Self, LmError> {
        let (heads, kv_heads) = check_heads(args.num_attention_heads, args.num_key_value_heads)?;
        let linear = LinearShape::check(args)?;
        let layers = Size::LAYERS.check(args.num_hidden_layers)?;
        let interval = args.full_attention_interval;
        let full_attention_interval =
            check_range("full_attention_interval", interval, 1..=i64::from(layers))?;
        check_layer_types(args, full_attention_interval)?;
        let head_dim = Size::HEAD_DIM.check(args.head_dim)?;
        let rotary_dim = check_rotary_dim(args, head_dim)?;
        let rope_theta = check_rope_entry("rope_theta", args.rope_theta)?;
        let scaling = args.rope_scaling.as_ref();
        let context = Size::CONTEXT.check(args.max_position_embeddings)?;
        Ok(Shape {
            experts: Experts::check(args)?,
            hidden: Size::HIDDEN.check(args.hidden_size)?,
            layers,
            intermediate: Size::INTERMEDIATE.check(args.intermediate_size)?,
            heads,
            kv_heads,
            head_dim,
            attention_bias: args.attention_bias,
            rope: RopeSpec::check(rotary_dim, rope_theta.into(), false, scaling, context)?,
            full_attention_interval,
            linear,
            vocab: Size::VOCAB.check(args.vocab_size)?,
            context,
            eps: check_positive("rms_norm_eps", args.rms_norm_eps)?,
            is_tied: args.tie_word_embeddings,
            storage,
        })
    }

    /// The same with recurrent states that are held in bf16.
    fn with_bf16_state(mut self) -> Self {
        self.linear.state_dtype = Dtype::Bfloat16;
        self
    }

    fn block_kind(&self, layer: i32) -> BlockKind {
        BlockKind { attends: self.attends(layer), has_experts: self.experts.are_in(layer) }
    }

    fn attends(&self, layer: i32) -> bool {
        (layer + 1) % self.full_attention_interval == 0
    }

    fn cache_spec(&self) -> CacheSpec {
        let sizes = Some(KvSizes::new(self.kv_heads, self.head_dim));
        let layer = |layer| match self.attends(layer) {
            true => LayerCacheSpec::Kv(KvSpec::new(sizes)),
            false => self.linear.cache_spec(),
        };
        CacheSpec::new((0..self.layers).map(layer).collect())
    }

    /// How many results of each width live at once, by the example `memory`.
    fn scratch(&self) -> Scratch {
        let Shape { linear, experts, .. } = self;
        let hidden = self.hidden as u64;
        let chosen = experts.per_token as u64 * (3 * hidden + 5 * experts.intermediate as u64);
        let has_dense = (0..self.layers).any(|layer| !experts.are_in(layer));
        let dense = if has_dense { self.intermediate } else { 0 };
        let shared = 5 * experts.shared_intermediate.max(dense) as u64;
        let within_chunk = linear.value_heads as u64 * GatedDelta::CHUNK as u64;
        let recurrent = 5 * linear.channels() as u64 + 18 * within_chunk;
        let queries = (self.heads * self.head_dim) as u64;
        let keys_values = (2 * self.kv_heads * self.head_dim) as u64;
        let common = 3 * hidden + chosen.max(shared) + experts.count as u64;
        let state = linear.value_heads as u64 * (linear.value_dim * linear.key_dim) as u64;
        Scratch {
            numbers_per_token: common + 4 * queries + 3 * keys_values,
            recurrent_per_token: common + recurrent,
            numbers_per_key: 0,
            fixed_numbers: 10 * state + 6 * within_chunk * GatedDelta::CHUNK as u64,
            heads: self.heads as u64,
            score_arrays: 1,
            vocab: self.vocab as u64,
            stores_scores: !has_kernel([self.head_dim; 2], None),
        }
    }

    /// What only Hugging Face's files have, whose norms are stored less one.
    fn published_signs(&self) -> Vec<Sign> {
        let sign = |layer| match self.storage {
            Storage::Grouped => {
                Sign::Tensor(format!("model.layers.{layer}.mlp.experts.0.up_proj.weight"))
            }
            Storage::Separate => {
                Sign::Convolution(format!("model.layers.{layer}.linear_attn.conv1d.weight"))
            }
        };
        (0..self.layers).map(sign).collect()
    }

    /// What [`FromConfig::load`] takes.
    fn tensors(&self) -> TensorList {
        let &Shape { hidden, vocab, .. } = self;
        let mut list = TensorList::default();
        list.matrix("model.embed_tokens", hidden, vocab);
        for index in 0..self.layers {
            let layer = format!("model.layers.{index}");
            list.plain(format!("{layer}.input_layernorm.weight"), &[hidden]);
            list.plain(format!("{layer}.post_attention_layernorm.weight"), &[hidden]);
            match self.attends(index) {
                true => self.add_attention(&mut list, &format!("{layer}.self_attn")),
                false => {
                    let path = format!("{layer}.linear_attn");
                    self.linear.add_tensors(&mut list, &path, hidden, self.storage);
                }
            }
            let mlp = format!("{layer}.mlp");
            match self.experts.are_in(index) {
                true => self.experts.add_tensors(&mut list, &mlp, hidden),
                false => list.gated_mlp(&mlp, hidden, self.intermediate),
            }
        }
        list.plain("model.norm.weight", &[hidden]);
        if !self.is_tied {
            list.matrix("lm_head", hidden, vocab);
        }
        list
    }

    fn add_attention(&self, list: &mut TensorList, path: &str) {
        let &Shape { hidden, heads, kv_heads, head_dim, .. } = self;
        for (name, inputs, outputs) in [
            ("q_proj", hidden, 2 * heads * head_dim),
            ("k_proj", hidden, kv_heads * head_dim),
            ("v_proj", hidden, kv_heads * head_dim),
            ("o_proj", heads * head_dim, hidden),
        ] {
            list.matrix(format!("{path}.{name}"), inputs, outputs);
            if self.attention_bias {
                list.plain(format!("{path}.{name}.bias"), &[outputs]);
            }
        }
        list.plain(format!("{path}.q_norm.weight"), &[head_dim]);
        list.plain(format!("{path}.k_norm.weight"), &[head_dim]);
    }
}

/// Fails unless the listed layer types, if there are any, are those that the interval gives.
fn check_layer_types(args: &ModelArgs, full_attention_interval: i32) -> Result<(), LmError> {
    for (index, kind) in args.layer_types.iter().flatten().enumerate() {
        let attends = (index as i32 + 1) % full_attention_interval == 0;
        if kind != if attends { "full_attention" } else { "linear_attention" } {
            let allowed = format!(
                "every layer whose number is divisible by {full_attention_interval}, and no other, must attend"
            );
            return Err(LmError::Config { name: "layer_types", value: kind.clone(), allowed });
        }
    }
    Ok(())
}

/// How many numbers of each head RoPE rotates.
fn check_rotary_dim(args: &ModelArgs, head_dim: i32) -> Result<i32, LmError> {
    const NAME: &str = "partial_rotary_factor";
    let factor = check_rope_entry(NAME, args.partial_rotary_factor)?;
    let rotary_dim = (head_dim as f32 * factor) as i32;
    if rotary_dim < 2 || rotary_dim > head_dim || rotary_dim % 2 != 0 {
        let allowed = format!("it must make an even number up to head_dim = {head_dim} of it");
        return Err(LmError::Config { name: NAME, value: factor.to_string(), allowed });
    }
    Ok(rotary_dim)
}

/// The layout of the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// mlx-lm's: stacked experts.
    Mlx,
    /// Hugging Face's: experts separate or in other stacks, norm weights stored minus one,
    /// convolution weights `[C, 1, K]` instead of `[C, K, 1]`.
    HuggingFace,
}

impl Layout {
    /// That of the files, by the sign that the reference goes by.
    fn of(weights: &Weights, shape: &Shape) -> Self {
        let signs = shape.published_signs();
        match signs.iter().any(|sign| sign.is_in(|name| weights.shape(name))) {
            true => Layout::HuggingFace,
            false => Layout::Mlx,
        }
    }

    fn norm(self, layer: &mut Layer, dimensions: i32, eps: f32) -> Result<RmsNorm, LmError> {
        match self {
            Layout::Mlx => RmsNorm::load(layer, dimensions, eps),
            Layout::HuggingFace => RmsNorm::load_plus_one(layer, dimensions, eps),
        }
    }
}

/// A loaded model of a family.
#[derive(Debug)]
pub struct Model<F> {
    shape: Shape,
    embed_tokens: Embedding,
    layers: Vec<TransformerBlock>,
    norm: RmsNorm,
    lm_head: Option<Linear>, // `None`: tied to embed_tokens
    mtp: Result<mtp::Head, NoMtpHead>,
    launches: LayerLaunches,
    family: PhantomData<F>,
}

impl<F: Family> FromConfig for Model<F> {
    type Args = F;

    fn outline(args: &F) -> Result<Outline, LmError> {
        let shape = args.shape()?;
        Ok(Outline {
            cache: shape.cache_spec(),
            bf16_state_cache: Some(args.shape()?.with_bf16_state().cache_spec()),
            context_length: shape.context as usize,
            is_tied: shape.is_tied,
            scratch: shape.scratch(),
            tensors: shape.tensors(),
            published_numbers: PublishedNumbers::NormsLessOne(shape.published_signs()),
            takes_mtp_head: true,
        })
    }

    fn load(args: F, weights: &mut Weights) -> Result<Self, LmError> {
        let shape = match weights.bf16_state {
            true => args.shape()?.with_bf16_state(),
            false => args.shape()?,
        };
        let layout = Layout::of(weights, &shape);
        let mtp = mtp::Head::load(weights, &shape, layout)?;
        // What is left of a head that is not used; tied checkpoints may store the output layer again.
        weights.ignore(|name| {
            name.contains("mtp.") || (shape.is_tied && name.starts_with("lm_head."))
        });
        let embed_tokens =
            Embedding::load(&mut weights.layer("model.embed_tokens"), shape.vocab, shape.hidden)?;
        let layers = (0..shape.layers)
            .map(|index| {
                TransformerBlock::load(
                    &mut weights.layer(format!("model.layers.{index}")),
                    &shape,
                    layout,
                    shape.block_kind(index),
                )
            })
            .collect::<Result<Vec<_>, _>>()?;
        let norm = layout.norm(&mut weights.layer("model.norm"), shape.hidden, shape.eps)?;
        let lm_head = match shape.is_tied {
            true => None,
            false => {
                Some(Linear::load(&mut weights.layer("lm_head"), shape.hidden, shape.vocab, false)?)
            }
        };
        if let Some(lm_head) = &lm_head {
            lm_head.eval()?;
        }
        let launches = LayerLaunches::new(weights);
        Ok(Model { shape, embed_tokens, layers, norm, lm_head, mtp, launches, family: PhantomData })
    }
}

impl<F: Family> Architecture for Model<F> {
    fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        Ok(self.embed_tokens.forward(tokens)?)
    }

    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        let mut x = embeddings;
        let length = x.dim(1);
        let step =
            caches[self.shape.full_attention_interval as usize - 1].attention_step(length, None)?;
        let mask = if self.shape.attends(0) { None } else { caches[0].state()?.mask(length) };
        let mut ahead = self.launches.begin(&x);
        for (layer, cache) in self.layers.iter().zip(caches) {
            x = layer.forward(x, cache, &step, mask.as_ref())?;
            ahead.launch(&x)?;
        }
        Ok(self.norm.forward(&x)?)
    }

    fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        match &self.lm_head {
            Some(lm_head) => Ok(lm_head.forward(hidden)?),
            None => Ok(self.embed_tokens.as_linear(hidden)?),
        }
    }

    fn mtp_head(&self) -> Result<&dyn MtpHead, &NoMtpHead> {
        self.mtp.as_ref().map(|head| head as &dyn MtpHead)
    }

    fn cache_spec(&self) -> CacheSpec {
        self.shape.cache_spec()
    }

    fn numerics_revision(&self) -> u32 {
        F::NUMERICS_REVISION
    }

    fn vocab_size(&self) -> usize {
        self.shape.vocab as usize
    }

    fn context_length(&self) -> usize {
        self.shape.context as usize
    }
}

/// What a layer consists of.
#[derive(Debug, Clone, Copy)]
struct BlockKind {
    /// Whether it attends; otherwise it is recurrent.
    attends: bool,
    /// Whether it has experts; otherwise it is dense.
    has_experts: bool,
}

#[derive(Debug)]
struct TransformerBlock {
    mixer: Mixer,
    mlp: FeedForward,
}

/// The first half of a layer, with the norm before it and the residual after it.
#[derive(Debug)]
enum Mixer {
    Attention(Box<Attention>),
    Linear(Box<GatedDeltaNet>),
}

/// The second half of a layer, with the norm before it and the residual after it.
#[derive(Debug)]
enum FeedForward {
    Dense(Box<Mlp>),
    Sparse(Box<SparseMoe>),
}

impl TransformerBlock {
    fn load(
        layer: &mut Layer,
        shape: &Shape,
        layout: Layout,
        kind: BlockKind,
    ) -> Result<Self, LmError> {
        let &Shape { hidden, intermediate, eps, .. } = shape;
        let norm = layout.norm(&mut layer.layer("input_layernorm"), hidden, eps)?;
        let mixer = match kind.attends {
            true => Mixer::Attention(Box::new(Attention::load(
                &mut layer.layer("self_attn"),
                shape,
                layout,
                norm,
            )?)),
            false => Mixer::Linear(Box::new(GatedDeltaNet::load(
                &mut layer.layer("linear_attn"),
                shape,
                norm,
            )?)),
        };
        let norm = layout.norm(&mut layer.layer("post_attention_layernorm"), hidden, eps)?;
        let mut layer = layer.layer("mlp");
        let mlp = match kind.has_experts {
            true => {
                let moe = SparseMoe::load(&mut layer, hidden, &shape.experts, norm)?;
                FeedForward::Sparse(Box::new(moe))
            }
            false => {
                FeedForward::Dense(Box::new(Mlp::load(&mut layer, hidden, intermediate, norm)?))
            }
        };
        Ok(TransformerBlock { mixer, mlp })
    }

    fn forward(
        &self,
        x: Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
        mask: Option<&Array>,
    ) -> Result<Array, Exception> {
        let h = match &self.mixer {
            Mixer::Attention(attention) => attention.forward(&x, cache, step)?,
            Mixer::Linear(linear) => linear.forward(&x, cache.state()?, mask)?,
        };
        match &self.mlp {
            FeedForward::Dense(mlp) => mlp.forward(&h),
            FeedForward::Sparse(moe) => moe.forward(&h),
        }
    }
}

/// Attention with partial RoPE and a gated output.
#[derive(Debug)]
struct Attention {
    /// Queries, keys, values, and the gates of the output.
    projections: NormProjections<4>,
    attention: RopeAttention,
    gated: Elementwise<2>,
    o_proj: ProductResidual,
    /// The width of queries, keys and values together.
    qkv_width: i32,
}

impl Attention {
    fn load(
        layer: &mut Layer,
        shape: &Shape,
        layout: Layout,
        norm: RmsNorm,
    ) -> Result<Self, LmError> {
        let &Shape { hidden, heads, kv_heads, head_dim, eps, .. } = shape;
        let mut linear = |name, inputs, outputs| {
            Linear::load(&mut layer.layer(name), inputs, outputs, shape.attention_bias)
        };
        // The checkpoint interleaves the heads' queries and gates.
        let q_proj = linear("q_proj", hidden, 2 * heads * head_dim)?;
        let half = |second: i32| -> Vec<i32> {
            (0..heads)
                .flat_map(|head| (2 * head + second) * head_dim..(2 * head + second + 1) * head_dim)
                .collect()
        };
        let projections = [
            q_proj.select_outputs(&half(0))?,
            linear("k_proj", hidden, kv_heads * head_dim)?,
            linear("v_proj", hidden, kv_heads * head_dim)?,
            q_proj.select_outputs(&half(1))?,
        ];
        let o_proj = linear("o_proj", heads * head_dim, hidden)?;
        let norms = [
            layout.norm(&mut layer.layer("q_norm"), head_dim, eps)?,
            layout.norm(&mut layer.layer("k_norm"), head_dim, eps)?,
        ];
        let rope = Rope::new(shape.rope.clone());
        let head_shape = HeadShape::new(heads, kv_heads, head_dim);
        Ok(Attention {
            projections: NormProjections::new(norm, projections)?,
            attention: RopeAttention::new(head_shape, Some(norms), rope, &layer.kernels())?,
            gated: Elementwise::new(|[x, gate]| ops::multiply(x, ops::sigmoid(gate)?)),
            o_proj: ProductResidual::new(o_proj)?,
            qkv_width: (heads + 2 * kv_heads) * head_dim,
        })
    }

    /// The residual stream `[B, L, D]` with the attention output added.
    fn forward(
        &self,
        x: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let (qkv, gate) = match self.projections.forward(x)? {
            Projected::Parts([queries, keys, values, gate]) => {
                (Projected::Parts([queries, keys, values]), gate)
            }
            Projected::Joined(joined) => {
                let (batch, length, width) = (joined.dim(0), joined.dim(1), joined.dim(2));
                let part = |from, to| ffi::slice(&joined, &[0, 0, from], &[batch, length, to]);
                (Projected::Joined(part(0, self.qkv_width)?), part(self.qkv_width, width)?)
            }
        };
        let attended = self.attention.forward(qkv, cache, step)?;
        self.o_proj.forward(&self.gated.call([&attended, &gate])?, x)
    }
}

/// A mixture of experts with a shared expert.
#[derive(Debug)]
struct SparseMoe {
    norm: RmsNorm,
    experts: ExpertBlend,
    shared: SharedExpert,
}

impl SparseMoe {
    fn load(
        layer: &mut Layer,
        hidden: i32,
        experts: &Experts,
        norm: RmsNorm,
    ) -> Result<Self, LmError> {
        let sizes = ExpertSizes {
            hidden,
            intermediate: experts.intermediate,
            num_experts: experts.count,
            routing: Routing::softmax(experts.per_token, experts.norm_topk_prob),
            form: ExpertForm::USUAL,
        };
        Ok(SparseMoe {
            norm,
            experts: ExpertBlend::load(layer, sizes)?,
            shared: SharedExpert::load(layer, hidden, experts.shared())?,
        })
    }

    /// The residual stream `[B, L, D]` with the outputs added.
    fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let normed = self.norm.forward(x)?;
        let routed = self.experts.forward(&normed, x)?;
        self.shared.forward(&normed, &routed)
    }
}

/// A dense feed-forward network.
#[derive(Debug)]
struct Mlp {
    gate_up_proj: NormGatedUp,
    down_proj: ProductResidual,
}

impl Mlp {
    fn load(
        layer: &mut Layer,
        hidden: i32,
        intermediate: i32,
        norm: RmsNorm,
    ) -> Result<Self, LmError> {
        let mut linear =
            |name, inputs, outputs| Linear::load(&mut layer.layer(name), inputs, outputs, false);
        let gate_up =
            [linear("gate_proj", hidden, intermediate)?, linear("up_proj", hidden, intermediate)?];
        Ok(Mlp {
            gate_up_proj: NormGatedUp::new(Some(norm), gate_up, Activation::Silu)?,
            down_proj: ProductResidual::new(linear("down_proj", intermediate, hidden)?)?,
        })
    }

    /// The residual stream `[B, L, D]` with the output added.
    fn forward(&self, x: &Array) -> Result<Array, Exception> {
        self.down_proj.forward(&self.gate_up_proj.forward(x)?, x)
    }
}
