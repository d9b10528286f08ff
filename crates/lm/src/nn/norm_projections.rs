//! A norm and the projections that read it: the first operation of an attention layer.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::device_kernels::{Fusion, Kernel, QuantizedRows, run};
use crate::nn::{FusedLinear, Linear, Norm, Projected};

/// `norm(x)` times the matrices of N layers.
#[derive(Debug)]
pub struct NormProjections<const N: usize> {
    norm: Norm,
    projections: FusedLinear,
    /// The projections' bias as `[1, 1, sum of out]`: the residual of their product in the kernel.
    bias: Option<Array>,
    kernel: Option<Box<dyn Kernel>>,
}

impl<const N: usize> NormProjections<N> {
    /// The projections of the vectors that `norm` returns.
    pub fn new(norm: impl Into<Norm>, projections: [Linear; N]) -> Result<Self, Exception> {
        let norm = norm.into();
        let projections = FusedLinear::new(projections.into())?;
        let bias = projections.bias().map(|bias| bias.reshape(&[1, 1, -1])).transpose()?;
        let fusion =
            Fusion { norm: norm.rms_parts(), adds_residual: bias.is_some(), ..Fusion::default() };
        let kernel = projections.kernel(fusion);
        Ok(NormProjections { norm, projections, bias, kernel })
    }

    /// Weight and epsilon of an RMS norm, and the matrices of all projections, one after another; `None`
    /// for other norms, dense weights, weights of different kinds, and where there is a bias.
    pub(super) fn parts(&self) -> Option<((&Array, f32), QuantizedRows<'_>)> {
        match self.bias {
            Some(_) => None,
            None => Some((self.norm.rms_parts()?, self.projections.rows()?)),
        }
    }

    /// Whether [`NormProjections::forward`] gives the projections as one array.
    pub fn is_joined(&self) -> bool {
        self.projections.is_joined()
    }

    /// `[B, L, D]` to the projections, each `[B, L, out]`.
    pub fn forward(&self, x: &Array) -> Result<Projected<N>, Exception> {
        match self.run(x)? {
            Some(joined) => Ok(Projected::Joined(joined)),
            None => self.projections.project(&self.norm.forward(x)?),
        }
    }

    /// As [`NormProjections::forward`], but always one by one.
    pub fn forward_split(&self, x: &Array) -> Result<[Array; N], Exception> {
        match self.run(x)? {
            Some(joined) => self.projections.split(&joined),
            None => self.projections.forward_split(&self.norm.forward(x)?),
        }
    }

    /// The kernel's output; `None` where the plain form has to run.
    fn run(&self, x: &Array) -> Result<Option<Array>, Exception> {
        if self.kernel.is_none() {
            return Ok(None);
        }
        let x = self.norm.before_kernel(x)?;
        let inputs: Vec<&Array> = [&x].into_iter().chain(&self.bias).collect();
        Ok(run(self.kernel.as_deref(), &inputs).map(|[joined]| joined))
    }
}
