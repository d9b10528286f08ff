//! Whole layers of one token in one launch.
//!
//! A layer by parts takes five launches, each of which costs the host some ten microseconds, and the
//! device a ramp. In one launch the blocks wait for each other between the parts, and read the first
//! numbers of the next part before they wait. So they do between layers that follow each other.
//!
//! Blocks that wait for each other must all run at once. So there are as many as multiprocessors, and
//! no two of these launches run at once, of whichever layer or model: each reads what the one before
//! it has written.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::error::Exception;
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype, ops};

use super::attention::{self, MAX_NEWEST_BYTES};
use super::product::{UNKNOWN_ACTIVATION, activation_constant};
use super::row_attention;
use super::{compiled_by_mlx, is_bfloat16, is_readable, traced_all};
use crate::device_kernels::{HeadShape, Kernel, LayerParts, MOST_LAYERS, QuantizedRows};
use crate::ffi::{self, Compiled, CudaKernel, KernelSource, Launch};

/// The inputs of `layer.cu` that each layer has of its own, in their order.
const OWN_INPUTS: [&str; 21] = [
    "norm1",
    "qkv_w",
    "qkv_scales",
    "qkv_biases",
    "angles",
    "query_norm",
    "key_norm",
    "k",
    "v",
    "tail_k",
    "tail_v",
    "o_w",
    "o_scales",
    "o_biases",
    "norm2",
    "gate_up_w",
    "gate_up_scales",
    "gate_up_biases",
    "down_w",
    "down_scales",
    "down_biases",
];

/// The outputs that each layer has of its own.
const OWN_OUTPUTS: [&str; 2] = ["next_k", "next_v"];

/// The arrays of a slot among the inputs.
const SLOT_ARRAYS: usize = 4;

/// The threads of a block.
pub(super) const THREADS: i32 = 512;

/// From this capacity on a block computes several heads, so that the keys that they share are read once.
const SHARES_KEYS_FROM: i32 = 16_384;

/// The most heads that a block computes. Four need more registers than a thread has, and took longer than two.
const MOST_SHARED: i32 = 2;

/// How many numbers blocks have to count themselves in. They need fewer, but MLX puts arrays of up to
/// eight bytes where the host can read them too, and counting there takes as long as a launch.
pub(super) const NUM_COUNTERS: i32 = 32;

/// The most bytes that a layer's matrices have. A larger one takes so long to read that five launches cost
/// less than what blocks wait for each other: on an H200 a layer of 123 MB took 107 µs, by parts 94;
/// with 34 MB whole layers were a fifth faster.
const MOST_BYTES: usize = 48 << 20;

/// The longest vector that a block keeps in its shared memory.
const MOST_INPUTS: i32 = 16_384;

/// `layer.cu`, and where the models of a thread get what their layers share.
#[derive(Debug)]
pub(super) struct LayerKernels {
    /// For one layer, for two, and so on: each number has arguments of its own.
    kernels: Vec<Rc<CudaKernel>>,
    /// How many blocks run at once.
    blocks: i32,
    /// While a model has such layers.
    shared: RefCell<Weak<WholeLayers>>,
}

impl LayerKernels {
    /// With what stands before the kernel's body.
    pub(super) fn new(head: &str, blocks: i32) -> Result<Self, Exception> {
        let kernel = |num_layers: usize| {
            let body = &source(num_layers);
            let source = KernelSource { head, body, most_threads: Some(THREADS) };
            compiled_by_mlx(
                "whole_layers",
                &borrowed(&inputs(num_layers)),
                &borrowed(&outputs(num_layers)),
                source,
            )
        };
        let kernels = (1..=MOST_LAYERS).map(kernel).collect::<Result<_, _>>()?;
        Ok(LayerKernels { kernels, blocks, shared: RefCell::default() })
    }

    /// `None` where no blocks run at once, and while another thread of this process has layers: launches of
    /// two threads do not wait for each other.
    fn shared(&self) -> Option<Rc<WholeLayers>> {
        let mut shared = self.shared.borrow_mut();
        if let Some(layers) = shared.upgrade() {
            return Some(layers);
        }
        let claim = (self.blocks > 0).then(Claim::take).flatten()?;
        let layers = Rc::new(WholeLayers { turns: RefCell::default(), _claim: claim });
        *shared = Rc::downgrade(&layers);
        Some(layers)
    }
}

fn inputs(num_layers: usize) -> Vec<String> {
    let own = (0..num_layers).flat_map(|layer| of_layer(&OWN_INPUTS, layer));
    let shared = ["slot_mapping", "turn"].map(str::to_owned);
    ["x".to_owned()].into_iter().chain(own).chain(shared).collect()
}

fn outputs(num_layers: usize) -> Vec<String> {
    let own = (0..num_layers).flat_map(|layer| of_layer(&OWN_OUTPUTS, layer));
    ["y".to_owned()].into_iter().chain(own).chain(["scratch".to_owned()]).collect()
}

fn borrowed(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn of_layer(names: &[&str], layer: usize) -> Vec<String> {
    names.iter().map(|name| format!("{name}_{layer}")).collect()
}

/// `layer.cu` for so many layers: behind `LAYERS` and what `OF` is, an array of the layer that the loop
/// is at.
///
/// An argument is no memory that a layer's number could index. So a block of several layers writes the
/// addresses of all arrays into its shared memory, a warp those of a layer.
fn source(num_layers: usize) -> String {
    let body = include_str!("layer.cu");
    let begin = format!("  constexpr int LAYERS = {num_layers};\n");
    if num_layers == 1 {
        return format!("{begin}  #define OF(name) name##_0\n{body}");
    }
    let names = [OWN_INPUTS.as_slice(), &OWN_OUTPUTS].concat();
    let places = names.iter().map(|name| format!("AT_{name}, ")).collect::<String>();
    let of_layer = |layer: usize| {
        let address = |name: &&str| {
            format!(
                "    addresses[{layer}][AT_{name}] = \
                 reinterpret_cast<uint64_t>({name}_{layer});\n"
            )
        };
        let addresses = names.iter().map(address).collect::<String>();
        format!("  if (threadIdx.x == {layer} * 32 % THREADS) {{\n{addresses}  }}\n")
    };
    let addresses = (0..num_layers).map(of_layer).collect::<String>();
    format!(
        "{begin}  \
         enum {{ {places}NUM_ADDRESSES }};\n  \
         __shared__ uint64_t addresses[LAYERS][NUM_ADDRESSES];\n\
         {addresses}  \
         __syncthreads();\n  \
         #define OF(name) reinterpret_cast<decltype(name##_0)>(addresses[layer][AT_##name])\n\
         {body}"
    )
}

/// What the layers of all models of a thread share.
#[derive(Debug)]
struct WholeLayers {
    turns: RefCell<Turns>,
    _claim: Claim,
}

impl Drop for WholeLayers {
    /// Waits for what was launched, before others claim the device.
    fn drop(&mut self) {
        let _ = ffi::synchronize();
    }
}

/// That one thread launches whole layers.
#[derive(Debug)]
struct Claim(());

static IS_CLAIMED: AtomicBool = AtomicBool::new(false);

impl Claim {
    fn take() -> Option<Self> {
        (!IS_CLAIMED.swap(true, Ordering::AcqRel)).then_some(Claim(()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        IS_CLAIMED.store(false, Ordering::Release);
    }
}

/// Whose turn it is to launch.
#[derive(Debug, Default)]
struct Turns {
    /// What the last launch writes, of which the first number is zero: f32, at least [`NUM_COUNTERS`].
    /// `None` before the first.
    counters: Option<Array>,
    /// The number of the run that was launched last.
    last: usize,
    num_runs: usize,
}

impl Turns {
    /// The number of one more run of layers. Those of a model follow each other.
    fn number(&mut self) -> usize {
        self.num_runs += 1;
        self.num_runs
    }

    /// The counters for a launch of the run `number`.
    ///
    /// A run that does not come behind the last one begins another pass. What the pass before launched
    /// is evaluated by then. If it is not, its results were given up, and it is now: otherwise all
    /// that it reads would stay in memory. If that fails, it never runs, and nobody waits for it.
    fn next(&mut self, number: usize) -> Result<Array, Exception> {
        if number <= self.last
            && let Some(counters) = &self.counters
            && async_eval([counters]).is_err()
        {
            self.counters = None;
            ffi::synchronize()?;
        }
        self.last = number;
        match &self.counters {
            Some(counters) => Ok(counters.clone()),
            None => {
                let zeros = ops::zeros::<f32>(&[NUM_COUNTERS])?;
                zeros.eval()?;
                Ok(self.counters.insert(zeros).clone())
            }
        }
    }
}

/// See [`DeviceKernels::layers`](crate::device_kernels::DeviceKernels::layers).
#[derive(Debug)]
pub(super) struct LayerRun {
    layers: Rc<WholeLayers>,
    compiled: Compiled,
    number: usize,
    num_layers: usize,
    hidden: i32,
    kv_heads: i32,
}

/// The arrays of a layer that do not change, owned by a traced function.
struct Weights {
    norms: [Array; 2],
    head_norms: Option<[Array; 2]>,
    angles: Array,
    projections: [Array; 3],
    attention_output: [Array; 3],
    gate_up: [Array; 3],
    down: [Array; 3],
}

/// The constants of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Constants {
    hidden: i32,
    intermediate: i32,
    heads: HeadShape,
    pairs: i32,
    traditional: bool,
    has_head_norms: bool,
    group_size: i32,
    activation: i32,
    /// Of the norms before attention and network, and of the heads'.
    eps: [f32; 3],
    blocks: i32,
}

impl LayerRun {
    pub(super) fn new(launches: &LayerKernels, layers: &[LayerParts<'_>]) -> Option<Self> {
        let num_layers = layers.len();
        let kernel = launches.kernels.get(num_layers.checked_sub(1)?)?.clone();
        let constants = Constants::of_all(layers, launches.blocks)?;
        let weights = layers.iter().map(Weights::of).collect::<Option<Vec<_>>>()?;
        let layers = launches.shared()?;
        let num_inputs = 3 + SLOT_ARRAYS * num_layers;
        let launch = move |inputs: &[Array]| constants.launch(&kernel, &weights, inputs);
        let compiled = traced_all(num_inputs, launch)?;
        let number = layers.turns.borrow_mut().number();
        let (hidden, kv_heads) = (constants.hidden, constants.heads.kv_heads);
        Some(LayerRun { layers, compiled, number, num_layers, hidden, kv_heads })
    }

    /// Whether the kernel supports the residual stream and the arrays of all slots.
    fn fits(&self, x: &Array, slots: &[&Array]) -> bool {
        let &[keys, values, newest_keys, newest_values, ..] = slots else { return false };
        let mut like_first = slots.iter().zip(slots[..SLOT_ARRAYS].iter().cycle());
        *x.shape() == [1, 1, self.hidden]
            && is_bfloat16(x)
            && slots.iter().all(|array| is_bfloat16(array))
            && slots.len() == SLOT_ARRAYS * self.num_layers
            && like_first.all(|(array, first)| array.shape() == first.shape())
            && keys.shape() == values.shape()
            && newest_keys.shape() == newest_values.shape()
            && keys.shape()[..2] == [1, self.kv_heads]
            && newest_keys.nbytes() <= MAX_NEWEST_BYTES
    }
}

impl Kernel for LayerRun {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let [x, slots @ .., _] = inputs else { return Ok(None) };
        if !self.fits(x, slots) {
            return Ok(None);
        }
        let mut turns = self.layers.turns.borrow_mut();
        let turn = turns.next(self.number)?;
        // A call that fails launches nothing, so that the next has the same turn.
        let mut outputs = self.compiled.call_all(&[inputs, &[&turn]].concat())?;
        if outputs.len() != 2 + OWN_OUTPUTS.len() * self.num_layers {
            return Err(Exception::custom("layers have other outputs".to_owned()));
        }
        turns.counters = outputs.pop();
        Ok(Some(outputs))
    }
}

impl Weights {
    fn of(parts: &LayerParts<'_>) -> Option<Self> {
        let owned = |rows: QuantizedRows<'_>| {
            Some([rows.packed.clone(), rows.scales.clone(), rows.biases?.clone()])
        };
        Some(Weights {
            norms: parts.norms.map(|(weight, _)| weight.clone()),
            head_norms: parts.rotation.norms.map(|(weights, _)| weights.map(Array::clone)),
            angles: parts.rotation.angles.clone(),
            projections: owned(parts.projections)?,
            attention_output: owned(parts.attention_output)?,
            gate_up: owned(parts.gate_up)?,
            down: owned(parts.down)?,
        })
    }

    /// [`OWN_INPUTS`] with the arrays of a slot. A norm that the layer does not have is not read: any
    /// array stands for it.
    fn inputs<'a>(&'a self, slot: &'a [Array; SLOT_ARRAYS], any: &'a Array) -> Vec<&'a Array> {
        let Weights { norms: [norm, network_norm], angles, .. } = self;
        let head_norms = match &self.head_norms {
            Some(norms) => norms.each_ref(),
            None => [any, any],
        };
        let before = [norm].into_iter().chain(&self.projections).chain([angles]).chain(head_norms);
        let attention = before.chain(slot).chain(&self.attention_output);
        attention.chain([network_norm]).chain(&self.gate_up).chain(&self.down).collect()
    }
}

impl Constants {
    /// Those that all layers have; `None` as in [`Constants::of`], and where layers differ.
    fn of_all(layers: &[LayerParts<'_>], blocks: i32) -> Option<Self> {
        let [first, others @ ..] = layers else { return None };
        let first = Constants::of(first, blocks)?;
        others.iter().all(|other| Constants::of(other, blocks) == Some(first)).then_some(first)
    }

    /// `None` for sizes and formats that the kernel does not support.
    fn of(parts: &LayerParts<'_>, blocks: i32) -> Option<Self> {
        let LayerParts { norms, projections, heads, rotation, .. } = parts;
        let HeadShape { heads: num_heads, kv_heads, head_dim, .. } = *heads;
        let (hidden, intermediate) = (projections.num_inputs(), parts.down.num_inputs());
        let group_size = projections.settings.group_size;
        let attended = num_heads * head_dim;
        let matrices = [
            (*projections, [attended + 2 * kv_heads * head_dim, hidden], 1),
            (parts.attention_output, [hidden, attended], 1),
            (parts.gate_up, [2 * intermediate, hidden], 2),
            (parts.down, [hidden, intermediate], 1),
        ];
        let are_supported = matrices.iter().all(|(rows, shape, halves)| {
            [rows.num_rows(), rows.num_inputs()] == *shape
                && is_readable(rows)
                && rows.settings.group_size == group_size
                && matches!(group_size, 32 | 64 | 128)
                && is_divisible(*shape, *halves, blocks)
        });
        let num_bytes: usize = matrices.iter().map(|(rows, ..)| num_bytes(rows)).sum();
        let are_norms =
            norms.iter().all(|(weight, _)| is_bfloat16(weight) && *weight.shape() == [hidden]);
        let activation = activation_constant(Some(parts.activation));
        let fits = are_supported
            && num_bytes <= MOST_BYTES
            && are_norms
            && attention::is_supported(heads, rotation)
            && activation != UNKNOWN_ACTIVATION
            // Vectors in half precision begin at multiples of sixteen bytes.
            && num_heads * splits(num_heads, blocks) % 2 == 0;
        let [(_, eps), (_, network_eps)] = *norms;
        fits.then(|| Constants {
            hidden,
            intermediate,
            heads: *heads,
            pairs: rotation.angles.dim(0),
            traditional: rotation.traditional,
            has_head_norms: rotation.norms.is_some(),
            group_size,
            activation,
            eps: [eps, network_eps, rotation.norms.map_or(0.0, |(_, eps)| eps)],
            blocks,
        })
    }

    /// How many single-precision numbers the parts of a layer hand on: counters, parts of each head with
    /// a peak and a weight, and in half precision all projections, the sum after the attention and
    /// the network's vector.
    fn scratch(&self, splits: i32) -> i32 {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        let halves = (heads + 2 * kv_heads) * head_dim + self.hidden + self.intermediate;
        NUM_COUNTERS + heads * splits * (head_dim + 2) + halves / 2
    }

    fn launch(
        &self,
        kernel: &CudaKernel,
        layers: &[Weights],
        inputs: &[Array],
    ) -> Result<Vec<Array>, Exception> {
        let [x, slots @ .., slot_mapping, turn] = inputs else {
            return Err(Exception::custom("a kernel of layers takes more arrays".to_owned()));
        };
        let (slots, _) = slots.as_chunks::<SLOT_ARRAYS>();
        let Some([keys, _, newest_keys, _]) = slots.first() else {
            return Err(Exception::custom("layers have slots".to_owned()));
        };
        let HeadShape { heads, kv_heads, head_dim, scale, .. } = self.heads;
        let newest = newest_keys.dim(2);
        let shared = match keys.dim(2) >= SHARES_KEYS_FROM {
            true => row_attention::shared_heads(heads / kv_heads, MOST_SHARED),
            false => 1,
        };
        let splits = splits(heads / shared, self.blocks);
        let [eps, network_eps, head_eps] = self.eps.map(|eps| eps.to_bits() as i32);
        let own = std::iter::zip(layers, slots).flat_map(|(weights, slot)| weights.inputs(slot, x));
        let inputs: Vec<&Array> = [x].into_iter().chain(own).chain([slot_mapping, turn]).collect();
        let next: (&[i32], _) = (&[1, kv_heads, newest, head_dim], Dtype::Bfloat16);
        let (output, scratch) = ([1, 1, self.hidden], [self.scratch(splits)]);
        let mut outputs: Vec<(&[i32], _)> = vec![(&output, Dtype::Bfloat16)];
        outputs.extend([next; OWN_OUTPUTS.len()].repeat(layers.len()));
        outputs.push((&scratch, Dtype::Float32));
        kernel.apply_all(
            &inputs,
            Launch {
                constants: &[
                    (c"HIDDEN", self.hidden),
                    (c"INTER", self.intermediate),
                    (c"HEADS", heads),
                    (c"KV_HEADS", kv_heads),
                    (c"D", head_dim),
                    (c"TAIL", newest),
                    (c"PAIRS", self.pairs),
                    (c"TRADITIONAL", i32::from(self.traditional)),
                    (c"NORM", i32::from(self.has_head_norms)),
                    (c"GROUP", self.group_size),
                    (c"ACTIVATION", self.activation),
                    (c"SPLITS", splits),
                    (c"SHARED", shared),
                    (c"BLOCKS", self.blocks),
                    (c"THREADS", THREADS),
                    (c"EPS1_BITS", eps),
                    (c"EPS2_BITS", network_eps),
                    (c"HEAD_EPS_BITS", head_eps),
                    (c"SCALE_BITS", scale.to_bits() as i32),
                ],
                blocks: [self.blocks, 1, 1],
                threads: THREADS,
                outputs: &outputs,
            },
        )
    }
}

fn num_bytes(rows: &QuantizedRows<'_>) -> usize {
    let arrays = [Some(rows.packed), Some(rows.scales), rows.biases];
    arrays.into_iter().flatten().map(Array::nbytes).sum()
}

/// Whether blocks can divide the rows of a matrix among their warps. The rows of each half are in
/// strips, of which a block computes some, each with one warp or several.
fn is_divisible([num_rows, num_inputs]: [i32; 2], halves: i32, blocks: i32) -> bool {
    /// Rows that a warp computes at a time.
    const STRIP: i32 = 16;
    /// Numbers of a row that a thread reads at a time.
    const SPAN: i32 = 32;
    let strips = num_rows / halves / STRIP;
    let of_each_block = (strips + blocks - 1) / blocks * halves;
    num_rows % (halves * STRIP) == 0
        && of_each_block <= THREADS / 32
        && num_inputs % SPAN == 0
        && num_inputs <= MOST_INPUTS
}

/// Into how many parts the keys of a group of heads are split: each block computes at most one, if there
/// are enough blocks. A power of two, because each number is compiled.
fn splits(groups: i32, blocks: i32) -> i32 {
    let most = (blocks / groups).max(1);
    1 << most.ilog2()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use mlx_rs::Dtype;

    use super::*;
    use crate::config::Quantization;
    use crate::device_kernels::{Activation, Rotation};

    /// A matrix of the kernels' format without meaningful numbers.
    struct Matrix([Array; 3], Quantization);

    impl Matrix {
        fn new(num_rows: i32, num_inputs: i32, settings: Quantization) -> Self {
            let zeros = |columns, dtype| ops::zeros_dtype(&[num_rows, columns], dtype).unwrap();
            let groups = num_inputs / settings.group_size;
            let packed = zeros(num_inputs * settings.bits / 32, Dtype::Uint32);
            let [scales, biases] = [0; 2].map(|_| zeros(groups, Dtype::Bfloat16));
            Matrix([packed, scales, biases], settings)
        }

        fn rows(&self) -> QuantizedRows<'_> {
            let Matrix([packed, scales, biases], settings) = self;
            QuantizedRows { packed, scales, biases: Some(biases), settings: *settings }
        }
    }

    /// What a layer differs in from one that is supported.
    #[derive(Clone, Copy)]
    struct Sizes {
        hidden: i32,
        intermediate: i32,
        heads: [i32; 3],
        down: Quantization,
        norm: Dtype,
        activation: Activation,
    }

    fn supported() -> Sizes {
        Sizes {
            hidden: 256,
            intermediate: 512,
            heads: [4, 2, 64],
            down: Quantization::affine(64, 4),
            norm: Dtype::Bfloat16,
            activation: Activation::Silu,
        }
    }

    fn is_supported(sizes: Sizes) -> bool {
        are_supported(&[sizes])
    }

    /// Whether layers of these sizes have constants together.
    fn are_supported(layers: &[Sizes]) -> bool {
        let matrices: Vec<_> = layers.iter().map(Matrices::new).collect();
        let parts: Vec<_> =
            layers.iter().zip(&matrices).map(|(sizes, own)| own.parts(sizes)).collect();
        Constants::of_all(&parts, 132).is_some()
    }

    struct Matrices {
        projections: Matrix,
        attention_output: Matrix,
        gate_up: Matrix,
        down: Matrix,
        norm: Array,
        angles: Array,
    }

    impl Matrices {
        fn new(sizes: &Sizes) -> Self {
            let &Sizes { hidden, intermediate, heads: [heads, kv_heads, head_dim], .. } = sizes;
            let usual = Quantization::affine(64, 4);
            Matrices {
                projections: Matrix::new((heads + 2 * kv_heads) * head_dim, hidden, usual),
                attention_output: Matrix::new(hidden, heads * head_dim, usual),
                gate_up: Matrix::new(2 * intermediate, hidden, usual),
                down: Matrix::new(hidden, intermediate, sizes.down),
                norm: ops::zeros_dtype(&[hidden], sizes.norm).unwrap(),
                angles: Array::from_slice(&[1.0f32, 0.5], &[2]),
            }
        }

        fn parts(&self, sizes: &Sizes) -> LayerParts<'_> {
            let [heads, kv_heads, head_dim] = sizes.heads;
            LayerParts {
                norms: [(&self.norm, 1e-5); 2],
                projections: self.projections.rows(),
                heads: HeadShape::new(heads, kv_heads, head_dim),
                rotation: Rotation { norms: None, angles: &self.angles, traditional: false },
                attention_output: self.attention_output.rows(),
                gate_up: self.gate_up.rows(),
                activation: sizes.activation,
                down: self.down.rows(),
            }
        }
    }

    #[test]
    fn layers_of_the_kernels_formats_are_supported() {
        assert!(is_supported(supported()));
        assert!(is_supported(Sizes { activation: Activation::GeluApprox, ..supported() }));
        let long = Sizes { intermediate: MOST_INPUTS, ..supported() };
        assert!(is_supported(long));
        let refused = [
            ("a long vector", Sizes { intermediate: MOST_INPUTS + 64, ..supported() }),
            ("large matrices", Sizes { hidden: 2048, ..long }),
            ("an unknown gate", Sizes { activation: Activation::Gelu, ..supported() }),
            ("short heads", Sizes { heads: [8, 4, 32], ..supported() }),
            ("two group sizes", Sizes { down: Quantization::affine(32, 4), ..supported() }),
            ("eight bits", Sizes { down: Quantization::affine(64, 8), ..supported() }),
            ("single precision", Sizes { norm: Dtype::Float32, ..supported() }),
        ];
        for (what, sizes) in refused {
            assert!(!is_supported(sizes), "{what}");
        }
    }

    #[test]
    fn layers_are_computed_together_if_they_have_the_same_constants() {
        assert!(are_supported(&[supported(); 3]));
        let longer = Sizes { intermediate: 1024, ..supported() };
        assert!(is_supported(longer));
        assert!(!are_supported(&[supported(), longer]));
        let refused = Sizes { norm: Dtype::Float32, ..supported() };
        assert!(!are_supported(&[supported(), supported(), refused]));
        assert!(!are_supported(&[]));
    }

    #[test]
    fn each_layer_has_arguments_of_its_own() {
        for num_layers in 1..=MOST_LAYERS {
            let (inputs, outputs) = (inputs(num_layers), outputs(num_layers));
            assert_eq!(inputs.len(), 3 + OWN_INPUTS.len() * num_layers);
            assert_eq!(outputs.len(), 2 + OWN_OUTPUTS.len() * num_layers);
            // A pointer for each, and the numbers of a shape.
            assert!(8 * (inputs.len() + outputs.len()) + 40 <= 4096, "{num_layers} layers");
            let source = source(num_layers);
            let own = inputs.iter().chain(&outputs);
            let is_listed = |name: &&String| source.contains(&format!("uint64_t>({name});"));
            let num_listed = own.filter(is_listed).count();
            let all = (OWN_INPUTS.len() + OWN_OUTPUTS.len()) * num_layers;
            assert_eq!(num_listed, if num_layers == 1 { 0 } else { all });
        }
    }

    #[test]
    fn rows_are_divided_among_the_warps_of_the_blocks() {
        assert!(is_divisible([3072, 2048], 1, 132));
        assert!(is_divisible([2 * 8192, 2048], 2, 132));
        assert!(!is_divisible([2 * 8200, 2048], 2, 132), "a part of a strip");
        assert!(!is_divisible([3072, 2040], 1, 132), "a part of a span");
        assert!(is_divisible([2 * 8192, 2048], 2, 64));
        assert!(!is_divisible([2 * 8192, 2048], 2, 63), "more strips than warps");
    }

    #[test]
    fn keys_are_split_over_the_blocks_that_heads_leave() {
        assert_eq!(splits(32, 132), 4);
        assert_eq!(splits(9, 132), 8, "14 are no power of two");
        assert_eq!(splits(64, 132), 2);
        assert_eq!(splits(160, 132), 1, "fewer blocks than heads");
    }

    #[test]
    fn a_launch_has_the_counters_that_the_one_before_has_written() {
        let mut turns = Turns::default();
        let [first, second] = [turns.number(), turns.number()];
        let zeros = turns.next(first).unwrap();
        assert_eq!(zeros.as_slice::<f32>(), [0.0; NUM_COUNTERS as usize]);
        let written = Array::from_slice(&[7.0f32; NUM_COUNTERS as usize], &[NUM_COUNTERS]);
        turns.counters = Some(written.clone());
        assert_eq!(turns.next(second).unwrap().as_slice::<f32>()[0], 7.0, "of the same pass");
        assert_eq!(turns.next(first).unwrap().as_slice::<f32>()[0], 7.0, "of the next pass");
    }

    #[test]
    fn a_pass_that_nobody_waits_for_is_evaluated_before_the_next() {
        let mut turns = Turns::default();
        let [first, second] = [turns.number(), turns.number()];
        turns.next(first).unwrap();
        let zeros = ops::zeros::<f32>(&[NUM_COUNTERS]).unwrap();
        let given_up = ops::add(&zeros, &zeros).unwrap();
        turns.counters = Some(given_up.clone());
        turns.next(second).unwrap();
        assert!(!ffi::is_available(&given_up), "in the midst of its pass");
        turns.next(first).unwrap();
        ffi::synchronize().unwrap();
        assert!(ffi::is_available(&given_up));
    }

    #[test]
    fn one_thread_at_a_time_launches_whole_layers() {
        let claim = Claim::take();
        assert!(claim.is_some());
        assert!(Claim::take().is_none());
        drop(claim);
        assert!(Claim::take().is_some());
    }
}
