//! Mistral Small 3, Devstral and Ministral 3 (Mistral AI 2025), the text part: a llama, or what
//! `ministral3.rs` describes. Reference: mlx-lm's mistral3.py.

use serde::Deserialize;

use super::decoder::{Decoder, Family};
use super::{llama, ministral3};
use crate::LmError;

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
        match self.text_model_type.as_deref() {
            None | Some("mistral" | "llama") => self.llama.decoder(),
            Some("ministral3") => ministral3::growing(&self.llama),
            Some(other) => Err(LmError::Config {
                name: "text_config",
                value: other.chars().take(80).collect(),
                allowed: "only the model_types mistral and ministral3 are supported there"
                    .to_owned(),
            }),
        }
    }
}
