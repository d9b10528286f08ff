//! Llama 2 and 3 (Touvron et al. 2023), SmolLM2, and Mistral. Reference: mlx-lm's llama.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, Matrix, MlpInputs, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::check_positive;

/// What a config may leave out.
pub(super) const USUAL: Usual = Usual { context: 2048, rope_theta: Some(10_000.0), is_tied: true };

/// The fields of config.json.
///
/// `sliding_window` counts for layers that `layer_types` names so. Without the list, as in Mistral
/// 7B's first version, all layers attend to all tokens, as in the reference.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

impl ModelArgs {
    /// The keys that other families have too.
    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    pub(super) fn has_mlp_bias(&self) -> bool {
        self.mlp_bias
    }
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("rms_norm_eps", self.rms_norm_eps)?);
        let mut decoder = self.common.decoder(norm, USUAL)?;
        self.common.set_windows(&mut decoder.layers)?;
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.attention.output = Matrix::new("o_proj", self.attention_bias);
        decoder.mlp.inputs = MlpInputs::Gated { has_bias: self.mlp_bias };
        decoder.mlp.output = Matrix::new("down_proj", self.mlp_bias);
        Ok(decoder)
    }
}
