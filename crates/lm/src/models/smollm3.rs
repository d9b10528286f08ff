//! SmolLM3 (Hugging Face 2025): a llama in which every fourth layer does not rotate queries and keys.
//! Reference: mlx-lm's smollm3.py.

use serde::Deserialize;

use super::decoder::{Decoder, Family};
use super::llama;
use crate::LmError;
use crate::config::check_range;

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    llama: llama::ModelArgs,
    #[serde(default = "default_no_rope_layer_interval")]
    no_rope_layer_interval: i64,
    /// 1 for each layer that rotates, whatever the name says.
    no_rope_layers: Option<Vec<i64>>,
}

fn default_no_rope_layer_interval() -> i64 {
    4
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let mut decoder = self.llama.decoder()?;
        let num_layers = decoder.layers.len();
        let interval =
            check_range("no_rope_layer_interval", self.no_rope_layer_interval, 1..=1024)?;
        if let Some(rotates) = &self.no_rope_layers
            && rotates.len() != num_layers
        {
            return Err(LmError::Config {
                name: "no_rope_layers",
                value: format!("a list of {}", rotates.len()),
                allowed: format!("it must have an entry for each of the {num_layers} layers"),
            });
        }
        for (index, layer) in decoder.layers.iter_mut().enumerate() {
            let rotates = match &self.no_rope_layers {
                Some(rotates) => rotates[index] != 0,
                None => !(index + 1).is_multiple_of(interval as usize),
            };
            if !rotates {
                layer.rope = None;
            }
        }
        Ok(decoder)
    }
}
