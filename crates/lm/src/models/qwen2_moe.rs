//! Qwen1.5 and Qwen2 with experts (Qwen Team 2024): Qwen2 whose layers have experts, one of which all
//! tokens use. Reference: mlx-lm's qwen2_moe.py.

use serde::Deserialize;

use super::decoder::{Decoder, ExpertForm, ExpertsKind, Family, Routing, SharedExpertKind, Usual};
use super::qwen2;
use crate::LmError;
use crate::config::{Size, check_experts, check_range};

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    dense: qwen2::ModelArgs,
    num_experts: i64,
    num_experts_per_tok: i64,
    moe_intermediate_size: i64,
    shared_expert_intermediate_size: i64,
    #[serde(default = "default_decoder_sparse_step")]
    decoder_sparse_step: i64,
    #[serde(default)]
    mlp_only_layers: Vec<i64>,
    #[serde(default)]
    norm_topk_prob: bool,
}

fn default_decoder_sparse_step() -> i64 {
    1
}

impl ModelArgs {
    /// Refuses keys of Qwen3's that the reference does not read.
    fn check_unread(&self) -> Result<(), LmError> {
        let refused = |name, value: String, allowed: &str| {
            Err(LmError::Config { name, value, allowed: allowed.to_owned() })
        };
        if let Some(layer) = self.mlp_only_layers.first() {
            let allowed = "only models whose layers all have experts are supported";
            return refused("mlp_only_layers", format!("a list with {layer}"), allowed);
        }
        if self.norm_topk_prob {
            let allowed = "only shares as the router gives them are supported";
            return refused("norm_topk_prob", "true".to_owned(), allowed);
        }
        check_range("decoder_sparse_step", self.decoder_sparse_step, 1..=1).map(|_| ())
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        self.check_unread()?;
        let mut decoder = self.dense.decoder_with(Usual { is_tied: false, ..qwen2::USUAL })?;
        let (count, num_chosen) = check_experts(
            ("num_experts", self.num_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        )?;
        let shared = self.shared_expert_intermediate_size;
        let shared = check_range("shared_expert_intermediate_size", shared, 1..=1 << 20)?;
        decoder.experts = Some(ExpertsKind {
            block: "mlp",
            count,
            intermediate: Size::EXPERT_INTERMEDIATE.check(self.moe_intermediate_size)?,
            routing: Routing::softmax(num_chosen, false),
            form: ExpertForm::USUAL,
            shared: Some(SharedExpertKind::with_share(shared)),
        });
        decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
        Ok(decoder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::{Output, refused_key};

    fn config(changes: &serde_json::Value) -> serde_json::Value {
        let mut config = json!({
            "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32,
            "num_attention_heads": 2, "vocab_size": 28, "rms_norm_eps": 1e-6, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
        });
        for (name, value) in changes.as_object().expect("an object") {
            config[name] = value.clone();
        }
        config
    }

    #[test]
    fn refuses_what_the_reference_does_not_compute() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            assert_eq!(refused_key::<ModelArgs>(&config(&changes)), expected, "{changes}");
        };
        check(json!({"decoder_sparse_step": 1, "mlp_only_layers": []}), None);
        check(json!({"decoder_sparse_step": 2}), Some("decoder_sparse_step"));
        check(json!({"mlp_only_layers": [0]}), Some("mlp_only_layers"));
        check(json!({"norm_topk_prob": true}), Some("norm_topk_prob"));
        check(json!({"num_experts": 0}), Some("num_experts"));
        check(json!({"num_experts_per_tok": 5}), Some("num_experts_per_tok"));
        check(
            json!({"shared_expert_intermediate_size": 0}),
            Some("shared_expert_intermediate_size"),
        );
    }

    #[test]
    fn a_config_that_does_not_tie_embeddings_has_an_output_matrix() {
        let args = ModelArgs::deserialize(config(&json!({}))).expect("arguments");
        let output = args.decoder().expect("a decoder").output;
        assert_eq!(output, Output::Own { has_bias: false });
    }
}
