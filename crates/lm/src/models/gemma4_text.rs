//! Gemma 4, the text part (Gemma Team 2026): windows and full attention with heads of other sizes, last layers
//! that attend to an earlier layer's keys and values, and in small models an input to each layer beside the
//! embeddings; in others experts beside each feed-forward network. Reference: mlx-lm's gemma4_text.py.

mod experts;
mod layers;

use std::collections::BTreeMap;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::LmError;
use crate::cache::{
    AttentionStep, CacheSpec, KeysValues, KvSizes, KvSpec, LayerCache, LayerCacheSpec, RotatingSpec,
};
use crate::config::{Size, check_heads, check_layer_types, check_positive, check_range};
use crate::device_kernels::HeadShape;
use crate::ffi;
use crate::models::{Architecture, FromConfig, Outline, Scratch};
use crate::nn::{Embedding, LayerLaunches, Linear, RmsNorm, RopeSpec, has_kernel, scalar, softcap};
use crate::published_numbers::PublishedNumbers;
use crate::tensor_list::{Left, TensorList};
use crate::weights::Weights;
use experts::ExpertSizes;
use layers::{DecoderLayer, LayerInputs};

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
    /// Keys of single layers by their number, in place of the two above.
    per_layer_config: Option<BTreeMap<usize, LayerKeys>>,
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
    num_experts: Option<i64>,
    top_k_experts: Option<i64>,
    moe_intermediate_size: Option<i64>,
    tie_word_embeddings: bool,
}

/// Keys of a layer that differs from the others, as transformers since 5.15 writes them.
#[derive(Debug, Clone, Default, Deserialize)]
struct LayerKeys {
    head_dim: Option<i64>,
    num_attention_heads: Option<i64>,
    num_key_value_heads: Option<i64>,
    /// Keys that are not supported for single layers.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
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
            per_layer_config: None,
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
            num_experts: None,
            top_k_experts: None,
            moe_intermediate_size: None,
            tie_word_embeddings: true,
        }
    }
}

impl ModelArgs {
    /// Keys that the layer of this number has of its own.
    fn layer_keys(&self, index: usize, is_sliding: bool) -> LayerKeys {
        if let Some(layers) = &self.per_layer_config {
            return layers.get(&index).cloned().unwrap_or_default();
        }
        let of_full = |size: Option<i64>| size.filter(|&size| !is_sliding && size != 0);
        LayerKeys {
            head_dim: of_full(self.global_head_dim),
            num_key_value_heads: of_full(self.num_global_key_value_heads)
                .filter(|_| self.attention_k_eq_v),
            ..LayerKeys::default()
        }
    }

    fn layers_with_keys(&self) -> impl Iterator<Item = usize> {
        self.per_layer_config.iter().flat_map(|layers| layers.keys().copied())
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
    /// Of all layers, beside their feed-forward networks.
    experts: Option<ExpertSizes>,
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
            experts: ExpertSizes::check(args)?,
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
                None => LayerCacheSpec::Kv(KvSpec::new(sizes)),
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
        let hidden = self.hidden as u64;
        let dense = 3 * hidden + 6 * intermediate + 3 * (queries + keys_values);
        let of_experts = |experts: ExpertSizes| {
            let [count, num_chosen, width] =
                [experts.count, experts.num_chosen, experts.intermediate].map(|size| size as u64);
            let chosen = count + num_chosen * (3 * hidden + 6 * width);
            3 * hidden + chosen + 2 * (queries + keys_values)
        };
        let of_layer = dense.max(self.experts.map_or(0, of_experts));
        // Those of all layers are made at once, before the first.
        let inputs = self.input_dim.unwrap_or(0) as u64 * self.layers.len() as u64;
        let heads = widest(|layer| layer.heads.heads);
        Scratch {
            numbers_per_token: (inputs + of_layer).max(4 * inputs),
            recurrent_per_token: 0,
            numbers_per_key: 0,
            fixed_numbers: 0,
            heads,
            score_arrays: 1,
            vocab: self.vocab as u64,
            stores_scores: reading
                .iter()
                .any(|layer| !has_kernel([layer.heads.head_dim; 2], layer.heads.softcap)),
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
        if let Some(experts) = self.experts {
            experts.list(list, path, hidden);
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
        if let Some(beyond) = args.layers_with_keys().find(|index| *index >= windows.len()) {
            let allowed = format!("there are {} layers, from 0", windows.len());
            return refused("per_layer_config", beyond.to_string(), &allowed);
        }
        let mut layers: Vec<LayerShape> = Vec::with_capacity(windows.len());
        for (index, &is_sliding) in windows.iter().enumerate() {
            let mut layer = LayerShape::of(args, index, is_sliding)?;
            if index >= first_shared {
                let of_type = |earlier: &usize| windows[*earlier] == is_sliding;
                let Some(source) = (0..first_shared).rev().find(of_type) else {
                    let allowed = "an earlier layer of each type must have keys and values";
                    return refused("num_kv_shared_layers", num_shared.to_string(), allowed);
                };
                let [own, other] = [&layer, &layers[source]]
                    .map(|layer| (layer.heads.kv_heads, layer.heads.head_dim));
                if own != other {
                    let allowed = "layers that share keys and values have the same sizes";
                    return refused("per_layer_config", index.to_string(), allowed);
                }
                layer.keys_values = Source::Layer(source);
                if args.use_double_wide_mlp {
                    layer.intermediate *= 2;
                }
            }
            layers.push(layer);
        }
        Ok(layers)
    }

    /// The layer of this number, with keys and values of its own.
    fn of(args: &ModelArgs, index: usize, is_sliding: bool) -> Result<Self, LmError> {
        let takes_keys = args.attention_k_eq_v && !is_sliding;
        let keys = args.layer_keys(index, is_sliding);
        if let Some(name) = keys.others.keys().next() {
            let allowed = "only head_dim, num_attention_heads and num_key_value_heads are \
                           supported for single layers";
            return refused("per_layer_config", name.chars().take(80).collect(), allowed);
        }
        let head_dim = Size::HEAD_DIM.check(keys.head_dim.unwrap_or(args.head_dim))?;
        let (heads, kv_heads) = check_heads(
            keys.num_attention_heads.unwrap_or(args.num_attention_heads),
            keys.num_key_value_heads.unwrap_or(args.num_key_value_heads),
        )?;
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
    let sliding = "sliding_attention";
    check_layer_types("layer_types", types, count, &["full_attention", sliding])?;
    Ok(types.iter().map(|kind| kind == sliding).collect())
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
    launches: LayerLaunches,
}

impl FromConfig for Model {
    type Args = ModelArgs;

    fn outline(args: &ModelArgs) -> Result<Outline, LmError> {
        let shape = Shape::check(args)?;
        Ok(Outline {
            cache: shape.cache_spec(),
            bf16_state_cache: None,
            context_length: shape.context as usize,
            is_tied: shape.is_tied,
            scratch: shape.scratch(),
            tensors: shape.tensors(),
            published_numbers: PublishedNumbers::Same,
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
        let launches = LayerLaunches::new(weights);
        Ok(Model { shape, embed_tokens, embed_scale, inputs, layers, norm, lm_head, launches })
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
        let mut ahead = self.launches.begin(&x);
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
            ahead.launch(&x)?;
        }
        Ok(self.norm.forward(&x)?)
    }
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
        let experts = |count: i64, chosen: i64, width: Option<i64>| {
            refused(json!({
                "enable_moe_block": true, "num_experts": count, "top_k_experts": chosen,
                "moe_intermediate_size": width,
            }))
        };
        assert_eq!(experts(8, 2, Some(64)), None);
        assert_eq!(experts(0, 2, Some(64)), Some("num_experts"));
        assert_eq!(experts(8, 9, Some(64)), Some("top_k_experts"));
        assert_eq!(experts(8, 2, None), Some("moe_intermediate_size"));
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
    fn single_layers_may_have_sizes_of_their_own() {
        let base = json!({
            "num_hidden_layers": 4, "sliding_window_pattern": 2, "num_kv_shared_layers": 0,
            "attention_k_eq_v": true,
        });
        let heads = |name: &str, value: Value| {
            let mut config = base.clone();
            config[name] = value;
            let args = ModelArgs::deserialize(&config).expect("arguments");
            let layers = Shape::check(&args).map(|shape| shape.layers);
            layers.map(|layers| {
                let sizes = |layer: &LayerShape| [layer.heads.kv_heads, layer.heads.head_dim];
                layers.iter().map(sizes).collect::<Vec<_>>()
            })
        };
        let of_all = heads("num_global_key_value_heads", json!(2)).expect("heads");
        assert_eq!(of_all, [[1, 256], [2, 512], [1, 256], [2, 512]]);
        let full = json!({"head_dim": 512, "num_key_value_heads": 2});
        let single = heads("per_layer_config", json!({"1": full, "3": full}));
        assert_eq!(single.expect("heads"), of_all);
        let single = heads("per_layer_config", json!({"1": {"head_dim": 512}, "3": {}}));
        assert_eq!(single.expect("heads"), [[1, 256], [1, 512], [1, 256], [1, 256]]);
        for (layers, named) in [
            (json!({"4": full}), "4"),
            (json!({"1": {"intermediate_size": 8}}), "intermediate_size"),
        ] {
            let found = heads("per_layer_config", layers).expect_err("refused").to_string();
            assert!(found.contains("per_layer_config") && found.contains(named), "{found}");
        }
        let shared = json!({
            "num_hidden_layers": 6, "sliding_window_pattern": 2, "num_kv_shared_layers": 2,
            "per_layer_config": {"1": full, "3": full, "5": {"head_dim": 256}},
        });
        assert_eq!(refused(shared), Some("per_layer_config"));
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
