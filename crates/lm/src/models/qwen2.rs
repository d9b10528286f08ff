//! Qwen2 and Qwen2.5 (Qwen Team 2024), dense. Reference: mlx-lm's qwen2.py.

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
    num_key_value_heads: i64,
    rms_norm_eps: f64,
    vocab_size: i64,
    #[serde(default = "default_max_position_embeddings")]
    max_position_embeddings: i64,
    rope_theta: Option<f64>,
    #[serde(default)]
    rope_traditional: bool,
    rope_scaling: Option<serde_json::Value>,
    rope_parameters: Option<serde_json::Value>,
    #[serde(default = "default_tie_word_embeddings")]
    tie_word_embeddings: bool,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default = "default_max_window_layers")]
    max_window_layers: i64,
    layer_types: Option<Vec<String>>,
}

const DEFAULT_ROPE_THETA: f64 = 1_000_000.0;

fn default_max_position_embeddings() -> i64 {
    32_768
}

fn default_tie_word_embeddings() -> bool {
    true
}

fn default_max_window_layers() -> i64 {
    28
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
    rope_theta: f32,
    rope_traditional: bool,
    rope_scaling: RopeScaling,
}

impl Shape {
    fn check(args: &ModelArgs) -> Result<Self, LmError> {
        let (heads, kv_heads) = check_heads(args.num_attention_heads, args.num_key_value_heads)?;
        // The reference reads neither these keys nor rope_parameters, but the models mean them.
        check_full_attention(args.layer_types.as_deref())?;
        if args.use_sliding_window && args.max_window_layers < args.num_hidden_layers {
            return Err(LmError::Config {
                name: "use_sliding_window",
                value: "true".to_owned(),
                allowed: "sliding windows are not supported for this architecture".to_owned(),
            });
        }
        // Newer configs put both RoPE entries under rope_parameters.
        let nested = args.rope_parameters.as_ref();
        let rope_theta = args
            .rope_theta
            .or_else(|| nested.and_then(|parameters| parameters.get("rope_theta")?.as_f64()))
            .unwrap_or(DEFAULT_ROPE_THETA);
        Ok(Shape {
            hidden: Size::HIDDEN.check(args.hidden_size)?,
            layers: Size::LAYERS.check(args.num_hidden_layers)?,
            intermediate: Size::INTERMEDIATE.check(args.intermediate_size)?,
            heads,
            kv_heads,
            head_dim: Size::HEAD_DIM.check(args.hidden_size / i64::from(heads))?,
            vocab: Size::VOCAB.check(args.vocab_size)?,
            context: Size::CONTEXT.check(args.max_position_embeddings)?,
            eps: check_positive("rms_norm_eps", args.rms_norm_eps)?,
            rope_theta: check_positive("rope_theta", rope_theta)?,
            rope_traditional: args.rope_traditional,
            rope_scaling: RopeScaling::parse(args.rope_scaling.as_ref().or(nested))?,
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
            numbers_per_token: 3 * hidden + 5 * intermediate + 3 * queries + 3 * keys_values,
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
                if name != "o_proj" {
                    list.plain(format!("{layer}.self_attn.{name}.bias"), &[outputs]);
                }
            }
            list.gated_mlp(&format!("{layer}.mlp"), hidden, intermediate);
        }
        list.plain("model.norm.weight", &[hidden]);
        if !args.tie_word_embeddings {
            list.matrix("lm_head", hidden, vocab);
        }
        list
    }
}

/// A loaded Qwen2.
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

/// Attention with biases on queries, keys and values, and none on the output; with the norm before
/// it and the residual after it.
#[derive(Debug)]
struct Attention {
    qkv_proj: NormProjections<3>,
    attention: RopeAttention,
    o_proj: ProductResidual,
}

impl Attention {
    fn load(layer: &mut Layer, shape: &Shape) -> Result<Self, LmError> {
        let &Shape { hidden, heads, kv_heads, head_dim, eps, rope_theta, .. } = shape;
        let norm = RmsNorm::load(&mut layer.layer("input_layernorm"), hidden, eps)?;
        let (kernels, mut layer) = (layer.kernels(), layer.layer("self_attn"));
        let mut linear = |name, inputs, outputs, has_bias| {
            Linear::load(&mut layer.layer(name), inputs, outputs, has_bias)
        };
        let projections = [
            linear("q_proj", hidden, heads * head_dim, true)?,
            linear("k_proj", hidden, kv_heads * head_dim, true)?,
            linear("v_proj", hidden, kv_heads * head_dim, true)?,
        ];
        let o_proj = linear("o_proj", heads * head_dim, hidden, false)?;
        let rope = Rope::new(head_dim, rope_theta, shape.rope_traditional, &shape.rope_scaling);
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
    fn load(layer: &mut Layer, shape: &Shape) -> Result<Self, LmError> {
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
    fn forward(&self, x: &Array) -> Result<Array, Exception> {
        self.down_proj.forward(&self.gate_up_proj.forward(x)?, x)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// RoPE's base and scaling in a config with these entries, or the key that is refused.
    fn check(entries: serde_json::Value, expected: Result<(f32, RopeScaling), &str>) {
        let mut config = json!({
            "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "vocab_size": 128,
        });
        for (name, value) in entries.as_object().expect("an object") {
            config[name] = value.clone();
        }
        let args = ModelArgs::deserialize(&config).expect("arguments");
        let found = Shape::check(&args).map_err(|error| match error {
            LmError::Config { name, .. } => name,
            other => panic!("{entries}: {other}"),
        });
        let found = found.map(|shape| (shape.rope_theta, shape.rope_scaling));
        assert_eq!(found, expected, "{entries}");
    }

    #[test]
    fn rope_is_configured_by_flat_or_nested_keys() {
        let linear = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4});
        check(json!({}), Ok((1e6, RopeScaling::Default)));
        check(json!({"rope_theta": 1e4, "rope_scaling": null}), Ok((1e4, RopeScaling::Default)));
        check(json!({"rope_parameters": linear}), Ok((1e4, RopeScaling::Linear { factor: 4.0 })));
        check(
            json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}),
            Ok((5e5, RopeScaling::Linear { factor: 2.0 })),
        );
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        check(json!({"num_key_value_heads": 3}), Err("num_key_value_heads"));
        check(json!({"hidden_size": 4}), Err("head_dim"));
        check(json!({"rope_theta": 0.0}), Err("rope_theta"));
        check(json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}), Err("rope_scaling"));
        check(json!({"layer_types": ["sliding_attention"]}), Err("layer_types"));
        check(
            json!({"use_sliding_window": true, "max_window_layers": 1}),
            Err("use_sliding_window"),
        );
    }

    /// The layers from `max_window_layers` on have windows: here none.
    #[test]
    fn windows_that_no_layer_has_are_allowed() {
        let entries = json!({"use_sliding_window": true, "max_window_layers": 2});
        check(entries, Ok((1e6, RopeScaling::Default)));
    }
}
