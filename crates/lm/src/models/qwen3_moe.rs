//! Qwen3 with a mixture of experts in place of most feed-forward networks. Reference: mlx-lm's
//! qwen3_moe.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use serde::Deserialize;

use super::qwen3::{self, Attention, Mlp, Shape};
use crate::LmError;
use crate::cache::{AttentionStep, KvCache, LayerCache};
use crate::config::check_range;
use crate::models::Architecture;
use crate::nn::{Embedding, Linear, RmsNorm, SwitchGlu, route};
use crate::weights::{Layer, Weights};

/// See [`Architecture::numerics_revision`].
const NUMERICS_REVISION: u32 = 1;

/// The fields of config.json: those of the dense model and those of the experts.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    dense: qwen3::ModelArgs,
    num_experts: i64,
    num_experts_per_tok: i64,
    moe_intermediate_size: i64,
    decoder_sparse_step: i64,
    #[serde(default)]
    mlp_only_layers: Vec<i64>,
    norm_topk_prob: bool,
}

/// The experts' part of [`ModelArgs`] after its checks.
#[derive(Debug)]
struct Experts {
    count: i32,
    per_token: i32,
    intermediate: i32,
    norm_topk_prob: bool,
    /// Every layer whose number (from 1) is divisible by this has experts.
    step: i32,
    /// Layers (from 0) that have none nevertheless.
    mlp_only_layers: Vec<i64>,
}

impl Experts {
    fn check(args: &ModelArgs) -> Result<Self, LmError> {
        let count = check_range("num_experts", args.num_experts, 0..=1 << 16)?;
        Ok(Experts {
            count,
            per_token: check_range(
                "num_experts_per_tok",
                args.num_experts_per_tok,
                1..=i64::from(count.max(1)),
            )?,
            intermediate: check_range(
                "moe_intermediate_size",
                args.moe_intermediate_size,
                1..=1 << 20,
            )?,
            norm_topk_prob: args.norm_topk_prob,
            step: check_range("decoder_sparse_step", args.decoder_sparse_step, 1..=1024)?,
            mlp_only_layers: args.mlp_only_layers.clone(),
        })
    }

    fn are_in(&self, layer: i32) -> bool {
        self.count > 0
            && (layer + 1) % self.step == 0
            && !self.mlp_only_layers.contains(&i64::from(layer))
    }
}

/// A loaded Qwen3 with experts.
#[derive(Debug)]
pub struct Model {
    shape: Shape,
    embed_tokens: Embedding,
    layers: Vec<TransformerBlock>,
    norm: RmsNorm,
    lm_head: Option<Linear>, // `None`: tied to embed_tokens
}

impl Model {
    /// Takes the tensors that `args` ask for.
    pub fn load(args: ModelArgs, weights: &mut Weights) -> Result<Self, LmError> {
        let shape = Shape::check(&args.dense)?;
        let experts = Experts::check(&args)?;
        let is_tied = args.dense.tie_word_embeddings;
        // Tied checkpoints may store the output layer again.
        weights.ignore(|name| is_tied && name.starts_with("lm_head."));
        let embed_tokens =
            Embedding::load(&mut weights.layer("model.embed_tokens"), shape.vocab, shape.hidden)?;
        let layers = (0..shape.layers)
            .map(|index| {
                let experts = experts.are_in(index).then_some(&experts);
                TransformerBlock::load(
                    &mut weights.layer(format!("model.layers.{index}")),
                    &shape,
                    experts,
                )
            })
            .collect::<Result<Vec<_>, _>>()?;
        let norm = RmsNorm::load(&mut weights.layer("model.norm"), shape.hidden, shape.eps)?;
        let lm_head = match is_tied {
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
    mlp: FeedForward,
}

#[derive(Debug)]
enum FeedForward {
    Dense(Mlp),
    Sparse(SparseMoe),
}

impl TransformerBlock {
    fn load(layer: &mut Layer, shape: &Shape, experts: Option<&Experts>) -> Result<Self, LmError> {
        Ok(TransformerBlock {
            input_layernorm: RmsNorm::load(
                &mut layer.layer("input_layernorm"),
                shape.hidden,
                shape.eps,
            )?,
            self_attn: Attention::load(&mut layer.layer("self_attn"), shape)?,
            post_attention_layernorm: RmsNorm::load(
                &mut layer.layer("post_attention_layernorm"),
                shape.hidden,
                shape.eps,
            )?,
            mlp: match experts {
                Some(experts) => FeedForward::Sparse(SparseMoe::load(
                    &mut layer.layer("mlp"),
                    shape.hidden,
                    experts,
                )?),
                None => FeedForward::Dense(Mlp::load(&mut layer.layer("mlp"), shape)?),
            },
        })
    }

    fn forward(
        &self,
        x: Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let h =
            ops::add(&x, self.self_attn.forward(&self.input_layernorm.forward(&x)?, cache, step)?)?;
        let normed = self.post_attention_layernorm.forward(&h)?;
        let fed_forward = match &self.mlp {
            FeedForward::Dense(mlp) => mlp.forward(&normed)?,
            FeedForward::Sparse(moe) => moe.forward(&normed)?,
        };
        ops::add(&h, fed_forward)
    }
}

#[derive(Debug)]
struct SparseMoe {
    gate: Linear,
    switch_mlp: SwitchGlu,
    per_token: i32,
    norm_topk_prob: bool,
}

impl SparseMoe {
    fn load(layer: &mut Layer, hidden: i32, experts: &Experts) -> Result<Self, LmError> {
        let gate = Linear::load(&mut layer.layer("gate"), hidden, experts.count, false)?;
        gate.eval()?;
        Ok(SparseMoe {
            gate,
            switch_mlp: SwitchGlu::load(layer, hidden, experts.intermediate, experts.count)?,
            per_token: experts.per_token,
            norm_topk_prob: experts.norm_topk_prob,
        })
    }

    fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let (chosen, scores) = route(&self.gate.forward(x)?, self.per_token, self.norm_topk_prob)?;
        let outputs = self.switch_mlp.forward(x, &chosen)?;
        ops::multiply(outputs, ops::expand_dims(scores, -1)?)?.sum_axis(-2, false)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Which of six layers have experts in a config with these changes, or the key that is refused.
    fn check(changes: serde_json::Value, expected: Result<[bool; 6], &str>) {
        let mut config = json!({
            "hidden_size": 32, "num_hidden_layers": 6, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "vocab_size": 128, "max_position_embeddings": 4096, "rope_theta": 1e6, "num_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true,
        });
        for (name, value) in changes.as_object().expect("an object") {
            config[name] = value.clone();
        }
        let args = ModelArgs::deserialize(&config).expect("arguments");
        let experts = Shape::check(&args.dense).and_then(|_| Experts::check(&args));
        let found = experts
            .map(|experts| std::array::from_fn(|layer| experts.are_in(layer as i32)))
            .map_err(|error| match error {
                LmError::Config { name, .. } => name,
                other => panic!("{changes}: {other}"),
            });
        assert_eq!(found, expected, "{changes}");
    }

    #[test]
    fn the_config_says_which_layers_have_experts() {
        check(json!({}), Ok([true; 6]));
        check(json!({"mlp_only_layers": [0, 4]}), Ok([false, true, true, true, false, true]));
        check(json!({"decoder_sparse_step": 2}), Ok([false, true, false, true, false, true]));
        check(
            json!({"decoder_sparse_step": 2, "mlp_only_layers": [1]}),
            Ok([false, false, false, true, false, true]),
        );
        check(json!({"num_experts": 0, "num_experts_per_tok": 1}), Ok([false; 6]));
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        check(json!({"num_experts_per_tok": 9}), Err("num_experts_per_tok"));
        check(json!({"num_experts_per_tok": 0}), Err("num_experts_per_tok"));
        check(json!({"decoder_sparse_step": 0}), Err("decoder_sparse_step"));
        check(json!({"num_key_value_heads": 3}), Err("num_key_value_heads"));
        check(json!({"rope_theta": null}), Err("rope_theta"));
        check(json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), Err("rope_scaling"));
    }
}
