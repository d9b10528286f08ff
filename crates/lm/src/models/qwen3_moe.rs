//! Qwen3 with experts (Qwen Team 2025): Qwen3 whose layers have experts in place of a feed-forward
//! network. Reference: mlx-lm's qwen3_moe.py.

use serde::Deserialize;

use super::decoder::{Decoder, ExpertForm, ExpertsKind, Family, Routing};
use super::qwen3;
use crate::LmError;
use crate::config::{Size, check_range};

/// The fields of config.json.
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

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.dense.decoder()?;
        let count = Size::EXPERTS.check(self.num_experts)?;
        let most = i64::from(count.max(1));
        let num_chosen = check_range("num_experts_per_tok", self.num_experts_per_tok, 1..=most)?;
        decoder.experts = Some(ExpertsKind {
            block: "mlp",
            count,
            intermediate: Size::EXPERT_INTERMEDIATE.check(self.moe_intermediate_size)?,
            routing: Routing::softmax(num_chosen, self.norm_topk_prob),
            form: ExpertForm::USUAL,
            shared: None,
        });
        let step =
            i64::from(check_range("decoder_sparse_step", self.decoder_sparse_step, 1..=1024)?);
        for (number, layer) in (1..).zip(&mut decoder.layers) {
            let is_dense = self.mlp_only_layers.contains(&(number - 1));
            layer.has_experts = count > 0 && number % step == 0 && !is_dense;
        }
        Ok(decoder)
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
        let found = args
            .decoder()
            .map(|decoder| std::array::from_fn(|layer| decoder.layers[layer].has_experts))
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
