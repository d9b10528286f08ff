//! MiniCPM (OpenBMB 2024): a llama with factors of embeddings, residuals and logits, which follow from
//! the model's sizes. Reference: mlx-lm's minicpm.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, NormKind, Output, Usual};
use crate::LmError;
use crate::config::{check_positive, check_range};

const USUAL: Usual = Usual { context: 4096, rope_theta: Some(1_000_000.0), is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    /// The width of the model whose logits are as large.
    dim_model_base: i64,
    /// The factor of embeddings.
    scale_emb: f64,
    /// The factor of residuals, times the root of the number of layers.
    scale_depth: f64,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        decoder.embedding_multiplier = Some(check_positive("scale_emb", self.scale_emb)?);
        let depth = (decoder.layers.len() as f64).sqrt();
        decoder.residual_multiplier =
            Some(check_positive("scale_depth", self.scale_depth / depth)?);
        let base = check_range("dim_model_base", self.dim_model_base, 1..=1 << 17)?;
        // Tied logits are not divided; files without the output layer have the embeddings' in its place.
        if decoder.output != Output::Tied {
            decoder.logit_multiplier = Some(base as f32 / decoder.hidden as f32);
            decoder.output = Output::IfStored;
        }
        Ok(decoder)
    }
}
