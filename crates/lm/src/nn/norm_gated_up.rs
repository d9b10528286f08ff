//! RMS norm and the gated first half of an MLP.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use crate::device_kernels::{Activation, Fusion, Kernel, run};
use crate::nn::GatedActivation;
use crate::nn::{FusedLinear, Linear, RmsNorm};

/// `activation(gate(norm(x))) * up(norm(x))`.
#[derive(Debug)]
pub struct NormGatedUp {
    norm: Option<RmsNorm>,
    gate_up: FusedLinear,
    activation: GatedActivation,
    kernel: Option<Box<dyn Kernel>>,
}

impl NormGatedUp {
    /// The projections `gate` and `up` of the vectors that `norm` returns; without `norm`, of
    /// vectors that are normalized already.
    pub fn new(
        norm: Option<RmsNorm>,
        [gate, up]: [Linear; 2],
        activation: Activation,
    ) -> Result<Self, Exception> {
        let gate_up = FusedLinear::new(vec![gate, up])?;
        let fusion = Fusion {
            norm: norm.as_ref().map(RmsNorm::parts),
            activation: Some(activation),
            adds_residual: false,
        };
        let kernel = gate_up.bias().is_none().then(|| gate_up.kernel(fusion)).flatten();
        // A norm's output has its weight's type; without one only SwiGLU is used, which has no
        // constants.
        let dtype = norm.as_ref().map_or(Dtype::Float32, |norm| norm.parts().0.dtype());
        let activation = GatedActivation::new(activation, dtype)?;
        Ok(NormGatedUp { norm, gate_up, activation, kernel })
    }

    /// `[B, L, D]` to `[B, L, I]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        if let Some([activated]) = run(self.kernel.as_deref(), &[x]) {
            return Ok(activated);
        }
        let normed = self.norm.as_ref().map(|norm| norm.forward(x)).transpose()?;
        let [gate, up] = self.gate_up.forward_split(normed.as_ref().unwrap_or(x))?;
        self.activation.forward(&gate, &up)
    }
}
