//! MobileLLM-R1 (Meta 2025), which calls itself Llama 4's text part and has no experts: a llama with
//! norms of queries and keys, some layers of which may not rotate. Reference: mlx-lm's llama4_text.py.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::{Common, Decoder, Family, HeadNormKind, NormKind, Output, Usual};
use super::llama4::is_on;
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 32_768, rope_theta: None, is_tied: true };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    /// The width of all layers; `intermediate_size` would be an expert's.
    intermediate_size_mlp: i64,
    /// For each layer whether it rotates.
    no_rope_layers: Vec<i64>,
    use_qk_norm: bool,
    tie_word_embeddings: bool,
    #[serde(default)]
    num_local_experts: i64,
    #[serde(default)]
    attn_temperature_tuning: Value,
    attention_chunk_size: Option<i64>,
}

impl ModelArgs {
    /// Refuses what the reference does not read, where it would compute something else.
    fn check_unread(&self, decoder: &Decoder) -> Result<(), LmError> {
        let refused = |name, value: String, allowed: &str| {
            Err(LmError::Config { name, value, allowed: allowed.to_owned() })
        };
        if self.num_local_experts != 0 {
            let allowed = "only models without experts are supported under this name";
            return refused("num_local_experts", self.num_local_experts.to_string(), allowed);
        }
        let all_rotate = decoder.layers.iter().all(|layer| layer.rope.is_some());
        if is_on(&self.attn_temperature_tuning) && !all_rotate {
            let allowed = "queries that grow with their position are not supported";
            return refused("attn_temperature_tuning", "true".to_owned(), allowed);
        }
        match self.attention_chunk_size {
            Some(chunk) if chunk < i64::from(decoder.context) => {
                let allowed = "it must be as long as the context";
                refused("attention_chunk_size", chunk.to_string(), allowed)
            }
            _ => Ok(()),
        }
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let eps = check_positive("rms_norm_eps", self.rms_norm_eps)?;
        let common = Common {
            rope_traditional: Some(true),
            intermediate_size: self.intermediate_size_mlp,
            ..self.common.without_scaling()
        };
        let mut decoder = common.decoder(NormKind::Rms(eps), USUAL)?;
        decoder.mlp.block = "feed_forward";
        decoder.output = match self.tie_word_embeddings {
            true => Output::Tied,
            false => Output::Own { has_bias: false },
        };
        if self.use_qk_norm {
            decoder.attention.head_norms = HeadNormKind::Unweighted { eps, where_unrotated: true };
        }
        if self.no_rope_layers.len() != decoder.layers.len() {
            return Err(LmError::Config {
                name: "no_rope_layers",
                value: format!("a list of {}", self.no_rope_layers.len()),
                allowed: format!("it must name each of the {} layers", decoder.layers.len()),
            });
        }
        for (layer, is_rotated) in decoder.layers.iter_mut().zip(&self.no_rope_layers) {
            if *is_rotated == 0 {
                layer.rope = None;
            }
        }
        self.check_unread(&decoder)?;
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
        let check = |changes: Value, expected: Option<&str>| {
            let mut config = json!({
                "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32,
                "intermediate_size_mlp": 96, "num_attention_heads": 2, "vocab_size": 28,
                "rms_norm_eps": 1e-5, "rope_theta": 5e5, "no_rope_layers": [1, 0],
                "use_qk_norm": true, "tie_word_embeddings": true, "max_position_embeddings": 4096,
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            assert_eq!(refused_key::<ModelArgs>(&config), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"attention_chunk_size": 4096, "attn_temperature_tuning": false}), None);
        check(json!({"attention_chunk_size": 4095}), Some("attention_chunk_size"));
        check(json!({"attn_temperature_tuning": 4}), Some("attn_temperature_tuning"));
        check(json!({"attn_temperature_tuning": 4, "no_rope_layers": [1, 1]}), None);
        check(json!({"num_local_experts": 16}), Some("num_local_experts"));
        check(json!({"tie_word_embeddings": false}), None);
        check(json!({"no_rope_layers": [1]}), Some("no_rope_layers"));
    }
}
