//! MiMo (Xiaomi 2025): a llama with biases on queries, keys and values, and layers that predict further
//! tokens, which are left in the files. Reference: mlx-lm's mimo.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 32_768, rope_theta: Some(10_000.0), is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: true };
        decoder.has_further_layers = true;
        Ok(decoder)
    }
}
