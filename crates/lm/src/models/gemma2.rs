//! Gemma 2 (Gemma Team 2024): Gemma with norms before and after blocks, and with scores and logits
//! that are capped. Reference: mlx-lm's gemma2.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, NormKind, Output, Usual};
use super::gemma3_text::GEMMA_WIRING;
use crate::LmError;
use crate::config::check_positive;
use crate::device_kernels::Activation;

const USUAL: Usual = Usual { context: 8192, rope_theta: Some(10_000.0), is_tied: true };

/// The fields of config.json.
///
/// Gemma 2 was trained with a window of 4,096 tokens in every second layer. The reference has all
/// layers attend to all tokens, and so has this: the keys of the window are not read.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    #[serde(default = "default_attn_logit_softcapping")]
    attn_logit_softcapping: f64,
    #[serde(default = "default_final_logit_softcapping")]
    final_logit_softcapping: f64,
    #[serde(default = "default_query_pre_attn_scalar")]
    query_pre_attn_scalar: f64,
}

fn default_attn_logit_softcapping() -> f64 {
    50.0
}

fn default_final_logit_softcapping() -> f64 {
    30.0
}

fn default_query_pre_attn_scalar() -> f64 {
    144.0
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::RmsPlusOne(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        let heads = &mut decoder.attention.heads;
        heads.scale =
            check_positive("query_pre_attn_scalar", self.query_pre_attn_scalar)?.powf(-0.5);
        heads.softcap =
            Some(check_positive("attn_logit_softcapping", self.attn_logit_softcapping)?);
        decoder.logit_softcap =
            Some(check_positive("final_logit_softcapping", self.final_logit_softcapping)?);
        decoder.mlp.activation = Activation::GeluApprox;
        decoder.wiring = GEMMA_WIRING;
        decoder.output = Output::Tied;
        decoder.embedding_multiplier = Some((decoder.hidden as f32).sqrt());
        Ok(decoder)
    }
}
