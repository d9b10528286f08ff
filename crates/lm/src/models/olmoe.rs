//! OLMoE (Ai2 2024): a llama with experts, and with norms of all query and key heads together.
//! Reference: mlx-lm's olmoe.py.

use serde::Deserialize;

use super::decoder::{Decoder, ExpertForm, ExpertsKind, Family, HeadNormKind, Routing};
use super::llama;
use crate::LmError;
use crate::config::check_experts;

/// The fields of config.json. `intermediate_size` is an expert's.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    llama: llama::ModelArgs,
    num_experts: i64,
    num_experts_per_tok: i64,
    #[serde(default)]
    norm_topk_prob: bool,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        if self.llama.has_mlp_bias() {
            return Err(LmError::Config {
                name: "mlp_bias",
                value: "true".to_owned(),
                allowed: "only experts without biases are supported".to_owned(),
            });
        }
        let mut decoder = self.llama.decoder()?;
        let (count, num_chosen) = check_experts(
            ("num_experts", self.num_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        )?;
        decoder.experts = Some(ExpertsKind {
            block: "mlp",
            count,
            intermediate: decoder.mlp.intermediate,
            routing: Routing::softmax(num_chosen, self.norm_topk_prob),
            form: ExpertForm::USUAL,
            shared: None,
        });
        decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
        decoder.attention.head_norms = HeadNormKind::OfAll;
        Ok(decoder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    #[test]
    fn refuses_biases_of_experts_and_more_experts_for_a_token_than_there_are() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            let mut config = json!({
                "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32,
                "num_attention_heads": 2, "vocab_size": 28, "rms_norm_eps": 1e-5,
                "num_experts": 4, "num_experts_per_tok": 4,
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            assert_eq!(refused_key::<ModelArgs>(&config), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"mlp_bias": true}), Some("mlp_bias"));
        check(json!({"num_experts_per_tok": 5}), Some("num_experts_per_tok"));
        check(json!({"num_experts_per_tok": 0}), Some("num_experts_per_tok"));
        check(json!({"num_experts": 0}), Some("num_experts"));
    }
}
