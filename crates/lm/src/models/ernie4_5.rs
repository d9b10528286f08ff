//! ERNIE 4.5, dense (Baidu 2025): a llama whose rotated pairs are neighbours. Reference: mlx-lm's
//! ernie4_5.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, Matrix, MlpInputs, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 131_072, rope_theta: None, is_tied: true };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    #[serde(default)]
    use_bias: bool,
}

impl ModelArgs {
    /// Whether every matrix but the router's has a bias.
    pub(super) fn has_bias(&self) -> bool {
        self.use_bias
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let common = Common { rope_traditional: Some(true), ..self.common.clone() };
        let mut decoder = common.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.use_bias };
        decoder.attention.output = Matrix::new("o_proj", self.use_bias);
        decoder.mlp.inputs = MlpInputs::Gated { has_bias: self.use_bias };
        decoder.mlp.output = Matrix::new("down_proj", self.use_bias);
        Ok(decoder)
    }
}
