//! Mistral Small 3, Devstral and Ministral 3 (Mistral AI 2025), the text part: a llama, in Ministral with
//! queries that grow with their position. Reference: mlx-lm's mistral3.py and ministral3.py.

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
    /// What the text part calls itself.
    text_model_type: Option<String>,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.llama.decoder()?;
        match self.text_model_type.as_deref() {
            None | Some("mistral" | "llama") => {}
            Some("ministral3") => {
                let scale = self.position_scale()?;
                decoder.layers.iter_mut().for_each(|layer| layer.position_scale = Some(scale));
            }
            Some(other) => {
                return Err(LmError::Config {
                    name: "text_config",
                    value: other.chars().take(80).collect(),
                    allowed: "only the model_types mistral and ministral3 are supported there"
                        .to_owned(),
                });
            }
        }
        Ok(decoder)
    }
}

impl ModelArgs {
    fn position_scale(&self) -> Result<PositionScale, LmError> {
        let nested = self.llama.common().rope_parameters.as_ref();
        let number = |name| nested.and_then(|keys| keys.get(name)).and_then(Value::as_f64);
        let positive = |name| check_positive(name, number(name).unwrap_or(0.0));
        Ok(PositionScale {
            growth: positive("llama_4_scaling_beta")?,
            span: positive("original_max_position_embeddings")?,
            first: 0,
        })
    }
}
