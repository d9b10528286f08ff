//! Helium (Kyutai 2025): a llama whose heads rotate neighbours. Reference: mlx-lm's helium.py.

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
    /// Of queries, keys and values.
    attention_bias: bool,
    mlp_bias: bool,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let common = Common { rope_traditional: Some(true), ..self.common.clone() };
        let mut decoder = common.decoder(norm, llama::USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.mlp.inputs = MlpInputs::Gated { has_bias: self.mlp_bias };
        decoder.mlp.output = Matrix::new("down_proj", self.mlp_bias);
        Ok(decoder)
    }
}
