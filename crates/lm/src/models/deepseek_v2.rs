//! DeepSeek-V2 and DeepSeek-Coder-V2 (DeepSeek-AI 2024): latent attention whose caches hold keys and values
//! of all heads, and experts that a softmax chooses. Reference: mlx-lm's deepseek_v2.py.

use serde::Deserialize;

use super::decoder::{CachedForm, Decoder, Family, Usual};
use super::deepseek_v3::{LatentArgs, NORM_EPS};
use super::glm4_moe::ExpertArgs;
use crate::LmError;

const USUAL: Usual = Usual { context: 2048, rope_theta: Some(10_000.0), is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    latent: LatentArgs,
    #[serde(flatten)]
    experts: ExpertArgs,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.latent.decoder(CachedForm::Heads, NORM_EPS, USUAL)?;
        self.experts.set(&mut decoder, ExpertArgs::by_softmax)?;
        Ok(decoder)
    }
}
