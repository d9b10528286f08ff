//! Qwen3 (Qwen Team 2025), dense: a llama with norms of queries and keys. Reference: mlx-lm's
//! qwen3.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, HeadNormKind, NormKind, Usual};
use crate::LmError;
use crate::config::{check_full_attention, check_positive};

const USUAL: Usual = Usual { context: 32_768, rope_theta: None, is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        check_full_attention(self.common.layer_types.as_deref())?;
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        decoder.attention.head_norms = HeadNormKind::OfEach;
        Ok(decoder)
    }
}
