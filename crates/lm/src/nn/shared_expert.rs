//! An expert that all tokens use, beside those that a router chooses.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::device_kernels::Activation;
use crate::nn::{Linear, NormGatedUp};
use crate::weights::Layer;

/// `sum + sigmoid(share(x)) * expert(x)`.
#[derive(Debug)]
pub struct SharedExpert {
    gate_up: NormGatedUp,
    down: Linear,
    share: Linear,
}

impl SharedExpert {
    /// Takes `shared_expert` and `shared_expert_gate` of the block `layer`.
    pub fn load(layer: &mut Layer, hidden: i32, intermediate: i32) -> Result<Self, LmError> {
        let mut linear =
            |name, inputs, outputs| Linear::load(&mut layer.layer(name), inputs, outputs, false);
        let gate_up = [
            linear("shared_expert.gate_proj", hidden, intermediate)?,
            linear("shared_expert.up_proj", hidden, intermediate)?,
        ];
        let down = linear("shared_expert.down_proj", intermediate, hidden)?;
        let share = linear("shared_expert_gate", hidden, 1)?;
        down.eval()?;
        share.eval()?;
        let gate_up = NormGatedUp::new(None, gate_up, Activation::Silu)?;
        Ok(SharedExpert { gate_up, down, share })
    }

    /// The normalized hidden states `x` and what their output is added to, `[B, L, D]`, to the same
    /// shape.
    pub fn forward(&self, x: &Array, sum: &Array) -> Result<Array, Exception> {
        let output = self.down.forward(&self.gate_up.forward(x)?)?;
        let share = ops::sigmoid(self.share.forward(x)?)?;
        ops::add(sum, ops::multiply(output, share)?)
    }
}
