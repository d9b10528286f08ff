//! RMS norm of a block's output, added to the residual stream: what Gemma does.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::device_kernels::{Kernel, Kernels, run};
use crate::nn::RmsNorm;

/// `residual + norm(x)`; in float16, whose range Gemma's activations can exceed, the sum is clipped
/// to it.
#[derive(Debug)]
pub struct NormResidual {
    norm: RmsNorm,
    kernel: Option<Box<dyn Kernel>>,
}

impl NormResidual {
    /// Adds what `norm` returns.
    pub fn new(norm: RmsNorm, kernels: &Kernels) -> Self {
        let (weight, eps) = norm.parts();
        let kernel = kernels.as_ref().and_then(|kernels| kernels.norm_residual(weight, eps));
        NormResidual { norm, kernel }
    }

    /// `x` and `residual` `[B, L, D]` to the same shape.
    pub fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        if let Some([sum]) = run(self.kernel.as_deref(), &[x, residual]) {
            return Ok(sum);
        }
        let normed = self.norm.forward(x)?;
        if normed.dtype() != Dtype::Float16 {
            return ops::add(residual, normed);
        }
        const F16_MAX: f32 = 65504.0;
        let sum = ops::add(residual.as_dtype(Dtype::Float32)?, normed.as_dtype(Dtype::Float32)?)?;
        ops::clip(sum, (-F16_MAX, F16_MAX))?.as_dtype(Dtype::Float16)
    }
}
