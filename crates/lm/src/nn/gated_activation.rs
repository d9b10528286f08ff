//! The gated activation of most MLPs.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::device_kernels::Activation;
use crate::nn::exponential::silu;
use crate::nn::scalar::constant;
use crate::nn::{Elementwise, Gelu, GeluApprox};

/// A SwiGLU whose inputs are bounded (gpt-oss):
/// `(clip(up, -limit, limit) + 1) * gate * sigmoid(alpha * gate)`, where no gate is above `limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClippedSwiGlu {
    pub alpha: f32,
    pub limit: f32,
}

impl ClippedSwiGlu {
    fn forward(self, gate: &Array, up: &Array) -> Result<Array, Exception> {
        let number = |number| constant(number, gate.dtype());
        let limit = number(self.limit)?;
        let gate = ops::minimum(gate, &limit)?;
        let up = ops::minimum(ops::maximum(up, number(-self.limit)?)?, limit)?;
        let activated =
            ops::multiply(&gate, ops::sigmoid(ops::multiply(&gate, number(self.alpha)?)?)?)?;
        ops::multiply(ops::add(up, number(1.0)?)?, activated)
    }
}

/// `activation(gate) * up` (Shazeer 2020): SwiGLU or GEGLU.
#[derive(Debug)]
pub struct GatedActivation(Elementwise<2>);

impl GatedActivation {
    /// The function for arrays of `dtype`.
    pub fn new(activation: Activation, dtype: Dtype) -> Result<Self, Exception> {
        Ok(GatedActivation(match activation {
            Activation::Silu => Elementwise::new(|[gate, up]| ops::multiply(up, silu(gate)?)),
            Activation::GeluApprox => {
                let gelu = GeluApprox::new(dtype)?;
                Elementwise::new(move |[gate, up]| ops::multiply(gelu.forward(gate)?, up))
            }
            Activation::Gelu => {
                let gelu = Gelu::new(dtype)?;
                Elementwise::new(move |[gate, up]| ops::multiply(gelu.forward(gate)?, up))
            }
        }))
    }

    /// The bounded SwiGLU.
    pub fn clipped(swiglu: ClippedSwiGlu) -> Self {
        GatedActivation(Elementwise::new(move |[gate, up]| swiglu.forward(gate, up)))
    }

    /// Two arrays of the same shape to one of that shape.
    pub fn forward(&self, gate: &Array, up: &Array) -> Result<Array, Exception> {
        self.0.call([gate, up])
    }
}
