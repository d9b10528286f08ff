//! A norm and the first half of an MLP without a gate.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::device_kernels::{Fusion, Kernel, run};
use crate::nn::{Gelu, Linear, Norm};

/// `gelu(up(norm(x)))`.
#[derive(Debug)]
pub struct NormUp {
    norm: Norm,
    up: Linear,
    gelu: Gelu,
    kernel: Option<Box<dyn Kernel>>,
}

impl NormUp {
    /// The projection `up` of the vectors that `norm` returns.
    pub fn new(norm: Norm, up: Linear) -> Result<Self, Exception> {
        up.eval()?;
        let fusion = Fusion { norm: norm.rms_parts(), ..Fusion::default() };
        let kernel = up.bias().is_none().then(|| up.kernel(fusion)).flatten();
        let gelu = Gelu::new(norm.dtype().unwrap_or(up.dtype()))?;
        Ok(NormUp { norm, up, gelu, kernel })
    }

    /// `[B, L, D]` to `[B, L, I]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        if self.kernel.is_some()
            && let Some([product]) = run(self.kernel.as_deref(), &[&self.norm.before_kernel(x)?])
        {
            return self.gelu.forward(&product);
        }
        self.gelu.forward(&self.up.forward(&self.norm.forward(x)?)?)
    }
}
