//! A whole layer of one token in one launch.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::rope_attention::append_in_slot;
use crate::cache::{AttentionStep, DecodeSlot, LayerCache};
use crate::device_kernels::{Kernel, Kernels, LayerParts, run};
use crate::nn::{NormGatedUp, NormProjections, ProductResidual, RopeAttention};

/// The operations of a layer that attends and then has a gated network. What each does is computed in
/// its own way where a [`WholeLayer`] does not answer.
#[derive(Debug, Clone, Copy)]
pub struct LayerOperations<'a> {
    pub projections: &'a NormProjections<3>,
    pub attention: &'a RopeAttention,
    pub attention_output: &'a ProductResidual,
    pub gate_up: &'a NormGatedUp,
    pub down: &'a ProductResidual,
}

/// The kernel that computes what all operations of a layer do, for one token.
///
/// It shares their weights.
#[derive(Debug)]
pub struct WholeLayer {
    kernel: Box<dyn Kernel>,
}

impl WholeLayer {
    /// The kernel of a layer; `None` where the device has none for these operations. Then each of them
    /// takes a launch or more.
    pub fn new(
        kernels: &Kernels,
        operations: LayerOperations<'_>,
    ) -> Result<Option<Self>, Exception> {
        let Some(kernels) = kernels else { return Ok(None) };
        let LayerOperations { projections, attention, attention_output, gate_up, down } =
            operations;
        let (Some((norm, projections)), Some((network_norm, gate_up, activation))) =
            (projections.parts(), gate_up.parts())
        else {
            return Ok(None);
        };
        let (Some(attention_output), Some(down)) = (attention_output.rows(), down.rows()) else {
            return Ok(None);
        };
        let kernel = attention.layer_kernel(|heads, rotation| {
            kernels.layer(LayerParts {
                norms: [norm, network_norm],
                projections,
                heads,
                rotation,
                attention_output,
                gate_up,
                activation,
                down,
            })
        })?;
        Ok(kernel.map(|kernel| WholeLayer { kernel }))
    }

    /// The residual stream behind the layer for one token's `x` `[1, 1, D]`, whose keys and values are
    /// appended to the cache; `None`, with nothing appended, where the operations have to run.
    pub fn forward(
        &self,
        x: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Option<Array>, Exception> {
        let [1, length @ 1, _] = *x.shape() else { return Ok(None) };
        append_in_slot(cache, step, length, |slot, slot_mapping| {
            let DecodeSlot { keys, values, newest_keys, newest_values, .. } = slot;
            let inputs = [x, keys, values, newest_keys, newest_values, slot_mapping];
            Ok(run(Some(self.kernel.as_ref()), &inputs))
        })
    }
}
