//! Phi-3, Phi-3.5 and Phi-4 (Microsoft 2024): a llama that stores projections as one matrix, with
//! LongRoPE. Reference: mlx-lm's phi3.py.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::{Common, Decoder, Family, Matrix, MlpInputs, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::check_positive;

const USUAL: Usual = Usual { context: 131_072, rope_theta: Some(10_000.0), is_tied: false };

/// The fields of config.json.
///
/// `sliding_window`, which the first models name, is not read: the reference has all layers attend to
/// all tokens.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    #[serde(default = "default_original_max_position_embeddings")]
    original_max_position_embeddings: f64,
}

fn default_original_max_position_embeddings() -> f64 {
    4096.0
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut common = self.common.clone();
        // The length of the first training stands beside the section that needs it.
        if let Some(Value::Object(keys)) = &mut common.rope_scaling {
            let original = json!(self.original_max_position_embeddings);
            keys.insert("original_max_position_embeddings".to_owned(), original);
        }
        let mut decoder = common.decoder(norm, USUAL)?;
        decoder.attention.projections = Projections::Joined(Matrix::new("qkv_proj", false));
        decoder.mlp.inputs = MlpInputs::GatedJoined(Matrix::new("gate_up_proj", false));
        Ok(decoder)
    }
}
