//! A product that is added to the residual stream: the output of attention and of an MLP.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::device_kernels::{Fusion, Kernel, run};
use crate::nn::Linear;

/// `residual + x Wᵀ (+ b)`.
#[derive(Debug)]
pub struct ProductResidual {
    linear: Linear,
    kernel: Option<Box<dyn Kernel>>,
}

impl ProductResidual {
    /// Adds what `linear` computes.
    pub fn new(linear: Linear) -> Result<Self, Exception> {
        linear.eval()?;
        let fusion = Fusion { adds_residual: true, ..Fusion::default() };
        let kernel = linear.bias().is_none().then(|| linear.kernel(fusion)).flatten();
        Ok(ProductResidual { linear, kernel })
    }

    /// `x` `[B, L, in]` and `residual` `[B, L, out]` to `[B, L, out]`.
    pub fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        match run(self.kernel.as_deref(), &[x, residual]) {
            Some([sum]) => Ok(sum),
            None => ops::add(residual, self.linear.forward(x)?),
        }
    }
}
