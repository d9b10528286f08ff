//! GLM-4.7-Flash (Zhipu AI 2026): the layers of DeepSeek-V3. Reference: mlx-lm's glm4_moe_lite.py.

use serde::Deserialize;

use super::decoder::{CachedForm, Decoder, Family, Usual};
use super::deepseek_v3::LatentArgs;
use super::glm4_moe::ExpertArgs;
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 202_752, rope_theta: Some(1_000_000.0), is_tied: false };

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
        let norm_eps = check_positive("rms_norm_eps", self.latent.rms_norm_eps)?;
        let mut decoder = self.latent.decoder(CachedForm::Latents, norm_eps, USUAL)?;
        decoder.has_further_layers = true;
        self.experts.set(&mut decoder, ExpertArgs::by_sigmoid)?;
        Ok(decoder)
    }
}
