//! OLMo 2 (Ai2 2024): norms behind blocks instead of before them, and of all query and key heads
//! together. Reference: mlx-lm's olmo2.py.

use serde::Deserialize;

use super::decoder::{Around, Decoder, Family, HeadNormKind, Wiring};
use super::llama;
use crate::LmError;

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    llama: llama::ModelArgs,
}

/// A norm behind each block.
pub(super) const OLMO_WIRING: Wiring = Wiring::Sequential {
    attention: Around::after("post_attention_layernorm"),
    mlp: Around::after("post_feedforward_layernorm"),
};

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.llama.decoder()?;
        decoder.attention.head_norms = HeadNormKind::OfAll;
        decoder.wiring = OLMO_WIRING;
        Ok(decoder)
    }
}
