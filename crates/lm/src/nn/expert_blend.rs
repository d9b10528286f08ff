//! A mixture of experts: routing, the chosen experts, and their weighted sum.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::device_kernels::{Kernel, run};
use crate::nn::{Linear, SwitchGlu, route};
use crate::weights::Layer;

/// `residual + sum of share_k * expert_k(x)` over the chosen experts.
#[derive(Debug)]
pub struct ExpertBlend {
    gate: Linear,
    switch_mlp: SwitchGlu,
    num_chosen: i32,
    adds_up_to_one: bool,
    kernel: Option<Box<dyn Kernel>>,
}

/// The sizes of an [`ExpertBlend`].
#[derive(Debug, Clone, Copy)]
pub struct ExpertSizes {
    /// D
    pub hidden: i32,
    /// I, the width of an expert.
    pub intermediate: i32,
    /// E, the number of experts.
    pub num_experts: i32,
    /// How many experts a token uses.
    pub num_chosen: i32,
    /// Whether the shares of the chosen experts are normalized to a sum of one.
    pub adds_up_to_one: bool,
}

impl ExpertBlend {
    /// Takes the router `gate` and the experts of the block `layer`.
    pub fn load(layer: &mut Layer, sizes: ExpertSizes) -> Result<Self, LmError> {
        let ExpertSizes { hidden, intermediate, num_experts, num_chosen, adds_up_to_one } = sizes;
        let gate = Linear::load(&mut layer.layer("gate"), hidden, num_experts, false)?;
        gate.eval()?;
        let switch_mlp = SwitchGlu::load(layer, hidden, intermediate, num_experts)?;
        let kernel = layer
            .kernels()
            .and_then(|kernels| kernels.experts(switch_mlp.quantized(num_chosen, adds_up_to_one)?));
        Ok(ExpertBlend { gate, switch_mlp, num_chosen, adds_up_to_one, kernel })
    }

    /// The normalized hidden states `x` and the residual, `[B, L, D]`, to the same shape.
    pub fn forward(&self, x: &Array, residual: &Array) -> Result<Array, Exception> {
        let router_logits = self.gate.forward(x)?;
        if let Some([sum]) = run(self.kernel.as_deref(), &[x, &router_logits, residual]) {
            return Ok(sum);
        }
        let (chosen, shares) = route(&router_logits, self.num_chosen, self.adds_up_to_one)?;
        let outputs = self.switch_mlp.forward(x, &chosen)?; // [B, L, K, D]
        let blended = ops::multiply(outputs, ops::expand_dims(shares, -1)?)?.sum_axis(-2, false)?;
        ops::add(residual, blended)
    }
}
