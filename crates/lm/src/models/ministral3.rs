//! Ministral 3 (Mistral AI 2025), its text model by itself: a llama whose queries grow with their
//! position. Reference: mlx-lm's ministral3.py.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::{Decoder, Family, PositionScale};
use super::llama;
use crate::LmError;
use crate::config::check_positive;

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    llama: llama::ModelArgs,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        growing(&self.llama)
    }
}

/// A llama whose queries grow as its `rope_parameters` say.
pub(super) fn growing(llama: &llama::ModelArgs) -> Result<Decoder, LmError> {
    let mut decoder = llama.decoder()?;
    let nested = llama.common().rope_parameters.as_ref();
    let number = |name| nested.and_then(|keys| keys.get(name)).and_then(Value::as_f64);
    let positive = |name| check_positive(name, number(name).unwrap_or(0.0));
    let scale = PositionScale {
        growth: positive("llama_4_scaling_beta")?,
        span: positive("original_max_position_embeddings")?,
        first: 0,
    };
    decoder.layers.iter_mut().for_each(|layer| layer.position_scale = Some(scale));
    Ok(decoder)
}
