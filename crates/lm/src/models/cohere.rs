//! Command R and Aya (Cohere 2024): parallel blocks behind one layer norm, and scaled logits.
//! Reference: mlx-lm's cohere.py.

use serde::Deserialize;

use super::decoder::{
    Common, Decoder, Family, HeadNormKind, Matrix, NormKind, Output, Projections, Usual, Wiring,
};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 8192, rope_theta: Some(8_000_000.0), is_tied: true };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    #[serde(default = "default_layer_norm_eps")]
    layer_norm_eps: f64,
    #[serde(default = "default_logit_scale")]
    logit_scale: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    layer_norm_bias: bool,
    #[serde(default)]
    use_qk_norm: bool,
}

fn default_layer_norm_eps() -> f64 {
    1e-5
}

fn default_logit_scale() -> f64 {
    0.0625
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        self.decoder_with(USUAL)
    }
}

impl ModelArgs {
    /// The keys that other families have too.
    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    /// What a model with these keys is.
    pub(super) fn decoder_with(&self, usual: Usual) -> Result<Decoder, LmError> {
        let eps = check_positive("layer_norm_eps", self.layer_norm_eps)?;
        let common = Common { rope_traditional: Some(true), ..self.common.clone() };
        let norm = NormKind::Layer { eps, has_bias: self.layer_norm_bias };
        let mut decoder = common.decoder(norm, usual)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.attention.output = Matrix::new("o_proj", self.attention_bias);
        if self.use_qk_norm {
            decoder.attention.head_norms = HeadNormKind::OfEachByItself;
        }
        decoder.wiring = Wiring::Parallel { norm: "input_layernorm" };
        decoder.output = Output::Tied;
        decoder.logit_multiplier = Some(check_positive("logit_scale", self.logit_scale)?);
        Ok(decoder)
    }
}
