//! What a device can compute in one launch: the kernels of `nn`'s operations.

use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use crate::config::Quantization;
use crate::device::ComputeDevice;

/// The kernels of one device, chosen when a model is loaded.
///
/// Every operation of `nn` has a plain form of MLX's own operations, which is right
/// everywhere. Where a device computes the same in fewer launches, the operation asks for that
/// kernel once, when it is loaded. Each method returns `None` if the device has no kernel for these
/// sizes and formats; then the plain form runs.
pub trait DeviceKernels: Debug {
    /// `x [B, L, K]` times the rows, with [`Fusion`]: `[B, L, N]`, or `[B, L, N / 2]` with an
    /// activation. The inputs are x and, if the fusion adds it, the residual of the output's shape.
    fn product(&self, rows: MatrixRows<'_>, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>>;

    /// From how many vectors on a product with a quantized matrix takes longer than to dequantize
    /// the matrix and to multiply with that; `None` if it never does.
    fn dequantizes_from(&self) -> Option<usize> {
        None
    }

    /// `residual + norm(x)`. The inputs are x and the residual, both `[1, 1, D]`.
    fn norm_residual(&self, weight: &Array, eps: f32) -> Option<Box<dyn Kernel>>;

    /// Head norms, RoPE and attention of up to [`MOST_TOKENS`] tokens of one row, or of one token of each
    /// row of a batch. The inputs are:
    ///
    /// 1. queries, keys and values of all heads, `[B, L, (H + 2 H_kv) D]`;
    /// 2. to 5. keys and values of a [`DecodeSlot`](crate::cache::DecodeSlot) for L tokens, older
    ///    and newest;
    /// 6. [its mapping](crate::cache::AttentionStep::slot_mapping), and
    /// 7. its [`counters`](crate::cache::DecodeSlot::counters).
    ///
    /// The outputs are the attention output `[B, L, H D]`, and the slot's newest keys and values
    /// with those of the tokens.
    fn attention(&self, heads: &HeadShape, rotation: Rotation<'_>) -> Option<Box<dyn Kernel>>;

    /// The experts of one token. The inputs are its normalized hidden state `[1, 1, D]`, the
    /// router's logits `[1, 1, E]`, and a residual `[1, 1, D]`; the output is the residual plus the
    /// experts' blended outputs.
    fn experts(&self, experts: Experts<'_>) -> Option<Box<dyn Kernel>>;

    /// The row of each token. The input is token ids u32 `[B, L]`; the output is `[B, L, K]`.
    fn embedding(&self, _rows: QuantizedRows<'_>) -> Option<Box<dyn Kernel>> {
        None
    }

    /// The column of each row's largest number, the first of equal ones. The input is logits `[B, V]`;
    /// the output is u32 `[B]`.
    fn argmax(&self) -> Option<Box<dyn Kernel>> {
        None
    }

    /// Whole layers of one token, each after the one before it, in one launch: one layer, or up to
    /// [`MOST_LAYERS`] that [take the same arrays](LayerParts::is_shaped_like). The inputs are the
    /// residual stream before the first, `[1, 1, D]`; for each layer keys and values of a
    /// [`DecodeSlot`](crate::cache::DecodeSlot), older and newest; and last [the
    /// mapping](crate::cache::AttentionStep::slot_mapping) that these slots share.
    ///
    /// The outputs are the residual stream behind the last layer, `[1, 1, D]`, and for each layer its
    /// slot's newest keys and values with those of the token.
    fn layers(&self, _layers: &[LayerParts<'_>]) -> Option<Box<dyn Kernel>> {
        None
    }
}

/// The most layers that [`DeviceKernels::layers`] computes in one launch: each has some twenty arrays,
/// and a launch takes four kilobytes of arguments.
pub const MOST_LAYERS: usize = 8;

/// The most tokens that a sequence that speculates reads at once, and so the most for which one launch
/// of [`DeviceKernels::attention`] computes.
pub const MOST_TOKENS: i32 = 16;

/// A kernel that was prepared for one operation of one layer.
pub trait Kernel: Debug {
    /// The outputs; `None` if the kernel does not support the inputs' shapes or types.
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception>;
}

/// The rows of a matrix `[N, K]` that multiplies vectors of K numbers.
#[derive(Debug, Clone, Copy)]
pub enum MatrixRows<'a> {
    /// Numbers `[N, K]`, evaluated.
    Dense(&'a Array),
    /// Packed numbers.
    Quantized(QuantizedRows<'a>),
}

/// The rows of a quantized matrix: packed numbers with a scale and, in affine mode, a bias per
/// group.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedRows<'a> {
    /// u32 `[.., N, K * bits / 32]`
    pub packed: &'a Array,
    /// `[.., N, K / group_size]`
    pub scales: &'a Array,
    /// `[.., N, K / group_size]`; `None` unless the mode is affine.
    pub biases: Option<&'a Array>,
    /// Mode, group size and bits.
    pub settings: Quantization,
}

impl QuantizedRows<'_> {
    /// N, the number of rows.
    pub fn num_rows(&self) -> i32 {
        self.packed.dim(-2)
    }

    /// K, the length of a row.
    pub fn num_inputs(&self) -> i32 {
        self.packed.dim(-1) * 32 / self.settings.bits
    }

    /// The type that their numbers have when they are dequantized. Scales of one byte say none: then
    /// it is the one in which the device computes and, where that is any, MLX's own choice. Each of
    /// these numbers is exact in it.
    pub fn dtype(&self) -> Dtype {
        match self.settings.mode.has_biases() {
            true => self.scales.dtype(),
            false => ComputeDevice::current().compute_dtype().unwrap_or(Dtype::Bfloat16),
        }
    }
}

/// The function of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// GELU in its tanh approximation.
    GeluApprox,
    /// GELU itself.
    Gelu,
}

/// The sizes of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadShape {
    /// H, the number of query heads.
    pub heads: i32,
    /// H_kv, the number of key and value heads, which divides H.
    pub kv_heads: i32,
    /// D, the length of a head's vectors.
    pub head_dim: i32,
    /// The factor of the scores.
    pub scale: f32,
    /// What scaled scores are capped to: `c tanh(score / c)`.
    pub softcap: Option<f32>,
}

impl HeadShape {
    /// Heads whose scores are divided by the root of their length.
    pub fn new(heads: i32, kv_heads: i32, head_dim: i32) -> Self {
        HeadShape { heads, kv_heads, head_dim, scale: (head_dim as f32).powf(-0.5), softcap: None }
    }
}

/// What is computed in the same launch as a product, before and after it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fusion<'a> {
    /// RMS-normalizes the input with a weight `[K]` and epsilon.
    pub norm: Option<(&'a Array, f32)>,
    /// Computes `activation(gate) * up`, where the first half of the outputs is the gate.
    pub activation: Option<Activation>,
    /// Adds a residual to the output.
    pub adds_residual: bool,
}

/// How queries and keys are prepared for their scores.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a> {
    /// The weights `[D]` and epsilon of the RMS norms of the query and key heads.
    pub norms: Option<([&'a Array; 2], f32)>,
    /// RoPE's angle per position of each pair of numbers, f32 `[R / 2]`: the first R numbers of a
    /// head are rotated.
    pub angles: &'a Array,
    /// Whether pairs are neighbours, instead of half of R apart.
    pub traditional: bool,
}

/// The matrices of a layer's experts, and how they are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Experts<'a> {
    /// `[E, 2 I, D]`: each expert's gate, then its up projection; for `silu(gate) * up`.
    pub gate_up: QuantizedRows<'a>,
    /// `[E, D, I]`
    pub down: QuantizedRows<'a>,
    /// How many experts a token uses.
    pub num_chosen: i32,
    /// Whether the shares of the chosen experts are normalized to a sum of one.
    pub adds_up_to_one: bool,
}

/// What a layer consists of that attends and then has a gated network, each with an RMS norm before
/// it and a sum with the residual stream behind it.
#[derive(Debug, Clone, Copy)]
pub struct LayerParts<'a> {
    /// The weights `[D]` and epsilons of the norms before the attention and before the network.
    pub norms: [(&'a Array, f32); 2],
    /// Queries, keys and values of all heads: `[(H + 2 H_kv) D_head, D]`.
    pub projections: QuantizedRows<'a>,
    /// The sizes of the attention.
    pub heads: HeadShape,
    /// How its queries and keys are prepared.
    pub rotation: Rotation<'a>,
    /// `[D, H D_head]`
    pub attention_output: QuantizedRows<'a>,
    /// The network's gate, then its up projection: `[2 I, D]`.
    pub gate_up: QuantizedRows<'a>,
    /// The function of the gate.
    pub activation: Activation,
    /// `[D, I]`
    pub down: QuantizedRows<'a>,
}

impl LayerParts<'_> {
    /// Whether another layer has arrays of the same shapes and types, and computes the same with them.
    pub fn is_shaped_like(&self, other: &LayerParts<'_>) -> bool {
        self.shape() == other.shape()
    }

    fn shape(&self) -> impl PartialEq {
        let array = |array: &Array| (array.shape().to_vec(), array.dtype());
        let norm = |(weight, eps): (&Array, f32)| (array(weight), eps);
        let head_norms = |(weights, eps): ([&Array; 2], f32)| (weights.map(array), eps);
        let rows = |rows: QuantizedRows<'_>| {
            (array(rows.packed), array(rows.scales), rows.biases.map(array), rows.settings)
        };
        let Rotation { norms, angles, traditional } = self.rotation;
        (
            self.norms.map(norm),
            [self.projections, self.attention_output, self.gate_up, self.down].map(rows),
            (self.heads, self.activation),
            (norms.map(head_norms), array(angles), traditional),
        )
    }
}

/// The kernels that the layers of a model are loaded with; `None` runs the plain forms.
pub type Kernels = Option<Rc<dyn DeviceKernels>>;

thread_local! {
    static NUM_FAILURES: Cell<u64> = const { Cell::new(0) };
}

/// How often a kernel failed on this thread, so that the plain form ran in its place.
pub fn num_kernel_failures() -> u64 {
    NUM_FAILURES.with(Cell::get)
}

/// The kernel's outputs; `None` if there is no kernel, or if it does not support the inputs. A
/// failure is counted and `None` too: the plain form can still answer.
pub(crate) fn run<const N: usize>(
    kernel: Option<&dyn Kernel>,
    inputs: &[&Array],
) -> Option<[Array; N]> {
    run_all(kernel, inputs)?.try_into().ok()
}

/// As [`run`], with as many outputs as the kernel has.
pub(crate) fn run_all(kernel: Option<&dyn Kernel>, inputs: &[&Array]) -> Option<Vec<Array>> {
    match kernel?.call(inputs) {
        Ok(outputs) => outputs,
        Err(_) => {
            NUM_FAILURES.with(|count| count.set(count.get() + 1));
            None
        }
    }
}
