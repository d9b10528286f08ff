//! An expert that all tokens use, beside those that a router chooses.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::device_kernels::Activation;
use crate::nn::{Linear, NormGatedUp, ProductResidual};
use crate::weights::Layer;

/// `sum + expert(x)`, or `sum + sigmoid(share(x)) * expert(x)`.
#[derive(Debug)]
pub struct SharedExpert {
    gate_up: NormGatedUp,
    output: Output,
}

#[derive(Debug)]
enum Output {
    Whole(ProductResidual),
    Share { down: Linear, share: Linear },
}

/// The width of a [`SharedExpert`], and where it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertKind {
    /// What its matrices are below.
    pub name: &'static str,
    pub intermediate: i32,
    /// Whether its matrices have biases.
    pub has_bias: bool,
    /// The matrix of its share; `None` adds all of it.
    pub share: Option<&'static str>,
}

impl SharedExpertKind {
    /// Qwen's, of which each token has a share.
    pub const fn with_share(intermediate: i32) -> Self {
        let share = Some("shared_expert_gate");
        SharedExpertKind { name: "shared_expert", intermediate, has_bias: false, share }
    }

    /// One that is added as it is, without biases.
    pub const fn whole(name: &'static str, intermediate: i32) -> Self {
        SharedExpertKind { name, intermediate, has_bias: false, share: None }
    }
}

impl SharedExpert {
    /// Takes what `kind` names from the block `layer`.
    pub fn load(layer: &mut Layer, hidden: i32, kind: SharedExpertKind) -> Result<Self, LmError> {
        let SharedExpertKind { name, intermediate, has_bias, share } = kind;
        let mut expert = layer.layer(name);
        let mut linear = |name, inputs, outputs| {
            Linear::load(&mut expert.layer(name), inputs, outputs, has_bias)
        };
        let gate_up =
            [linear("gate_proj", hidden, intermediate)?, linear("up_proj", hidden, intermediate)?];
        let gate_up = NormGatedUp::new(None, gate_up, Activation::Silu)?;
        let down = linear("down_proj", intermediate, hidden)?;
        let output = match share {
            None => Output::Whole(ProductResidual::new(down)?),
            Some(share) => {
                let share = Linear::load(&mut layer.layer(share), hidden, 1, false)?;
                down.eval()?;
                share.eval()?;
                Output::Share { down, share }
            }
        };
        Ok(SharedExpert { gate_up, output })
    }

    /// The normalized hidden states `x` and what their output is added to, `[B, L, D]`, to the same
    /// shape.
    pub fn forward(&self, x: &Array, sum: &Array) -> Result<Array, Exception> {
        let activated = self.gate_up.forward(x)?;
        match &self.output {
            Output::Whole(down) => down.forward(&activated, sum),
            Output::Share { down, share } => {
                let output = down.forward(&activated)?;
                let share = ops::sigmoid(share.forward(x)?)?;
                ops::add(sum, ops::multiply(output, share)?)
            }
        }
    }
}
