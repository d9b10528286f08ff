//! Kernels for decoding on a CUDA device.
//!
//! MLX's own operations take some seventeen launches per layer, each of which costs the host
//! microseconds, and its 4-bit product reads memory at a sixth of an H200's bandwidth, once for
//! each row of a batch. [`Kernels`] compute a layer for one row in five launches; [`batch_product`]
//! reads the weights once for all rows. They support bfloat16 and MLX's affine 4-bit format; for
//! other formats and devices, models use MLX's operations.

use std::cell::OnceCell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use crate::cache::KvCache;
use crate::config::Quantization;
use crate::ffi::{self, CudaKernel, Launch};

/// A quantized matrix `[N, K]`, as the kernels read it.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedRows<'a> {
    /// u32 `[N, K * bits / 32]`
    pub packed: &'a Array,
    /// `[N, K / group_size]`
    pub scales: &'a Array,
    /// `[N, K / group_size]`
    pub biases: &'a Array,
    /// Group size and bits.
    pub settings: Quantization,
}

impl QuantizedRows<'_> {
    /// The longest vector that fits a block's shared memory.
    const MAX_INPUTS: i32 = 20_480;

    fn inputs(&self) -> i32 {
        self.packed.dim(1) * 32 / self.settings.bits
    }

    /// Whether the kernels support this format.
    pub fn are_readable(&self) -> bool {
        self.settings.bits == 4
            && self.inputs() <= Self::MAX_INPUTS
            && self.packed.dim(0) % 8 == 0
            && [self.scales, self.biases].iter().all(|array| array.dtype() == Dtype::Bfloat16)
    }
}

/// Operations before and after a product, in the same launch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fusion<'a> {
    /// RMS-normalizes the input with a weight `[K]` and epsilon.
    pub norm: Option<(&'a Array, f32)>,
    /// Computes `silu(gate) * up`, where the first half of the outputs is the gate.
    pub gated: bool,
    /// Is added to the output; of the output's shape.
    pub residual: Option<&'a Array>,
}

/// The kernels for a single row. Each is compiled on its first launch.
#[derive(Debug)]
pub struct Kernels {
    product: CudaKernel,
    attention: CudaKernel,
    combine: CudaKernel,
}

impl Kernels {
    /// The kernels; `None` unless MLX computes on a CUDA device that supports them.
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

    /// `x` `[1, 1, K]` times the matrix: `[1, 1, N]`, or `[1, 1, N / 2]` if gated.
    pub fn product(
        &self,
        x: &Array,
        rows: QuantizedRows<'_>,
        fusion: Fusion<'_>,
    ) -> Result<Array, Exception> {
        let outputs = rows.packed.dim(0) / if fusion.gated { 2 } else { 1 };
        // A small matrix is spread over as many warps as possible; in a large one a warp computes
        // several outputs with the input that it has read.
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

    /// The number of parts into which keys are split, so that long contexts occupy the device.
    pub fn num_splits(num_keys: i32) -> i32 {
        if num_keys <= 2048 { 1 } else { 16 }
    }

    /// Attention of one token, RoPE included. The inputs are:
    ///
    /// 1. the token's queries, keys and values, `[1, 1, (H + 2 H_kv) D]`;
    /// 2. and 3. the cache's keys and values, `[1, H_kv, capacity, D]`;
    /// 4. and 5. the tail buffer's keys and values, `[1, H_kv, TAIL_CAPACITY, D]`;
    /// 6. how many tokens are in the cache and in the tail buffer, i32 `[2]`;
    /// 7. the rotation angles of [`Rope::angles`](crate::nn::Rope::angles), f32 `[D / 2]`.
    ///
    /// Returns the attention output `[1, 1, H D]`, and the tail buffer's keys and values with those
    /// of the token appended.
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

/// Whether MLX computes on a CUDA device of compute capability 8.0 or more, the first with bfloat16
/// matrix products. MLX itself supports 7.5 too, and reports a kernel that does not compile only
/// when its result is waited for.
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
    /// `None` if the device does not support it. It belongs to the thread and not to a model, so
    /// that all models share it.
    static BATCH_PRODUCT: OnceCell<Option<CudaKernel>> = const { OnceCell::new() };
}

/// `x` `[B, 1, K]` times the matrix: `[B, 1, N]`, or `[B, 1, N / 2]` if gated. `None` for a single
/// row, for formats and fusions that the kernel does not support (a norm), and on other devices.
///
/// MLX multiplies the rows of a batch one by one. If they are passed as one matrix it uses its
/// prefill kernel, which also reads the weights once, but takes 14 to 39 seconds to compile for
/// each new size. As in that kernel, weights are rounded to bfloat16 before the multiplication.
pub fn batch_product(
    x: &Array,
    rows: QuantizedRows<'_>,
    fusion: Fusion<'_>,
) -> Result<Option<Array>, Exception> {
    const SPAN: i32 = 64; // numbers that a warp reads at a time
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
        // As in the product of a single row, small matrices use more warps per output. There are
        // few variants, because each has to be compiled.
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

/// The constants that the attention kernel is compiled with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// The number of query heads.
    pub heads: i32,
    /// The number of key/value heads.
    pub kv_heads: i32,
    /// The head size: 64, 128 or 256.
    pub head_dim: i32,
    /// The factor of the attention scores.
    pub scale: f32,
    /// Whether RoPE rotates neighbouring numbers, instead of those half a head apart.
    pub traditional: bool,
    /// The result of [`Kernels::num_splits`].
    pub splits: i32,
}
