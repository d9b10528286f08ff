//! Gemma 4, the text part (Gemma Team 2026): windows and full attention with heads of other sizes, last layers
//! that attend to an earlier layer's keys and values, and in small models an input to each layer beside the
//! embeddings. Reference: mlx-lm's gemma4_text.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast, ops};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::LmError;
use crate::cache::{
    AttentionStep, CacheSpec, KeysValues, KvSizes, KvSpec, LayerCache, LayerCacheSpec, RotatingSpec,
};
use crate::config::{Size, check_heads, check_positive, check_range};
use crate::device_kernels::{Activation, HeadShape};
use crate::ffi;
use crate::models::{Architecture, FromConfig, Outline, Scratch};
use crate::nn::{
    Embedding, GatedActivation, Linear, NormGatedUp, NormProjections, NormResidual, RmsNorm, Rope,
    RopeSpec, attention, scalar, softcap,
};
use crate::tensor_list::{Left, TensorList};
use crate::weights::{Layer, Weights};

/// The fields of config.json, with its defaults.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ModelArgs {
    hidden_size: i64,
    num_hidden_layers: i64,
    intermediate_size: i64,
    num_attention_heads: i64,
    num_key_value_heads: i64,
    head_dim: i64,
    /// Of layers with full attention.
    global_head_dim: Option<i64>,
    /// The same, where their keys are their values.
    num_global_key_value_heads: Option<i64>,
    attention_k_eq_v: bool,
    num_kv_shared_layers: i64,
    use_double_wide_mlp: bool,
    rms_norm_eps: f64,
    vocab_size: i64,
    vocab_size_per_layer_input: i64,
    hidden_size_per_layer_input: Option<i64>,
    rope_traditional: bool,
    /// By the type of layer.
    rope_parameters: Option<Value>,
    sliding_window: i64,
    sliding_window_pattern: i64,
    layer_types: Option<Vec<String>>,
    max_position_embeddings: i64,
    final_logit_softcapping: Option<f64>,
    enable_moe_block: bool,
    tie_word_embeddings: bool,
}

impl Default for ModelArgs {
    fn default() -> Self {
        ModelArgs {
            hidden_size: 1536,
            num_hidden_layers: 35,
            intermediate_size: 6144,
            num_attention_heads: 8,
            num_key_value_heads: 1,
            head_dim: 256,
            global_head_dim: Some(512),
            num_global_key_value_heads: None,
            attention_k_eq_v: false,
            num_kv_shared_layers: 20,
            use_double_wide_mlp: true,
            rms_norm_eps: 1e-6,
            vocab_size: 262_144,
            vocab_size_per_layer_input: 262_144,
            hidden_size_per_layer_input: Some(256),
            rope_traditional: false,
            rope_parameters: None,
            sliding_window: 512,
            sliding_window_pattern: 5,
            layer_types: None,
            max_position_embeddings: 131_072,
            final_logit_softcapping: Some(30.0),
            enable_moe_block: false,
            tie_word_embeddings: true,
        }
    }
}

/// [`ModelArgs`] after its checks.
#[derive(Debug)]
struct Shape {
    hidden: i32,
    vocab: i32,
    context: i32,
    eps: f32,
    layers: Vec<LayerShape>,
    /// How many numbers of its own each layer is given of a token.
    input_dim: Option<i32>,
    /// The tokens that have such numbers.
    input_vocab: i32,
    logit_softcap: Option<f32>,
    is_tied: bool,
}

/// What differs from layer to layer.
#[derive(Debug, Clone)]
struct LayerShape {
    window: Option<i32>,
    heads: HeadShape,
    rope: RopeSpec,
    keys_values: Source,
    intermediate: i32,
}

/// Where a layer's keys and values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// `k_proj` and `v_proj`.
    Projections,
    /// `k_proj`: values are keys that are neither scaled nor rotated.
    KeyProjection,
    /// An earlier layer.
    Layer(usize),
}

fn refused<T>(name: &'static str, value: String, allowed: &str) -> Result<T, LmError> {
    Err(LmError::Config { name, value, allowed: allowed.to_owned() })
}

impl Shape {
    fn check(args: &ModelArgs) -> Result<Self, LmError> {
        if args.enable_moe_block {
            let allowed = "only layers without experts are supported for this architecture";
            return refused("enable_moe_block", "true".to_owned(), allowed);
        }
        let vocab = Size::VOCAB.check(args.vocab_size)?;
        let input_dim = args.hidden_size_per_layer_input.filter(|&width| width != 0);
        let name = "hidden_size_per_layer_input";
        let input_dim = input_dim.map(|width| check_range(name, width, 1..=1 << 13)).transpose()?;
        let input_vocab = match input_dim {
            None => vocab,
            Some(_) => {
                let (name, least) = ("vocab_size_per_layer_input", i64::from(vocab));
                check_range(name, args.vocab_size_per_layer_input, least..=1 << 22)?
            }
        };
        Ok(Shape {
            hidden: Size::HIDDEN.check(args.hidden_size)?,
            vocab,
            context: Size::CONTEXT.check(args.max_position_embeddings)?,
            eps: check_positive("rms_norm_eps", args.rms_norm_eps)?,
            layers: LayerShape::all(args)?,
            input_dim,
            input_vocab,
            logit_softcap: args
                .final_logit_softcapping
                .map(|cap| check_positive("final_logit_softcapping", cap))
                .transpose()?,
            is_tied: args.tie_word_embeddings,
        })
    }

    /// The layers that have a cache: the first.
    fn num_caches(&self) -> usize {
        let has_cache = |layer: &&LayerShape| !matches!(layer.keys_values, Source::Layer(_));
        self.layers.iter().take_while(has_cache).count()
    }

    fn cache_spec(&self) -> CacheSpec {
        let of_layer = |layer: &LayerShape| {
            let sizes = Some(KvSizes::new(layer.heads.kv_heads, layer.heads.head_dim));
            match layer.window {
                Some(window) => {
                    let max_size = window as usize;
                    LayerCacheSpec::Rotating(RotatingSpec { max_size, keep: 0, sizes })
                }
                None => LayerCacheSpec::Kv(KvSpec { sizes }),
            }
        };
        CacheSpec::new(self.layers[..self.num_caches()].iter().map(of_layer).collect())
    }

    /// How many results of each width live at once, by the example `memory`.
    fn scratch(&self) -> Scratch {
        // While a prompt is read nobody needs what the other layers put out.
        let reading = &self.layers[..self.num_caches()];
        let widest =
            |width: fn(&LayerShape) -> i32| reading.iter().map(width).max().unwrap_or(0) as u64;
        let queries = widest(|layer| layer.heads.heads * layer.heads.head_dim);
        let keys_values = widest(|layer| 2 * layer.heads.kv_heads * layer.heads.head_dim);
        let intermediate = widest(|layer| layer.intermediate);
        let of_layer = 3 * self.hidden as u64 + 6 * intermediate + 3 * (queries + keys_values);
        // Those of all layers are made at once, before the first.
        let inputs = self.input_dim.unwrap_or(0) as u64 * self.layers.len() as u64;
        let heads = widest(|layer| layer.heads.heads);
        Scratch {
            numbers_per_token: (inputs + of_layer).max(4 * inputs),
            recurrent_per_token: 0,
            numbers_per_key: 0,
            fixed_numbers: 0,
            heads,
            vocab: self.vocab as u64,
            stores_scores: false,
        }
    }

    /// What [`FromConfig::load`] takes.
    fn tensors(&self) -> TensorList {
        let &Shape { hidden, vocab, .. } = self;
        let mut list = TensorList::default();
        for part in ["rotary_emb", "input_max", "input_min", "output_max", "output_min"] {
            list.leave(Left::Containing(part));
        }
        let first = self.num_caches();
        for part in ["self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm."] {
            list.leave(Left::OfLayersFrom(first, part));
        }
        list.matrix("model.embed_tokens", hidden, vocab);
        if let Some(width) = self.input_dim {
            let all = width * self.layers.len() as i32;
            list.matrix("model.embed_tokens_per_layer", all, self.input_vocab);
            list.matrix("model.per_layer_model_projection", hidden, all);
            list.plain("model.per_layer_projection_norm.weight", &[width]);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            self.list_layer(&mut list, &format!("model.layers.{index}"), layer);
        }
        list.plain("model.norm.weight", &[hidden]);
        if !self.is_tied {
            list.matrix("lm_head", hidden, vocab);
        }
        list
    }

    fn list_layer(&self, list: &mut TensorList, path: &str, layer: &LayerShape) {
        let (hidden, HeadShape { heads, kv_heads, head_dim, .. }) = (self.hidden, layer.heads);
        list.matrix(format!("{path}.self_attn.q_proj"), hidden, heads * head_dim);
        list.matrix(format!("{path}.self_attn.o_proj"), heads * head_dim, hidden);
        list.plain(format!("{path}.self_attn.q_norm.weight"), &[head_dim]);
        if !matches!(layer.keys_values, Source::Layer(_)) {
            list.matrix(format!("{path}.self_attn.k_proj"), hidden, kv_heads * head_dim);
            list.plain(format!("{path}.self_attn.k_norm.weight"), &[head_dim]);
        }
        if layer.keys_values == Source::Projections {
            list.matrix(format!("{path}.self_attn.v_proj"), hidden, kv_heads * head_dim);
        }
        list.gated_mlp(&format!("{path}.mlp"), hidden, layer.intermediate);
        for name in NORMS {
            list.plain(format!("{path}.{name}.weight"), &[hidden]);
        }
        if let Some(width) = self.input_dim {
            list.matrix(format!("{path}.per_layer_input_gate"), hidden, width);
            list.matrix(format!("{path}.per_layer_projection"), width, hidden);
            list.plain(format!("{path}.post_per_layer_input_norm.weight"), &[hidden]);
        }
        list.plain(format!("{path}.layer_scalar"), &[1]);
    }
}

/// The norms of every layer.
const NORMS: [&str; 4] = [
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
];

impl LayerShape {
    /// All layers; the last take keys and values of the last before them of the same type.
    fn all(args: &ModelArgs) -> Result<Vec<Self>, LmError> {
        let count = Size::LAYERS.check(args.num_hidden_layers)?;
        let num_shared = args.num_kv_shared_layers;
        let num_shared = check_range("num_kv_shared_layers", num_shared, 0..=i64::from(count) - 1)?;
        let first_shared = (count - num_shared) as usize;
        let windows = windows(args, count as usize)?;
        let [sliding, full] = [true, false].map(|is_sliding| LayerShape::of(args, is_sliding));
        let (sliding, full) = (sliding?, full?);
        let mut layers = Vec::with_capacity(windows.len());
        for (index, &is_sliding) in windows.iter().enumerate() {
            let mut layer = if is_sliding { sliding.clone() } else { full.clone() };
            if index >= first_shared {
                let of_type = |earlier: &usize| windows[*earlier] == is_sliding;
                let Some(source) = (0..first_shared).rev().find(of_type) else {
                    let allowed = "an earlier layer of each type must have keys and values";
                    return refused("num_kv_shared_layers", num_shared.to_string(), allowed);
                };
                layer.keys_values = Source::Layer(source);
                if args.use_double_wide_mlp {
                    layer.intermediate *= 2;
                }
            }
            layers.push(layer);
        }
        Ok(layers)
    }

    /// A layer with keys and values of its own.
    fn of(args: &ModelArgs, is_sliding: bool) -> Result<Self, LmError> {
        let takes_keys = args.attention_k_eq_v && !is_sliding;
        let of_full = args.global_head_dim.filter(|&size| !is_sliding && size != 0);
        let head_dim = Size::HEAD_DIM.check(of_full.unwrap_or(args.head_dim))?;
        let kv_heads = args.num_global_key_value_heads.filter(|_| takes_keys);
        let kv_heads = kv_heads.unwrap_or(args.num_key_value_heads);
        let (heads, kv_heads) = check_heads(args.num_attention_heads, kv_heads)?;
        Ok(LayerShape {
            window: is_sliding.then(|| Size::WINDOW.check(args.sliding_window)).transpose()?,
            // Queries are normalized, so scores are not scaled.
            heads: HeadShape { scale: 1.0, ..HeadShape::new(heads, kv_heads, head_dim) },
            rope: rope(args, head_dim, is_sliding)?,
            keys_values: if takes_keys { Source::KeyProjection } else { Source::Projections },
            intermediate: Size::INTERMEDIATE.check(args.intermediate_size)?,
        })
    }
}

/// Which layers attend to a window.
fn windows(args: &ModelArgs, count: usize) -> Result<Vec<bool>, LmError> {
    let Some(types) = &args.layer_types else {
        let pattern = args.sliding_window_pattern;
        let pattern = check_range("sliding_window_pattern", pattern, 1..=1024)? as usize;
        return Ok((1..=count).map(|number| number % pattern != 0).collect());
    };
    if types.len() != count {
        let allowed = format!("it must name the type of each of the {count} layers");
        return refused("layer_types", format!("a list of {}", types.len()), &allowed);
    }
    let is_sliding = |kind: &String| match kind.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => {
            let allowed = "only full_attention and sliding_attention are supported for this \
                           architecture";
            refused("layer_types", other.chars().take(80).collect(), allowed)
        }
    };
    types.iter().map(is_sliding).collect()
}

fn rope(args: &ModelArgs, head_dim: i32, is_sliding: bool) -> Result<RopeSpec, LmError> {
    let usual;
    let all = match &args.rope_parameters {
        Some(given) => given,
        None => {
            usual = json!({
                "full_attention": {
                    "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6
                },
                "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
            });
            &usual
        }
    };
    let own = all.get(if is_sliding { "sliding_attention" } else { "full_attention" });
    let theta = match own.and_then(|keys| keys.get("rope_theta")) {
        None => 10_000.0,
        Some(theta) => theta.as_f64().unwrap_or(f64::NAN),
    };
    let is_named =
        |keys: &&Value| ["rope_type", "type"].iter().any(|name| keys.get(name).is_some());
    let scaling = own.filter(is_named);
    let context = Size::CONTEXT.check(args.max_position_embeddings)?;
    RopeSpec::check(head_dim, theta, args.rope_traditional, scaling, context)
}

/// A loaded Gemma 4.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    embed_tokens: Embedding,
    embed_scale: Array, // scalar
    inputs: Option<LayerInputs>,
    layers: Vec<DecoderLayer>,
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
            is_tied: shape.is_tied,
            scratch: shape.scratch(),
            tensors: shape.tensors(),
            takes_mtp_head: false,
        })
    }

    fn load(args: ModelArgs, weights: &mut Weights) -> Result<Self, LmError> {
        let shape = Shape::check(&args)?;
        let (hidden, vocab, eps) = (shape.hidden, shape.vocab, shape.eps);
        let tensors = shape.tensors();
        weights
            .ignore(|name| tensors.leaves(name) || (shape.is_tied && name.starts_with("lm_head.")));
        let embed_tokens =
            Embedding::load(&mut weights.layer("model.embed_tokens"), vocab, hidden)?;
        let dtype = embed_tokens.forward(&Array::from_slice(&[0], &[1, 1]))?.dtype();
        let inputs =
            shape.input_dim.map(|width| LayerInputs::load(weights, &shape, width)).transpose()?;
        let mut layers = Vec::with_capacity(shape.layers.len());
        for (index, kind) in shape.layers.iter().enumerate() {
            let mut layer = weights.layer(format!("model.layers.{index}"));
            layers.push(DecoderLayer::load(&mut layer, &shape, kind)?);
        }
        let norm = RmsNorm::load(&mut weights.layer("model.norm"), hidden, eps)?;
        let lm_head = match shape.is_tied {
            true => None,
            false => Some(Linear::load(&mut weights.layer("lm_head"), hidden, vocab, false)?),
        };
        if let Some(lm_head) = &lm_head {
            lm_head.eval()?;
        }
        let embed_scale = scalar((hidden as f32).sqrt(), dtype)?;
        Ok(Model { shape, embed_tokens, embed_scale, inputs, layers, norm, lm_head })
    }
}

impl Architecture for Model {
    fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        Ok(self.embed_tokens.forward(tokens)?)
    }

    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        if self.inputs.is_some() {
            return Err(LmError::OutOfRange {
                name: "input_embeddings",
                value: format!("{:?}", embeddings.shape()),
                allowed: "each layer of this model reads the tokens too: give token ids".to_owned(),
            });
        }
        self.run(ops::multiply(embeddings, &self.embed_scale)?, None, caches)
    }

    fn forward_tokens(&self, tokens: &Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        let x = ops::multiply(self.embed(tokens)?, &self.embed_scale)?;
        let inputs = self.inputs.as_ref().map(|inputs| inputs.forward(tokens, &x)).transpose()?;
        self.run(x, inputs, caches)
    }

    fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        let logits = match &self.lm_head {
            Some(lm_head) => lm_head.forward(hidden)?,
            None => self.embed_tokens.as_linear(hidden)?,
        };
        match self.shape.logit_softcap {
            Some(cap) => Ok(softcap(&logits, cap)?),
            None => Ok(logits),
        }
    }

    fn cache_spec(&self) -> CacheSpec {
        self.shape.cache_spec()
    }

    fn numerics_revision(&self) -> u32 {
        1
    }

    fn vocab_size(&self) -> usize {
        self.shape.vocab as usize
    }

    fn context_length(&self) -> usize {
        self.shape.context as usize
    }
}

impl Model {
    /// All layers over scaled embeddings `x` `[B, L, D]` and what each is given, `[B, L, layers P]`.
    fn run(
        &self,
        mut x: Array,
        inputs: Option<Array>,
        caches: &mut [LayerCache],
    ) -> Result<Array, LmError> {
        let (batch, length) = (x.dim(0), x.dim(1));
        let windows = |index: usize| self.shape.layers[index].window;
        let mut steps: Vec<(Option<i32>, AttentionStep)> = Vec::new();
        for (index, cache) in caches.iter().enumerate() {
            if steps.iter().all(|(window, _)| *window != windows(index)) {
                let window = windows(index);
                steps.push((window, cache.attention_step(length, window)?));
            }
        }
        let mut held: Vec<KeysValues> = Vec::with_capacity(caches.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let step = steps.iter().find(|(window, _)| *window == windows(index));
            let Some((_, step)) = step else {
                return Err(Exception::custom("a layer has no cache of its type").into());
            };
            let from = index as i32;
            let input = match (&inputs, self.shape.input_dim) {
                (Some(inputs), Some(width)) => Some(ffi::slice(
                    inputs,
                    &[0, 0, from * width],
                    &[batch, length, (from + 1) * width],
                )?),
                _ => None,
            };
            let attended = match self.shape.layers[index].keys_values {
                Source::Layer(source) => layer.attention.forward_shared(&x, &held[source], step)?,
                _ => {
                    let (attended, keys_values) =
                        layer.attention.forward(&x, &mut caches[index], step)?;
                    held.push(keys_values);
                    attended
                }
            };
            x = layer.forward(&x, &attended, input.as_ref())?;
        }
        Ok(self.norm.forward(&x)?)
    }
}

/// What each layer is given of a token, beside the residual stream.
#[derive(Debug)]
struct LayerInputs {
    embed: Embedding,
    embed_scale: Array, // scalar
    projection: Linear,
    projection_scale: Array, // scalar
    norm: RmsNorm,
    sum_scale: Array, // scalar
    width: i32,
}

impl LayerInputs {
    fn load(weights: &mut Weights, shape: &Shape, width: i32) -> Result<Self, LmError> {
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
        Ok(LayerInputs {
            embed,
            embed_scale: scalar((width as f32).sqrt(), dtype)?,
            projection_scale: scalar((shape.hidden as f32).powf(-0.5), projection.dtype())?,
            projection,
            norm: RmsNorm::load(&mut norm, width, shape.eps)?,
            sum_scale: scalar(0.5f32.sqrt(), dtype)?,
            width,
        })
    }

    /// Of token ids `[B, L]` and their scaled embeddings `x` `[B, L, D]`: `[B, L, layers P]`.
    fn forward(&self, tokens: &Array, x: &Array) -> Result<Array, Exception> {
        let of_tokens = ops::multiply(self.embed.forward(tokens)?, &self.embed_scale)?;
        let projected = ops::multiply(self.projection.forward(x)?, &self.projection_scale)?;
        let by_layer = projected.reshape(&[x.dim(0), x.dim(1), -1, self.width])?;
        let normed = self.norm.forward(&by_layer)?.reshape(of_tokens.shape())?;
        ops::multiply(ops::add(normed, of_tokens)?, &self.sum_scale)
    }
}

#[derive(Debug)]
struct DecoderLayer {
    attention: Attention,
    attention_norm: NormResidual,
    gate_up: NormGatedUp,
    down_proj: Linear,
    mlp_norm: NormResidual,
    input: Option<InputGate>,
    layer_scalar: Array, // [1]
}

impl DecoderLayer {
    fn load(layer: &mut Layer, shape: &Shape, kind: &LayerShape) -> Result<Self, LmError> {
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
        let input =
            shape.input_dim.map(|width| InputGate::load(layer, shape, width)).transpose()?;
        Ok(DecoderLayer {
            attention,
            attention_norm: NormResidual::new(attention_norm?, &kernels),
            gate_up: NormGatedUp::new(before_mlp?, gate_up, Activation::GeluApprox)?,
            down_proj,
            mlp_norm: NormResidual::new(mlp_norm?, &kernels),
            input,
            layer_scalar: layer.take("layer_scalar", &[1])?,
        })
    }

    /// The residual stream after the layer, of the one before it and the output of attention,
    /// `[B, L, D]`, and what the layer is given, `[B, L, P]`.
    fn forward(
        &self,
        x: &Array,
        attended: &Array,
        input: Option<&Array>,
    ) -> Result<Array, Exception> {
        let h = self.attention_norm.forward(attended, x)?;
        let mut h =
            self.mlp_norm.forward(&self.down_proj.forward(&self.gate_up.forward(&h)?)?, &h)?;
        if let (Some(gate), Some(input)) = (&self.input, input) {
            h = gate.forward(&h, input)?;
        }
        ops::multiply(h, &self.layer_scalar)
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
struct Attention {
    projections: Projections,
    q_norm: RmsNorm,
    k_norm: Option<RmsNorm>, // none where keys come from another layer
    rope: Rope,
    o_proj: Linear,
    heads: HeadShape,
    eps: f32,
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
        Ok(Attention {
            projections,
            q_norm: head_norm("q_norm")?,
            k_norm: has_keys.then(|| head_norm("k_norm")).transpose()?,
            rope: Rope::new(kind.rope.clone()),
            o_proj,
            heads: kind.heads,
            eps,
        })
    }

    /// The output `[B, L, D]`, and the keys and values that were attended to.
    fn forward(
        &self,
        x: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<(Array, KeysValues), Exception> {
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
        let Some(k_norm) = &self.k_norm else { return Err(no_keys()) };
        let length = x.dim(1);
        let keys = self.rope.forward(&by_head(k_norm.forward(&keys)?, length)?, &step.offset)?;
        let values = by_head(fast::rms_norm(&values, None, self.eps)?, length)?;
        let keys_values = cache.update_and_fetch(keys, values)?;
        Ok((self.attend(&queries, &keys_values, step)?, keys_values))
    }

    /// The output `[B, L, D]` of a layer that attends to another one's keys and values.
    fn forward_shared(
        &self,
        x: &Array,
        keys_values: &KeysValues,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let Projections::Queries(projections) = &self.projections else { return Err(no_keys()) };
        let [queries] = projections.forward_split(x)?;
        self.attend(&queries, keys_values, step)
    }

    fn attend(
        &self,
        queries: &Array,
        keys_values: &KeysValues,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let length = queries.dim(1);
        let queries = by_head(self.q_norm.forward(&self.split(queries)?)?, length)?;
        let queries = self.rope.forward(&queries, &step.offset)?;
        self.o_proj.forward(&attention(&queries, keys_values, self.heads, &step.mask)?)
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

/// What [`Attention::split`] returned of so many tokens, as `[B, H, L, D]`.
fn by_head(x: Array, length: i32) -> Result<Array, Exception> {
    if length == 1 { Ok(x) } else { x.transpose_axes(&[0, 2, 1, 3]) }
}

fn no_keys() -> Exception {
    Exception::custom("a layer without keys has no cache".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key that is refused in a config with these entries, whose others are the defaults.
    fn refused(config: Value) -> Option<&'static str> {
        let args = ModelArgs::deserialize(&config).expect("arguments");
        match Shape::check(&args) {
            Ok(_) => None,
            Err(LmError::Config { name, .. }) => Some(name),
            Err(other) => panic!("{config}: {other}"),
        }
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        assert_eq!(refused(json!({})), None);
        assert_eq!(refused(json!({ "hidden_size_per_layer_input": null })), None);
        assert_eq!(refused(json!({ "enable_moe_block": true })), Some("enable_moe_block"));
        assert_eq!(refused(json!({ "num_kv_shared_layers": 35 })), Some("num_kv_shared_layers"));
        // Only windows come before the shared layers.
        assert_eq!(refused(json!({ "num_kv_shared_layers": 31 })), Some("num_kv_shared_layers"));
        let name = "vocab_size_per_layer_input";
        assert_eq!(refused(json!({ name: 262_143 })), Some(name));
        assert_eq!(refused(json!({ "layer_types": ["full_attention"] })), Some("layer_types"));
        assert_eq!(refused(json!({ "sliding_window": 0 })), Some("sliding_window"));
        let spiral = json!({ "full_attention": { "rope_type": "spiral" } });
        assert_eq!(refused(json!({ "rope_parameters": spiral })), Some("rope_scaling"));
        let theta = json!({ "full_attention": { "rope_theta": null, "rope_type": "default" } });
        assert_eq!(refused(json!({ "rope_parameters": theta })), Some("rope_theta"));
    }

    #[test]
    fn the_last_layers_take_keys_and_values_of_the_last_of_their_type() {
        let args = json!({
            "num_hidden_layers": 7, "sliding_window_pattern": 2, "num_kv_shared_layers": 3,
            "attention_k_eq_v": true, "num_global_key_value_heads": 2,
        });
        let shape = Shape::check(&ModelArgs::deserialize(&args).expect("arguments"));
        let shape = shape.expect("a shape");
        let sources: Vec<Source> = shape.layers.iter().map(|layer| layer.keys_values).collect();
        use Source::{KeyProjection, Layer, Projections};
        assert_eq!(
            sources,
            [Projections, KeyProjection, Projections, KeyProjection, Layer(2), Layer(3), Layer(2)]
        );
        assert_eq!(shape.cache_spec().layers().len(), 4);
        let heads: Vec<[i32; 2]> =
            shape.layers.iter().map(|layer| [layer.heads.kv_heads, layer.heads.head_dim]).collect();
        assert_eq!(heads[..2], [[1, 256], [2, 512]]);
    }
}
