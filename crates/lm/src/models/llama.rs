//! Llama: Llama 2 and 3.x (Touvron et al. 2023), SmolLM2, and Mistral without a sliding window.
//! Reference: mlx-lm's llama.py.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use serde::Deserialize;

use crate::LmError;
use crate::cache::{AttentionStep, CacheSpec, KvSizes, KvSpec, LayerCache, LayerCacheSpec};
use crate::config::{Size, check_full_attention, check_heads, check_positive};
use crate::device_kernels::{Activation, HeadShape};
use crate::models::{Architecture, FromConfig, Outline, Scratch};
use crate::nn::{
    Embedding, Linear, NormGatedUp, NormProjections, ProductResidual, RmsNorm, Rope, RopeAttention,
    RopeScaling,
};
use crate::tensor_list::TensorList;
use crate::weights::{Layer, Weights};

/// See [`Architecture::numerics_revision`].
const NUMERICS_REVISION: u32 = 1;

/// The fields of config.json, with its defaults.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    hidden_size: i64,
    num_hidden_layers: i64,
    intermediate_size: i64,
    num_attention_heads: i64,
    num_key_value_heads: Option<i64>,
    head_dim: Option<i64>,
    rms_norm_eps: f64,
    vocab_size: i64,
    #[serde(default = "default_max_position_embeddings")]
    max_position_embeddings: i64,
    #[serde(default = "default_rope_theta")]
    rope_theta: f64,
    #[serde(default)]
    rope_traditional: bool,
    rope_scaling: Option<serde_json::Value>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "default_tie_word_embeddings")]
    tie_word_embeddings: bool,
    layer_types: Option<Vec<String>>,
}

fn default_max_position_embeddings() -> i64 {
    2048
}

fn default_rope_theta() -> f64 {
    10_000.0
}

fn default_tie_word_embeddings() -> bool {
    true
}

/// [`ModelArgs`] after its checks.
#[derive(Debug)]
struct Shape {
    hidden: i32,
    layers: i32,
    intermediate: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    vocab: i32,
    context: i32,
    eps: f32,
}

impl Shape {
    fn check(args: &ModelArgs) -> Result<Self, LmError> {
        let (heads, kv_heads) = check_heads(
            args.num_attention_heads,
            args.num_key_value_heads.unwrap_or(args.num_attention_heads),
        )?;
        check_full_attention(args.layer_types.as_deref())?;
        check_positive("rope_theta", args.rope_theta)?;
        RopeScaling::parse(args.rope_scaling.as_ref())?;
        let head_dim = args.head_dim.unwrap_or(args.hidden_size / i64::from(heads));
        let context = args.max_position_embeddings;
        Ok(Shape {
            hidden: Size::HIDDEN.check(args.hidden_size)?,
            heads,
            kv_heads,
            head_dim: Size::HEAD_DIM.check(head_dim)?,
            layers: Size::LAYERS.check(args.num_hidden_layers)?,
            intermediate: Size::INTERMEDIATE.check(args.intermediate_size)?,
            vocab: Size::VOCAB.check(args.vocab_size)?,
            context: Size::CONTEXT.check(context)?,
            eps: check_positive("rms_norm_eps", args.rms_norm_eps)?,
        })
    }

    /// Plain attention in every layer.
    fn cache_spec(&self) -> CacheSpec {
        let sizes = Some(KvSizes::new(self.kv_heads, self.head_dim));
        CacheSpec::new(vec![LayerCacheSpec::Kv(KvSpec { sizes }); self.layers as usize])
    }

    /// How many results of each width live at once, by the example `memory`.
    fn scratch(&self) -> Scratch {
        let [hidden, intermediate, queries, keys_values] = [
            self.hidden,
            self.intermediate,
            self.heads * self.head_dim,
            2 * self.kv_heads * self.head_dim,
        ]
        .map(|width| width as u64);
        Scratch {
            numbers_per_token: 3 * hidden + 5 * intermediate + 2 * queries + 2 * keys_values,
            recurrent_per_token: 0,
            fixed_numbers: 0,
            heads: self.heads as u64,
            vocab: self.vocab as u64,
        }
    }

    /// What [`FromConfig::load`] takes.
    fn tensors(&self, args: &ModelArgs) -> TensorList {
        let &Shape { hidden, intermediate, heads, kv_heads, head_dim, vocab, .. } = self;
        let mut list = TensorList::default();
        list.matrix("model.embed_tokens", hidden, vocab);
        for index in 0..self.layers {
            let layer = format!("model.layers.{index}");
            list.plain(format!("{layer}.input_layernorm.weight"), &[hidden]);
            list.plain(format!("{layer}.post_attention_layernorm.weight"), &[hidden]);
            for (name, inputs, outputs) in [
                ("q_proj", hidden, heads * head_dim),
                ("k_proj", hidden, kv_heads * head_dim),
                ("v_proj", hidden, kv_heads * head_dim),
                ("o_proj", heads * head_dim, hidden),
            ] {
                list.matrix(format!("{layer}.self_attn.{name}"), inputs, outputs);
                if args.attention_bias {
                    list.plain(format!("{layer}.self_attn.{name}.bias"), &[outputs]);
                }
            }
            list.gated_mlp(&format!("{layer}.mlp"), hidden, intermediate);
            if args.mlp_bias {
                for (name, outputs) in
                    [("gate_proj", intermediate), ("up_proj", intermediate), ("down_proj", hidden)]
                {
                    list.plain(format!("{layer}.mlp.{name}.bias"), &[outputs]);
                }
            }
        }
        list.plain("model.norm.weight", &[hidden]);
        if !args.tie_word_embeddings {
            list.matrix("lm_head", hidden, vocab);
        }
        list
    }
}

/// A loaded llama.
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
            tensors: shape.tensors(args),
        })
    }

    fn load(args: ModelArgs, weights: &mut Weights) -> Result<Self, LmError> {
        let shape = Shape::check(&args)?;
        // Older checkpoints store RoPE frequencies, which follow from the config; tied checkpoints
        // may store the output layer again.
        weights.ignore(|name| {
            name.ends_with("rotary_emb.inv_freq")
                || (args.tie_word_embeddings && name.starts_with("lm_head."))
        });
        let embed_tokens =
            Embedding::load(&mut weights.layer("model.embed_tokens"), shape.vocab, shape.hidden)?;
        let layers = (0..shape.layers)
            .map(|index| {
                TransformerBlock::load(
                    &mut weights.layer(format!("model.layers.{index}")),
                    &args,
                    &shape,
                )
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
    fn load(layer: &mut Layer, args: &ModelArgs, shape: &Shape) -> Result<Self, LmError> {
        Ok(TransformerBlock {
            self_attn: Attention::load(layer, args, shape)?,
            mlp: Mlp::load(layer, args, shape)?,
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

/// Attention with the norm before it and the residual after it.
#[derive(Debug)]
struct Attention {
    qkv_proj: NormProjections<3>,
    attention: RopeAttention,
    o_proj: ProductResidual,
}

impl Attention {
    fn load(layer: &mut Layer, args: &ModelArgs, shape: &Shape) -> Result<Self, LmError> {
        let &Shape { hidden, heads, kv_heads, head_dim, eps, .. } = shape;
        let norm = RmsNorm::load(&mut layer.layer("input_layernorm"), hidden, eps)?;
        let (kernels, mut layer) = (layer.kernels(), layer.layer("self_attn"));
        let mut linear = |name, inputs, outputs| {
            Linear::load(&mut layer.layer(name), inputs, outputs, args.attention_bias)
        };
        let projections = [
            linear("q_proj", hidden, heads * head_dim)?,
            linear("k_proj", hidden, kv_heads * head_dim)?,
            linear("v_proj", hidden, kv_heads * head_dim)?,
        ];
        let o_proj = linear("o_proj", heads * head_dim, hidden)?;
        let scaling = RopeScaling::parse(args.rope_scaling.as_ref())?;
        let rope = Rope::new(head_dim, args.rope_theta as f32, args.rope_traditional, &scaling);
        let heads = HeadShape { heads, kv_heads, head_dim, scale: (head_dim as f32).powf(-0.5) };
        Ok(Attention {
            qkv_proj: NormProjections::new(norm, projections)?,
            attention: RopeAttention::new(heads, None, rope, &kernels)?,
            o_proj: ProductResidual::new(o_proj)?,
        })
    }

    /// The residual stream `[B, L, D]` with the attention output added.
    fn forward(
        &self,
        x: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let attended = self.attention.forward(self.qkv_proj.forward(x)?, cache, step)?;
        self.o_proj.forward(&attended, x)
    }
}

/// The feed-forward network with the norm before it and the residual after it.
#[derive(Debug)]
struct Mlp {
    gate_up_proj: NormGatedUp,
    down_proj: ProductResidual,
}

impl Mlp {
    fn load(layer: &mut Layer, args: &ModelArgs, shape: &Shape) -> Result<Self, LmError> {
        let &Shape { hidden, intermediate, eps, .. } = shape;
        let norm = RmsNorm::load(&mut layer.layer("post_attention_layernorm"), hidden, eps)?;
        let mut layer = layer.layer("mlp");
        let mut linear = |name, inputs, outputs| {
            Linear::load(&mut layer.layer(name), inputs, outputs, args.mlp_bias)
        };
        let gate_up =
            [linear("gate_proj", hidden, intermediate)?, linear("up_proj", hidden, intermediate)?];
        Ok(Mlp {
            gate_up_proj: NormGatedUp::new(Some(norm), gate_up, Activation::Silu)?,
            down_proj: ProductResidual::new(linear("down_proj", intermediate, hidden)?)?,
        })
    }

    /// The residual stream `[B, L, D]` with the MLP's output added.
    fn forward(&self, x: &Array) -> Result<Array, Exception> {
        self.down_proj.forward(&self.gate_up_proj.forward(x)?, x)
    }
}
