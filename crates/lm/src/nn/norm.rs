//! Norms, with MLX's fused kernels: RMS (Zhang and Sennrich 2019) and layer normalization (Ba et al.
//! 2016).

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::nn::fused;
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

    /// With a weight that is the tensor `name` of the layer times `factor`.
    pub fn load_scaled(
        layer: &mut Layer,
        name: &str,
        dimensions: i32,
        factor: f32,
        eps: f32,
    ) -> Result<Self, LmError> {
        let stored = layer.take(name, &[dimensions])?;
        let weight = ops::multiply(&stored, Array::from_f32(factor).as_dtype(stored.dtype())?)?;
        weight.eval()?;
        Ok(RmsNorm { weight, eps })
    }

    /// `[..., D]` to the same shape.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        fused::rms_norm(x, Some(&self.weight), self.eps)
    }

    /// The weight `[D]` and epsilon.
    pub fn parts(&self) -> (&Array, f32) {
        (&self.weight, self.eps)
    }
}

/// Moves each vector of the last axis to a mean of zero and scales it to a variance of one, then
/// scales it by a weight and adds a bias.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Array,       // [D]
    bias: Option<Array>, // [D]
    eps: f32,
}

impl LayerNorm {
    /// Takes `weight` of `[dimensions]` from the layer, and `bias` if there is one.
    pub fn load(
        layer: &mut Layer,
        dimensions: i32,
        eps: f32,
        has_bias: bool,
    ) -> Result<Self, LmError> {
        let weight = layer.take("weight", &[dimensions])?;
        let bias = if has_bias { Some(layer.take("bias", &[dimensions])?) } else { None };
        Ok(LayerNorm { weight, bias, eps })
    }

    /// `[..., D]` to the same shape.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        fused::layer_norm(x, Some(&self.weight), self.bias.as_ref(), self.eps)
    }
}

/// What stands before the layers of a block.
#[derive(Debug)]
pub enum Norm {
    /// Nothing: vectors are passed on as they are.
    None,
    /// See [`RmsNorm`].
    Rms(RmsNorm),
    /// See [`LayerNorm`].
    Layer(LayerNorm),
}

impl Norm {
    /// `[..., D]` to the same shape.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        match self {
            Norm::None => Ok(x.clone()),
            Norm::Rms(norm) => norm.forward(x),
            Norm::Layer(norm) => norm.forward(x),
        }
    }

    /// The weight `[D]` and epsilon of an RMS norm, which kernels compute with what follows it.
    pub fn rms_parts(&self) -> Option<(&Array, f32)> {
        match self {
            Norm::Rms(norm) => Some(norm.parts()),
            Norm::None | Norm::Layer(_) => None,
        }
    }

    /// The type of what it returns; `None` if that is the type of what it is given.
    pub fn dtype(&self) -> Option<Dtype> {
        match self {
            Norm::None => None,
            Norm::Rms(norm) => Some(norm.weight.dtype()),
            Norm::Layer(norm) => Some(norm.weight.dtype()),
        }
    }

    /// What a kernel with [`Norm::rms_parts`] is given: `x` itself if the kernel normalizes it.
    pub fn before_kernel(&self, x: &Array) -> Result<Array, Exception> {
        match self {
            Norm::None | Norm::Rms(_) => Ok(x.clone()),
            Norm::Layer(norm) => norm.forward(x),
        }
    }
}

impl From<RmsNorm> for Norm {
    fn from(norm: RmsNorm) -> Self {
        Norm::Rms(norm)
    }
}

impl From<Option<RmsNorm>> for Norm {
    fn from(norm: Option<RmsNorm>) -> Self {
        norm.map_or(Norm::None, Norm::Rms)
    }
}
