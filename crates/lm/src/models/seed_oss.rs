//! Seed-OSS (ByteDance Seed 2025): a llama with its biases named one by one. Reference: mlx-lm's
//! seed_oss.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, Matrix, MlpInputs, NormKind, Projections};
use super::llama;
use crate::LmError;
use crate::config::check_positive;

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    attention_out_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, llama::USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.attention.output = Matrix::new("o_proj", self.attention_out_bias);
        decoder.mlp.inputs = MlpInputs::Gated { has_bias: self.mlp_bias };
        decoder.mlp.output = Matrix::new("down_proj", self.mlp_bias);
        Ok(decoder)
    }
}
