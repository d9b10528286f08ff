//! Decode steps as one trace of MLX's `compile`, by choice ([`LoadOptions::traces_steps`]).
//!
//! A trace holds for arrays of the same shapes. The buffers of a cache grow in steps of 256 tokens, so
//! a step whose keys and values are those whole buffers, with a mask for what is in use, is traced once
//! for every 256 tokens and replayed for the others.
//!
//! [`LoadOptions::traces_steps`]: crate::LoadOptions::traces_steps

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::LoadedNetwork;
use crate::LmError;
use crate::cache::{LayerCache, TracedKvCache, TracedMapping, TracedSlot};
use crate::device::ComputeDevice;
use crate::ffi::{self, Compiled};

/// The traces of one model, by how its caches share slot mappings.
#[derive(Debug, Default)]
pub(super) struct TracedSteps {
    traces: RefCell<Vec<(Layout, Rc<Compiled>)>>,
    num_steps: Cell<usize>,
    /// Why steps cannot be traced, if they cannot be: the model goes on without.
    problem: RefCell<Option<String>>,
    /// Whether [`TracedSteps::take_problem`] has returned it.
    is_reported: Cell<bool>,
}

/// For each layer which slot mapping is its own, and the size of its ring.
type Layout = Vec<(usize, Option<i32>)>;

impl TracedSteps {
    pub(super) fn new() -> Self {
        let traced_steps = TracedSteps::default();
        // MLX would start a C++ compiler for what it fuses there.
        if ComputeDevice::current() == ComputeDevice::Cpu
            && let Err(error) = ffi::trace_without_fusing()
        {
            *traced_steps.problem.borrow_mut() = Some(error.to_string());
        }
        traced_steps
    }

    /// The hidden states `[1, 1, D]` of one token `[1, 1]` by a trace; `None` where caches are of
    /// other kinds, the token is not the only one, or tracing has failed.
    pub(super) fn forward(
        &self,
        network: &Rc<LoadedNetwork>,
        tokens: &Array,
        caches: &mut [LayerCache],
    ) -> Option<Array> {
        if self.problem.borrow().is_some() || *tokens.shape() != [1, 1] || caches.is_empty() {
            return None;
        }
        // Whatever fails, the caches hold what they held: a step without a trace can follow.
        self.replay(network, tokens, caches).unwrap_or_else(|error| {
            *self.problem.borrow_mut() = Some(error.to_string());
            None
        })
    }

    fn replay(
        &self,
        network: &Rc<LoadedNetwork>,
        tokens: &Array,
        caches: &mut [LayerCache],
    ) -> Result<Option<Array>, LmError> {
        let slots = caches.iter_mut().map(|cache| cache.as_kind_mut().traced_slot());
        let Some(slots) = slots.collect::<Result<Option<Vec<TracedSlot>>, _>>()? else {
            return Ok(None);
        };
        let (mappings, layout) = shared_mappings(&slots);
        let trace = self.trace(network, &layout, mappings.len())?;
        let mappings: Vec<Array> = mappings.into_iter().map(TracedMapping::array).collect();
        let buffers = slots.iter().flat_map(|slot| [&slot.keys, &slot.values]);
        let inputs: Vec<&Array> = [tokens].into_iter().chain(&mappings).chain(buffers).collect();
        let mut outputs = trace.call_all(&inputs)?;
        if outputs.len() != 1 + 2 * slots.len() {
            return Err(Exception::custom("a traced step has other outputs".to_owned()).into());
        }
        drop(slots);
        let hidden = outputs.remove(0);
        let mut buffers = outputs.into_iter();
        for cache in caches {
            if let (Some(keys), Some(values)) = (buffers.next(), buffers.next()) {
                cache.as_kind_mut().fill_traced_slot(keys, values);
            }
        }
        self.num_steps.set(self.num_steps.get() + 1);
        Ok(Some(hidden))
    }

    /// Why no step is traced any more; once, and none from then on.
    pub(super) fn take_problem(&self) -> Option<String> {
        let problem = self.problem.borrow();
        problem.clone().filter(|_| !self.is_reported.replace(true))
    }

    /// How many steps were replayed; or why none are.
    pub(super) fn num_steps(&self) -> Result<usize, String> {
        self.problem.borrow().clone().map_or(Ok(self.num_steps.get()), Err)
    }

    fn trace(
        &self,
        network: &Rc<LoadedNetwork>,
        layout: &Layout,
        num_mappings: usize,
    ) -> Result<Rc<Compiled>, LmError> {
        let mut traces = self.traces.borrow_mut();
        if let Some((_, known)) = traces.iter().find(|(known, _)| known == layout) {
            return Ok(Rc::clone(known));
        }
        // Not a handle of its own: the model owns the trace.
        let (network, own) = (Rc::downgrade(network), layout.clone());
        let step = move |inputs: Vec<Array>| step(&network, &own, num_mappings, inputs);
        let trace = Rc::new(Compiled::new(Box::new(step))?);
        traces.push((layout.clone(), Rc::clone(&trace)));
        Ok(trace)
    }
}

/// The slot mappings of all layers, each once, and which is whose. Layers of one kind have read the
/// same tokens, so that the same layers share one in every step.
fn shared_mappings(slots: &[TracedSlot]) -> (Vec<TracedMapping>, Layout) {
    let mut kinds: Vec<(Option<i32>, i32, TracedMapping)> = Vec::new();
    let mut layout = Layout::new();
    for TracedSlot { mapping, ring, keys, .. } in slots {
        let known = kinds.iter().position(|&kind| kind == (*ring, keys.dim(2), *mapping));
        let index = known.unwrap_or_else(|| {
            kinds.push((*ring, keys.dim(2), *mapping));
            kinds.len() - 1
        });
        layout.push((index, *ring));
    }
    (kinds.into_iter().map(|(.., mapping)| mapping).collect(), layout)
}

/// A step over token, mappings and buffers; what it returns begins with the hidden states.
fn step(
    network: &Weak<LoadedNetwork>,
    layout: &Layout,
    num_mappings: usize,
    mut inputs: Vec<Array>,
) -> Result<Vec<Array>, Exception> {
    let unfit = || Exception::custom("a traced step has other inputs".to_owned());
    let network = network.upgrade().ok_or_else(unfit)?;
    let buffers = inputs.split_off((1 + num_mappings).min(inputs.len()));
    let (Some(tokens), mappings) = (inputs.first(), inputs.get(1..).unwrap_or_default()) else {
        return Err(unfit());
    };
    let layers = buffers.chunks_exact(2).zip(layout);
    let caches = layers.map(|(buffers, &(mapping, ring))| {
        let mapping = mappings.get(mapping).ok_or_else(unfit)?;
        let arrays = [buffers[0].clone(), buffers[1].clone(), mapping.clone()];
        Ok(LayerCache::Traced(TracedKvCache::new(arrays, ring)))
    });
    let mut caches = caches.collect::<Result<Vec<_>, Exception>>()?;
    let hidden = network.network.forward_tokens(tokens, &mut caches);
    let mut outputs = vec![hidden.map_err(|error| Exception::custom(error.to_string()))?];
    for cache in caches {
        match cache {
            LayerCache::Traced(cache) => outputs.extend(cache.into_arrays()),
            _ => return Err(unfit()),
        }
    }
    Ok(outputs)
}
