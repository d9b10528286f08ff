//! An expert that all tokens use, beside those that a router chooses.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::device_kernels::Activation;
use crate::nn::{Elementwise, Linear, Norm, NormGatedUp, NormUp, ProductResidual, UpActivation};
use crate::weights::Layer;

/// `sum + expert(x)`, or `sum + sigmoid(share(x)) * expert(x)`.
#[derive(Debug)]
pub struct SharedExpert {
    inputs: Inputs,
    output: Output,
}

#[derive(Debug)]
enum Inputs {
    Gated(NormGatedUp),
    Ungated(NormUp),
}

#[derive(Debug)]
enum Output {
    Whole(ProductResidual),
    Share { down: Linear, share: Linear, sum: Elementwise<3> },
}

/// The width of a [`SharedExpert`], and where it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertKind {
    /// What its matrices are below.
    pub name: &'static str,
    pub form: SharedForm,
    pub intermediate: i32,
    /// Whether its matrices have biases.
    pub has_bias: bool,
    /// The matrix of its share; `None` adds all of it.
    pub share: Option<&'static str>,
}

/// How a [`SharedExpert`] is stored, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedForm {
    /// In the experts' block, as `gate_proj`, `up_proj` and `down_proj`.
    Gated,
    /// The same without a gate: `down(relu(up)²)`.
    Ungated,
    /// Beside it in the layer, with `input_linear` of gate and rest, and `output_linear`.
    LinearsInLayer,
}

impl SharedExpertKind {
    /// Qwen's, of which each token has a share.
    pub const fn with_share(intermediate: i32) -> Self {
        let share = Some("shared_expert_gate");
        SharedExpertKind {
            name: "shared_expert",
            form: SharedForm::Gated,
            intermediate,
            has_bias: false,
            share,
        }
    }

    /// One that is added as it is, without biases.
    pub const fn whole(name: &'static str, intermediate: i32) -> Self {
        let form = SharedForm::Gated;
        SharedExpertKind { name, form, intermediate, has_bias: false, share: None }
    }

    /// One without a gate.
    pub const fn ungated(name: &'static str, intermediate: i32, has_bias: bool) -> Self {
        let form = SharedForm::Ungated;
        SharedExpertKind { name, form, intermediate, has_bias, share: None }
    }

    /// One that stands beside the block, without biases.
    pub const fn linears_in_layer(name: &'static str, intermediate: i32) -> Self {
        let form = SharedForm::LinearsInLayer;
        SharedExpertKind { name, form, intermediate, has_bias: false, share: None }
    }
}

impl SharedExpert {
    /// Takes what `kind` names from the block or layer `layer`, where its form says.
    pub fn load(layer: &mut Layer, hidden: i32, kind: SharedExpertKind) -> Result<Self, LmError> {
        SharedExpert::scaled(layer, hidden, kind, None)
    }

    /// As [`SharedExpert::load`], with a factor of the output, which has no share.
    pub fn scaled(
        layer: &mut Layer,
        hidden: i32,
        kind: SharedExpertKind,
        multiplier: Option<f32>,
    ) -> Result<Self, LmError> {
        let SharedExpertKind { name, form, intermediate, has_bias, share } = kind;
        let mut expert = layer.layer(name);
        let mut linear = |name, inputs, outputs| {
            Linear::load(&mut expert.layer(name), inputs, outputs, has_bias)
        };
        let gated = |gate_up| NormGatedUp::new(None, gate_up, Activation::Silu).map(Inputs::Gated);
        let (inputs, down) = match form {
            SharedForm::Gated => {
                let gate = linear("gate_proj", hidden, intermediate)?;
                let up = linear("up_proj", hidden, intermediate)?;
                (gated([gate, up])?, linear("down_proj", intermediate, hidden)?)
            }
            SharedForm::Ungated => {
                let up = linear("up_proj", hidden, intermediate)?;
                let up = NormUp::new(Norm::None, up, UpActivation::SquaredRelu)?;
                (Inputs::Ungated(up), linear("down_proj", intermediate, hidden)?)
            }
            SharedForm::LinearsInLayer => {
                let both = linear("input_linear", hidden, 2 * intermediate)?;
                let down = linear("output_linear", intermediate, hidden)?;
                (gated(both.into_parts([intermediate; 2])?)?, down)
            }
        };
        let output = match share {
            None => Output::Whole(ProductResidual::scaled(down, multiplier)?),
            Some(share) => {
                let share = Linear::load(&mut layer.layer(share), hidden, 1, false)?;
                down.eval()?;
                share.eval()?;
                let sum = Elementwise::new(|[sum, output, share]| {
                    ops::add(sum, ops::multiply(output, ops::sigmoid(share)?)?)
                });
                Output::Share { down, share, sum }
            }
        };
        Ok(SharedExpert { inputs, output })
    }

    /// The normalized hidden states `x` and what their output is added to, `[B, L, D]`, to the same
    /// shape.
    pub fn forward(&self, x: &Array, sum: &Array) -> Result<Array, Exception> {
        let activated = match &self.inputs {
            Inputs::Gated(gated) => gated.forward(x)?,
            Inputs::Ungated(up) => up.forward(x)?,
        };
        match &self.output {
            Output::Whole(down) => down.forward(&activated, sum),
            Output::Share { down, share, sum: with_share } => {
                let output = down.forward(&activated)?;
                with_share.call([sum, &output, &share.forward(x)?])
            }
        }
    }
}
