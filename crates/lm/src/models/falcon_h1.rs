//! Falcon-H1 (TII 2025): each layer attends and has a state space beside. Reference: mlx-lm's
//! falcon_h1.py.

use serde::Deserialize;

use super::decoder::{
    Around, Common, Decoder, Family, GateKind, Mamba2Sizes, Matrix, MatrixFactor, Mixer, MlpInputs,
    Names, NormKind, Output, Projections, PublishedFactors, RecurrentKind, Usual, Wiring,
};
use crate::LmError;
use crate::config::{check_positive, check_range};

const USUAL: Usual = Usual { context: 131_072, rope_theta: Some(1e11), is_tied: true };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    multipliers: Multipliers,
    rms_norm_eps: Option<f64>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    /// Of the state space's outputs.
    #[serde(default)]
    projectors_bias: bool,
    /// Of the state space's inputs.
    #[serde(default)]
    mamba_proj_bias: bool,
    mamba_conv_bias: Option<bool>,
    mamba_d_conv: Option<i64>,
    mamba_d_head: Option<i64>,
    mamba_d_ssm: Option<i64>,
    mamba_d_state: Option<i64>,
    mamba_n_groups: Option<i64>,
    mamba_n_heads: Option<i64>,
    #[serde(default)]
    mamba_rms_norm: bool,
    #[serde(default)]
    mamba_norm_before_gate: bool,
}

/// What published matrices are multiplied by.
#[derive(Debug, Clone, Deserialize)]
struct Multipliers {
    attention_in_multiplier: Option<f64>,
    attention_out_multiplier: Option<f64>,
    embedding_multiplier: Option<f64>,
    lm_head_multiplier: Option<f64>,
    mlp_multipliers: Option<[f64; 2]>,
    ssm_in_multiplier: Option<f64>,
    /// Of the gate, x, B, C and the steps.
    ssm_multipliers: Option<[f64; 5]>,
    ssm_out_multiplier: Option<f64>,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let eps = check_positive("rms_norm_eps", self.rms_norm_eps.unwrap_or(1e-5))?;
        let head_dim = Some(self.common.head_dim.unwrap_or(64));
        let common = Common { head_dim, ..self.common.clone() };
        let mut decoder = common.decoder(NormKind::Rms(eps), USUAL)?;
        decoder.names = Names { norm: "model.final_layernorm", recurrent: "mamba", ..Names::USUAL };
        decoder.wiring = Wiring::Sequential {
            attention: Around::before("input_layernorm"),
            mlp: Around::before("pre_ff_layernorm"),
        };
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.attention.output = Matrix::new("o_proj", self.attention_bias);
        decoder.mlp.block = "feed_forward";
        decoder.mlp.inputs = MlpInputs::Gated { has_bias: self.mlp_bias };
        decoder.mlp.output = Matrix::new("down_proj", self.mlp_bias);
        let sizes = self.mamba(eps)?;
        self.multipliers.set(&mut decoder, &sizes)?;
        decoder.recurrent = Some(RecurrentKind::Mamba2(sizes));
        decoder.layers.iter_mut().for_each(|layer| layer.mixer = Mixer::Both);
        Ok(decoder)
    }
}

impl ModelArgs {
    fn mamba(&self, eps: f32) -> Result<Mamba2Sizes, LmError> {
        let number = |name, value: Option<i64>, usual, most| {
            check_range(name, value.unwrap_or(usual), 1..=most)
        };
        let sizes = Mamba2Sizes {
            heads: number("mamba_n_heads", self.mamba_n_heads, 24, 4096)?,
            head_dim: number("mamba_d_head", self.mamba_d_head, 64, 4096)?,
            groups: number("mamba_n_groups", self.mamba_n_groups, 1, 1024)?,
            state: number("mamba_d_state", self.mamba_d_state, 128, 4096)?,
            kernel: check_range("mamba_d_conv", self.mamba_d_conv.unwrap_or(4), 2..=64)?,
            conv_has_bias: self.mamba_conv_bias.unwrap_or(true),
            in_has_bias: self.mamba_proj_bias,
            out_has_bias: self.projectors_bias,
            step_limits: [0.0, f32::INFINITY],
            gate: match (self.mamba_rms_norm, self.mamba_norm_before_gate) {
                (false, _) => GateKind::Plain,
                (true, false) => GateKind::ThenNorm { eps, parts: 1 },
                (true, true) => GateKind::AfterNorm(eps),
            },
        };
        sizes.check("mamba_n_heads", "mamba_n_groups")?;
        let width = i64::from(sizes.inner());
        check_range("mamba_d_ssm", self.mamba_d_ssm.unwrap_or(1536), width..=width)?;
        Ok(sizes)
    }
}

impl Multipliers {
    /// Sets the factors of published matrices, and of tied logits.
    fn set(&self, decoder: &mut Decoder, sizes: &Mamba2Sizes) -> Result<(), LmError> {
        let number = |name, value: Option<f64>, usual| check_positive(name, value.unwrap_or(usual));
        let embeddings =
            number("embedding_multiplier", self.embedding_multiplier, 5.656_854_249_492_381)?;
        let logits = number("lm_head_multiplier", self.lm_head_multiplier, 0.0390625)?;
        let attended = number("attention_in_multiplier", self.attention_in_multiplier, 1.0)?;
        let [gate, down] = self.mlp_multipliers.unwrap_or([0.883_883_476_483_184_4, 0.585_937_5]);
        let third = 0.353_553_390_593_273_8;
        let parts = self.ssm_multipliers.unwrap_or([third, 0.25, third, 0.5, third]);
        let written = sizes.groups * sizes.state;
        let widths = [sizes.inner(), sizes.inner(), written, written, sizes.heads];
        let mut of_rows = Vec::new();
        for (width, part) in widths.into_iter().zip(parts) {
            of_rows.push((width, check_positive("ssm_multipliers", part)?));
        }
        let read = number("ssm_in_multiplier", self.ssm_in_multiplier, 1.25)?;
        let attention_out = self.attention_out_multiplier;
        let attention_out = number("attention_out_multiplier", attention_out, 0.9375)?;
        let ssm_out = self.ssm_out_multiplier;
        let ssm_out = number("ssm_out_multiplier", ssm_out, 0.235_702_260_395_515_87)?;
        decoder.published_factors = Some(PublishedFactors {
            convolution: "model.layers.0.mamba.conv1d.weight",
            factors: vec![
                MatrixFactor::new("embed_tokens.weight", embeddings),
                MatrixFactor::new("lm_head.weight", logits),
                MatrixFactor::new(".q_proj.weight", attended),
                // Without key_multiplier, as in the reference.
                MatrixFactor::new(".k_proj.weight", attended),
                MatrixFactor::new(".o_proj.weight", attention_out),
                MatrixFactor::new(".out_proj.weight", ssm_out),
                MatrixFactor::new(".gate_proj.weight", check_positive("mlp_multipliers", gate)?),
                MatrixFactor::new(".down_proj.weight", check_positive("mlp_multipliers", down)?),
                MatrixFactor { name: ".in_proj.weight", of_all: read, of_rows },
            ],
        });
        if decoder.output == Output::Tied {
            decoder.logit_multiplier = Some(logits / embeddings);
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
    fn heads_make_up_the_width_and_multipliers_are_numbers_above_zero() {
        let check = |changes: serde_json::Value, expected: Option<&str>| {
            let mut config = json!({
                "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
                "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 20,
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            assert_eq!(refused_key::<ModelArgs>(&config), expected, "{changes}");
        };
        check(json!({}), None);
        check(json!({"mamba_d_ssm": 1024}), Some("mamba_d_ssm"));
        check(json!({"mamba_d_ssm": 1024, "mamba_n_heads": 16}), None);
        check(json!({"mamba_n_groups": 5}), Some("mamba_n_groups"));
        check(json!({"ssm_multipliers": [1, 1, 0, 1, 1]}), Some("ssm_multipliers"));
        check(json!({"mlp_multipliers": [1, -1]}), Some("mlp_multipliers"));
        check(json!({"lm_head_multiplier": 0}), Some("lm_head_multiplier"));
        check(json!({"rms_norm_eps": -1e-5}), Some("rms_norm_eps"));
    }
}
