//! ERNIE 4.5 with experts (Baidu 2025): ERNIE 4.5 whose later layers have experts, beside some that
//! all tokens use. Reference: mlx-lm's ernie4_5_moe.py.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::{Decoder, ExpertForm, ExpertsKind, Family, Routing, Score, SharedExpertKind};
use super::ernie4_5;
use crate::LmError;
use crate::config::{Size, check_experts, check_range};

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    dense: ernie4_5::ModelArgs,
    moe_num_experts: i64,
    #[serde(default = "one")]
    moe_k: i64,
    /// An expert's width; 0 is that of a layer without experts.
    #[serde(default)]
    moe_intermediate_size: i64,
    #[serde(default)]
    moe_num_shared_experts: i64,
    /// The first layer with experts, or a list whose least it is.
    #[serde(default)]
    moe_layer_start_index: Value,
    /// The last one, or a list whose largest it is; without it, and for -1, the last of all.
    #[serde(default)]
    moe_layer_end_index: Value,
    /// Between these, every layer whose number (from 1) is divisible by this has experts.
    #[serde(default = "one")]
    moe_layer_interval: i64,
    #[serde(default = "default_moe_gate_act")]
    moe_gate_act: String,
}

fn one() -> i64 {
    1
}

fn default_moe_gate_act() -> String {
    "softmax".to_owned()
}

/// What a number, or a list of some, says of layers.
fn layers_of(name: &'static str, value: &Value) -> Result<Option<Vec<i64>>, LmError> {
    let numbers = match value {
        Value::Null => return Ok(None),
        Value::Array(list) => list.iter().map(Value::as_i64).collect::<Option<Vec<_>>>(),
        number => number.as_i64().map(|number| vec![number]),
    };
    match numbers.filter(|numbers| !numbers.is_empty()) {
        Some(numbers) => Ok(Some(numbers)),
        None => Err(LmError::Config {
            name,
            value: value.to_string().chars().take(80).collect(),
            allowed: "it must be a layer's number or a list of such".to_owned(),
        }),
    }
}

impl ModelArgs {
    fn experts(&self, decoder: &Decoder) -> Result<ExpertsKind, LmError> {
        let (count, num_chosen) =
            check_experts(("moe_num_experts", self.moe_num_experts), ("moe_k", self.moe_k))?;
        let intermediate = match self.moe_intermediate_size {
            0 => decoder.mlp.intermediate,
            width => Size::EXPERT_INTERMEDIATE.check(width)?,
        };
        let num_shared =
            check_range("moe_num_shared_experts", self.moe_num_shared_experts, 0..=1024)?;
        let score = match self.moe_gate_act.as_str() {
            "softmax" => Score::Softmax,
            "sigmoid" => Score::Sigmoid,
            other => {
                return Err(LmError::Config {
                    name: "moe_gate_act",
                    value: other.chars().take(80).collect(),
                    allowed: "only softmax and sigmoid are supported".to_owned(),
                });
            }
        };
        let has_bias = self.dense.has_bias();
        let shared = (num_shared > 0).then(|| {
            let width = Size::INTERMEDIATE.check(i64::from(intermediate) * i64::from(num_shared));
            let kind = |width| SharedExpertKind {
                has_bias,
                ..SharedExpertKind::whole("shared_experts", width)
            };
            width.map(kind)
        });
        Ok(ExpertsKind {
            block: "mlp",
            count,
            intermediate,
            routing: Routing {
                in_float32: true,
                adds_up_to_one: true,
                // mlx-lm drops it when it converts; in published files it counts.
                correction_bias: Some("moe_statics.e_score_correction_bias"),
                may_lack_correction_bias: true,
                ..Routing::of(score, num_chosen)
            },
            form: ExpertForm { has_bias, ..ExpertForm::USUAL },
            shared: shared.transpose()?,
        })
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.dense.decoder()?;
        decoder.experts = Some(self.experts(&decoder)?);
        let start = layers_of("moe_layer_start_index", &self.moe_layer_start_index)?;
        let first = start.into_iter().flatten().min().unwrap_or(0);
        let end = layers_of("moe_layer_end_index", &self.moe_layer_end_index)?;
        let last = end.into_iter().flatten().max().filter(|&last| last != -1).unwrap_or(i64::MAX);
        let interval = check_range("moe_layer_interval", self.moe_layer_interval, 1..=1024)?;
        for (index, layer) in (0..).zip(&mut decoder.layers) {
            layer.has_experts =
                (first..=last).contains(&index) && (index + 1) % i64::from(interval) == 0;
        }
        Ok(decoder)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Which of four layers have experts in a config with these changes, or the key that is refused.
    fn check(changes: Value, expected: Result<[bool; 4], &str>) {
        let mut config = json!({
            "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96,
            "num_attention_heads": 2, "vocab_size": 28, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
            "use_bias": false, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 2,
            "moe_intermediate_size": 32,
        });
        for (name, value) in changes.as_object().expect("an object") {
            config[name] = value.clone();
        }
        let args = ModelArgs::deserialize(&config).expect("arguments");
        let found = args
            .decoder()
            .map(|decoder| std::array::from_fn(|layer| decoder.layers[layer].has_experts))
            .map_err(|error| match error {
                LmError::Config { name, .. } => name,
                other => panic!("{changes}: {other}"),
            });
        assert_eq!(found, expected, "{changes}");
    }

    #[test]
    fn the_config_says_which_layers_have_experts() {
        check(json!({}), Ok([true; 4]));
        check(json!({"moe_layer_start_index": 1}), Ok([false, true, true, true]));
        check(
            json!({"moe_layer_start_index": [2, 1], "moe_layer_end_index": [1, 2]}),
            Ok([false, true, true, false]),
        );
        check(json!({"moe_layer_end_index": -1}), Ok([true; 4]));
        check(json!({"moe_layer_interval": 2}), Ok([false, true, false, true]));
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        check(json!({"moe_k": 5}), Err("moe_k"));
        check(json!({"moe_k": 0}), Err("moe_k"));
        check(json!({"moe_num_experts": 0}), Err("moe_num_experts"));
        check(json!({"moe_intermediate_size": -1}), Err("moe_intermediate_size"));
        check(json!({"moe_num_shared_experts": -1}), Err("moe_num_shared_experts"));
        check(json!({"moe_layer_interval": 0}), Err("moe_layer_interval"));
        check(json!({"moe_layer_start_index": "one"}), Err("moe_layer_start_index"));
        check(json!({"moe_layer_end_index": []}), Err("moe_layer_end_index"));
        check(json!({"moe_gate_act": "relu"}), Err("moe_gate_act"));
    }
}
