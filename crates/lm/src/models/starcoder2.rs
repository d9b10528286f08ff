//! StarCoder2 (BigCode 2024): layer norms, biases everywhere, and a feed-forward network without a
//! gate. Reference: mlx-lm's starcoder2.py.

use serde::Deserialize;

use super::decoder::{Common, Decoder, Family, Matrix, MlpInputs, NormKind, Projections, Usual};
use crate::LmError;
use crate::config::check_positive;
use crate::device_kernels::Activation;

const USUAL: Usual = Usual { context: 16_384, rope_theta: Some(100_000.0), is_tied: true };

/// The fields of config.json.
///
/// `sliding_window` is not read: the reference has all layers attend to all tokens.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    common: Common,
    #[serde(default = "default_norm_epsilon")]
    norm_epsilon: f64,
}

fn default_norm_epsilon() -> f64 {
    1e-5
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let eps = check_positive("norm_epsilon", self.norm_epsilon)?;
        let mut decoder = self.common.decoder(NormKind::Layer { eps, has_bias: true }, USUAL)?;
        decoder.attention.projections = Projections::Separate { has_bias: true };
        decoder.attention.output = Matrix::new("o_proj", true);
        decoder.mlp.activation = Activation::Gelu;
        decoder.mlp.inputs = MlpInputs::Plain(Matrix::new("c_fc", true));
        decoder.mlp.output = Matrix::new("c_proj", true);
        Ok(decoder)
    }
}
