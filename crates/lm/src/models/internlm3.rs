//! InternLM3 (Shanghai AI Laboratory 2025): a llama with biases. Reference: mlx-lm's internlm3.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, Matrix, MlpInputs, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 32_768, rope_theta: Some(10_000.0), is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    #[serde(default)]
    bias: bool,
    /// The reference takes it for the output of attention too.
    #[serde(default)]
    qkv_bias: bool,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.qkv_bias };
        decoder.attention.output = Matrix::new("o_proj", self.qkv_bias);
        decoder.mlp.inputs = MlpInputs::Gated { has_bias: self.bias };
        decoder.mlp.output = Matrix::new("down_proj", self.bias);
        Ok(decoder)
    }
}
