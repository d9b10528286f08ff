//! Qwen3 (Qwen Team 2025), dense. Reference: mlx-lm's qwen3.py.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use serde::Deserialize;

use crate::LmError;
use crate::cache::{AttentionStep, CacheSpec, KvSizes, KvSpec, LayerCache, LayerCacheSpec};
use crate::config::{Size, check_full_attention, check_heads, check_positive, check_rope_entry};
use crate::device_kernels::{Activation, HeadShape};
use crate::models::{Architecture, FromConfig, Outline, Scratch};
use crate::nn::{
    Embedding, Linear, NormGatedUp, NormProjections, ProductResidual, RmsNorm, Rope, RopeAttention,
    RopeSpec,
};
use crate::tensor_list::TensorList;
use crate::weights::{Layer, Weights};

/// See [`Architecture::numerics_revision`].
const NUMERICS_REVISION: u32 = 1;

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    hidden_size: i64,
    num_hidden_layers: i64,
    intermediate_size: i64,
    num_attention_heads: i64,
    num_key_value_heads: i64,
    head_dim: Option<i64>,
    rms_norm_eps: f64,
    vocab_size: i64,
    max_position_embeddings: i64,
    rope_theta: Option<f64>,
    rope_scaling: Option<serde_json::Value>,
    rope_parameters: Option<serde_json::Value>,
    #[serde(default)]
    pub(super) tie_word_embeddings: bool,
    layer_types: Option<Vec<String>>,
}

/// [`ModelArgs`] after its checks.
#[derive(Debug)]
pub(super) struct Shape {
    pub hidden: i32,
    pub layers: i32,
    pub intermediate: i32,
    pub heads: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    pub vocab: i32,
    pub context: i32,
    pub eps: f32,
    pub rope: RopeSpec,
}

impl Shape {
    pub fn check(args: &ModelArgs) -> Result<Self, LmError> {
        let (heads, kv_heads) = check_heads(args.num_attention_heads, args.num_key_value_heads)?;
        check_full_attention(args.layer_types.as_deref())?;
        let rope_parameters = args.rope_parameters.as_ref();
        let rope_theta = check_rope_entry("rope_theta", args.rope_theta, rope_parameters)?;
        let scaling = args.rope_scaling.as_ref().or(rope_parameters);
        let context = Size::CONTEXT.check(args.max_position_embeddings)?;
        let head_dim =
            Size::HEAD_DIM.check(args.head_dim.unwrap_or(args.hidden_size / i64::from(heads)))?;
        Ok(Shape {
            hidden: Size::HIDDEN.check(args.hidden_size)?,
            layers: Size::LAYERS.check(args.num_hidden_layers)?,
            intermediate: Size::INTERMEDIATE.check(args.intermediate_size)?,
            heads,
            kv_heads,
            head_dim,
            vocab: Size::VOCAB.check(args.vocab_size)?,
            context,
            eps: check_positive("rms_norm_eps", args.rms_norm_eps)?,
            rope: RopeSpec::check(head_dim, rope_theta.into(), false, scaling, context)?,
        })
    }

    /// Plain attention in every layer.
    pub fn cache_spec(&self) -> CacheSpec {
        let sizes = Some(KvSizes::new(self.kv_heads, self.head_dim));
        CacheSpec::new(vec![LayerCacheSpec::Kv(KvSpec { sizes }); self.layers as usize])
    }

    /// How many results of each width live at once, by the example `memory`.
    pub fn scratch(&self) -> Scratch {
        let [hidden, intermediate, queries, keys_values] = [
            self.hidden,
            self.intermediate,
            self.heads * self.head_dim,
            2 * self.kv_heads * self.head_dim,
        ]
        .map(|width| width as u64);
        Scratch {
            numbers_per_token: 3 * hidden + 5 * intermediate + 3 * queries + 3 * keys_values,
            recurrent_per_token: 0,
            fixed_numbers: 0,
            heads: self.heads as u64,
            vocab: self.vocab as u64,
            stores_scores: false,
        }
    }

    /// What a model of this shape takes, with the feed-forward network of each layer as `add_mlp`
    /// adds it at a path.
    pub fn tensors(
        &self,
        is_tied: bool,
        add_mlp: impl Fn(&mut TensorList, &str, i32),
    ) -> TensorList {
        let &Shape { hidden, heads, kv_heads, head_dim, vocab, .. } = self;
        let mut list = TensorList::default();
        list.matrix("model.embed_tokens", hidden, vocab);
        for index in 0..self.layers {
            let layer = format!("model.layers.{index}");
            list.plain(format!("{layer}.input_layernorm.weight"), &[hidden]);
            list.plain(format!("{layer}.post_attention_layernorm.weight"), &[hidden]);
            list.plain(format!("{layer}.self_attn.q_norm.weight"), &[head_dim]);
            list.plain(format!("{layer}.self_attn.k_norm.weight"), &[head_dim]);
            list.matrix(format!("{layer}.self_attn.q_proj"), hidden, heads * head_dim);
            list.matrix(format!("{layer}.self_attn.k_proj"), hidden, kv_heads * head_dim);
            list.matrix(format!("{layer}.self_attn.v_proj"), hidden, kv_heads * head_dim);
            list.matrix(format!("{layer}.self_attn.o_proj"), heads * head_dim, hidden);
            add_mlp(&mut list, &format!("{layer}.mlp"), index);
        }
        list.plain("model.norm.weight", &[hidden]);
        if !is_tied {
            list.matrix("lm_head", hidden, vocab);
        }
        list
    }
}

/// A loaded Qwen3.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    embed_tokens: Embedding,
    layers: Vec<TransformerBlock>,
    norm: RmsNorm,
    lm_head: Option<Linear>, // `None`: tied to embed_tokens
}

impl FromConfig for Model {
    type Args = ModelArgs;

    fn outline(args: &ModelArgs) -> Result<Outline, LmError> {
        let shape = Shape::check(args)?;
        Ok(Outline {
            cache: shape.cache_spec(),
            context_length: shape.context as usize,
            is_tied: args.tie_word_embeddings,
            scratch: shape.scratch(),
            tensors: shape.tensors(args.tie_word_embeddings, |list, path, _| {
                list.gated_mlp(path, shape.hidden, shape.intermediate);
            }),
        })
    }

    fn load(args: ModelArgs, weights: &mut Weights) -> Result<Self, LmError> {
        let shape = Shape::check(&args)?;
        // Tied checkpoints may store the output layer again.
        weights.ignore(|name| args.tie_word_embeddings && name.starts_with("lm_head."));
        let embed_tokens =
            Embedding::load(&mut weights.layer("model.embed_tokens"), shape.vocab, shape.hidden)?;
        let layers = (0..shape.layers)
            .map(|index| {
                TransformerBlock::load(&mut weights.layer(format!("model.layers.{index}")), &shape)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let norm = RmsNorm::load(&mut weights.layer("model.norm"), shape.hidden, shape.eps)?;
        let lm_head = match args.tie_word_embeddings {
            true => None,
            false => {
                Some(Linear::load(&mut weights.layer("lm_head"), shape.hidden, shape.vocab, false)?)
            }
        };
        if let Some(lm_head) = &lm_head {
            lm_head.eval()?;
        }
        Ok(Model { shape, embed_tokens, layers, norm, lm_head })
    }
}

impl Architecture for Model {
    fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        Ok(self.embed_tokens.forward(tokens)?)
    }

    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        let mut x = embeddings;
        let step = caches[0].attention_step(x.dim(1), None)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            x = layer.forward(x, cache, &step)?;
        }
        Ok(self.norm.forward(&x)?)
    }

    fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        match &self.lm_head {
            Some(lm_head) => Ok(lm_head.forward(hidden)?),
            None => Ok(self.embed_tokens.as_linear(hidden)?),
        }
    }

    fn cache_spec(&self) -> CacheSpec {
        self.shape.cache_spec()
    }

    fn numerics_revision(&self) -> u32 {
        NUMERICS_REVISION
    }

    fn vocab_size(&self) -> usize {
        self.shape.vocab as usize
    }

    fn context_length(&self) -> usize {
        self.shape.context as usize
    }
}

#[derive(Debug)]
struct TransformerBlock {
    self_attn: Attention,
    mlp: Mlp,
}

impl TransformerBlock {
    fn load(layer: &mut Layer, shape: &Shape) -> Result<Self, LmError> {
        Ok(TransformerBlock {
            self_attn: Attention::load(layer, shape)?,
            mlp: Mlp::load(layer, shape)?,
        })
    }

    fn forward(
        &self,
        x: Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let h = self.self_attn.forward(&x, cache, step)?;
        self.mlp.forward(&h)
    }
}

/// Attention with RMS-normalized queries and keys per head, the norm before it and the residual
/// after it; qwen3_moe uses it too.
#[derive(Debug)]
pub(super) struct Attention {
    qkv_proj: NormProjections<3>,
    attention: RopeAttention,
    o_proj: ProductResidual,
}

impl Attention {
    pub fn load(layer: &mut Layer, shape: &Shape) -> Result<Self, LmError> {
        let &Shape { hidden, heads, kv_heads, head_dim, eps, .. } = shape;
        let norm = RmsNorm::load(&mut layer.layer("input_layernorm"), hidden, eps)?;
        let (kernels, mut layer) = (layer.kernels(), layer.layer("self_attn"));
        let head_norms = [
            RmsNorm::load(&mut layer.layer("q_norm"), head_dim, eps)?,
            RmsNorm::load(&mut layer.layer("k_norm"), head_dim, eps)?,
        ];
        let mut linear =
            |name, inputs, outputs| Linear::load(&mut layer.layer(name), inputs, outputs, false);
        let projections = [
            linear("q_proj", hidden, heads * head_dim)?,
            linear("k_proj", hidden, kv_heads * head_dim)?,
            linear("v_proj", hidden, kv_heads * head_dim)?,
        ];
        let o_proj = linear("o_proj", heads * head_dim, hidden)?;
        let rope = Rope::new(shape.rope.clone());
        let heads = HeadShape::new(heads, kv_heads, head_dim);
        Ok(Attention {
            qkv_proj: NormProjections::new(norm, projections)?,
            attention: RopeAttention::new(heads, Some(head_norms), rope, &kernels)?,
            o_proj: ProductResidual::new(o_proj)?,
        })
    }

    /// The residual stream `[B, L, D]` with the attention output added.
    pub fn forward(
        &self,
        x: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let attended = self.attention.forward(self.qkv_proj.forward(x)?, cache, step)?;
        self.o_proj.forward(&attended, x)
    }
}

/// The dense feed-forward network with the norm before it and the residual after it; qwen3_moe's
/// dense layers use it too.
#[derive(Debug)]
pub(super) struct Mlp {
    gate_up_proj: NormGatedUp,
    down_proj: ProductResidual,
}

impl Mlp {
    pub fn load(layer: &mut Layer, shape: &Shape) -> Result<Self, LmError> {
        let &Shape { hidden, intermediate, eps, .. } = shape;
        let norm = RmsNorm::load(&mut layer.layer("post_attention_layernorm"), hidden, eps)?;
        let mut layer = layer.layer("mlp");
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
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        self.down_proj.forward(&self.gate_up_proj.forward(x)?, x)
    }
}
