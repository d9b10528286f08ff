//! A product that is added to the residual stream: the output of attention and of an MLP.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::device_kernels::{Fusion, Kernel, run};
use crate::nn::{Linear, scalar};

/// `residual + m (x Wᵀ (+ b))`.
#[derive(Debug)]
pub struct ProductResidual {
    linear: Linear,
    multiplier: Option<Array>, // m, scalar; `None` is one
    kernel: Option<Box<dyn Kernel>>,
}

impl ProductResidual {
    /// Adds what `linear` computes.
    pub fn new(linear: Linear) -> Result<Self, Exception> {
        ProductResidual::scaled(linear, None)
    }

    /// Adds what `linear` computes times `multiplier`.
    pub fn scaled(linear: Linear, multiplier: Option<f32>) -> Result<Self, Exception> {
        linear.eval()?;
        if let Some(multiplier) = multiplier {
            let multiplier = scalar(multiplier, linear.dtype())?;
            return Ok(ProductResidual { linear, multiplier: Some(multiplier), kernel: None });
        }
        let fusion = Fusion { adds_residual: true, ..Fusion::default() };
        let kernel = linear.bias().is_none().then(|| linear.kernel(fusion)).flatten();
        Ok(ProductResidual { linear, multiplier: None, kernel })
    }

    /// `x` `[B, L, in]` and `residual` `[B, L, out]` to `[B, L, out]`.
    pub fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        match run(self.kernel.as_deref(), &[x, residual]) {
            Some([sum]) => Ok(sum),
            None => {
                let product = self.linear.forward(x)?;
                match &self.multiplier {
                    Some(multiplier) => ops::add(residual, ops::multiply(product, multiplier)?),
                    None => ops::add(residual, product),
                }
            }
        }
    }
}
