//! EXAONE 4.0 (LG AI Research 2025): norms behind blocks, and, in the large model, sliding windows in
//! three of four layers, of which the fourth does not rotate. Reference: mlx-lm's exaone4.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, HeadNormKind, NormKind, Usual};
use super::olmo2::OLMO_WIRING;
use crate::LmError;
use crate::config::{Size, check_positive};

const USUAL: Usual = Usual { context: 65_536, rope_theta: None, is_tied: true };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    /// "L" for a layer with a window, "G" for one without, over and over.
    sliding_window_pattern: Option<String>,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        decoder.attention.head_norms = HeadNormKind::OfEach;
        decoder.wiring = OLMO_WIRING;
        let pattern = self.sliding_window_pattern.as_deref().unwrap_or_default();
        if !pattern.chars().all(|kind| matches!(kind, 'L' | 'G')) {
            return Err(LmError::Config {
                name: "sliding_window_pattern",
                value: pattern.chars().take(80).collect(),
                allowed: "it must be made of L and G".to_owned(),
            });
        }
        let types = self.common.layer_types.as_deref().unwrap_or_default();
        if pattern.is_empty() && types.iter().any(|kind| kind == "sliding_attention") {
            return Err(LmError::Config {
                name: "layer_types",
                value: "sliding_attention".to_owned(),
                allowed: "this architecture needs sliding_window_pattern too".to_owned(),
            });
        }
        for (layer, kind) in decoder.layers.iter_mut().zip(pattern.chars().cycle()) {
            match kind {
                'L' => {
                    let window = Size::WINDOW.check(self.common.sliding_window.unwrap_or(0))?;
                    layer.window = Some(window);
                }
                _ => layer.rope = None,
            }
        }
        Ok(decoder)
    }
}
