//! What kernels of whole layers are given: on a CPU, one that computes with MLX's operations what
//! `cuda/layer.cu` does, in models of several families.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cairn_tiny_models::tiny_model;
use mlx_rs::error::Exception;
use mlx_rs::{Array, fast, ops};

use super::attention_kernel_tests::{Attention, compare_with_plain};
use super::*;
use crate::cache::RotatingKvCache;
use crate::chosen_kernels::{with_kernels, with_layers_by_parts};
use crate::config::Quantization;
use crate::device_kernels::{
    Activation, DeviceKernels, Experts, Fusion, HeadShape, Kernel, LayerParts, MOST_TOKENS,
    MatrixRows, QuantizedRows, Rotation,
};
use crate::ffi;
use crate::nn::GatedActivation;

/// Attention and whole layers have kernels.
#[derive(Debug, Default)]
struct WithLayers {
    /// Whether several layers have a kernel together.
    has_runs: bool,
    /// How many layers each kernel computes, in the order in which they were asked for.
    lengths: RefCell<Vec<usize>>,
    /// How many layers each call has computed, in the order of the calls.
    calls: Rc<RefCell<Vec<usize>>>,
    /// How many calls of layers fail, the first ones.
    failing: Rc<Cell<usize>>,
}

impl WithLayers {
    fn with_runs() -> Rc<Self> {
        Rc::new(WithLayers { has_runs: true, ..WithLayers::default() })
    }

    /// How many calls computed so many layers.
    fn num_calls(&self, length: usize) -> usize {
        self.calls.borrow().iter().filter(|&&called| called == length).count()
    }
}

impl DeviceKernels for WithLayers {
    fn product(&self, _: MatrixRows<'_>, _: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        None
    }

    fn norm_residual(&self, _: &Array, _: f32) -> Option<Box<dyn Kernel>> {
        None
    }

    fn attention(&self, heads: &HeadShape, rotation: Rotation<'_>) -> Option<Box<dyn Kernel>> {
        Some(Box::new(Attention::new(*heads, rotation, Rc::default())))
    }

    fn experts(&self, _: Experts<'_>) -> Option<Box<dyn Kernel>> {
        None
    }

    fn layers(&self, layers: &[LayerParts<'_>]) -> Option<Box<dyn Kernel>> {
        if layers.len() > 1 && !self.has_runs {
            return None;
        }
        assert!(layers.iter().all(|layer| layer.is_shaped_like(&layers[0])));
        self.lengths.borrow_mut().push(layers.len());
        let (layers, calls) = (layers.iter().map(Layer::new).collect(), self.calls.clone());
        Some(Box::new(LayerRun { layers, calls, failing: self.failing.clone() }))
    }
}

#[derive(Debug)]
struct LayerRun {
    layers: Vec<Layer>,
    calls: Rc<RefCell<Vec<usize>>>,
    failing: Rc<Cell<usize>>,
}

impl Kernel for LayerRun {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let [x, slots @ .., slot_mapping] = inputs else { panic!("{} inputs", inputs.len()) };
        assert_eq!(x.shape()[..2], [1, 1]);
        assert_eq!(slots.len(), 4 * self.layers.len());
        assert!(slots.iter().enumerate().all(|(i, array)| array.shape() == slots[i % 4].shape()));
        if self.failing.get() > 0 {
            self.failing.set(self.failing.get() - 1);
            return Err(Exception::custom("asked to fail"));
        }
        self.calls.borrow_mut().push(self.layers.len());
        let mut stream = (*x).clone();
        let mut newest = Vec::new();
        for (layer, slot) in self.layers.iter().zip(slots.chunks(4)) {
            let [output, keys, values] = layer.forward(&stream, slot, slot_mapping)?;
            stream = output;
            newest.extend([keys, values]);
        }
        Ok(Some([stream].into_iter().chain(newest).collect()))
    }
}

#[derive(Debug)]
struct Layer {
    norms: [(Array, f32); 2],
    matrices: [Matrix; 4],
    attention: Attention,
    activation: Activation,
}

#[derive(Debug)]
struct Matrix {
    packed: Array,
    scales: Array,
    biases: Option<Array>,
    settings: Quantization,
}

impl Matrix {
    fn new(rows: QuantizedRows<'_>) -> Self {
        let QuantizedRows { packed, scales, biases, settings } = rows;
        let (packed, scales) = (packed.clone(), scales.clone());
        Matrix { packed, scales, biases: biases.cloned(), settings }
    }

    fn product(&self, x: &Array) -> Result<Array, Exception> {
        let Matrix { packed, scales, biases, settings } = self;
        let rows = QuantizedRows { packed, scales, biases: biases.as_ref(), settings: *settings };
        ffi::quantized_matmul(x, rows)
    }
}

impl Layer {
    fn new(parts: &LayerParts<'_>) -> Self {
        Layer {
            norms: parts.norms.map(|(weight, eps)| (weight.clone(), eps)),
            matrices: [parts.projections, parts.attention_output, parts.gate_up, parts.down]
                .map(Matrix::new),
            attention: Attention::new(parts.heads, parts.rotation, Rc::default()),
            activation: parts.activation,
        }
    }

    /// The residual stream behind the layer, and the newest keys and values of its slot.
    fn forward(
        &self,
        x: &Array,
        slot: &[&Array],
        slot_mapping: &Array,
    ) -> Result<[Array; 3], Exception> {
        let [projections, attention_output, gate_up, down] = &self.matrices;
        let normed =
            |x: &Array, (weight, eps): &(Array, f32)| fast::rms_norm(x, Some(weight), *eps);
        let joined = projections.product(&normed(x, &self.norms[0])?)?;
        let counters = ops::zeros::<i32>(&[1])?;
        let inputs = [&[&joined], slot, &[slot_mapping, &counters]].concat();
        let attended: [Array; 3] = self.attention.call(&inputs)?.unwrap().try_into().unwrap();
        let [attended, next_keys, next_values] = attended;
        let hidden = ops::add(x, attention_output.product(&attended)?)?;
        let both = gate_up.product(&normed(&hidden, &self.norms[1])?)?;
        let [gate, up]: [Array; 2] = ffi::cut(&both, &[both.dim(2) / 2], 2)?.try_into().unwrap();
        let activation = GatedActivation::new(self.activation, gate.dtype())?;
        let output = ops::add(&hidden, down.product(&activation.forward(&gate, &up)?)?)?;
        Ok([output, next_keys, next_values])
    }
}

/// More tokens than the newest of a cache hold, most of them single; the first pass finds no slot.
const SINGLES: usize = 70;

fn steps() -> Vec<i32> {
    [&[5][..], &[1; SINGLES], &[MOST_TOKENS, 1, 2, 1]].concat()
}

/// Compares the logits of one sequence with the kernel and without; `num_layers` layers have one, each
/// of which answers for every single token.
fn check(name: &str, num_layers: usize) {
    let kernels = Rc::new(WithLayers::default());
    compare_with_plain(name, &steps(), kernels.clone());
    assert_eq!(*kernels.lengths.borrow(), vec![1; num_layers], "{name}: layers with a kernel");
    assert_eq!(kernels.num_calls(1), num_layers * (SINGLES + 2), "{name}: calls");
    assert_eq!(crate::num_kernel_failures(), 0, "{name}");
}

#[test]
fn a_token_is_computed_by_whole_layers() {
    check("llama/quant4-tied", 2);
    check("qwen3/quant4-tied", 2);
    check("ernie4_5/quant4", 2);
    // Some layers do not rotate.
    check("smollm3/quant4", 4);
    // Projections and gates that are one matrix in the files.
    check("phi3/quant4", 2);
}

/// Compares the logits of one sequence with kernels of several layers and without. Those of these
/// `lengths` are asked for, and those of `called` layers answer for every single token.
fn check_runs(name: &str, lengths: &[usize], called: &[usize]) {
    let kernels = WithLayers::with_runs();
    compare_with_plain(name, &steps(), kernels.clone());
    assert_eq!(*kernels.lengths.borrow(), lengths, "{name}: layers of each kernel");
    assert_eq!(*kernels.calls.borrow(), called.repeat(SINGLES + 2), "{name}: calls");
    assert_eq!(crate::num_kernel_failures(), 0, "{name}");
}

#[test]
fn layers_that_are_alike_are_computed_together() {
    check_runs("llama/quant4-tied", &[2, 1, 1], &[2]);
    check_runs("qwen3/quant4-tied", &[2, 1, 1], &[2]);
    check_runs("phi3/quant4", &[2, 1, 1], &[2]);
    // The last of four does not rotate.
    check_runs("smollm3/quant4", &[3, 1, 1, 1, 1], &[3, 1]);
}

#[test]
fn layers_together_follow_a_sequence_that_is_trimmed() {
    let kernels = WithLayers::with_runs();
    let steps = [5, 1, 1, 1, -2, 1, 4, -3, 1, 1, -6, 1, 1];
    compare_with_plain("llama/quant4-tied", &steps, kernels.clone());
    assert_eq!(*kernels.calls.borrow(), [2; 8]);
}

#[test]
fn layers_together_serve_several_sequences_in_turns() {
    let load = |kernels| {
        let options = LoadOptions::new().keep_quantized(true);
        with_kernels(kernels, || Model::load(&tiny_model("llama/quant4-tied"), options)).unwrap().0
    };
    let kernels = WithLayers::with_runs();
    let (with, without) = (load(Some(kernels.clone())), load(None));
    let new = |start: u32| {
        let mut caches = [with.make_cache(), without.make_cache()];
        forward_both([&with, &without], &mut caches, &[start, start + 1, start + 2]);
        caches
    };
    let mut sequences = [new(1), new(11), new(21)];
    for token in 0..SINGLES as u32 {
        let sequence = &mut sequences[token as usize * 5 / 2 % 3];
        forward_both([&with, &without], sequence, &[token % 50]);
    }
    assert_eq!(*kernels.calls.borrow(), [2; SINGLES]);
}

/// Appends the tokens to both models' caches, and fails unless their logits are the same.
fn forward_both(models: [&Model; 2], caches: &mut [Vec<LayerCache>; 2], tokens: &[u32]) {
    let tokens = Array::from_slice(tokens, &[1, tokens.len() as i32]);
    let mut logits = |index: usize| {
        let hidden = models[index].forward(&tokens, &mut caches[index]).unwrap();
        models[index].logits(&hidden).unwrap().as_dtype(mlx_rs::Dtype::Float32).unwrap()
    };
    let [found, expected] = [logits(0), logits(1)];
    let most = |array: Array| array.abs().unwrap().max(None).unwrap().item_exact::<f32>();
    let off = most(ops::subtract(&found, &expected).unwrap());
    assert!(off <= 1e-4 * most(expected), "off by {off}");
    let offsets = caches.each_ref().map(|own| own.iter().map(LayerCache::offset).collect());
    let [found, expected]: [Vec<_>; 2] = offsets;
    assert_eq!(found, expected, "each layer appends once");
}

const PROMPT: [u32; 6] = [3, 1, 4, 1, 5, 9];

/// Compares the logits of tokens behind caches of which one layer's was changed, with kernels of two
/// layers and without. Kernels of `called` layers answer for every token.
fn check_with_changed_cache(
    change: impl Fn(&Model, &mut Vec<LayerCache>),
    called: &[usize],
    what: &str,
) {
    let load = |kernels| {
        let options = LoadOptions::new().keep_quantized(true);
        with_kernels(kernels, || Model::load(&tiny_model("llama/quant4-tied"), options)).unwrap().0
    };
    let kernels = WithLayers::with_runs();
    let (with, without) = (load(Some(kernels.clone())), load(None));
    let mut caches = [with.make_cache(), without.make_cache()];
    forward_both([&with, &without], &mut caches, &PROMPT[..5]);
    forward_both([&with, &without], &mut caches, &PROMPT[5..]);
    change(&with, &mut caches[0]);
    change(&without, &mut caches[1]);
    for token in [7, 8, 9] {
        forward_both([&with, &without], &mut caches, &[token]);
    }
    assert_eq!(*kernels.calls.borrow(), [&[2], &*called.repeat(3)].concat(), "{what}");
    assert_eq!(crate::num_kernel_failures(), 0, "{what}");
}

#[test]
fn layers_whose_caches_differ_are_computed_one_after_another() {
    check_with_changed_cache(|_, _| (), &[2], "caches that are alike");
    let with_ring = |model: &Model, caches: &mut Vec<LayerCache>, max_size: i32| {
        *caches = model.make_cache();
        caches[1] = LayerCache::Rotating(RotatingKvCache::new(max_size, 0));
        model.forward(&Array::from_slice(&PROMPT, &[1, PROMPT.len() as i32]), caches).unwrap();
    };
    let use_ring = |model: &Model, caches: &mut _| with_ring(model, caches, 64);
    check_with_changed_cache(use_ring, &[1, 1], "the last layer has a ring");
    let use_large_ring = |model: &Model, caches: &mut _| with_ring(model, caches, 1 << 15);
    check_with_changed_cache(use_large_ring, &[1], "the last layer has no slot");
    // More columns than the other layer's cache, as many of them in use.
    let enlarge_first = |model: &Model, caches: &mut Vec<LayerCache>| {
        let more: Vec<u32> = PROMPT.into_iter().chain((0..300).map(|at| at % 50)).collect();
        let mut large = model.make_cache();
        let tokens = Array::from_slice(&more, &[1, more.len() as i32]);
        model.forward(&tokens, &mut large).unwrap();
        let mut first = large.swap_remove(0);
        assert_eq!(first.trim(300), 300);
        caches[0] = first;
    };
    check_with_changed_cache(enlarge_first, &[1, 1], "another capacity");
    // The newest token among the older ones of one layer's cache, and beside those of the other's.
    let move_first = |_: &Model, caches: &mut Vec<LayerCache>| caches[0].materialize().unwrap();
    check_with_changed_cache(move_first, &[1, 1], "other columns");
}

#[test]
fn layers_with_more_than_a_kernel_computes_have_none() {
    // Biases of the projections; norms behind attention and network; experts; norms of all heads
    // together; a multiplier; attention and network side by side; another network.
    for name in [
        "qwen2/quant4",
        "gemma3_text/quant4",
        "glm4/quant4",
        "qwen3_moe/quant4",
        "olmo2/quant4",
        "granite/quant4",
        "cohere/normed-quant",
        "starcoder2/quant4",
    ] {
        let kernels = Rc::new(WithLayers::default());
        let options = LoadOptions::new().keep_quantized(true);
        with_kernels(Some(kernels.clone()), || Model::load(&tiny_model(name), options)).unwrap();
        assert_eq!(kernels.lengths.borrow().len(), 0, "{name}");
    }
}

#[test]
fn dense_weights_have_no_kernel_of_layers() {
    let kernels = Rc::new(WithLayers::default());
    compare_with_plain("llama/dense-tied", &[5, 1, 1], kernels.clone());
    assert_eq!(kernels.lengths.borrow().len(), 0);
}

#[test]
fn layers_by_parts_have_the_other_kernels() {
    let kernels = Rc::new(WithLayers::default());
    let options = LoadOptions::new().keep_quantized(true);
    let load = || Model::load(&tiny_model("llama/quant4-tied"), options);
    with_kernels(Some(kernels.clone()), || with_layers_by_parts(load)).unwrap();
    assert_eq!(kernels.lengths.borrow().len(), 0);
}

#[test]
fn a_layer_whose_kernel_fails_is_computed_by_its_parts() {
    const FAILING: usize = 3;
    let kernels = Rc::new(WithLayers::default());
    kernels.failing.set(FAILING);
    let before = crate::num_kernel_failures();
    compare_with_plain("llama/quant4-tied", &steps(), kernels.clone());
    assert_eq!(crate::num_kernel_failures() - before, FAILING as u64);
    assert_eq!(kernels.num_calls(1), 2 * (SINGLES + 2) - FAILING);
}

#[test]
fn layers_whose_kernel_fails_are_computed_one_after_another() {
    let kernels = WithLayers::with_runs();
    // The kernel of both layers, and then that of the first.
    kernels.failing.set(2);
    let before = crate::num_kernel_failures();
    compare_with_plain("llama/quant4-tied", &steps(), kernels.clone());
    assert_eq!(crate::num_kernel_failures() - before, 2);
    assert_eq!(*kernels.calls.borrow(), [&[1][..], &[2; SINGLES + 1]].concat());
}
