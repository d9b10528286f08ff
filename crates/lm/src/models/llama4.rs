//! Llama 4 (Meta 2025), the text part: experts of which a token uses one, beside one that all use, and
//! attention within chunks in three of four layers; the fourth does not rotate. Reference: mlx-lm's
//! llama4.py.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::{
    Common, Decoder, ExpertForm, ExpertsKind, Family, HeadNormKind, Matrix, NormKind, Output,
    PositionScale, Projections, Routing, Score, SharedExpertKind, StoredExperts, Usual,
};
use crate::LmError;
use crate::config::{check_positive, check_range};

const USUAL: Usual = Usual { context: 131_072, rope_theta: None, is_tied: false };
/// Every so many layers one attends to all tokens and does not rotate.
const PATTERN: usize = 4;
/// The epsilon of the norms of queries and keys.
const HEAD_EPS: f32 = 1e-6;

/// The fields of the text part's config.json. `intermediate_size` is an expert's.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    attention_bias: bool,
    attention_chunk_size: i64,
    interleave_moe_layer_step: i64,
    /// The width of layers without experts.
    intermediate_size_mlp: i64,
    num_local_experts: i64,
    num_experts_per_tok: i64,
    use_qk_norm: bool,
    /// A number or a truth value: whether queries of unrotated layers grow with their position.
    #[serde(default = "default_attn_temperature_tuning")]
    attn_temperature_tuning: Value,
    #[serde(default = "default_floor_scale")]
    floor_scale: f64,
    #[serde(default = "default_attn_scale")]
    attn_scale: f64,
    no_rope_layers: Option<Vec<i64>>,
    moe_layers: Option<Vec<i64>>,
}

fn default_attn_temperature_tuning() -> Value {
    Value::from(4)
}

fn default_floor_scale() -> f64 {
    8192.0
}

fn default_attn_scale() -> f64 {
    0.1
}

/// Whether a number or a truth value is on.
pub(super) fn is_on(value: &Value) -> bool {
    match value {
        Value::Bool(is_on) => *is_on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => false,
    }
}

fn is_unrotated(index: usize) -> bool {
    (index + 1).is_multiple_of(PATTERN)
}

impl ModelArgs {
    /// Refuses lists of layers that say something else than the pattern that the reference takes.
    fn check_lists(&self, decoder: &Decoder) -> Result<(), LmError> {
        let refused = |name, allowed: &str| {
            let value = "another list of layers".to_owned();
            Err(LmError::Config { name, value, allowed: allowed.to_owned() })
        };
        let rotated = || (0..decoder.layers.len()).map(|index| !is_unrotated(index));
        if let Some(list) = self.no_rope_layers.as_ref().filter(|list| !list.is_empty())
            && !list.iter().map(|&is_rotated| is_rotated != 0).eq(rotated())
        {
            return refused("no_rope_layers", "only every fourth layer may be without rotation");
        }
        if let Some(kinds) = &self.common.layer_types
            && !kinds.iter().map(|kind| kind == "chunked_attention").eq(rotated())
        {
            let allowed = "only every fourth layer may attend to all tokens, the others to chunks";
            return refused("layer_types", allowed);
        }
        let with_experts = || (0i64..).zip(&decoder.layers).filter(|(_, layer)| layer.has_experts);
        if let Some(list) = &self.moe_layers
            && !list.iter().copied().eq(with_experts().map(|(index, _)| index))
        {
            return refused("moe_layers", "it must be as interleave_moe_layer_step says");
        }
        Ok(())
    }

    fn experts(&self, intermediate: i32) -> Result<ExpertsKind, LmError> {
        Ok(ExpertsKind {
            block: "feed_forward",
            count: check_range("num_local_experts", self.num_local_experts, 1..=1 << 14)?,
            intermediate,
            routing: Routing {
                in_float32: true,
                ..Routing::of(
                    Score::SigmoidOfChosen,
                    check_range("num_experts_per_tok", self.num_experts_per_tok, 1..=1)?,
                )
            },
            form: ExpertForm {
                router: "router",
                stored: StoredExperts::Turned,
                scales_input: true,
                ..ExpertForm::USUAL
            },
            shared: Some(SharedExpertKind::whole("shared_expert", intermediate)),
        })
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let common = Common { rope_traditional: Some(true), ..self.common.clone() };
        let mut decoder = common.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.attention.output = Matrix::new("o_proj", self.attention_bias);
        if self.use_qk_norm {
            decoder.attention.head_norms =
                HeadNormKind::Unweighted { eps: HEAD_EPS, where_unrotated: false };
        }
        decoder.output = Output::Own { has_bias: false };
        decoder.experts = Some(self.experts(decoder.mlp.intermediate)?);
        decoder.mlp.block = "feed_forward";
        let width = self.intermediate_size_mlp;
        decoder.mlp.intermediate = check_range("intermediate_size_mlp", width, 1..=1 << 20)?;
        let step = self.interleave_moe_layer_step;
        let step = check_range("interleave_moe_layer_step", step, 1..=1024)? as usize;
        let chunk = check_range("attention_chunk_size", self.attention_chunk_size, 1..=1 << 26)?;
        let scale = match is_on(&self.attn_temperature_tuning) {
            true => Some(PositionScale {
                growth: check_positive("attn_scale", self.attn_scale)?,
                span: check_positive("floor_scale", self.floor_scale)?,
                first: 1,
            }),
            false => None,
        };
        for (index, layer) in decoder.layers.iter_mut().enumerate() {
            layer.has_experts = index % step == step - 1;
            match is_unrotated(index) {
                true => (layer.rope, layer.position_scale) = (None, scale),
                false => layer.chunk = Some(chunk),
            }
        }
        self.check_lists(&decoder)?;
        Ok(decoder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    fn config(changes: &Value) -> Value {
        let mut config = json!({
            "hidden_size": 64, "num_hidden_layers": 5, "intermediate_size": 32,
            "intermediate_size_mlp": 96, "num_attention_heads": 2, "vocab_size": 28,
            "rms_norm_eps": 1e-5, "rope_theta": 5e5, "attention_bias": false,
            "attention_chunk_size": 16, "interleave_moe_layer_step": 2, "num_local_experts": 4,
            "num_experts_per_tok": 1, "use_qk_norm": true,
        });
        for (name, value) in changes.as_object().expect("an object") {
            config[name] = value.clone();
        }
        config
    }

    #[test]
    fn every_fourth_layer_sees_all_and_every_second_has_experts() {
        let args = ModelArgs::deserialize(config(&json!({}))).expect("arguments");
        let layers = args.decoder().expect("a decoder").layers;
        let chunks: Vec<_> = layers.iter().map(|layer| layer.chunk).collect();
        assert_eq!(chunks, [Some(16), Some(16), Some(16), None, Some(16)]);
        assert!(layers.iter().all(|layer| layer.rope.is_some() == layer.chunk.is_some()));
        assert!(layers.iter().all(|layer| layer.position_scale.is_some() == layer.rope.is_none()));
        let experts: Vec<_> = layers.iter().map(|layer| layer.has_experts).collect();
        assert_eq!(experts, [false, true, false, true, false]);
    }

    #[test]
    fn refuses_what_the_reference_does_not_compute() {
        let check = |changes: Value, expected: Option<&str>| {
            assert_eq!(refused_key::<ModelArgs>(&config(&changes)), expected, "{changes}");
        };
        check(json!({"no_rope_layers": [1, 1, 1, 0, 1], "moe_layers": [1, 3]}), None);
        check(json!({"attn_temperature_tuning": false, "floor_scale": 0}), None);
        check(json!({"no_rope_layers": [1, 1, 0, 1, 1]}), Some("no_rope_layers"));
        check(json!({"moe_layers": [0]}), Some("moe_layers"));
        check(json!({"layer_types": ["full_attention"]}), Some("layer_types"));
        check(json!({"num_experts_per_tok": 2}), Some("num_experts_per_tok"));
        check(json!({"num_local_experts": 0}), Some("num_local_experts"));
        check(json!({"interleave_moe_layer_step": 0}), Some("interleave_moe_layer_step"));
        check(json!({"attention_chunk_size": 0}), Some("attention_chunk_size"));
        check(json!({"intermediate_size_mlp": 0}), Some("intermediate_size_mlp"));
        check(json!({"floor_scale": 0}), Some("floor_scale"));
    }
}
