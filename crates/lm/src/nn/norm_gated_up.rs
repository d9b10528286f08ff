//! A norm and the gated first half of an MLP.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::device_kernels::{Activation, Fusion, Kernel, run};
use crate::nn::GatedActivation;
use crate::nn::{FusedLinear, Linear, Norm};

/// `activation(gate(norm(x))) * up(norm(x))`.
#[derive(Debug)]
pub struct NormGatedUp {
    norm: Norm,
    gate_up: FusedLinear,
    activation: GatedActivation,
    kernel: Option<Box<dyn Kernel>>,
}

impl NormGatedUp {
    /// The projections `gate` and `up` of the vectors that `norm` returns.
    pub fn new(
        norm: impl Into<Norm>,
        [gate, up]: [Linear; 2],
        activation: Activation,
    ) -> Result<Self, Exception> {
        let norm = norm.into();
        let dtype = norm.dtype().unwrap_or(gate.dtype());
        let gate_up = FusedLinear::new(vec![gate, up])?;
        let fusion =
            Fusion { norm: norm.rms_parts(), activation: Some(activation), adds_residual: false };
        let kernel = gate_up.bias().is_none().then(|| gate_up.kernel(fusion)).flatten();
        let activation = GatedActivation::new(activation, dtype)?;
        Ok(NormGatedUp { norm, gate_up, activation, kernel })
    }

    /// `[B, L, D]` to `[B, L, I]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        if self.kernel.is_some()
            && let Some([activated]) = run(self.kernel.as_deref(), &[&self.norm.before_kernel(x)?])
        {
            return Ok(activated);
        }
        let [gate, up] = self.gate_up.forward_split(&self.norm.forward(x)?)?;
        self.activation.forward(&gate, &up)
    }
}
