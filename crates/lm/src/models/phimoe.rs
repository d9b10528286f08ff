//! Phi-3.5 with experts and Phi-mini with experts (Microsoft 2024): layer norms, biases in
//! attention, LongRoPE or plain RoPE, and experts that SparseMixer chooses.
//! Reference: mlx-lm's phimoe.py.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::{
    Common, Decoder, ExpertForm, ExpertsKind, Family, Matrix, NormKind, Output, Projections,
    Routing, Score, Usual,
};
use crate::LmError;
use crate::config::{check_experts, check_positive};

const USUAL: Usual = Usual { context: 131_072, rope_theta: Some(10_000.0), is_tied: false };

/// The fields of config.json. `intermediate_size` is an expert's.
///
/// `sliding_window`, which is as long as the context of the published models, is not read, as in
/// the reference.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    #[serde(default = "default_rms_norm_eps")]
    rms_norm_eps: f64,
    #[serde(default = "default_original_max_position_embeddings")]
    original_max_position_embeddings: f64,
    #[serde(default = "default_num_local_experts")]
    num_local_experts: i64,
    #[serde(default = "default_num_experts_per_tok")]
    num_experts_per_tok: i64,
    #[serde(default = "default_router_jitter_noise")]
    router_jitter_noise: f64,
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

fn default_original_max_position_embeddings() -> f64 {
    4096.0
}

fn default_num_local_experts() -> i64 {
    16
}

fn default_num_experts_per_tok() -> i64 {
    2
}

fn default_router_jitter_noise() -> f64 {
    0.01
}

impl ModelArgs {
    /// The keys that other architectures have too. LongRoPE gets the length of the first training
    /// in its section. Fails on another scaled rotation, which the reference would take for
    /// LongRoPE.
    fn common(&self) -> Result<Common, LmError> {
        let mut common = self.common.clone();
        let section = common.rope_scaling.as_mut().filter(|scaling| !scaling.is_null());
        let Some(scaling) = section else { return Ok(common) };
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
        match kind.and_then(Value::as_str) {
            Some("longrope" | "su") => {}
            Some("default") => return Ok(common),
            _ => {
                return Err(LmError::Config {
                    name: "rope_scaling",
                    value: scaling.to_string().chars().take(80).collect(),
                    allowed: "it must be of the type longrope, or null".to_owned(),
                });
            }
        }
        scaling["original_max_position_embeddings"] = json!(self.original_max_position_embeddings);
        Ok(common)
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let eps = check_positive("rms_norm_eps", self.rms_norm_eps)?;
        let norm = NormKind::Layer { eps, has_bias: true };
        let mut decoder = self.common()?.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: true };
        decoder.attention.output = Matrix::new("o_proj", true);
        decoder.output = Output::Own { has_bias: true };
        let (count, num_chosen) = check_experts(
            ("num_local_experts", self.num_local_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        )?;
        let jitter = check_positive("router_jitter_noise", self.router_jitter_noise)?;
        decoder.experts = Some(ExpertsKind {
            block: "block_sparse_moe",
            count,
            intermediate: decoder.mlp.intermediate,
            routing: Routing::of(Score::SparseMixer { jitter }, num_chosen),
            form: ExpertForm::USUAL,
            shared: None,
        });
        decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
        Ok(decoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::decoder::refused_key;

    #[test]
    fn refuses_what_the_reference_does_not_compute() {
        let check = |changes: Value, expected: Option<&str>| {
            let mut config = json!({
                "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32,
                "num_attention_heads": 4, "vocab_size": 28,
                "rope_scaling": {
                    "type": "longrope", "long_factor": [1.0, 2.0], "short_factor": [1.0, 1.0],
                    "long_mscale": 1.25, "short_mscale": 1.25,
                },
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            assert_eq!(refused_key::<ModelArgs>(&config), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"rope_scaling": null}), None);
        let plain = json!({"rope_type": "default", "rope_theta": 10000.0});
        check(json!({"rope_scaling": null, "rope_parameters": plain}), None);
        check(json!({"rope_scaling": {"type": "linear", "factor": 2.0}}), Some("rope_scaling"));
        check(json!({"original_max_position_embeddings": 0}), Some("rope_scaling"));
        check(json!({"num_experts_per_tok": 17}), Some("num_experts_per_tok"));
        check(json!({"num_local_experts": 0}), Some("num_local_experts"));
        check(json!({"router_jitter_noise": -0.01}), Some("router_jitter_noise"));
    }
}
