//! A norm and the first half of an MLP without a gate.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::device_kernels::{Fusion, Kernel, run};
use crate::nn::{Elementwise, Gelu, Linear, Norm};

/// `activation(up(norm(x)))`.
#[derive(Debug)]
pub struct NormUp {
    norm: Norm,
    up: Linear,
    activation: Elementwise<1>,
    kernel: Option<Box<dyn Kernel>>,
}

/// What stands behind a projection without a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpActivation {
    Gelu,
    /// `relu(x)²`
    SquaredRelu,
}

/// `relu(x)²` of each number.
pub(super) fn squared_relu() -> Elementwise<1> {
    Elementwise::new(|[x]| ops::square(ops::maximum(x, Array::from_f32(0.0).as_dtype(x.dtype())?)?))
}

impl NormUp {
    /// The projection `up` of the vectors that `norm` returns.
    pub fn new(norm: Norm, up: Linear, activation: UpActivation) -> Result<Self, Exception> {
        up.eval()?;
        let fusion = Fusion { norm: norm.rms_parts(), ..Fusion::default() };
        let kernel = up.bias().is_none().then(|| up.kernel(fusion)).flatten();
        let activation = match activation {
            UpActivation::Gelu => {
                let gelu = Gelu::new(norm.dtype().unwrap_or(up.dtype()))?;
                Elementwise::new(move |[x]| gelu.forward(x))
            }
            UpActivation::SquaredRelu => squared_relu(),
        };
        Ok(NormUp { norm, up, activation, kernel })
    }

    /// `[B, L, D]` to `[B, L, I]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        if self.kernel.is_some()
            && let Some([product]) = run(self.kernel.as_deref(), &[&self.norm.before_kernel(x)?])
        {
            return self.activation.call([&product]);
        }
        self.activation.call([&self.up.forward(&self.norm.forward(x)?)?])
    }
}
