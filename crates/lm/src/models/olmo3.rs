//! OLMo 3 (Ai2 2025): OLMo 2 with sliding windows in three of four layers, which do not scale their
//! rotation. Reference: mlx-lm's olmo3.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, HeadNormKind, Matrix, NormKind, Projections, Usual};
use super::olmo2::OLMO_WIRING;
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 65_536, rope_theta: None, is_tied: false };

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
        let mut decoder = self.common.decoder(norm, USUAL)?;
        self.common.set_windows_or_pattern(4, None, &mut decoder.layers)?;
        let plain = self.common.without_scaling();
        let plain = plain.rope(decoder.attention.heads.head_dim, USUAL)?;
        for layer in decoder.layers.iter_mut().filter(|layer| layer.window.is_some()) {
            layer.rope = Some(plain.clone());
        }
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.attention.output = Matrix::new("o_proj", self.attention_bias);
        decoder.attention.head_norms = HeadNormKind::OfAll;
        decoder.wiring = OLMO_WIRING;
        Ok(decoder)
    }
}
