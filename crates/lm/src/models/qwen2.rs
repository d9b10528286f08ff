//! Qwen2 and Qwen2.5 (Qwen Team 2024), dense: llama's wiring with biases on queries, keys and values.
//! Reference: mlx-lm's qwen2.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::{check_full_attention, check_positive};

pub(super) const USUAL: Usual =
    Usual { context: 32_768, rope_theta: Some(1_000_000.0), is_tied: true };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default = "default_max_window_layers")]
    max_window_layers: i64,
}

fn default_max_window_layers() -> i64 {
    28
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        self.decoder_with(USUAL)
    }
}

impl ModelArgs {
    /// The decoder of a family that takes other values for keys that a config leaves out.
    pub(super) fn decoder_with(&self, usual: Usual) -> Result<Decoder, LmError> {
        // The reference reads neither these keys nor rope_parameters, but the models mean them.
        check_full_attention(self.common.layer_types.as_deref())?;
        if self.use_sliding_window && self.max_window_layers < self.common.num_hidden_layers {
            return Err(LmError::Config {
                name: "use_sliding_window",
                value: "true".to_owned(),
                allowed: "sliding windows are not supported for this architecture".to_owned(),
            });
        }
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, usual)?;
        decoder.attention.projections = Projections::Separate { has_bias: true };
        Ok(decoder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;
    use crate::rope_keys;

    /// Compares the key that is refused in a config with these entries.
    fn check(entries: serde_json::Value, expected: Option<&str>) {
        let mut config = json!({
            "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "vocab_size": 128,
        });
        for (name, value) in entries.as_object().expect("an object") {
            config[name] = value.clone();
        }
        assert_eq!(refused_key::<ModelArgs>(&config), expected, "{entries}");
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        check(json!({}), None);
        check(json!({"num_key_value_heads": 3}), Some("num_key_value_heads"));
        check(json!({"hidden_size": 4}), Some("head_dim"));
        check(json!({"rope_theta": 0.0}), Some("rope_theta"));
        check(json!({"rope_scaling": {"type": "spiral", "factor": 4.0}}), Some("rope_scaling"));
        check(json!({"layer_types": ["sliding_attention"]}), Some("layer_types"));
        check(
            json!({"use_sliding_window": true, "max_window_layers": 1}),
            Some("use_sliding_window"),
        );
    }

    /// The layers from `max_window_layers` on have windows: here none.
    #[test]
    fn windows_that_no_layer_has_are_allowed() {
        check(json!({"use_sliding_window": true, "max_window_layers": 2}), None);
    }

    #[test]
    fn rope_is_configured_by_flat_or_nested_keys() {
        let rope = |entries: serde_json::Value| {
            let config = json!({
                "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
                "num_attention_heads": 4, "vocab_size": 128,
                "rope_theta": entries["rope_theta"], "rope_scaling": entries["rope_scaling"],
                "rope_parameters": entries["rope_parameters"],
            });
            let args: Result<Common, _> = serde_json::from_value(rope_keys::unify(config).config);
            args.expect("arguments").rope(8, USUAL).expect("a rotation")
        };
        let linear = json!({"type": "linear", "factor": 4.0});
        let flat = rope(json!({"rope_theta": 1e4, "rope_scaling": linear}));
        let nested = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4});
        assert_eq!(rope(json!({"rope_parameters": nested})), flat);
        let other = json!({"type": "linear", "factor": 2.0});
        let both = json!({"rope_theta": 1e6, "rope_scaling": other, "rope_parameters": nested});
        assert_eq!(rope(both), flat, "rope_parameters win");
        assert_ne!(rope(json!({})), flat);
    }
}
