//! Qwen3.5 and its successors (Qwen Team 2026), dense and with experts: the layers of Qwen3-Next,
//! whose linear attention has a matrix for each of its inputs. Reference: mlx-lm's qwen3_5.py and
//! qwen3_5_moe.py.

use serde::Deserialize;
use serde_json::Value;

use super::qwen3_next::{self, Family, Shape, Storage};
use crate::LmError;

/// The fields of config.json, with its defaults.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ModelArgs {
    hidden_size: i64,
    num_hidden_layers: i64,
    intermediate_size: i64,
    num_attention_heads: i64,
    num_key_value_heads: i64,
    head_dim: Option<i64>,
    linear_num_value_heads: i64,
    linear_num_key_heads: i64,
    linear_key_head_dim: i64,
    linear_value_head_dim: i64,
    linear_conv_kernel_dim: i64,
    full_attention_interval: i64,
    layer_types: Option<Vec<String>>,
    num_experts: i64,
    num_experts_per_tok: i64,
    decoder_sparse_step: i64,
    mlp_only_layers: Vec<i64>,
    moe_intermediate_size: i64,
    shared_expert_intermediate_size: i64,
    norm_topk_prob: bool,
    rms_norm_eps: f64,
    vocab_size: i64,
    max_position_embeddings: i64,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_scaling: Option<Value>,
    tie_word_embeddings: bool,
    attention_bias: bool,
    attn_output_gate: bool,
    /// The gate of linear attention, which Qwen3.8 names.
    output_gate_type: Option<String>,
}

impl Default for ModelArgs {
    fn default() -> Self {
        ModelArgs {
            hidden_size: 4096,
            num_hidden_layers: 32,
            intermediate_size: 14_336,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: None,
            linear_num_value_heads: 64,
            linear_num_key_heads: 16,
            linear_key_head_dim: 192,
            linear_value_head_dim: 128,
            linear_conv_kernel_dim: 4,
            full_attention_interval: 4,
            layer_types: None,
            num_experts: 0,
            num_experts_per_tok: 0,
            decoder_sparse_step: 1,
            mlp_only_layers: Vec::new(),
            moe_intermediate_size: 0,
            shared_expert_intermediate_size: 0,
            norm_topk_prob: true,
            rms_norm_eps: 1e-6,
            vocab_size: 151_936,
            max_position_embeddings: 131_072,
            rope_theta: None,
            partial_rotary_factor: None,
            rope_scaling: None,
            tie_word_embeddings: false,
            attention_bias: false,
            attn_output_gate: true,
            output_gate_type: None,
        }
    }
}

impl Family for ModelArgs {
    fn shape(&self) -> Result<Shape, LmError> {
        let refused = |name, value: String, allowed: &str| {
            Err(LmError::Config { name, value, allowed: allowed.to_owned() })
        };
        // The reference does not read these four.
        if !self.attn_output_gate {
            let allowed = "attention has a gate on its output in this architecture";
            return refused("attn_output_gate", "false".to_owned(), allowed);
        }
        if let Some(other) = &self.output_gate_type
            && !["swish", "silu"].contains(&other.as_str())
        {
            let allowed = "the gate of linear attention is swish in this architecture";
            return refused("output_gate_type", other.chars().take(80).collect(), allowed);
        }
        let every_layer = "every layer has experts in this architecture, or none has";
        if self.decoder_sparse_step != 1 {
            let step = self.decoder_sparse_step.to_string();
            return refused("decoder_sparse_step", step, every_layer);
        }
        if let Some(layer) = self.mlp_only_layers.first() {
            return refused("mlp_only_layers", layer.to_string(), every_layer);
        }
        Shape::check(&self.as_qwen3_next(), Storage::Separate)
    }
}

impl ModelArgs {
    /// The same model in Qwen3-Next's keys: every layer has experts, or none has.
    fn as_qwen3_next(&self) -> qwen3_next::ModelArgs {
        qwen3_next::ModelArgs {
            hidden_size: self.hidden_size,
            num_hidden_layers: self.num_hidden_layers,
            intermediate_size: self.intermediate_size,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            head_dim: self
                .head_dim
                .unwrap_or_else(|| self.hidden_size / self.num_attention_heads.max(1)),
            linear_num_value_heads: self.linear_num_value_heads,
            linear_num_key_heads: self.linear_num_key_heads,
            linear_key_head_dim: self.linear_key_head_dim,
            linear_value_head_dim: self.linear_value_head_dim,
            linear_conv_kernel_dim: self.linear_conv_kernel_dim,
            num_experts: self.num_experts,
            num_experts_per_tok: self.num_experts_per_tok,
            decoder_sparse_step: self.decoder_sparse_step,
            mlp_only_layers: self.mlp_only_layers.clone(),
            moe_intermediate_size: self.moe_intermediate_size,
            shared_expert_intermediate_size: self.shared_expert_intermediate_size,
            rms_norm_eps: self.rms_norm_eps,
            vocab_size: self.vocab_size,
            max_position_embeddings: self.max_position_embeddings,
            rope_theta: self.rope_theta.or(Some(100_000.0)),
            partial_rotary_factor: self.partial_rotary_factor.or(Some(0.25)),
            rope_scaling: self.rope_scaling.clone(),
            norm_topk_prob: self.norm_topk_prob,
            tie_word_embeddings: self.tie_word_embeddings,
            attention_bias: self.attention_bias,
            full_attention_interval: self.full_attention_interval,
            layer_types: self.layer_types.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rope_keys;

    /// The key that is refused in a config with these entries, whose others are the defaults.
    fn refused(config: Value) -> Option<&'static str> {
        let args = ModelArgs::deserialize(rope_keys::unify(config.clone()).config);
        match args.expect("arguments").shape() {
            Ok(_) => None,
            Err(LmError::Config { name, .. }) => Some(name),
            Err(other) => panic!("{config}: {other}"),
        }
    }

    #[test]
    fn keys_that_are_left_out_have_the_references_values() {
        assert_eq!(refused(json!({})), None);
        let sections = json!({"rope_type": "mrope", "mrope_section": [11, 11, 10]});
        assert_eq!(refused(json!({ "rope_parameters": sections })), None);
        assert_eq!(refused(json!({ "rope_parameters": { "rope_theta": 1e7 } })), None);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        assert_eq!(refused(json!({ "attn_output_gate": false })), Some("attn_output_gate"));
        assert_eq!(
            refused(json!({ "output_gate_type": "swish", "language_model_only": true })),
            None
        );
        let sigmoid = json!({ "output_gate_type": "sigmoid" });
        assert_eq!(refused(sigmoid), Some("output_gate_type"));
        assert_eq!(refused(json!({ "num_experts": 8 })), Some("num_experts_per_tok"));
        assert_eq!(refused(json!({ "num_attention_heads": 0 })), Some("num_attention_heads"));
        assert_eq!(refused(json!({ "layer_types": ["full_attention"] })), Some("layer_types"));
        assert_eq!(refused(json!({ "mlp_only_layers": [0] })), Some("mlp_only_layers"));
        assert_eq!(refused(json!({ "decoder_sparse_step": 2 })), Some("decoder_sparse_step"));
        let nothing = json!({ "partial_rotary_factor": 0.0 });
        assert_eq!(refused(json!({ "rope_parameters": nothing })), Some("partial_rotary_factor"));
    }
}
