//! Llama: Llama 2 and 3.x (Touvron et al. 2023), SmolLM2, and Mistral without a sliding window.
//! Reference: mlx-lm's llama.py.

mod step;

use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use serde::Deserialize;

use crate::LmError;
use crate::cache::{AttentionStep, KvCache, LayerCache};
use crate::config::{check_full_attention, check_heads, check_positive, check_range};
use crate::ffi;
use crate::models::Architecture;
use crate::nn::{Embedding, FusedLinear, Linear, RmsNorm, Rope, RopeScaling, SwiGlu, attention};
use crate::weights::{Layer, Weights};
use step::CudaStep;

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
        let head_dim = args.head_dim.unwrap_or(args.hidden_size / i64::from(heads));
        let context = args.max_position_embeddings;
        Ok(Shape {
            hidden: check_range("hidden_size", args.hidden_size, 1..=1 << 17)?,
            heads,
            kv_heads,
            head_dim: check_range("head_dim", head_dim, 2..=4096)?,
            layers: check_range("num_hidden_layers", args.num_hidden_layers, 1..=1024)?,
            intermediate: check_range("intermediate_size", args.intermediate_size, 1..=1 << 20)?,
            vocab: check_range("vocab_size", args.vocab_size, 1..=1 << 22)?,
            context: check_range("max_position_embeddings", context, 1..=1 << 26)?,
            eps: check_positive("rms_norm_eps", args.rms_norm_eps)?,
        })
    }
}

/// A loaded llama.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    embed_tokens: Embedding,
    layers: Vec<Rc<TransformerBlock>>,
    norm: Rc<RmsNorm>,
    lm_head: Option<Linear>, // `None`: tied to embed_tokens
    cuda_step: Option<CudaStep>,
}

impl Model {
    /// Takes the tensors that `args` ask for.
    pub fn load(args: ModelArgs, weights: &mut Weights) -> Result<Self, LmError> {
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
                .map(Rc::new)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let norm =
            Rc::new(RmsNorm::load(&mut weights.layer("model.norm"), shape.hidden, shape.eps)?);
        let lm_head = match args.tie_word_embeddings {
            true => None,
            false => {
                Some(Linear::load(&mut weights.layer("lm_head"), shape.hidden, shape.vocab, false)?)
            }
        };
        if let Some(lm_head) = &lm_head {
            lm_head.eval()?;
        }
        let cuda_step = CudaStep::new(&shape, &layers, &norm);
        Ok(Model { shape, embed_tokens, layers, norm, lm_head, cuda_step })
    }
}

impl Architecture for Model {
    fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        Ok(self.embed_tokens.forward(tokens)?)
    }

    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        if let Some(step) = self.cuda_step.as_ref().filter(|step| step.applies(&embeddings, caches))
        {
            return Ok(step.forward(embeddings, caches)?);
        }
        let mut x = embeddings;
        let step = caches[0].attention_step(x.dim(1), None)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            x = layer.forward(x, cache, &step)?;
        }
        Ok(self.norm.forward(&x)?)
    }

    fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        if let Some(step) = &self.cuda_step
            && let Some(logits) = step.logits(hidden, self.lm_head.as_ref(), &self.embed_tokens)?
        {
            return Ok(logits);
        }
        match &self.lm_head {
            Some(lm_head) => Ok(lm_head.forward(hidden)?),
            None => Ok(self.embed_tokens.as_linear(hidden)?),
        }
    }

    fn make_cache(&self) -> Vec<LayerCache> {
        self.layers.iter().map(|_| LayerCache::Kv(KvCache::new())).collect()
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
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl TransformerBlock {
    fn load(layer: &mut Layer, args: &ModelArgs, shape: &Shape) -> Result<Self, LmError> {
        Ok(TransformerBlock {
            input_layernorm: RmsNorm::load(
                &mut layer.layer("input_layernorm"),
                shape.hidden,
                shape.eps,
            )?,
            self_attn: Attention::load(&mut layer.layer("self_attn"), args, shape)?,
            post_attention_layernorm: RmsNorm::load(
                &mut layer.layer("post_attention_layernorm"),
                shape.hidden,
                shape.eps,
            )?,
            mlp: Mlp::load(&mut layer.layer("mlp"), args, shape)?,
        })
    }

    fn forward(
        &self,
        x: Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let h = self.self_attn.forward(&x, &self.input_layernorm.forward(&x)?, cache, step)?;
        self.mlp.forward(&h, &self.post_attention_layernorm.forward(&h)?)
    }
}

#[derive(Debug)]
struct Attention {
    qkv_proj: FusedLinear,
    o_proj: Linear,
    rope: Rope,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    scale: f32,
}

impl Attention {
    fn load(layer: &mut Layer, args: &ModelArgs, shape: &Shape) -> Result<Self, LmError> {
        let (heads, kv_heads, head_dim) = (shape.heads, shape.kv_heads, shape.head_dim);
        let bias = args.attention_bias;
        let projections = vec![
            Linear::load(&mut layer.layer("q_proj"), shape.hidden, heads * head_dim, bias)?,
            Linear::load(&mut layer.layer("k_proj"), shape.hidden, kv_heads * head_dim, bias)?,
            Linear::load(&mut layer.layer("v_proj"), shape.hidden, kv_heads * head_dim, bias)?,
        ];
        let o_proj =
            Linear::load(&mut layer.layer("o_proj"), heads * head_dim, shape.hidden, bias)?;
        o_proj.eval()?;
        let scaling = RopeScaling::parse(args.rope_scaling.as_ref())?;
        Ok(Attention {
            qkv_proj: FusedLinear::new(projections)?,
            o_proj,
            rope: Rope::new(head_dim, args.rope_theta as f32, args.rope_traditional, &scaling),
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
        })
    }

    /// `residual` plus the attention output for `x`, `[B, L, D]`.
    fn forward(
        &self,
        residual: &Array,
        x: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let [batch, length, _] = *x.shape() else {
            return Err(Exception::custom(format!(
                "attention takes three axes, got {:?}",
                x.shape()
            )));
        };
        let (heads, kv_heads, head_dim) = (self.heads, self.kv_heads, self.head_dim);
        let qkv = self.qkv_proj.forward(x)?;
        let qkv = ops::reshape(qkv, &[batch, length, heads + 2 * kv_heads, head_dim])?
            .transpose_axes(&[0, 2, 1, 3])?;
        // Queries and keys are adjacent and rotate by the same angles: one RoPE call for both.
        let part = |from: i32, to: i32, of: &Array| {
            ffi::slice(of, &[0, from, 0, 0], &[batch, to, length, head_dim])
        };
        let rotated = self.rope.forward(&part(0, heads + kv_heads, &qkv)?, &step.offset)?;
        let queries = part(0, heads, &rotated)?;
        let keys = part(heads, heads + kv_heads, &rotated)?;
        let values = part(heads + kv_heads, heads + 2 * kv_heads, &qkv)?;
        let keys_values = cache.update_and_fetch(keys, values)?;
        self.o_proj
            .forward_onto(residual, &attention(&queries, &keys_values, self.scale, &step.mask)?)
    }
}

#[derive(Debug)]
struct Mlp {
    gate_up_proj: FusedLinear,
    swiglu: SwiGlu,
    down_proj: Linear,
}

impl Mlp {
    fn load(layer: &mut Layer, args: &ModelArgs, shape: &Shape) -> Result<Self, LmError> {
        let (hidden, intermediate, bias) = (shape.hidden, shape.intermediate, args.mlp_bias);
        let projections = vec![
            Linear::load(&mut layer.layer("gate_proj"), hidden, intermediate, bias)?,
            Linear::load(&mut layer.layer("up_proj"), hidden, intermediate, bias)?,
        ];
        let down_proj = Linear::load(&mut layer.layer("down_proj"), intermediate, hidden, bias)?;
        down_proj.eval()?;
        Ok(Mlp { gate_up_proj: FusedLinear::new(projections)?, swiglu: SwiGlu::new()?, down_proj })
    }

    /// `residual` plus the MLP output for `x`, `[B, L, D]`.
    fn forward(&self, residual: &Array, x: &Array) -> Result<Array, Exception> {
        if let Some(activated) = self.gate_up_proj.gated(x)? {
            return self.down_proj.forward_onto(residual, &activated);
        }
        let [gate, up] = self.gate_up_proj.forward_split(x)?;
        let activated = self.swiglu.forward(gate, up)?;
        self.down_proj.forward_onto(residual, &activated)
    }
}
