//! Gemma (Gemma Team 2024): norms stored less one, scaled embeddings, GELU. Reference: mlx-lm's
//! gemma.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, NormKind, Output, Usual};
use crate::LmError;
use crate::config::check_positive;
use crate::device_kernels::Activation;

const USUAL: Usual = Usual { context: 8192, rope_theta: Some(10_000.0), is_tied: true };

/// The fields of config.json.
///
/// `hidden_act` is not read: configs name GELU's approximation, and the reference computes GELU.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::RmsPlusOne(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        decoder.mlp.activation = Activation::Gelu;
        decoder.output = Output::Tied;
        decoder.embedding_multiplier = Some((decoder.hidden as f32).sqrt());
        Ok(decoder)
    }
}
