//! Mixtral (Mistral AI 2024): a llama with experts. Reference: mlx-lm's mixtral.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, ExpertForm, ExpertsKind, Family, NormKind, Routing, Usual};
use crate::LmError;
use crate::config::{check_experts, check_full_attention, check_positive};

const USUAL: Usual = Usual { context: 32_768, rope_theta: Some(1_000_000.0), is_tied: false };

/// The fields of config.json. `intermediate_size` is an expert's; `sliding_window` counts for no
/// layer, as in the reference.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    #[serde(default = "default_rms_norm_eps")]
    rms_norm_eps: f64,
    #[serde(default = "default_num_local_experts")]
    num_local_experts: i64,
    #[serde(default = "default_num_experts_per_tok")]
    num_experts_per_tok: i64,
}

fn default_rms_norm_eps() -> f64 {
    1e-5
}

fn default_num_local_experts() -> i64 {
    8
}

fn default_num_experts_per_tok() -> i64 {
    2
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        check_full_attention(self.common.layer_types.as_deref())?;
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        let (count, num_chosen) = check_experts(
            ("num_local_experts", self.num_local_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        )?;
        decoder.experts = Some(ExpertsKind {
            block: "block_sparse_moe",
            count,
            intermediate: decoder.mlp.intermediate,
            // The reference's softmax of the chosen logits: the same shares.
            routing: Routing::softmax(num_chosen, true),
            form: ExpertForm::USUAL,
            shared: None,
        });
        decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
        Ok(decoder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    #[test]
    fn refuses_what_the_reference_does_not_compute() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            let mut config = json!({
                "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32,
                "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 28,
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            assert_eq!(refused_key::<ModelArgs>(&config), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"sliding_window": 4096}), None);
        check(json!({"layer_types": ["full_attention", "sliding_attention"]}), Some("layer_types"));
        check(json!({"num_local_experts": 0}), Some("num_local_experts"));
        check(json!({"num_experts_per_tok": 9}), Some("num_experts_per_tok"));
    }
}
