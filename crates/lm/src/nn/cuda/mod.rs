//! Kernels for writing tokens on a CUDA device.
//!
//! MLX's own take some seventeen launches a layer there, each of which costs the host microseconds,
//! and its 4-bit product reads memory at a sixth of an H200's speed, once for each row of a batch.
//! [`Kernels`] do one row's layer in five launches; [`batch_product`] reads the weights once for
//! all rows. They read bfloat16 and MLX's affine 4-bit format; for anything else, and on every
//! other device, models run on MLX's operations.

use std::cell::OnceCell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use crate::cache::KvCache;
use crate::config::Quantization;
use crate::ffi::{self, CudaKernel, Launch};

/// Rows of quantized numbers, as the product reads them.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedRows<'a> {
    /// u32 `[N, K * bits / 32]`
    pub packed: &'a Array,
    /// `[N, K / group_size]`
    pub scales: &'a Array,
    /// `[N, K / group_size]`
    pub biases: &'a Array,
    /// How they are packed.
    pub settings: Quantization,
}

impl QuantizedRows<'_> {
    /// The longest vector that is kept in a block's shared memory.
    const MAX_INPUTS: i32 = 20_480;

    fn inputs(&self) -> i32 {
        self.packed.dim(1) * 32 / self.settings.bits
    }

    /// Whether the kernel reads this format.
    pub fn are_readable(&self) -> bool {
        self.settings.bits == 4
            && self.inputs() <= Self::MAX_INPUTS
            && self.packed.dim(0) % 8 == 0
            && [self.scales, self.biases].iter().all(|array| array.dtype() == Dtype::Bfloat16)
    }
}

/// What a product does before and after, in the same launch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fusion<'a> {
    /// RMS-normalises the input: weight `[K]` and epsilon.
    pub norm: Option<(&'a Array, f32)>,
    /// Takes the first half of the outputs as gate of the second: `silu(gate) * up`.
    pub gated: bool,
    /// Is added to the output.
    pub residual: Option<&'a Array>,
}

/// The kernels, compiled by the device's driver on first use.
#[derive(Debug)]
pub struct Kernels {
    product: CudaKernel,
    attention: CudaKernel,
    combine: CudaKernel,
}

impl Kernels {
    /// The kernels; none where MLX does not compute on a CUDA device that runs them.
    pub fn load() -> Option<Self> {
        if !runs_kernels() {
            return None;
        }
        let product_inputs = ["x", "norm_weight", "residual", "w", "scales", "biases"];
        let attention_inputs = ["qkv", "k", "v", "tail_k", "tail_v", "sizes", "angles"];
        Some(Kernels {
            product: CudaKernel::new(
                "product",
                &product_inputs,
                &["y"],
                include_str!("product.cu"),
            )
            .ok()?,
            attention: CudaKernel::new(
                "attention",
                &attention_inputs,
                &["y", "next_k", "next_v"],
                include_str!("attention.cu"),
            )
            .ok()?,
            combine: CudaKernel::new("combine", &["parts"], &["y"], include_str!("combine.cu"))
                .ok()?,
        })
    }

    /// `x` `[1, 1, K]` times the rows: `[1, 1, N]`, or half of that where they are gated.
    pub fn product(
        &self,
        x: &Array,
        rows: QuantizedRows<'_>,
        fusion: Fusion<'_>,
    ) -> Result<Array, Exception> {
        let outputs = rows.packed.dim(0) / if fusion.gated { 2 } else { 1 };
        // Few rows are spread thin over the device; of many, a warp takes several, which share the
        // input that it has read.
        let (rows_per_warp, warps) = match (outputs < 4096, fusion.gated) {
            (true, _) => (1, 4),
            (false, true) => (2, 8),
            (false, false) => (4, 8),
        };
        let flag = i32::from;
        let [product] = self.product.apply(
            &[
                x,
                fusion.norm.map_or(x, |(weight, _)| weight),
                fusion.residual.unwrap_or(x),
                rows.packed,
                rows.scales,
                rows.biases,
            ],
            Launch {
                constants: &[
                    (c"K", rows.inputs()),
                    (c"N", outputs),
                    (c"GROUP", rows.settings.group_size),
                    (c"ROWS", rows_per_warp),
                    (c"WARPS", warps),
                    (c"UNROLL", 2),
                    (c"NORM", flag(fusion.norm.is_some())),
                    (c"GATED", flag(fusion.gated)),
                    (c"RESIDUAL", flag(fusion.residual.is_some())),
                    (c"EPS_BITS", fusion.norm.map_or(0, |(_, eps)| eps.to_bits() as i32)),
                ],
                blocks: [(outputs + warps * rows_per_warp - 1) / (warps * rows_per_warp), 1, 1],
                threads: warps * 32,
                outputs: [(&[1, 1, outputs], Dtype::Bfloat16)],
            },
        )?;
        Ok(product)
    }

    /// Into how many parts keys are split, so that long contexts fill the device.
    pub fn num_splits(num_keys: i32) -> i32 {
        if num_keys <= 2048 { 1 } else { 16 }
    }

    /// Attention of one token: `inputs` are its queries, keys and values `[1, 1, (H + 2 H_kv) D]`,
    /// the keys and values before it, stored and tail (`[1, H_kv, capacity or TAIL, D]` each),
    /// how many there are (i32 `[2]`), and the angle that each pair of numbers turns by from one
    /// position to the next (f32 `[D / 2]`). Returns what it attends to, `[1, 1, H D]`, and the
    /// tail keys and values with its own behind them.
    pub fn attention(
        &self,
        inputs: &[Array; 7],
        shape: AttentionShape,
    ) -> Result<[Array; 3], Exception> {
        let AttentionShape { heads, kv_heads, head_dim, scale, traditional, splits } = shape;
        let threads = if splits == 1 { 1024 } else { 256 };
        let (whole, parts) = ([1, 1, heads * head_dim], [heads, splits, head_dim + 2]);
        let first: (&[i32], _) =
            if splits == 1 { (&whole, Dtype::Bfloat16) } else { (&parts, Dtype::Float32) };
        let tail: (&[i32], _) = (&[1, kv_heads, KvCache::TAIL_CAPACITY, head_dim], Dtype::Bfloat16);
        let [mut attended, keys, values] = self.attention.apply(
            &inputs.each_ref(),
            Launch {
                constants: &[
                    (c"HEADS", heads),
                    (c"KV_HEADS", kv_heads),
                    (c"D", head_dim),
                    (c"TAIL", KvCache::TAIL_CAPACITY),
                    (c"SPLITS", splits),
                    (c"THREADS", threads),
                    (c"TRADITIONAL", i32::from(traditional)),
                    (c"SCALE_BITS", scale.to_bits() as i32),
                ],
                blocks: [heads, splits, 1],
                threads,
                outputs: [first, tail, tail],
            },
        )?;
        if splits > 1 {
            [attended] = self.combine.apply(
                &[&attended],
                Launch {
                    constants: &[(c"SPLITS", splits), (c"D", head_dim)],
                    blocks: [heads, 1, 1],
                    threads: head_dim,
                    outputs: [(&whole, Dtype::Bfloat16)],
                },
            )?;
        }
        Ok([attended, keys, values])
    }
}

/// Whether MLX computes on a CUDA device of compute capability 8.0 or more, the first with products
/// of bfloat16 matrices. MLX itself also runs on 7.5, and says that a kernel does not compile only
/// when it is waited for.
fn runs_kernels() -> bool {
    thread_local!(static ANSWER: OnceCell<bool> = const { OnceCell::new() });
    let ask = || {
        let kernel =
            CudaKernel::new("compute_capability", &["x"], &["y"], "y[0] = __CUDA_ARCH__;")?;
        let launch = Launch {
            constants: &[],
            blocks: [1, 1, 1],
            threads: 1,
            outputs: [(&[1], Dtype::Int32)],
        };
        let [capability] = kernel.apply(&[&Array::from_slice(&[0], &[1])], launch)?;
        capability.eval()?;
        Ok::<_, Exception>(
            capability.try_as_slice::<i32>().is_ok_and(|capability| capability[0] >= 800),
        )
    };
    ANSWER.with(|answer| *answer.get_or_init(|| ffi::computes_on_cuda() && ask().unwrap_or(false)))
}

thread_local! {
    /// None where the device does not run it. It belongs to no model: whichever loads first must
    /// not be the one that keeps it.
    static BATCH_PRODUCT: OnceCell<Option<CudaKernel>> = const { OnceCell::new() };
}

/// `x` `[B, 1, K]` times the rows, `[B, 1, N]`, or half of that where they are gated. None for a
/// single row, for what the kernel does not read (a norm too), and on other devices.
///
/// MLX multiplies the rows of a batch one by one. Given as rows of one matrix it takes its kernel
/// for prompts, which reads the weights once too, but compiles for 14 to 39 seconds at its first
/// use in a size. Weights are rounded to bfloat16 before they are multiplied, as there.
pub fn batch_product(
    x: &Array,
    rows: QuantizedRows<'_>,
    fusion: Fusion<'_>,
) -> Result<Option<Array>, Exception> {
    const SPAN: i32 = 64; // of numbers that a warp takes at a time
    BATCH_PRODUCT.with(|kernel| {
        let load = || {
            let inputs = ["x", "residual", "w", "scales", "biases"];
            runs_kernels()
                .then(|| {
                    CudaKernel::new(
                        "batch_product",
                        &inputs,
                        &["y"],
                        include_str!("batch_product.cu"),
                    )
                    .ok()
                })
                .flatten()
        };
        let (Some(kernel), &[batch, 1, inputs]) = (kernel.get_or_init(load), x.shape()) else {
            return Ok(None);
        };
        let is_bfloat16 = |array: &Array| array.dtype() == Dtype::Bfloat16;
        let is_readable = rows.are_readable()
            && inputs % SPAN == 0
            && is_bfloat16(x)
            && fusion.residual.is_none_or(is_bfloat16);
        if batch == 1 || !is_readable || fusion.norm.is_some() {
            return Ok(None);
        }
        let outputs = rows.packed.dim(0) / if fusion.gated { 2 } else { 1 };
        // As in a single row's product: where outputs are few, more warps share each. Few variants:
        // each is compiled once on its device.
        let (strips, warps) = if outputs < 8192 && !fusion.gated {
            (1, 16.min(inputs / SPAN))
        } else {
            (2, 4.min(inputs / SPAN))
        };
        let outputs_per_block = if fusion.gated { 16 } else { 16 * strips };
        let tiles = if batch <= 8 { 1 } else { 4 };
        let [product] = kernel.apply(
            &[x, fusion.residual.unwrap_or(x), rows.packed, rows.scales, rows.biases],
            Launch {
                constants: &[
                    (c"K", inputs),
                    (c"N", outputs),
                    (c"GROUP", rows.settings.group_size),
                    (c"STRIPS", strips),
                    (c"TILES", tiles),
                    (c"WARPS", warps),
                    (c"GATED", i32::from(fusion.gated)),
                    (c"RESIDUAL", i32::from(fusion.residual.is_some())),
                ],
                blocks: [
                    (outputs + outputs_per_block - 1) / outputs_per_block,
                    (batch + 8 * tiles - 1) / (8 * tiles),
                    1,
                ],
                threads: warps * 32,
                outputs: [(&[batch, 1, outputs], Dtype::Bfloat16)],
            },
        )?;
        Ok(Some(product))
    })
}

/// What attention is compiled for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Of queries.
    pub heads: i32,
    /// Of keys and values.
    pub kv_heads: i32,
    /// 64, 128 or 256.
    pub head_dim: i32,
    /// Of the scores.
    pub scale: f32,
    /// Whether neighbouring numbers turn together, instead of those half a head apart.
    pub traditional: bool,
    /// From [`Kernels::num_splits`].
    pub splits: i32,
}
