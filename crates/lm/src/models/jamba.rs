//! Jamba (AI21 2024): Mamba's layers, and some that attend without rotation; every few layers have
//! experts. Reference: mlx-lm's jamba.py.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::{
    Around, Common, Decoder, ExpertForm, ExpertsKind, Family, MambaSizes, Mixer, Names, NormKind,
    RecurrentKind, Routing, Score, Usual, Wiring,
};
use crate::LmError;
use crate::config::{check_experts, check_layer_types, check_positive, check_range};

const USUAL: Usual = Usual { context: 262_144, rope_theta: Some(10_000.0), is_tied: true };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    attn_layer_offset: i64,
    attn_layer_period: i64,
    expert_layer_offset: i64,
    expert_layer_period: i64,
    num_experts: i64,
    num_experts_per_tok: i64,
    mamba_d_conv: i64,
    mamba_d_state: i64,
    mamba_expand: i64,
    /// A number, or "auto".
    mamba_dt_rank: Option<Value>,
    #[serde(default)]
    mamba_proj_bias: bool,
    mamba_conv_bias: Option<bool>,
    layers_block_type: Option<Vec<String>>,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let eps = check_positive("rms_norm_eps", self.rms_norm_eps)?;
        let mut decoder = self.common.decoder(NormKind::Rms(eps), USUAL)?;
        decoder.names = Names { norm: "model.final_layernorm", recurrent: "mamba", ..Names::USUAL };
        decoder.wiring = Wiring::Sequential {
            attention: Around::before("input_layernorm"),
            mlp: Around::before("pre_ff_layernorm"),
        };
        decoder.mlp.block = "feed_forward";
        decoder.recurrent = Some(RecurrentKind::Mamba(self.mamba(decoder.hidden, eps)?));
        self.set_mixers(&mut decoder)?;
        if self.num_experts > 1 {
            self.set_experts(&mut decoder)?;
        }
        Ok(decoder)
    }
}

impl ModelArgs {
    fn mamba(&self, hidden: i32, eps: f32) -> Result<MambaSizes, LmError> {
        let rank = match &self.mamba_dt_rank {
            None => i64::from((hidden + 15) / 16),
            Some(Value::String(word)) if word == "auto" => i64::from((hidden + 15) / 16),
            Some(value) => value.as_i64().unwrap_or(0),
        };
        Ok(MambaSizes {
            inner: hidden * check_range("mamba_expand", self.mamba_expand, 1..=8)?,
            state: check_range("mamba_d_state", self.mamba_d_state, 1..=1024)?,
            rank: check_range("mamba_dt_rank", rank, 1..=1 << 17)?,
            kernel: check_range("mamba_d_conv", self.mamba_d_conv, 2..=64)?,
            conv_has_bias: self.mamba_conv_bias.unwrap_or(true),
            has_bias: self.mamba_proj_bias,
            eps,
        })
    }

    /// Sets which layers attend: as listed, or every few.
    fn set_mixers(&self, decoder: &mut Decoder) -> Result<(), LmError> {
        let period = check_range("attn_layer_period", self.attn_layer_period, 1..=1024)?;
        let offset = check_range("attn_layer_offset", self.attn_layer_offset, 0..=1024)?;
        if let Some(kinds) = &self.layers_block_type {
            let known = ["attention", "mamba"];
            check_layer_types("layers_block_type", kinds, decoder.layers.len(), &known)?;
        }
        for (index, layer) in decoder.layers.iter_mut().enumerate() {
            let attends = match &self.layers_block_type {
                Some(kinds) => kinds[index] == "attention",
                None => index as i32 % period == offset,
            };
            layer.mixer = if attends { Mixer::Attention } else { Mixer::Recurrent };
            layer.rope = None;
        }
        Ok(())
    }

    fn set_experts(&self, decoder: &mut Decoder) -> Result<(), LmError> {
        let (count, num_chosen) = check_experts(
            ("num_experts", self.num_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
        )?;
        let period = check_range("expert_layer_period", self.expert_layer_period, 1..=1024)?;
        let offset = check_range("expert_layer_offset", self.expert_layer_offset, 0..=1024)?;
        decoder.experts = Some(ExpertsKind {
            block: "feed_forward",
            count,
            intermediate: decoder.mlp.intermediate,
            routing: Routing::of(Score::SoftmaxOfChosen, num_chosen),
            form: ExpertForm { router: "router", ..ExpertForm::USUAL },
            shared: None,
        });
        for (index, layer) in (0..).zip(&mut decoder.layers) {
            layer.has_experts = (index + offset) % period == 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    #[test]
    fn layers_attend_and_have_experts_every_few_or_as_listed() {
        let config = |changes: serde_json::Value| {
            let mut config = json!({
                "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 32,
                "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 20,
                "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "attn_layer_offset": 1,
                "attn_layer_period": 3, "expert_layer_offset": 1, "expert_layer_period": 2,
                "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_conv": 4,
                "mamba_d_state": 8, "mamba_expand": 2,
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            config
        };
        let kinds = |changes| {
            let args: ModelArgs = serde_json::from_value(config(changes)).expect("arguments");
            let layers = args.decoder().expect("a decoder").layers;
            let kind = |layer: &super::super::decoder::LayerKind| {
                (layer.mixer == Mixer::Attention, layer.has_experts)
            };
            layers.iter().map(kind).collect::<Vec<_>>()
        };
        let expected = [(false, false), (true, true), (false, false), (false, true)];
        assert_eq!(kinds(json!({})), expected);
        let listed = json!(["attention", "mamba", "mamba", "attention"]);
        let expected = [(true, false), (false, false), (false, false), (true, false)];
        assert_eq!(kinds(json!({"layers_block_type": listed, "num_experts": 1})), expected);
        for (changes, key) in [
            (json!({"layers_block_type": ["mamba"]}), "layers_block_type"),
            (
                json!({"layers_block_type": ["mamba", "conv", "mamba", "mamba"]}),
                "layers_block_type",
            ),
            (json!({"attn_layer_period": 0}), "attn_layer_period"),
            (json!({"expert_layer_period": 0}), "expert_layer_period"),
            (json!({"mamba_dt_rank": "some"}), "mamba_dt_rank"),
            (json!({"mamba_dt_rank": 0}), "mamba_dt_rank"),
            (json!({"num_experts_per_tok": 5}), "num_experts_per_tok"),
        ] {
            assert_eq!(refused_key::<ModelArgs>(&config(changes.clone())), Some(key), "{changes}");
        }
    }
}
