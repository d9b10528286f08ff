//! GLM-4 as converted for transformers, and GLM-Edge (Zhipu AI 2024): a llama whose rotated pairs are
//! neighbours and whose gate and input are one matrix. Reference: mlx-lm's glm.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, Matrix, MlpInputs, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 8192, rope_theta: Some(10_000.0), is_tied: true };

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
        let common = Common { rope_traditional: Some(true), ..self.common.clone() };
        let mut decoder = common.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.mlp.inputs = MlpInputs::GatedJoined(Matrix::new("gate_up_proj", false));
        Ok(decoder)
    }
}
