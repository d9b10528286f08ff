//! The gated activation of most MLPs.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::device::ComputeDevice;
use crate::device_kernels::Activation;
use crate::ffi::Compiled;
use crate::nn::attention::constant;
use crate::nn::exponential::silu;
use crate::nn::{Gelu, GeluApprox};

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
///
/// Compiled to one kernel on a GPU, without intermediate arrays. On the CPU backend, where MLX
/// would start a C++ compiler, it runs as plain operations.
#[derive(Debug)]
pub enum GatedActivation {
    Silu,
    GeluApprox(GeluApprox),
    Gelu(Gelu),
    ClippedSwiGlu(ClippedSwiGlu),
    Compiled(Compiled),
}

impl GatedActivation {
    /// The function for arrays of `dtype` on MLX's default device.
    pub fn new(activation: Activation, dtype: Dtype) -> Result<Self, Exception> {
        let formula = match activation {
            Activation::Silu => GatedActivation::Silu,
            Activation::GeluApprox => GatedActivation::GeluApprox(GeluApprox::new(dtype)?),
            Activation::Gelu => GatedActivation::Gelu(Gelu::new(dtype)?),
        };
        formula.compiled()
    }

    /// The bounded SwiGLU on MLX's default device.
    pub fn clipped(swiglu: ClippedSwiGlu) -> Result<Self, Exception> {
        GatedActivation::ClippedSwiGlu(swiglu).compiled()
    }

    fn compiled(self) -> Result<Self, Exception> {
        let formula = self;
        if ComputeDevice::current() == ComputeDevice::Cpu {
            return Ok(formula);
        }
        let compiled = Compiled::elementwise(Box::new(move |inputs| {
            let [gate, up]: [Array; 2] = inputs.try_into().map_err(|_| {
                Exception::custom("a gated activation takes a gate and an input".to_owned())
            })?;
            Ok(vec![formula.forward(&gate, &up)?])
        }))?;
        Ok(GatedActivation::Compiled(compiled))
    }

    /// Two arrays of the same shape to one of that shape.
    pub fn forward(&self, gate: &Array, up: &Array) -> Result<Array, Exception> {
        match self {
            GatedActivation::Silu => ops::multiply(up, silu(gate)?),
            GatedActivation::GeluApprox(gelu) => ops::multiply(gelu.forward(gate)?, up),
            GatedActivation::Gelu(gelu) => ops::multiply(gelu.forward(gate)?, up),
            GatedActivation::ClippedSwiGlu(swiglu) => swiglu.forward(gate, up),
            GatedActivation::Compiled(compiled) => {
                let [activated] = compiled.call(&[gate, up])?;
                Ok(activated)
            }
        }
    }
}
