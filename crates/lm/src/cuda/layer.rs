//! A whole layer of one token in one launch.
//!
//! A layer by parts takes five launches, each of which costs the host some ten microseconds, and the
//! device a ramp. In one launch the blocks wait for each other between the parts, and read the first
//! numbers of the next part before they wait.
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
use super::{is_bfloat16, is_readable, traced};
use crate::device_kernels::{HeadShape, Kernel, LayerParts, QuantizedRows};
use crate::ffi::{self, Compiled, CudaKernel, Launch};

/// The inputs of `layer.cu`.
pub(super) const INPUTS: &[&str] = &[
    "x",
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
    "slot_mapping",
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
    "turn",
];

/// The outputs of `layer.cu`.
pub(super) const OUTPUTS: &[&str] = &["y", "next_k", "next_v", "scratch"];

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

/// Where the models of a thread get what their layers share.
#[derive(Debug)]
pub(super) struct LayerKernel {
    kernel: Rc<CudaKernel>,
    /// How many blocks run at once.
    blocks: i32,
    /// While a model has such layers.
    shared: RefCell<Weak<WholeLayers>>,
}

impl LayerKernel {
    pub(super) fn new(kernel: Rc<CudaKernel>, blocks: i32) -> Self {
        LayerKernel { kernel, blocks, shared: RefCell::default() }
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
    /// The number of the layer that was launched last.
    last: usize,
    num_layers: usize,
}

impl Turns {
    /// The number of one more layer. Those of a model follow each other.
    fn number(&mut self) -> usize {
        self.num_layers += 1;
        self.num_layers
    }

    /// The counters for a launch of the layer `number`.
    ///
    /// A layer that does not come behind the last one begins another pass. What the pass before launched
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

/// See [`DeviceKernels::layer`](crate::device_kernels::DeviceKernels::layer).
#[derive(Debug)]
pub(super) struct Layer {
    layers: Rc<WholeLayers>,
    compiled: Compiled,
    number: usize,
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
#[derive(Debug, Clone, Copy)]
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

impl Layer {
    pub(super) fn new(launches: &LayerKernel, parts: LayerParts<'_>) -> Option<Self> {
        let constants = Constants::of(&parts, launches.blocks)?;
        let weights = Weights::of(&parts)?;
        let layers = launches.shared()?;
        let kernel = launches.kernel.clone();
        let compiled =
            traced(move |inputs: &[Array; 7]| constants.launch(&kernel, &weights, inputs))?;
        let number = layers.turns.borrow_mut().number();
        let (hidden, kv_heads) = (constants.hidden, constants.heads.kv_heads);
        Some(Layer { layers, compiled, number, hidden, kv_heads })
    }
}

impl Kernel for Layer {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let &[x, keys, values, newest_keys, newest_values, slot_mapping] = inputs else {
            return Ok(None);
        };
        let fits = *x.shape() == [1, 1, self.hidden]
            && keys.shape()[..2] == [1, self.kv_heads]
            && newest_keys.nbytes() <= MAX_NEWEST_BYTES
            && inputs[..5].iter().all(|array| is_bfloat16(array));
        if !fits {
            return Ok(None);
        }
        let mut turns = self.layers.turns.borrow_mut();
        let turn = turns.next(self.number)?;
        let inputs = [x, keys, values, newest_keys, newest_values, slot_mapping, &turn];
        // A call that fails launches nothing, so that the next has the same turn.
        let [output, keys, values, next_turn] = self.compiled.call::<4>(&inputs)?;
        turns.counters = Some(next_turn);
        Ok(Some(vec![output, keys, values]))
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
}

impl Constants {
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
        weights: &Weights,
        [x, keys, values, newest_keys, newest_values, slot_mapping, turn]: &[Array; 7],
    ) -> Result<Vec<Array>, Exception> {
        let HeadShape { heads, kv_heads, head_dim, scale, .. } = self.heads;
        let newest = newest_keys.dim(2);
        let shared = match keys.dim(2) >= SHARES_KEYS_FROM {
            true => row_attention::shared_heads(heads / kv_heads, MOST_SHARED),
            false => 1,
        };
        let splits = splits(heads / shared, self.blocks);
        let [eps, network_eps, head_eps] = self.eps.map(|eps| eps.to_bits() as i32);
        let Weights { norms: [norm, network_norm], angles, .. } = weights;
        let [query_norm, key_norm] = match &weights.head_norms {
            Some(norms) => norms.each_ref(),
            None => [x, x], // not read
        };
        let before = [x, norm].into_iter().chain(&weights.projections);
        let attention =
            [angles, query_norm, key_norm, keys, values, newest_keys, newest_values, slot_mapping];
        let inputs: Vec<&Array> = before
            .chain(attention)
            .chain(&weights.attention_output)
            .chain([network_norm])
            .chain(&weights.gate_up)
            .chain(&weights.down)
            .chain([turn])
            .collect();
        let next: (&[i32], _) = (&[1, kv_heads, newest, head_dim], Dtype::Bfloat16);
        let [output, keys, values, next_turn] = kernel.apply(
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
                outputs: [
                    (&[1, 1, self.hidden], Dtype::Bfloat16),
                    next,
                    next,
                    (&[self.scratch(splits)], Dtype::Float32),
                ],
            },
        )?;
        Ok(vec![output, keys, values, next_turn])
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
        let Sizes { hidden, intermediate, heads: [heads, kv_heads, head_dim], .. } = sizes;
        let usual = Quantization::affine(64, 4);
        let projections = Matrix::new((heads + 2 * kv_heads) * head_dim, hidden, usual);
        let attention_output = Matrix::new(hidden, heads * head_dim, usual);
        let gate_up = Matrix::new(2 * intermediate, hidden, usual);
        let down = Matrix::new(hidden, intermediate, sizes.down);
        let norm = ops::zeros_dtype(&[hidden], sizes.norm).unwrap();
        let angles = Array::from_slice(&[1.0f32, 0.5], &[2]);
        let parts = LayerParts {
            norms: [(&norm, 1e-5); 2],
            projections: projections.rows(),
            heads: HeadShape::new(heads, kv_heads, head_dim),
            rotation: Rotation { norms: None, angles: &angles, traditional: false },
            attention_output: attention_output.rows(),
            gate_up: gate_up.rows(),
            activation: sizes.activation,
            down: down.rows(),
        };
        Constants::of(&parts, 132).is_some()
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
