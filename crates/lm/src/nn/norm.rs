//! RMS normalization (Zhang and Sennrich 2019), with MLX's fused kernel.

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast, ops};

use crate::LmError;
use crate::weights::Layer;

/// Scales each vector of the last axis to unit root mean square, then by a weight.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Array, // [D]
    eps: f32,
}

impl RmsNorm {
    /// Takes `weight` of `[dimensions]` from the layer.
    pub fn load(layer: &mut Layer, dimensions: i32, eps: f32) -> Result<Self, LmError> {
        Ok(RmsNorm { weight: layer.take("weight", &[dimensions])?, eps })
    }

    /// As [`RmsNorm::load`], for checkpoints that store the weight minus one, as Gemma's do.
    pub fn load_plus_one(layer: &mut Layer, dimensions: i32, eps: f32) -> Result<Self, LmError> {
        let stored = layer.take("weight", &[dimensions])?;
        let weight = ops::add(&stored, Array::from_f32(1.0).as_dtype(stored.dtype())?)?;
        weight.eval()?;
        Ok(RmsNorm { weight, eps })
    }

    /// `[..., D]` to the same shape.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        fast::rms_norm(x, Some(&self.weight), self.eps)
    }

    /// The weight `[D]` and epsilon.
    pub fn parts(&self) -> (&Array, f32) {
        (&self.weight, self.eps)
    }
}
