//! A norm and the gated first half of an MLP.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::device_kernels::{Activation, Fusion, Kernel, QuantizedRows, run};
use crate::nn::GatedActivation;
use crate::nn::{FusedLinear, Linear, Norm};

/// `activation(gate(norm(x))) * up(norm(x))`.
#[derive(Debug)]
pub struct NormGatedUp {
    norm: Norm,
    gate_up: FusedLinear,
    function: Activation,
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
        let function = activation;
        let activation = GatedActivation::new(function, dtype)?;
        Ok(NormGatedUp { norm, gate_up, function, activation, kernel })
    }

    /// Weight and epsilon of an RMS norm, the matrices of gate and up projection, one after another, and
    /// the gate's function; `None` for other norms, dense weights, weights of different kinds, and
    /// where there is a bias.
    pub(super) fn parts(&self) -> Option<((&Array, f32), QuantizedRows<'_>, Activation)> {
        match self.gate_up.bias() {
            Some(_) => None,
            None => Some((self.norm.rms_parts()?, self.gate_up.rows()?, self.function)),
        }
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
