//! GLM-4-0414 (Zhipu AI 2025): norms before and after blocks, and half of each head's vector rotated.
//! Reference: mlx-lm's glm4.py.

use serde::Deserialize;

use super::decoder::{
    Around, Common, Decoder, Family, Matrix, MlpInputs, NormKind, Output, Projections, Usual,
    Wiring,
};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 32_768, rope_theta: None, is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let is_traditional = self.common.rope_traditional.unwrap_or(true);
        let common = Common { rope_traditional: Some(is_traditional), ..self.common.clone() };
        let mut decoder = common.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.mlp.inputs = MlpInputs::GatedJoined(Matrix::new("gate_up_proj", false));
        decoder.wiring = Wiring::Sequential {
            attention: Around::both("input_layernorm", "post_self_attn_layernorm"),
            mlp: Around::both("post_attention_layernorm", "post_mlp_layernorm"),
        };
        decoder.output = Output::Own { has_bias: false };
        Ok(decoder)
    }
}
