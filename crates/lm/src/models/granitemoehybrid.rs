//! Granite 4 (IBM 2025): state spaces, and some layers that attend, with experts beside a feed-forward
//! network or with that alone. Reference: mlx-lm's granitemoehybrid.py.

use serde::Deserialize;

use super::decoder::{
    Decoder, Family, GateKind, Mamba2Sizes, Mixer, MlpInputs, Names, RecurrentKind,
    SharedExpertKind,
};
use super::granite;
use super::granitemoe::set_experts;
use crate::LmError;
use crate::config::{Bound, Size, check_bounds, check_experts, check_layer_types, check_range};

/// The fields of config.json. `intermediate_size` is an expert's, if there are experts.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    dense: granite::ModelArgs,
    num_local_experts: Option<i64>,
    num_experts_per_tok: Option<i64>,
    shared_intermediate_size: Option<i64>,
    mamba_n_heads: Option<i64>,
    mamba_d_head: Option<i64>,
    #[serde(default)]
    mamba_proj_bias: bool,
    mamba_d_state: Option<i64>,
    mamba_d_conv: Option<i64>,
    mamba_n_groups: Option<i64>,
    #[serde(default)]
    mamba_conv_bias: bool,
    position_embedding_type: Option<String>,
    time_step_limit: Option<[Bound; 2]>,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut args = self.dense.clone();
        args.common.rope_theta = args.common.rope_theta.or(Some(10_000.0));
        let kinds = args.common.layer_types.take().unwrap_or_default();
        let mut decoder = args.decoder()?;
        decoder.names = Names { recurrent: "mamba", ..Names::USUAL };
        check_layer_types("layer_types", &kinds, decoder.layers.len(), &["mamba", "attention"])?;
        if kinds.iter().any(|kind| kind == "mamba") {
            let eps = args.eps()?;
            decoder.recurrent = Some(RecurrentKind::Mamba2(self.mamba(eps)?));
        }
        let rotates = self.position_embedding_type.as_deref() != Some("nope");
        for (layer, kind) in decoder.layers.iter_mut().zip(&kinds) {
            layer.mixer = if kind == "mamba" { Mixer::Recurrent } else { Mixer::Attention };
            layer.rope = layer.rope.take().filter(|_| rotates);
        }
        match self.num_local_experts.unwrap_or(0) {
            0 if !args.mlp_has_bias() => {
                decoder.mlp.inputs = MlpInputs::GatedOrLinears("shared_mlp");
            }
            0 => {}
            count => self.set_experts(count, &mut decoder)?,
        }
        Ok(decoder)
    }
}

impl ModelArgs {
    fn mamba(&self, eps: f32) -> Result<Mamba2Sizes, LmError> {
        // What is left out is refused by its name.
        let number =
            |name, value: Option<i64>, most| check_range(name, value.unwrap_or(0), 1..=most);
        let usual = [Bound::Number(0.001), Bound::Number(100.0)];
        let sizes = Mamba2Sizes {
            heads: number("mamba_n_heads", self.mamba_n_heads, 4096)?,
            head_dim: number("mamba_d_head", self.mamba_d_head, 4096)?,
            groups: number("mamba_n_groups", self.mamba_n_groups, 1024)?,
            state: number("mamba_d_state", self.mamba_d_state, 4096)?,
            kernel: check_range("mamba_d_conv", self.mamba_d_conv.unwrap_or(0), 2..=64)?,
            conv_has_bias: self.mamba_conv_bias,
            in_has_bias: self.mamba_proj_bias,
            out_has_bias: self.mamba_proj_bias,
            step_limits: check_bounds("time_step_limit", self.time_step_limit.unwrap_or(usual))?,
            gate: GateKind::ThenNorm { eps, parts: 1 },
        };
        sizes.check("mamba_n_heads", "mamba_n_groups")?;
        Ok(sizes)
    }

    fn set_experts(&self, count: i64, decoder: &mut Decoder) -> Result<(), LmError> {
        let (count, num_chosen) = check_experts(
            ("num_local_experts", count),
            ("num_experts_per_tok", self.num_experts_per_tok.unwrap_or(0)),
        )?;
        let shared = Size::new("shared_intermediate_size", 1, 1 << 20);
        let shared = shared.check(self.shared_intermediate_size.unwrap_or(0))?;
        let shared = SharedExpertKind::linears_in_layer("shared_mlp", shared);
        set_experts(decoder, (count, num_chosen), Some(shared));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    #[test]
    fn layers_are_of_known_types_and_what_they_need_is_there() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            let mut config = json!({
                "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32,
                "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 20,
                "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "attention_bias": false,
                "embedding_multiplier": 12.0, "attention_multiplier": 0.1,
                "residual_multiplier": 0.2, "logits_scaling": 6.0, "num_local_experts": 4,
                "num_experts_per_tok": 2, "shared_intermediate_size": 64,
                "layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 32,
                "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_n_groups": 1,
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            assert_eq!(refused_key::<ModelArgs>(&config), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"layer_types": ["mamba"]}), Some("layer_types"));
        check(json!({"layer_types": ["mamba", "full_attention"]}), Some("layer_types"));
        check(json!({"mamba_n_heads": null}), Some("mamba_n_heads"));
        check(json!({"mamba_d_conv": null}), Some("mamba_d_conv"));
        let alone = json!({"mamba_n_heads": null, "layer_types": ["attention", "attention"]});
        check(alone, None);
        check(json!({"num_experts_per_tok": null}), Some("num_experts_per_tok"));
        check(json!({"shared_intermediate_size": null}), Some("shared_intermediate_size"));
        check(json!({"num_local_experts": null, "shared_intermediate_size": null}), None);
        check(json!({"time_step_limit": [1, 0]}), Some("time_step_limit"));
    }
}
