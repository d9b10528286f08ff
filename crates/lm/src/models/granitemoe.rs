//! Granite 3 with experts (IBM 2024): Granite 3 whose layers have experts in place of a feed-forward
//! network. Reference: mlx-lm's granitemoe.py.

use serde::Deserialize;

use super::decoder::{
    Decoder, ExpertForm, ExpertsKind, Family, Routing, Score, SharedExpertKind, StoredExperts,
};
use super::granite;
use crate::LmError;
use crate::config::check_experts;

/// The fields of config.json. `intermediate_size` is an expert's.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    dense: granite::ModelArgs,
    num_local_experts: i64,
    num_experts_per_tok: i64,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.dense.decoder()?;
        let (count, num_chosen) = check_experts(
            ("num_local_experts", self.num_local_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        )?;
        set_experts(&mut decoder, (count, num_chosen), None);
        Ok(decoder)
    }
}

/// Gives each layer Granite's experts, of which so many are chosen, beside one that all tokens use.
pub(super) fn set_experts(
    decoder: &mut Decoder,
    (count, num_chosen): (i32, i32),
    shared: Option<SharedExpertKind>,
) {
    decoder.experts = Some(ExpertsKind {
        block: "block_sparse_moe",
        count,
        intermediate: decoder.mlp.intermediate,
        routing: Routing { in_float32: true, ..Routing::of(Score::SoftmaxOfChosen, num_chosen) },
        form: ExpertForm {
            router: "router.layer",
            stored: StoredExperts::Linears,
            ..ExpertForm::USUAL
        },
        shared,
    });
    decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    #[test]
    fn a_token_uses_as_many_experts_as_there_are_at_most() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            let mut config = json!({
                "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32,
                "num_attention_heads": 2, "vocab_size": 28, "rms_norm_eps": 1e-5,
                "rope_theta": 1e4, "embedding_multiplier": 12.0, "attention_multiplier": 0.1,
                "residual_multiplier": 0.2, "logits_scaling": 6.0, "num_local_experts": 4,
                "num_experts_per_tok": 4,
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            assert_eq!(refused_key::<ModelArgs>(&config), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"num_experts_per_tok": 5}), Some("num_experts_per_tok"));
        check(json!({"num_experts_per_tok": 0}), Some("num_experts_per_tok"));
        check(json!({"num_local_experts": 0}), Some("num_local_experts"));
        check(json!({"residual_multiplier": 0}), Some("residual_multiplier"));
    }
}
