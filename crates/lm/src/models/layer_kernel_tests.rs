//! What kernels of whole layers are given: on a CPU, one that computes with MLX's operations what
//! `cuda/layer.cu` does, in models of several families.

use std::cell::Cell;
use std::rc::Rc;

use cairn_tiny_models::tiny_model;
use mlx_rs::error::Exception;
use mlx_rs::{Array, fast, ops};

use super::attention_kernel_tests::{Attention, compare_with_plain};
use super::*;
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
    num_layers: Cell<usize>,
    layer_calls: Rc<Cell<usize>>,
    /// How many calls of layers fail, the first ones.
    failing: Rc<Cell<usize>>,
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

    fn layer(&self, parts: LayerParts<'_>) -> Option<Box<dyn Kernel>> {
        self.num_layers.set(self.num_layers.get() + 1);
        let [norm, network_norm] = parts.norms.map(|(weight, eps)| (weight.clone(), eps));
        Some(Box::new(Layer {
            norms: [norm, network_norm],
            matrices: [parts.projections, parts.attention_output, parts.gate_up, parts.down]
                .map(Matrix::new),
            attention: Attention::new(parts.heads, parts.rotation, Rc::default()),
            activation: parts.activation,
            num_calls: self.layer_calls.clone(),
            failing: self.failing.clone(),
        }))
    }
}

#[derive(Debug)]
struct Layer {
    norms: [(Array, f32); 2],
    matrices: [Matrix; 4],
    attention: Attention,
    activation: Activation,
    num_calls: Rc<Cell<usize>>,
    failing: Rc<Cell<usize>>,
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

impl Kernel for Layer {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let &[x, keys, values, newest_keys, newest_values, slot_mapping] = inputs else {
            panic!("six inputs, got {}", inputs.len())
        };
        assert_eq!(x.shape()[..2], [1, 1]);
        if self.failing.get() > 0 {
            self.failing.set(self.failing.get() - 1);
            return Err(Exception::custom("asked to fail"));
        }
        self.num_calls.set(self.num_calls.get() + 1);
        let [projections, attention_output, gate_up, down] = &self.matrices;
        let normed =
            |x: &Array, (weight, eps): &(Array, f32)| fast::rms_norm(x, Some(weight), *eps);
        let joined = projections.product(&normed(x, &self.norms[0])?)?;
        let counters = ops::zeros::<i32>(&[1])?;
        let slot = [&joined, keys, values, newest_keys, newest_values, slot_mapping, &counters];
        let attended: [Array; 3] = self.attention.call(&slot)?.unwrap().try_into().unwrap();
        let [attended, next_keys, next_values] = attended;
        let hidden = ops::add(x, attention_output.product(&attended)?)?;
        let both = gate_up.product(&normed(&hidden, &self.norms[1])?)?;
        let [gate, up]: [Array; 2] = ffi::cut(&both, &[both.dim(2) / 2], 2)?.try_into().unwrap();
        let activation = GatedActivation::new(self.activation, gate.dtype())?;
        let output = ops::add(&hidden, down.product(&activation.forward(&gate, &up)?)?)?;
        Ok(Some(vec![output, next_keys, next_values]))
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
    assert_eq!(kernels.num_layers.get(), num_layers, "{name}: layers with a kernel");
    assert_eq!(kernels.layer_calls.get(), num_layers * (SINGLES + 2), "{name}: calls");
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
        assert_eq!(kernels.num_layers.get(), 0, "{name}");
    }
}

#[test]
fn dense_weights_have_no_kernel_of_layers() {
    let kernels = Rc::new(WithLayers::default());
    compare_with_plain("llama/dense-tied", &[5, 1, 1], kernels.clone());
    assert_eq!(kernels.num_layers.get(), 0);
}

#[test]
fn layers_by_parts_have_the_other_kernels() {
    let kernels = Rc::new(WithLayers::default());
    let options = LoadOptions::new().keep_quantized(true);
    let load = || Model::load(&tiny_model("llama/quant4-tied"), options);
    with_kernels(Some(kernels.clone()), || with_layers_by_parts(load)).unwrap();
    assert_eq!(kernels.num_layers.get(), 0);
}

#[test]
fn a_layer_whose_kernel_fails_is_computed_by_its_parts() {
    const FAILING: usize = 3;
    let kernels = Rc::new(WithLayers::default());
    kernels.failing.set(FAILING);
    let before = crate::num_kernel_failures();
    compare_with_plain("llama/quant4-tied", &steps(), kernels.clone());
    assert_eq!(crate::num_kernel_failures() - before, FAILING as u64);
    assert_eq!(kernels.layer_calls.get(), 2 * (SINGLES + 2) - FAILING);
}
