//! How weight files store a block's experts and its router, and what they name the matrices of a gated
//! network.

use crate::config::{Quantization, QuantizationMode};
use crate::device_kernels::Activation;
use crate::nn::ClippedSwiGlu;

/// What differs in experts and their router from one family to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertForm {
    /// The router's matrix.
    pub router: &'static str,
    /// Whether the router has a bias.
    pub router_has_bias: bool,
    pub stored: StoredExperts,
    /// Whether each matrix of an expert has a bias.
    pub has_bias: bool,
    pub activation: ExpertActivation,
    /// Whether the share of the chosen expert, of which there is one then, is a factor of its input
    /// and not of its output.
    pub scales_input: bool,
}

impl ExpertForm {
    /// That of most families.
    pub const USUAL: ExpertForm = ExpertForm {
        router: "gate",
        router_has_bias: false,
        stored: StoredExperts::Usual,
        has_bias: false,
        activation: ExpertActivation::Gated(Activation::Silu),
        scales_input: false,
    };
}

/// What an expert makes of its gate and of what the gate is for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// `activation(gate) * up`.
    Gated(Activation),
    Clipped(ClippedSwiGlu),
}

/// Where files have the matrices of experts: as MLX stores them, or as they were published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredExperts {
    /// `switch_mlp.gate_proj` and so on, stacked; or dense `experts.INDEX.gate_proj`; or dense and
    /// stacked `experts.gate_up_proj` and `experts.down_proj`.
    Usual,
    /// `switch_mlp.gate_proj` and so on; or dense `input_linear.weight` and `output_linear.weight`.
    Linears,
    /// `experts.gate_proj` and so on, stacked; or `mxfp4` blocks with rows of the gate and of the rest
    /// by turns, in `experts.gate_up_proj_blocks` and `experts.down_proj_blocks`.
    Blocks,
    /// `experts.gate_proj` and so on, stacked; or dense and turned `experts.gate_up_proj`,
    /// `[E, D, 2 I]`, and `experts.down_proj`, `[E, I, D]`.
    Turned,
    /// Experts without a gate, `down(relu(up)²)`: `switch_mlp.fc1` and `switch_mlp.fc2`, stacked; or
    /// dense `experts.INDEX.up_proj` and `experts.INDEX.down_proj`.
    Ungated,
    /// `experts.switch_glu.gate_proj` and so on, stacked; or dense and stacked
    /// `experts.gate_up_proj` and `experts.down_proj`.
    SwitchGlu,
}

/// The settings of [`StoredExperts::Blocks`].
pub(crate) const BLOCKS: Quantization =
    Quantization { mode: QuantizationMode::Mxfp4, group_size: 32, bits: 4 };
/// Bytes of one block.
pub(crate) const BLOCK_BYTES: i32 = 16;

/// The names of matrices of all experts: dense with the gates first, or [`StoredExperts::Blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) gate_up: &'static str,
    pub(crate) down: &'static str,
}

impl StoredExperts {
    /// What MLX's stacked matrices are below.
    pub(crate) fn stacked(self) -> &'static str {
        match self {
            StoredExperts::Usual | StoredExperts::Linears | StoredExperts::Ungated => "switch_mlp",
            StoredExperts::Blocks | StoredExperts::Turned => "experts",
            StoredExperts::SwitchGlu => "experts.switch_glu",
        }
    }

    /// Where MLX's stacked matrix `name` is.
    pub(crate) fn stacked_matrix(self, name: &str) -> String {
        let own = match (self, name) {
            (StoredExperts::Ungated, "up_proj") => "fc1",
            (StoredExperts::Ungated, "down_proj") => "fc2",
            _ => name,
        };
        format!("{}.{own}", self.stacked())
    }

    /// The names of joined matrices.
    pub(crate) fn joined(self) -> Joined {
        match self {
            StoredExperts::Usual
            | StoredExperts::Turned
            | StoredExperts::Ungated
            | StoredExperts::SwitchGlu => {
                Joined { gate_up: "experts.gate_up_proj", down: "experts.down_proj" }
            }
            StoredExperts::Linears => {
                Joined { gate_up: "input_linear.weight", down: "output_linear.weight" }
            }
            StoredExperts::Blocks => {
                Joined { gate_up: "experts.gate_up_proj_blocks", down: "experts.down_proj_blocks" }
            }
        }
    }

    /// The name of a matrix of single experts, if files that `holds` looks into have it.
    pub(crate) fn single(
        self,
        name: &'static str,
        holds: impl Fn(&str) -> bool,
    ) -> Option<&'static str> {
        let is_stacked = holds(&format!("{}.weight", self.stacked_matrix(name)));
        let mut names = single_names(name).into_iter();
        names.find(|single| !is_stacked && holds(&format!("experts.0.{single}.weight")))
    }
}

/// The names of a gated network's matrix: MLX's, and the numbers that Mixtral's experts and LFM2 have.
pub(crate) fn single_names(name: &'static str) -> [&'static str; 2] {
    match name {
        "gate_proj" => [name, "w1"],
        "up_proj" => [name, "w3"],
        "down_proj" => [name, "w2"],
        _ => [name, name],
    }
}
