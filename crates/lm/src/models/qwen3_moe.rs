//! Qwen3 with a mixture of experts in place of most feed-forward networks. Reference: mlx-lm's
//! qwen3_moe.py.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use serde::Deserialize;

use super::qwen3::{self, Attention, Mlp, Shape};
use crate::LmError;
use crate::cache::{AttentionStep, CacheSpec, LayerCache};
use crate::config::{Size, check_range};
use crate::models::{Architecture, FromConfig, Outline, Scratch};
use crate::nn::{Embedding, ExpertBlend, ExpertSizes, Linear, RmsNorm};
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
        let count = Size::EXPERTS.check(args.num_experts)?;
        Ok(Experts {
            count,
            per_token: check_range(
                "num_experts_per_tok",
                args.num_experts_per_tok,
                1..=i64::from(count.max(1)),
            )?,
            intermediate: Size::EXPERT_INTERMEDIATE.check(args.moe_intermediate_size)?,
            norm_topk_prob: args.norm_topk_prob,
            step: check_range("decoder_sparse_step", args.decoder_sparse_step, 1..=1024)?,
            mlp_only_layers: args.mlp_only_layers.clone(),
        })
    }

    /// See [`Scratch::numbers_per_token`].
    fn numbers_per_token(&self, shape: &Shape) -> u64 {
        let (hidden, intermediate) = (shape.hidden as u64, self.intermediate as u64);
        let attention = ((shape.heads + 2 * shape.kv_heads) * shape.head_dim) as u64;
        let experts = self.per_token as u64 * (3 * hidden + 5 * intermediate);
        experts + self.count as u64 + 2 * hidden + 2 * attention
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

impl FromConfig for Model {
    type Args = ModelArgs;

    fn outline(args: &ModelArgs) -> Result<Outline, LmError> {
        let shape = Shape::check(&args.dense)?;
        let experts = Experts::check(args)?;
        let dense = shape.scratch();
        let numbers_per_token = dense.numbers_per_token.max(experts.numbers_per_token(&shape));
        Ok(Outline {
            cache: shape.cache_spec(),
            context_length: shape.context as usize,
            is_tied: args.dense.tie_word_embeddings,
            scratch: Scratch { numbers_per_token, ..dense },
            tensors: shape.tensors(
                args.dense.tie_word_embeddings,
                |list, path, index| match experts.are_in(index) {
                    true => list.experts(path, shape.hidden, experts.intermediate, experts.count),
                    false => list.gated_mlp(path, shape.hidden, shape.intermediate),
                },
            ),
        })
    }

    fn load(args: ModelArgs, weights: &mut Weights) -> Result<Self, LmError> {
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
    mlp: FeedForward,
}

/// The second half of a layer, with the norm before it and the residual after it.
#[derive(Debug)]
enum FeedForward {
    Dense(Box<Mlp>),
    Sparse { norm: RmsNorm, experts: Box<ExpertBlend> },
}

impl TransformerBlock {
    fn load(layer: &mut Layer, shape: &Shape, experts: Option<&Experts>) -> Result<Self, LmError> {
        Ok(TransformerBlock {
            self_attn: Attention::load(layer, shape)?,
            mlp: match experts {
                Some(experts) => FeedForward::load_sparse(layer, shape, experts)?,
                None => FeedForward::Dense(Box::new(Mlp::load(layer, shape)?)),
            },
        })
    }

    fn forward(
        &self,
        x: Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let h = self.self_attn.forward(&x, cache, step)?;
        match &self.mlp {
            FeedForward::Dense(mlp) => mlp.forward(&h),
            FeedForward::Sparse { norm, experts } => experts.forward(&norm.forward(&h)?, &h),
        }
    }
}

impl FeedForward {
    fn load_sparse(layer: &mut Layer, shape: &Shape, experts: &Experts) -> Result<Self, LmError> {
        let &Shape { hidden, eps, .. } = shape;
        let sizes = ExpertSizes {
            hidden,
            intermediate: experts.intermediate,
            num_experts: experts.count,
            num_chosen: experts.per_token,
            adds_up_to_one: experts.norm_topk_prob,
        };
        Ok(FeedForward::Sparse {
            norm: RmsNorm::load(&mut layer.layer("post_attention_layernorm"), hidden, eps)?,
            experts: Box::new(ExpertBlend::load(&mut layer.layer("mlp"), sizes)?),
        })
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
        check(json!({"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}), Err("rope_scaling"));
    }
}
