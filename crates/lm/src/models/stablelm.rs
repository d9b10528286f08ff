//! StableLM 2 and 3B (Stability AI 2024): layer norms, a part of each head's vector rotated, and in
//! some models parallel blocks or a norm for each head. Reference: mlx-lm's stablelm.py.

use serde::Deserialize;

use super::decoder::{
    Common, Decoder, Family, HeadNormKind, NormKind, Output, Projections, Usual, Wiring,
};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 4096, rope_theta: None, is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    layer_norm_eps: f64,
    #[serde(default)]
    use_qkv_bias: bool,
    #[serde(default)]
    use_parallel_residual: bool,
    #[serde(default)]
    qk_layernorm: bool,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let eps = check_positive("layer_norm_eps", self.layer_norm_eps)?;
        let mut decoder = self.common.decoder(NormKind::Layer { eps, has_bias: true }, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.use_qkv_bias };
        if self.qk_layernorm {
            decoder.attention.head_norms = HeadNormKind::OfEachInPieces;
        }
        if self.use_parallel_residual {
            decoder.wiring = Wiring::Parallel { norm: "input_layernorm" };
        }
        decoder.output = Output::Own { has_bias: false };
        Ok(decoder)
    }
}
