//! Granite 3 (IBM 2024), dense: a llama with multipliers on embeddings, scores, residuals and logits.
//! Reference: mlx-lm's granite.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, Matrix, MlpInputs, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 2048, rope_theta: None, is_tied: true };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    pub(super) common: Common,
    rms_norm_eps: f64,
    embedding_multiplier: f64,
    /// In place of the root of the heads' length.
    attention_multiplier: f64,
    residual_multiplier: f64,
    /// Logits are divided by it.
    logits_scaling: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

impl ModelArgs {
    /// Epsilon of every norm.
    pub(super) fn eps(&self) -> Result<f32, LmError> {
        check_positive("rms_norm_eps", self.rms_norm_eps)
    }

    /// Whether the matrices of feed-forward networks have biases.
    pub(super) fn mlp_has_bias(&self) -> bool {
        self.mlp_bias
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(self.eps()?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        decoder.attention.heads.scale =
            check_positive("attention_multiplier", self.attention_multiplier)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.attention.output = Matrix::new("o_proj", self.attention_bias);
        decoder.mlp.inputs = MlpInputs::Gated { has_bias: self.mlp_bias };
        decoder.mlp.output = Matrix::new("down_proj", self.mlp_bias);
        decoder.embedding_multiplier =
            Some(check_positive("embedding_multiplier", self.embedding_multiplier)?);
        decoder.residual_multiplier =
            Some(check_positive("residual_multiplier", self.residual_multiplier)?);
        let divisor = check_positive("logits_scaling", self.logits_scaling)?;
        decoder.logit_multiplier =
            Some(check_positive("logits_scaling", 1.0 / f64::from(divisor))?);
        Ok(decoder)
    }
}
