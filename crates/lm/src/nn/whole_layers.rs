//! Whole layers of one token in one launch.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::cache::{AttentionStep, DecodeSlot, LayerCache};
use crate::device_kernels::{Kernel, Kernels, LayerParts, run_all};
use crate::nn::{NormGatedUp, NormProjections, ProductResidual, RopeAttention};

/// The operations of a layer that attends and then has a gated network. What each does is computed in
/// its own way where [`WholeLayers`] do not answer.
#[derive(Debug, Clone, Copy)]
pub struct LayerOperations<'a> {
    pub projections: &'a NormProjections<3>,
    pub attention: &'a RopeAttention,
    pub attention_output: &'a ProductResidual,
    pub gate_up: &'a NormGatedUp,
    pub down: &'a ProductResidual,
}

impl<'a> LayerOperations<'a> {
    /// What the operations consist of; `None` where one of them has weights or computes something that
    /// no kernel of whole layers knows.
    pub fn parts(self) -> Option<LayerParts<'a>> {
        let LayerOperations { projections, attention, attention_output, gate_up, down } = self;
        let (norm, projections) = projections.parts()?;
        let (network_norm, gate_up, activation) = gate_up.parts()?;
        let (heads, rotation) = attention.parts()?;
        Some(LayerParts {
            norms: [norm, network_norm],
            projections,
            heads,
            rotation,
            attention_output: attention_output.rows()?,
            gate_up,
            activation,
            down: down.rows()?,
        })
    }
}

/// The kernel that computes what all operations of one layer do, or of several that follow each other,
/// for one token.
///
/// It shares their weights.
#[derive(Debug)]
pub struct WholeLayers {
    kernel: Box<dyn Kernel>,
}

impl WholeLayers {
    /// The kernel of these layers; `None` where the device has none for them.
    pub fn new(kernels: &Kernels, layers: &[LayerParts<'_>]) -> Option<Self> {
        Some(WholeLayers { kernel: kernels.as_ref()?.layers(layers)? })
    }

    /// The residual stream behind the last layer for one token's `x` `[1, 1, D]`, whose keys and values
    /// are appended to the cache of each layer; `None`, with nothing appended, where the operations have
    /// to run. The step is that of every layer.
    pub fn forward(
        &self,
        x: &Array,
        caches: &mut [&mut LayerCache],
        step: &AttentionStep,
    ) -> Result<Option<Array>, Exception> {
        if !matches!(x.shape(), [1, 1, _]) || !step.sees_all_before(1) {
            return Ok(None);
        }
        let Some((slots, slot_mapping)) = shared_slots(caches, step)? else { return Ok(None) };
        let arrays = slots.iter().flat_map(DecodeSlot::arrays);
        let inputs: Vec<&Array> = [x].into_iter().chain(arrays).chain([&slot_mapping]).collect();
        let Some(outputs) = run_all(Some(self.kernel.as_ref()), &inputs) else { return Ok(None) };
        if outputs.len() != 1 + 2 * caches.len() {
            return Ok(None);
        }
        let mut outputs = outputs.into_iter();
        let output = outputs.next();
        for cache in caches {
            if let (Some(keys), Some(values)) = (outputs.next(), outputs.next()) {
                cache.fill_decode_slot(keys, values, 1);
            }
        }
        Ok(output)
    }
}

/// The slots of the caches for one token, and the mapping that they share; `None` where a cache has none,
/// or one that is not like the others.
fn shared_slots(
    caches: &mut [&mut LayerCache],
    step: &AttentionStep,
) -> Result<Option<(Vec<DecodeSlot>, Array)>, Exception> {
    let mut slots: Vec<DecodeSlot> = Vec::with_capacity(caches.len());
    for cache in caches {
        match cache.decode_slot(1)? {
            Some(slot) if slots.first().is_none_or(|first| first.is_like(&slot)) => {
                slots.push(slot);
            }
            _ => return Ok(None),
        }
    }
    let Some(first) = slots.first() else { return Ok(None) };
    let slot_mapping = step.slot_mapping(first)?;
    Ok(Some((slots, slot_mapping)))
}
