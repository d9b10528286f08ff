//! Gemma 3, text only (Gemma Team 2025): most layers attend to a sliding window, every n-th layer
//! to all tokens. Reference: mlx-lm's gemma3_text.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use serde::Deserialize;

use crate::LmError;
use crate::cache::{
    AttentionStep, CacheSpec, KvSizes, KvSpec, LayerCache, LayerCacheSpec, RotatingSpec,
};
use crate::config::{Size, check_heads, check_positive, check_range};
use crate::device_kernels::{Activation, HeadShape};
use crate::models::{Architecture, FromConfig, Outline, Scratch};
use crate::nn::{
    Embedding, Linear, NormGatedUp, NormProjections, NormResidual, RmsNorm, Rope, RopeAttention,
    RopeScaling,
};
use crate::tensor_list::TensorList;
use crate::weights::{Layer, Weights};

/// See [`Architecture::numerics_revision`].
const NUMERICS_REVISION: u32 = 1;

/// The fields of config.json, with the defaults of Gemma 3 1B.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ModelArgs {
    hidden_size: i64,
    num_hidden_layers: i64,
    intermediate_size: i64,
    num_attention_heads: i64,
    num_key_value_heads: i64,
    head_dim: i64,
    rms_norm_eps: f64,
    vocab_size: i64,
    rope_theta: f64,
    rope_local_base_freq: f64,
    rope_scaling: Option<serde_json::Value>,
    query_pre_attn_scalar: f64,
    sliding_window: i64,
    sliding_window_pattern: i64,
    layer_types: Option<Vec<String>>,
    max_position_embeddings: i64,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    use_bidirectional_attention: bool,
}

impl Default for ModelArgs {
    fn default() -> Self {
        ModelArgs {
            hidden_size: 1152,
            num_hidden_layers: 26,
            intermediate_size: 6912,
            num_attention_heads: 4,
            num_key_value_heads: 1,
            head_dim: 256,
            rms_norm_eps: 1e-6,
            vocab_size: 262_144,
            rope_theta: 1_000_000.0,
            rope_local_base_freq: 10_000.0,
            rope_scaling: None,
            query_pre_attn_scalar: 256.0,
            sliding_window: 512,
            sliding_window_pattern: 6,
            layer_types: None,
            max_position_embeddings: 32_768,
            attn_logit_softcapping: None,
            final_logit_softcapping: None,
            use_bidirectional_attention: false,
        }
    }
}

/// [`ModelArgs`] after its checks.
#[derive(Debug)]
struct Shape {
    hidden: i32,
    intermediate: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    vocab: i32,
    context: i32,
    eps: f32,
    scale: f32,
    rope_theta: f32,
    rope_local_base_freq: f32,
    rope_scaling: RopeScaling,
    /// The sliding window of each layer; `None` for layers that attend to all tokens.
    windows: Vec<Option<i32>>,
    final_logit_softcapping: Option<f32>,
}

impl Shape {
    fn check(args: &ModelArgs) -> Result<Self, LmError> {
        let (heads, kv_heads) = check_heads(args.num_attention_heads, args.num_key_value_heads)?;
        if let Some(cap) = args.attn_logit_softcapping {
            let allowed =
                "only attention without a softcap is supported for this architecture".to_owned();
            return Err(LmError::Config {
                name: "attn_logit_softcapping",
                value: cap.to_string(),
                allowed,
            });
        }
        if args.use_bidirectional_attention {
            let allowed = "a model that attends to later tokens cannot generate text".to_owned();
            return Err(LmError::Config {
                name: "use_bidirectional_attention",
                value: "true".to_owned(),
                allowed,
            });
        }
        Ok(Shape {
            hidden: Size::HIDDEN.check(args.hidden_size)?,
            intermediate: Size::INTERMEDIATE.check(args.intermediate_size)?,
            heads,
            kv_heads,
            head_dim: Size::HEAD_DIM.check(args.head_dim)?,
            vocab: Size::VOCAB.check(args.vocab_size)?,
            context: Size::CONTEXT.check(args.max_position_embeddings)?,
            eps: check_positive("rms_norm_eps", args.rms_norm_eps)?,
            scale: check_positive("query_pre_attn_scalar", args.query_pre_attn_scalar)?.powf(-0.5),
            rope_theta: check_positive("rope_theta", args.rope_theta)?,
            rope_local_base_freq: check_positive(
                "rope_local_base_freq",
                args.rope_local_base_freq,
            )?,
            rope_scaling: RopeScaling::parse(args.rope_scaling.as_ref())?,
            windows: Self::check_windows(args)?,
            final_logit_softcapping: args
                .final_logit_softcapping
                .map(|cap| check_positive("final_logit_softcapping", cap))
                .transpose()?,
        })
    }

    fn check_windows(args: &ModelArgs) -> Result<Vec<Option<i32>>, LmError> {
        let num_layers = Size::LAYERS.check(args.num_hidden_layers)?;
        let window = Size::WINDOW.check(args.sliding_window)?;
        let pattern = check_range("sliding_window_pattern", args.sliding_window_pattern, 1..=1024)?;
        let Some(kinds) = &args.layer_types else {
            return Ok((1..=num_layers)
                .map(|number| (number % pattern != 0).then_some(window))
                .collect());
        };
        // Newer configs list the layers' types instead of a pattern.
        if kinds.len() != num_layers as usize {
            let allowed = format!("it must name the type of each of the {num_layers} layers");
            return Err(LmError::Config {
                name: "layer_types",
                value: format!("a list of {}", kinds.len()),
                allowed,
            });
        }
        let window_of = |kind: &String| match kind.as_str() {
            "sliding_attention" => Ok(Some(window)),
            "full_attention" => Ok(None),
            other => {
                let allowed =
                    "only sliding_attention and full_attention are supported for this architecture"
                        .to_owned();
                Err(LmError::Config { name: "layer_types", value: other.to_owned(), allowed })
            }
        };
        kinds.iter().map(window_of).collect()
    }

    fn cache_spec(&self) -> CacheSpec {
        let sizes = Some(KvSizes::new(self.kv_heads, self.head_dim));
        let layer = |window: &Option<i32>| match *window {
            Some(max_size) => LayerCacheSpec::Rotating(RotatingSpec {
                max_size: max_size as usize,
                keep: 0,
                sizes,
            }),
            None => LayerCacheSpec::Kv(KvSpec { sizes }),
        };
        CacheSpec::new(self.windows.iter().map(layer).collect())
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
            numbers_per_token: 3 * hidden + 6 * intermediate + 3 * queries + 3 * keys_values,
            recurrent_per_token: 0,
            fixed_numbers: 0,
            heads: self.heads as u64,
            vocab: self.vocab as u64,
        }
    }

    /// What [`FromConfig::load`] takes.
    fn tensors(&self) -> TensorList {
        let &Shape { hidden, intermediate, heads, kv_heads, head_dim, vocab, .. } = self;
        let mut list = TensorList::default();
        list.matrix("model.embed_tokens", hidden, vocab);
        for index in 0..self.windows.len() {
            let layer = format!("model.layers.{index}");
            for name in [
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ] {
                list.plain(format!("{layer}.{name}.weight"), &[hidden]);
            }
            list.plain(format!("{layer}.self_attn.q_norm.weight"), &[head_dim]);
            list.plain(format!("{layer}.self_attn.k_norm.weight"), &[head_dim]);
            list.matrix(format!("{layer}.self_attn.q_proj"), hidden, heads * head_dim);
            list.matrix(format!("{layer}.self_attn.k_proj"), hidden, kv_heads * head_dim);
            list.matrix(format!("{layer}.self_attn.v_proj"), hidden, kv_heads * head_dim);
            list.matrix(format!("{layer}.self_attn.o_proj"), heads * head_dim, hidden);
            list.gated_mlp(&format!("{layer}.mlp"), hidden, intermediate);
        }
        list.plain("model.norm.weight", &[hidden]);
        // The file decides.
        list.optional_matrix("lm_head", hidden, vocab);
        list
    }
}

/// A loaded Gemma 3.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    embed_tokens: Embedding,
    embed_scale: Array, // scalar
    layers: Vec<TransformerBlock>,
    norm: RmsNorm,
    lm_head: Option<Linear>,         // `None`: tied to embed_tokens
    softcap: Option<(Array, Array)>, // a scalar and its inverse
}

impl FromConfig for Model {
    type Args = ModelArgs;

    fn outline(args: &ModelArgs) -> Result<Outline, LmError> {
        let shape = Shape::check(args)?;
        Ok(Outline {
            cache: shape.cache_spec(),
            context_length: shape.context as usize,
            is_tied: false, // the file decides
            scratch: shape.scratch(),
            tensors: shape.tensors(),
        })
    }

    fn load(args: ModelArgs, weights: &mut Weights) -> Result<Self, LmError> {
        let shape = Shape::check(&args)?;
        let embed_tokens =
            Embedding::load(&mut weights.layer("model.embed_tokens"), shape.vocab, shape.hidden)?;
        let dtype = embed_tokens.forward(&Array::from_slice(&[0], &[1, 1]))?.dtype();
        // Gemma was trained with this factor in bfloat16.
        let embed_scale = Array::from_f32((shape.hidden as f32).sqrt())
            .as_dtype(Dtype::Bfloat16)?
            .as_dtype(dtype)?;
        embed_scale.eval()?;
        let mut layers = Vec::with_capacity(shape.windows.len());
        for (index, &window) in shape.windows.iter().enumerate() {
            layers.push(TransformerBlock::load(
                &mut weights.layer(format!("model.layers.{index}")),
                &shape,
                window,
            )?);
        }
        let norm =
            RmsNorm::load_plus_one(&mut weights.layer("model.norm"), shape.hidden, shape.eps)?;
        // The file decides, because some configs claim an output layer although their checkpoint
        // ties it.
        let lm_head = match weights.contains("lm_head.weight") {
            true => {
                Some(Linear::load(&mut weights.layer("lm_head"), shape.hidden, shape.vocab, false)?)
            }
            false => None,
        };
        if let Some(lm_head) = &lm_head {
            lm_head.eval()?;
        }
        let scalar = |value: f32| Array::from_f32(value).as_dtype(dtype);
        let softcap = match shape.final_logit_softcapping {
            Some(cap) => Some((scalar(cap)?, scalar(1.0 / cap)?)),
            None => None,
        };
        Ok(Model { shape, embed_tokens, embed_scale, layers, norm, lm_head, softcap })
    }
}

impl Architecture for Model {
    fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        Ok(self.embed_tokens.forward(tokens)?)
    }

    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        // Scaled here and not in `embed`, so that embeddings from the caller are scaled too, as in
        // the reference.
        let mut x = ops::multiply(embeddings, &self.embed_scale)?;
        let mut steps: [Option<AttentionStep>; 2] = [None, None];
        for (layer, cache) in self.layers.iter().zip(caches) {
            // All layers of one kind share the step of the first.
            let step = match &mut steps[usize::from(layer.window.is_some())] {
                Some(step) => step,
                unknown => unknown.insert(cache.attention_step(x.dim(1), layer.window)?),
            };
            x = layer.forward(x, cache, step)?;
        }
        Ok(self.norm.forward(&x)?)
    }

    fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        let logits = match &self.lm_head {
            Some(lm_head) => lm_head.forward(hidden)?,
            None => self.embed_tokens.as_linear(hidden)?,
        };
        match &self.softcap {
            Some((cap, inverse)) => {
                Ok(ops::multiply(ops::tanh(ops::multiply(logits, inverse)?)?, cap)?)
            }
            None => Ok(logits),
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
    window: Option<i32>,
    self_attn: Attention,
    mlp: Mlp,
}

impl TransformerBlock {
    fn load(layer: &mut Layer, shape: &Shape, window: Option<i32>) -> Result<Self, LmError> {
        Ok(TransformerBlock {
            window,
            self_attn: Attention::load(layer, shape, window)?,
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

/// Attention with the norms before and after it and the residual.
#[derive(Debug)]
struct Attention {
    qkv_proj: NormProjections<3>,
    attention: RopeAttention,
    o_proj: Linear,
    post_norm: NormResidual,
}

impl Attention {
    fn load(layer: &mut Layer, shape: &Shape, window: Option<i32>) -> Result<Self, LmError> {
        let &Shape { hidden, heads, kv_heads, head_dim, eps, scale, .. } = shape;
        let mut norm = |name| RmsNorm::load_plus_one(&mut layer.layer(name), hidden, eps);
        let (norm, post_norm) = (norm("input_layernorm")?, norm("post_attention_layernorm")?);
        let (kernels, mut layer) = (layer.kernels(), layer.layer("self_attn"));
        let head_norms = [
            RmsNorm::load_plus_one(&mut layer.layer("q_norm"), head_dim, eps)?,
            RmsNorm::load_plus_one(&mut layer.layer("k_norm"), head_dim, eps)?,
        ];
        let mut linear =
            |name, inputs, outputs| Linear::load(&mut layer.layer(name), inputs, outputs, false);
        let projections = [
            linear("q_proj", hidden, heads * head_dim)?,
            linear("k_proj", hidden, kv_heads * head_dim)?,
            linear("v_proj", hidden, kv_heads * head_dim)?,
        ];
        let o_proj = linear("o_proj", heads * head_dim, hidden)?;
        o_proj.eval()?;
        let rope = match window {
            Some(_) => {
                Rope::new(head_dim, shape.rope_local_base_freq, false, &RopeScaling::Default)
            }
            None => Rope::new(head_dim, shape.rope_theta, false, &shape.rope_scaling),
        };
        let heads = HeadShape { heads, kv_heads, head_dim, scale };
        Ok(Attention {
            qkv_proj: NormProjections::new(norm, projections)?,
            attention: RopeAttention::new(heads, Some(head_norms), rope, &kernels)?,
            o_proj,
            post_norm: NormResidual::new(post_norm, &kernels),
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
        self.post_norm.forward(&self.o_proj.forward(&attended)?, x)
    }
}

/// The feed-forward network with the norms before and after it and the residual.
#[derive(Debug)]
struct Mlp {
    gate_up_proj: NormGatedUp,
    down_proj: Linear,
    post_norm: NormResidual,
}

impl Mlp {
    fn load(layer: &mut Layer, shape: &Shape) -> Result<Self, LmError> {
        let &Shape { hidden, intermediate, eps, .. } = shape;
        let mut norm = |name| RmsNorm::load_plus_one(&mut layer.layer(name), hidden, eps);
        let (norm, post_norm) =
            (norm("pre_feedforward_layernorm")?, norm("post_feedforward_layernorm")?);
        let (kernels, mut layer) = (layer.kernels(), layer.layer("mlp"));
        let mut linear =
            |name, inputs, outputs| Linear::load(&mut layer.layer(name), inputs, outputs, false);
        let gate_up =
            [linear("gate_proj", hidden, intermediate)?, linear("up_proj", hidden, intermediate)?];
        let down_proj = linear("down_proj", intermediate, hidden)?;
        down_proj.eval()?;
        Ok(Mlp {
            gate_up_proj: NormGatedUp::new(Some(norm), gate_up, Activation::GeluApprox)?,
            down_proj,
            post_norm: NormResidual::new(post_norm, &kernels),
        })
    }

    /// The residual stream `[B, L, D]` with the output added.
    fn forward(&self, x: &Array) -> Result<Array, Exception> {
        self.post_norm.forward(&self.down_proj.forward(&self.gate_up_proj.forward(x)?)?, x)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Compares the windows of a config's layers, or the key that is refused.
    fn check(config: serde_json::Value, expected: Result<&[Option<i32>], &str>) {
        let args = ModelArgs::deserialize(&config).expect("arguments");
        let found = Shape::check(&args).map(|shape| shape.windows).map_err(|error| match error {
            LmError::Config { name, .. } => name,
            other => panic!("{config}: {other}"),
        });
        assert_eq!(found.as_deref().map_err(|name| *name), expected, "{config}");
    }

    #[test]
    fn the_pattern_or_the_list_says_which_layers_see_everything() {
        const W: Option<i32> = Some(512);
        check(json!({"num_hidden_layers": 7}), Ok(&[W, W, W, W, W, None, W]));
        check(
            json!({"num_hidden_layers": 3, "sliding_window_pattern": 1}),
            Ok(&[None, None, None]),
        );
        check(
            json!({"num_hidden_layers": 3, "sliding_window_pattern": 2, "sliding_window": 4}),
            Ok(&[Some(4), None, Some(4)]),
        );
        check(
            json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}),
            Ok(&[None, W]),
        );
        check(
            json!({"num_hidden_layers": 1, "layer_types": null, "final_logit_softcapping": null}),
            Ok(&[W]),
        );
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        check(
            json!({"num_hidden_layers": 2, "layer_types": ["full_attention"]}),
            Err("layer_types"),
        );
        check(
            json!({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]}),
            Err("layer_types"),
        );
        check(json!({"sliding_window_pattern": 0}), Err("sliding_window_pattern"));
        check(json!({"sliding_window": 0}), Err("sliding_window"));
        check(json!({"num_key_value_heads": 3}), Err("num_key_value_heads"));
        check(json!({"query_pre_attn_scalar": 0}), Err("query_pre_attn_scalar"));
        check(json!({"attn_logit_softcapping": 50.0}), Err("attn_logit_softcapping"));
        check(json!({"use_bidirectional_attention": true}), Err("use_bidirectional_attention"));
    }
}
