//! Gemma 3, text only (Gemma Team 2025): most layers attend to a sliding window, every n-th layer
//! to all tokens. Reference: mlx-lm's gemma3_text.py.

use cairn_formats::bfloat16;
use serde::Deserialize;
use serde_json::Value;

use super::decoder::{
    Around, Common, Decoder, Family, HeadNormKind, LayerKind, NormKind, Output, Usual, Wiring,
};
use crate::LmError;
use crate::config::check_positive;
use crate::device_kernels::Activation;
use crate::nn::RopeSpec;
use crate::rope_keys;

/// The fields of config.json, with the defaults of Gemma 3 1B.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ModelArgs {
    hidden_size: i64,
    num_hidden_layers: i64,
    intermediate_size: i64,
    num_attention_heads: i64,
    num_key_value_heads: i64,
    head_dim: i64,
    rms_norm_eps: f64,
    vocab_size: i64,
    rope_theta: f64,
    rope_local_base_freq: f64,
    rope_scaling: Option<Value>,
    query_pre_attn_scalar: f64,
    sliding_window: i64,
    sliding_window_pattern: i64,
    layer_types: Option<Vec<String>>,
    max_position_embeddings: i64,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    use_bidirectional_attention: bool,
    /// By the kind of layer; in place of the three keys about rotation.
    rope_parameters: Option<Value>,
}

impl Default for ModelArgs {
    fn default() -> Self {
        ModelArgs {
            hidden_size: 1152,
            num_hidden_layers: 26,
            intermediate_size: 6912,
            num_attention_heads: 4,
            num_key_value_heads: 1,
            head_dim: 256,
            rms_norm_eps: 1e-6,
            vocab_size: 262_144,
            rope_theta: 1_000_000.0,
            rope_local_base_freq: 10_000.0,
            rope_scaling: None,
            query_pre_attn_scalar: 256.0,
            sliding_window: 512,
            sliding_window_pattern: 6,
            layer_types: None,
            max_position_embeddings: 32_768,
            attn_logit_softcapping: None,
            final_logit_softcapping: None,
            use_bidirectional_attention: false,
            rope_parameters: None,
        }
    }
}

impl ModelArgs {
    /// The keys that other families have too.
    fn common(&self) -> Common {
        let full = self.rope_of("full_attention");
        Common {
            hidden_size: self.hidden_size,
            num_hidden_layers: self.num_hidden_layers,
            intermediate_size: self.intermediate_size,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: Some(self.num_key_value_heads),
            head_dim: Some(self.head_dim),
            vocab_size: self.vocab_size,
            max_position_embeddings: Some(self.max_position_embeddings),
            rope_theta: Some(theta_of(full).unwrap_or(self.rope_theta)),
            rope_traditional: None,
            rope_scaling: rope_keys::scaling(self.rope_scaling.as_ref(), full).cloned(),
            rope_parameters: None,
            partial_rotary_factor: None,
            layer_types: self.layer_types.clone(),
            sliding_window: Some(self.sliding_window),
            tie_word_embeddings: None,
        }
    }

    /// How newer configs say the layers of a kind rotate.
    fn rope_of(&self, kind: &str) -> Option<&Value> {
        self.rope_parameters.as_ref()?.get(kind)
    }
}

fn theta_of(rope: Option<&Value>) -> Option<f64> {
    rope?.get("rope_theta")?.as_f64()
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        if let Some(cap) = self.attn_logit_softcapping {
            let allowed =
                "only attention without a softcap is supported for this architecture".to_owned();
            return Err(LmError::Config {
                name: "attn_logit_softcapping",
                value: cap.to_string(),
                allowed,
            });
        }
        if self.use_bidirectional_attention {
            let allowed = "a model that attends to later tokens cannot generate text".to_owned();
            return Err(LmError::Config {
                name: "use_bidirectional_attention",
                value: "true".to_owned(),
                allowed,
            });
        }
        let norm = NormKind::RmsPlusOne(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let common = self.common();
        let usual = Usual { context: 32_768, rope_theta: None, is_tied: true };
        let mut decoder = common.decoder(norm, usual)?;
        self.set_layers(&common, &mut decoder)?;
        decoder.attention.heads.scale =
            check_positive("query_pre_attn_scalar", self.query_pre_attn_scalar)?.powf(-0.5);
        decoder.attention.head_norms = HeadNormKind::OfEach;
        decoder.mlp.activation = Activation::GeluApprox;
        decoder.wiring = GEMMA_WIRING;
        // Some configs claim an output layer although their checkpoint ties it.
        decoder.output = Output::IfStored;
        // Gemma was trained with this factor in bfloat16.
        decoder.embedding_multiplier = Some(bfloat16((decoder.hidden as f32).sqrt()));
        decoder.logit_softcap = self
            .final_logit_softcapping
            .map(|cap| check_positive("final_logit_softcapping", cap))
            .transpose()?;
        Ok(decoder)
    }
}

/// A norm before and after each block.
pub(super) const GEMMA_WIRING: Wiring = Wiring::Sequential {
    attention: Around::both("input_layernorm", "post_attention_layernorm"),
    mlp: Around::both("pre_feedforward_layernorm", "post_feedforward_layernorm"),
};

impl ModelArgs {
    /// Windows, and the other base of the layers that have one.
    fn set_layers(&self, common: &Common, decoder: &mut Decoder) -> Result<(), LmError> {
        // Newer configs list the layers' types instead of a pattern.
        let pattern = self.sliding_window_pattern;
        common.set_windows_or_pattern(pattern, None, &mut decoder.layers)?;
        let head_dim = decoder.attention.heads.head_dim;
        let base = theta_of(self.rope_of("sliding_attention"));
        let base = base.unwrap_or(self.rope_local_base_freq);
        let base = check_positive("rope_local_base_freq", base)?;
        let local = RopeSpec::check(head_dim, base.into(), false, None, decoder.context)?;
        for LayerKind { window, rope, .. } in &mut decoder.layers {
            if window.is_some() {
                *rope = Some(local.clone());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Compares the windows of a config's layers, or the key that is refused.
    fn check(config: serde_json::Value, expected: Result<&[Option<i32>], &str>) {
        let args = ModelArgs::deserialize(&config).expect("arguments");
        let windows = |decoder: Decoder| -> Vec<_> {
            decoder.layers.iter().map(|layer| layer.window).collect()
        };
        let found = args.decoder().map(windows).map_err(|error| match error {
            LmError::Config { name, .. } => name,
            other => panic!("{config}: {other}"),
        });
        assert_eq!(found.as_deref().map_err(|name| *name), expected, "{config}");
    }

    #[test]
    fn rotation_is_read_from_either_form() {
        let ropes = |config: serde_json::Value| {
            let args = ModelArgs::deserialize(&config).expect("arguments");
            let layers = args.decoder().expect("a decoder").layers;
            layers.into_iter().map(|layer| format!("{:?}", layer.rope)).collect::<Vec<_>>()
        };
        let linear = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6});
        let flat = json!({"num_hidden_layers": 6, "rope_theta": 2e6, "rope_scaling": linear,
            "rope_local_base_freq": 3e4});
        let nested = json!({"num_hidden_layers": 6, "rope_parameters": {"full_attention": linear,
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4}}});
        let plain = ropes(json!({"num_hidden_layers": 6}));
        assert_eq!(ropes(nested), ropes(flat.clone()));
        let differs: Vec<bool> =
            std::iter::zip(&plain, ropes(flat)).map(|(one, other)| *one != other).collect();
        assert_eq!(differs, [true; 6], "the config is read");
    }

    #[test]
    fn the_pattern_or_the_list_says_which_layers_see_everything() {
        const W: Option<i32> = Some(512);
        check(json!({"num_hidden_layers": 7}), Ok(&[W, W, W, W, W, None, W]));
        check(
            json!({"num_hidden_layers": 3, "sliding_window_pattern": 1}),
            Ok(&[None, None, None]),
        );
        check(
            json!({"num_hidden_layers": 3, "sliding_window_pattern": 2, "sliding_window": 4}),
            Ok(&[Some(4), None, Some(4)]),
        );
        check(
            json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}),
            Ok(&[None, W]),
        );
        check(
            json!({"num_hidden_layers": 1, "layer_types": null, "final_logit_softcapping": null}),
            Ok(&[W]),
        );
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        check(
            json!({"num_hidden_layers": 2, "layer_types": ["full_attention"]}),
            Err("layer_types"),
        );
        check(
            json!({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]}),
            Err("layer_types"),
        );
        check(json!({"sliding_window_pattern": 0}), Err("sliding_window_pattern"));
        check(json!({"sliding_window": 0}), Err("sliding_window"));
        check(json!({"num_key_value_heads": 3}), Err("num_key_value_heads"));
        check(json!({"query_pre_attn_scalar": 0}), Err("query_pre_attn_scalar"));
        check(json!({"attn_logit_softcapping": 50.0}), Err("attn_logit_softcapping"));
        check(json!({"use_bidirectional_attention": true}), Err("use_bidirectional_attention"));
    }
}
