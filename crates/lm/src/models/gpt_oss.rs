//! gpt-oss (OpenAI 2025): experts with biases and a bounded SwiGLU, windows in every second layer, and
//! heads that may attend to nothing. Reference: mlx-lm's gpt_oss.py.

use serde::Deserialize;

use super::decoder::{
    ClippedSwiGlu, Common, Decoder, ExpertActivation, ExpertForm, ExpertsKind, Family, Matrix,
    NormKind, Output, Projections, Routing, Score, StoredExperts, Usual,
};
use crate::LmError;
use crate::config::{check_experts, check_positive};

const USUAL: Usual = Usual { context: 131_072, rope_theta: Some(150_000.0), is_tied: false };
const USUAL_WINDOW: i64 = 128;
/// Layers with and without a window take turns.
const PATTERN: i64 = 2;
const SWIGLU: ClippedSwiGlu = ClippedSwiGlu { alpha: 1.702, limit: 7.0 };

/// The fields of config.json. `intermediate_size` is an expert's.
///
/// `truncate` of `rope_scaling` is not read, as in the reference: which pairs YaRN interpolates is
/// rounded to whole ones.
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
    swiglu_limit: Option<f64>,
}

fn default_rms_norm_eps() -> f64 {
    1e-5
}

fn default_num_local_experts() -> i64 {
    128
}

fn default_num_experts_per_tok() -> i64 {
    4
}

impl ModelArgs {
    fn experts(&self, decoder: &Decoder) -> Result<ExpertsKind, LmError> {
        let (count, num_chosen) = check_experts(
            ("num_local_experts", self.num_local_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        )?;
        let usual = f64::from(SWIGLU.limit);
        if let Some(limit) = self.swiglu_limit.filter(|&limit| limit != usual) {
            return Err(LmError::Config {
                name: "swiglu_limit",
                value: limit.to_string(),
                allowed: format!("only {usual} is supported"),
            });
        }
        Ok(ExpertsKind {
            block: "mlp",
            count,
            intermediate: decoder.mlp.intermediate,
            routing: Routing::of(Score::SoftmaxOfChosen, num_chosen),
            form: ExpertForm {
                router: "router",
                router_has_bias: true,
                stored: StoredExperts::Blocks,
                has_bias: true,
                activation: ExpertActivation::Clipped(SWIGLU),
                scales_input: false,
            },
            shared: None,
        })
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let common = Common {
            head_dim: self.common.head_dim.or(Some(64)),
            num_key_value_heads: self.common.num_key_value_heads.or(Some(8)),
            sliding_window: self.common.sliding_window.or(Some(USUAL_WINDOW)),
            ..self.common.clone()
        };
        let mut decoder = common.decoder(norm, USUAL)?;
        common.set_windows_or_pattern(PATTERN, None, &mut decoder.layers)?;
        decoder.attention.projections = Projections::Separate { has_bias: true };
        decoder.attention.output = Matrix::new("o_proj", true);
        decoder.attention.has_sinks = true;
        decoder.output = Output::Own { has_bias: false };
        decoder.experts = Some(self.experts(&decoder)?);
        decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
        Ok(decoder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    fn config(changes: &serde_json::Value) -> serde_json::Value {
        let mut config = json!({
            "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 32,
            "num_attention_heads": 16, "vocab_size": 28, "num_local_experts": 8,
        });
        for (name, value) in changes.as_object().expect("an object") {
            config[name] = value.clone();
        }
        config
    }

    #[test]
    fn every_second_layer_has_a_window_unless_they_are_listed() {
        let windows = |changes: serde_json::Value| {
            let args = ModelArgs::deserialize(config(&changes)).expect("arguments");
            let layers = args.decoder().expect("a decoder").layers;
            layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
        };
        assert_eq!(windows(json!({})), [Some(128), None, Some(128), None]);
        let listed = json!({"sliding_window": 64, "num_hidden_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"]});
        assert_eq!(windows(listed), [None, Some(64)]);
    }

    #[test]
    fn refuses_what_the_reference_does_not_compute() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            assert_eq!(refused_key::<ModelArgs>(&config(&changes)), expected, "{changes}");
        };
        check(json!({"swiglu_limit": 7.0}), None);
        check(json!({"swiglu_limit": 6.0}), Some("swiglu_limit"));
        check(json!({"num_experts_per_tok": 9}), Some("num_experts_per_tok"));
        check(json!({"num_local_experts": 0}), Some("num_local_experts"));
        check(json!({"sliding_window": 0}), Some("sliding_window"));
        check(json!({"layer_types": ["full_attention"]}), Some("layer_types"));
    }
}
