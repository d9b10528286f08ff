//! RMS norm and the projections that read it: the first operation of an attention layer.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::device_kernels::{Fusion, Kernel, run};
use crate::nn::{FusedLinear, Linear, Projected, RmsNorm};

/// `norm(x)` times the matrices of N layers.
#[derive(Debug)]
pub struct NormProjections<const N: usize> {
    norm: RmsNorm,
    projections: FusedLinear,
    /// The projections' bias as `[1, 1, sum of out]`: the residual of their product in the kernel.
    bias: Option<Array>,
    kernel: Option<Box<dyn Kernel>>,
}

impl<const N: usize> NormProjections<N> {
    /// The projections of the vectors that `norm` returns.
    pub fn new(norm: RmsNorm, projections: [Linear; N]) -> Result<Self, Exception> {
        let projections = FusedLinear::new(projections.into())?;
        let bias = projections.bias().map(|bias| bias.reshape(&[1, 1, -1])).transpose()?;
        let fusion =
            Fusion { norm: Some(norm.parts()), adds_residual: bias.is_some(), ..Fusion::default() };
        let kernel = projections.kernel(fusion);
        Ok(NormProjections { norm, projections, bias, kernel })
    }

    /// `[B, L, D]` to the projections, each `[B, L, out]`.
    pub fn forward(&self, x: &Array) -> Result<Projected<N>, Exception> {
        let inputs: Vec<&Array> = [x].into_iter().chain(&self.bias).collect();
        match run(self.kernel.as_deref(), &inputs) {
            Some([joined]) => Ok(Projected::Joined(joined)),
            None => self.projections.project(&self.norm.forward(x)?),
        }
    }

    /// As [`NormProjections::forward`], but always one by one.
    pub fn forward_split(&self, x: &Array) -> Result<[Array; N], Exception> {
        let inputs: Vec<&Array> = [x].into_iter().chain(&self.bias).collect();
        match run(self.kernel.as_deref(), &inputs) {
            Some([joined]) => self.projections.split(&joined),
            None => self.projections.forward_split(&self.norm.forward(x)?),
        }
    }
}
