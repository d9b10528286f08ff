//! Command R7B and Command A (Cohere 2024): Command R with sliding windows in three of four layers,
//! of which the fourth does not rotate. Reference: mlx-lm's cohere2.py.

use serde::Deserialize;

use super::cohere;
use super::decoder::{Decoder, Family, Usual};
use crate::LmError;

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    cohere: cohere::ModelArgs,
    #[serde(default = "default_sliding_window_pattern")]
    sliding_window_pattern: i64,
}

fn default_sliding_window_pattern() -> i64 {
    4
}

const USUAL: Usual = Usual { context: 8192, rope_theta: Some(50_000.0), is_tied: true };
const USUAL_WINDOW: i64 = 4096;

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.cohere.decoder_with(USUAL)?;
        let (common, pattern) = (self.cohere.common(), self.sliding_window_pattern);
        common.set_windows_or_pattern(pattern, Some(USUAL_WINDOW), &mut decoder.layers)?;
        for layer in decoder.layers.iter_mut().filter(|layer| layer.window.is_none()) {
            layer.rope = None;
        }
        Ok(decoder)
    }
}
