//! Several linear layers over the same input, fused into one product.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::device::ComputeDevice;
use crate::device_kernels::{Fusion, Kernel, QuantizedRows};
use crate::ffi;
use crate::nn::{Linear, exactly};

/// Several linear layers over the same input (q/k/v, gate/up), fused into one product if possible.
///
/// Outputs of a product do not depend on each other, so fusing changes no number. It saves graph
/// nodes, which determine the cost of a token when the host is slower than the device. Layers of
/// different kinds (per-layer quantization) are not fused.
#[derive(Debug)]
pub struct FusedLinear {
    stacked: Option<Linear>,
    /// The single layers; views of `stacked` if there is one.
    layers: Vec<Linear>,
}

/// The outputs of the N layers of a [`FusedLinear`].
#[derive(Debug)]
pub enum Projected<const N: usize> {
    /// Concatenated: `[B, L, sum of out]`.
    Joined(Array),
    /// One by one, each `[B, L, out]`.
    Parts([Array; N]),
}

impl FusedLinear {
    /// Fuses `layers` if they are of one kind and the device benefits.
    pub fn new(layers: Vec<Linear>) -> Result<Self, Exception> {
        // MLX's CPU backend copies views of stacked dense weights for each product, and parts of
        // its output for elementwise operations. Measured with SmolLM2-135M on two Zen cores:
        // stacking gate and up took 9 % longer for a prompt of 512 tokens and gained nothing for
        // one or eight rows; stacking q, k and v took 5 % longer for the prompt, with no measurable
        // gain per token.
        let is_faster_separate =
            ComputeDevice::current() == ComputeDevice::Cpu && layers.iter().any(Linear::is_dense);
        if is_faster_separate { Self::separate(layers) } else { Self::stacked(layers) }
    }

    fn stacked(layers: Vec<Linear>) -> Result<Self, Exception> {
        let Some(stacked) = Linear::stack(&layers)? else { return Self::separate(layers) };
        stacked.eval()?;
        let mut from = 0;
        let mut views = Vec::with_capacity(layers.len());
        for layer in &layers {
            let to = from + layer.num_outputs();
            views.push(stacked.outputs(from, to)?);
            from = to;
        }
        Ok(FusedLinear { stacked: Some(stacked), ..Self::separate(views)? })
    }

    fn separate(layers: Vec<Linear>) -> Result<Self, Exception> {
        layers.iter().try_for_each(Linear::eval)?;
        Ok(FusedLinear { stacked: None, layers })
    }

    /// Whether the layers are fused.
    pub fn is_joined(&self) -> bool {
        self.stacked.is_some()
    }

    /// The device's kernel for the one product of all layers, to which it adds no bias; `None` for
    /// layers that are not fused too.
    pub fn kernel(&self, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        self.stacked.as_ref()?.kernel(fusion)
    }

    /// The matrices of all layers, one after another, `[sum of out, in]`; `None` for dense weights and
    /// for layers that are not fused.
    pub fn rows(&self) -> Option<QuantizedRows<'_>> {
        self.stacked.as_ref()?.rows()
    }

    /// The biases of all layers, `[sum of out]`; `None` if they have none or are not fused.
    pub fn bias(&self) -> Option<&Array> {
        self.stacked.as_ref()?.bias()
    }

    /// `[B, L, in]` to the outputs of all layers: joined where they are fused.
    pub fn project<const N: usize>(&self, x: &Array) -> Result<Projected<N>, Exception> {
        match &self.stacked {
            Some(stacked) => Ok(Projected::Joined(stacked.forward(x)?)),
            None => Ok(Projected::Parts(self.forward_each(x)?)),
        }
    }

    /// `[B, L, in]` to the outputs of the N layers, each `[B, L, out]`.
    ///
    /// Single tokens use one product and split it. Longer inputs use a product per layer: the parts
    /// of one product would be strided, and elementwise operations on strided arrays cost more than
    /// the additional products.
    pub fn forward_split<const N: usize>(&self, x: &Array) -> Result<[Array; N], Exception> {
        match (x.shape(), &self.stacked) {
            (&[_, 1, _], Some(stacked)) => self.split(&stacked.forward(x)?),
            _ => self.forward_each(x),
        }
    }

    /// The outputs of each layer, as views of `joined` `[..., sum of out]`.
    pub fn split<const N: usize>(&self, joined: &Array) -> Result<[Array; N], Exception> {
        let mut end = 0;
        let mut ends = Vec::with_capacity(N);
        for layer in &self.layers[..self.layers.len().saturating_sub(1)] {
            end += layer.num_outputs();
            ends.push(end);
        }
        exactly(ffi::cut(joined, &ends, joined.ndim() - 1)?)
    }

    fn forward_each<const N: usize>(&self, x: &Array) -> Result<[Array; N], Exception> {
        exactly(self.layers.iter().map(|layer| layer.forward(x)).collect::<Result<Vec<_>, _>>()?)
    }
}
