//! Mamba-2 (Dao and Gu 2024): every layer is a state space, and none attends. Reference: mlx-lm's
//! mamba2.py.

use serde::Deserialize;

use super::decoder::{
    Around, Blocks, Common, Decoder, Family, GateKind, Mamba2Sizes, Mixer, Names, NormKind,
    RecurrentKind, Usual, Wiring,
};
use crate::LmError;
use crate::config::{Bound, check_bounds, check_positive, check_range};

const USUAL: Usual = Usual { context: 2056, rope_theta: Some(10_000.0), is_tied: false };
/// Of the norms in layers, whatever the config says of the last one.
const EPS: f32 = 1e-5;

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    num_heads: i64,
    head_dim: i64,
    vocab_size: i64,
    hidden_size: i64,
    state_size: i64,
    ssm_state_size: Option<i64>,
    num_hidden_layers: i64,
    layer_norm_epsilon: f64,
    conv_kernel: i64,
    n_groups: i64,
    use_bias: bool,
    use_conv_bias: bool,
    tie_word_embeddings: bool,
    time_step_limit: [Bound; 2],
    max_position_embeddings: Option<i64>,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.without_attention().decoder(NormKind::Rms(EPS), USUAL)?;
        let last = check_positive("layer_norm_epsilon", self.layer_norm_epsilon)?;
        decoder.last_norm = Some(NormKind::Rms(last));
        decoder.names = Names {
            embeddings: "backbone.embeddings",
            layers: "backbone.layers",
            norm: "backbone.norm_f",
            recurrent: "mixer",
            ..Names::USUAL
        };
        let none = Around { before: None, after: None };
        decoder.wiring = Wiring::Sequential { attention: Around::before("norm"), mlp: none };
        let sizes = Mamba2Sizes {
            heads: check_range("num_heads", self.num_heads, 1..=4096)?,
            head_dim: check_range("head_dim", self.head_dim, 1..=4096)?,
            groups: check_range("n_groups", self.n_groups, 1..=1024)?,
            state: match self.ssm_state_size {
                Some(size) => check_range("ssm_state_size", size, 1..=4096)?,
                None => check_range("state_size", self.state_size, 1..=4096)?,
            },
            kernel: check_range("conv_kernel", self.conv_kernel, 2..=64)?,
            conv_has_bias: self.use_conv_bias,
            in_has_bias: self.use_bias,
            out_has_bias: self.use_bias,
            step_limits: check_bounds("time_step_limit", self.time_step_limit)?,
            gate: GateKind::ThenNorm { eps: last, parts: 1 },
        };
        sizes.check("num_heads", "n_groups")?;
        decoder.recurrent = Some(RecurrentKind::Mamba2(sizes));
        for layer in &mut decoder.layers {
            layer.mixer = Mixer::Recurrent;
            layer.blocks = Blocks::Mixer;
        }
        Ok(decoder)
    }
}

impl ModelArgs {
    /// What a decoder is described by, with heads and a network that no layer has.
    fn without_attention(&self) -> Common {
        Common {
            max_position_embeddings: self.max_position_embeddings,
            tie_word_embeddings: Some(self.tie_word_embeddings),
            ..Common::of_sizes(self.hidden_size, self.num_hidden_layers, self.vocab_size)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    #[test]
    fn groups_share_heads_and_steps_have_bounds() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            let mut config = json!({
                "num_heads": 4, "head_dim": 16, "vocab_size": 20, "hidden_size": 32,
                "state_size": 8, "num_hidden_layers": 2, "layer_norm_epsilon": 1e-5,
                "conv_kernel": 4, "n_groups": 2, "use_bias": false, "use_conv_bias": true,
                "tie_word_embeddings": false, "time_step_limit": [0.0, "Infinity"],
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            assert_eq!(refused_key::<ModelArgs>(&config), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"time_step_limit": [0.001, 0.1]}), None);
        check(json!({"time_step_limit": [0.0, {"__float__": "Infinity"}]}), None);
        check(json!({"time_step_limit": [0.2, 0.1]}), Some("time_step_limit"));
        check(json!({"time_step_limit": ["Infinity", "Infinity"]}), Some("time_step_limit"));
        check(json!({"time_step_limit": [-1.0, 1.0]}), Some("time_step_limit"));
        check(json!({"n_groups": 3}), Some("n_groups"));
        check(json!({"conv_kernel": 1}), Some("conv_kernel"));
        check(json!({"ssm_state_size": 0}), Some("ssm_state_size"));
        check(json!({"layer_norm_epsilon": 0}), Some("layer_norm_epsilon"));
    }
}
