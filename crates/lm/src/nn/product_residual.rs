//! A product that is added to the residual stream: the output of attention and of an MLP.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::device_kernels::{Fusion, Kernel, QuantizedRows, run};
use crate::nn::{Elementwise, Linear, scalar};

/// `residual + m (x Wᵀ (+ b))`.
#[derive(Debug)]
pub struct ProductResidual {
    linear: Linear,
    /// `[1, 1, out]`, which the kernel adds with the residual.
    bias: Option<Array>,
    /// `residual + m x` of a product; `None` where m is one.
    scaled_sum: Option<Elementwise<2>>,
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
            let sum = Elementwise::new(move |[product, residual]| {
                ops::add(residual, ops::multiply(product, &multiplier)?)
            });
            return Ok(ProductResidual { linear, bias: None, scaled_sum: Some(sum), kernel: None });
        }
        let fusion = Fusion { adds_residual: true, ..Fusion::default() };
        let kernel = linear.kernel(fusion);
        let bias = linear.bias().map(|bias| bias.reshape(&[1, 1, -1])).transpose()?;
        mlx_rs::transforms::eval(&bias)?;
        Ok(ProductResidual { linear, bias, scaled_sum: None, kernel })
    }

    /// The matrix `[out, in]`; `None` for dense weights, and where there is a bias or a multiplier.
    pub(super) fn rows(&self) -> Option<QuantizedRows<'_>> {
        match self.scaled_sum.is_some() || self.bias.is_some() {
            true => None,
            false => self.linear.rows(),
        }
    }

    /// `x` `[B, L, in]` and `residual` `[B, L, out]` to `[B, L, out]`.
    pub fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        match self.run(x, residual)? {
            Some(sum) => Ok(sum),
            None => {
                let product = self.linear.forward(x)?;
                match &self.scaled_sum {
                    Some(sum) => sum.call([&product, residual]),
                    None => ops::add(residual, product),
                }
            }
        }
    }

    /// The kernel's output; `None` where the plain form has to run.
    fn run(&self, x: &Array, residual: &Array) -> Result<Option<Array>, Exception> {
        let Some(kernel) = self.kernel.as_deref() else { return Ok(None) };
        let sum = match &self.bias {
            Some(bias) => run(Some(kernel), &[x, &ops::add(residual, bias)?]),
            None => run(Some(kernel), &[x, residual]),
        };
        Ok(sum.map(|[sum]| sum))
    }
}
