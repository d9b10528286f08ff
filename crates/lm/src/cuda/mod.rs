//! Kernels for decoding on a CUDA device.
//!
//! MLX's own operations take some seventeen launches per layer, each of which costs the host
//! microseconds, and its 4-bit product reads memory at a sixth of an H200's bandwidth, once for
//! each row of a batch. These kernels compute several dense layers for one row in one launch, or
//! each in five, and read the weights once for all rows of a batch. They compute in bfloat16, with
//! matrices in MLX's affine 4-bit format or, except for experts and whole layers in one launch, in
//! bfloat16; everything else runs as MLX's operations.
//!
//! ```text
//! product      norm · product · activation · residual, for one row; the products of chosen experts
//! batch_product      product · activation · residual, for several rows or tokens
//! tall_product       a plain product with a vocabulary's matrix, for one row
//! dense_product, dense_batch_product       the first two with a matrix in bfloat16
//! embedding    the rows of a 4-bit table for up to 64 tokens
//! argmax       the likeliest token of each row
//! attention    head norms · RoPE · append · attention, for one token or a few of one row
//! row_attention       the same for a token of each row of a batch, whose caches may be rings, and for one behind
//!                     a long context
//! norm_residual, route
//! layer        whole dense layers of one token, where as many blocks as multiprocessors run at once
//! ```

mod argmax;
mod attention;
mod attention_constants;
mod dense_product;
mod embedding;
mod experts;
mod layer;
mod multiprocessors;
mod norm_residual;
mod product;
mod row_attention;

use std::cell::OnceCell;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use crate::config::QuantizationMode;
use crate::device_kernels::{
    DeviceKernels, Experts, Fusion, HeadShape, Kernel, Kernels, LayerParts, MatrixRows,
    QuantizedRows, Rotation,
};
use crate::ffi::{Compiled, CudaKernel, KernelSource};

/// The sources, each compiled by MLX on its first launch with the constants it is launched with.
#[derive(Debug)]
pub struct CudaKernels {
    product: Rc<CudaKernel>,
    expert_product: Rc<CudaKernel>,
    batch_product: Rc<CudaKernel>,
    dense_product: Rc<CudaKernel>,
    dense_batch_product: Rc<CudaKernel>,
    tall_product: Rc<CudaKernel>,
    embedding: Rc<CudaKernel>,
    argmax: Rc<CudaKernel>,
    attention: Rc<CudaKernel>,
    row_attention: Rc<CudaKernel>,
    norm_residual: Rc<CudaKernel>,
    route: Rc<CudaKernel>,
    layers: layer::LayerKernels,
}

impl CudaKernels {
    /// The kernels; `None` unless MLX computes on a CUDA device that supports them. All models of a
    /// thread share them.
    pub fn load() -> Kernels {
        thread_local!(static KERNELS: OnceCell<Kernels> = const { OnceCell::new() });
        let new = || {
            let kernels = Self::new(multiprocessors::CudaDevice::find()?).ok()?;
            Some(Rc::new(kernels) as Rc<dyn DeviceKernels>)
        };
        KERNELS.with(|kernels| kernels.get_or_init(new).clone())
    }

    fn new(device: multiprocessors::CudaDevice) -> Result<Self, Exception> {
        let of_matrices = &format!("{HEAD}{}", include_str!("matrix_math.cuh"));
        let of_strips = &format!("{of_matrices}{}", include_str!("strip_product.cuh"));
        let kernel = |head, name: &str, inputs: &[&str], outputs: &[&str], body| {
            let source = KernelSource { head, body, most_threads: None };
            compiled_by_mlx(name, inputs, outputs, source)
        };
        Ok(CudaKernels {
            product: kernel(HEAD, "product", product::INPUTS, &["y"], &product::source())?,
            expert_product: kernel(
                HEAD,
                "expert_product",
                experts::INPUTS,
                &["y"],
                include_str!("product.cu"),
            )?,
            batch_product: kernel(
                of_matrices,
                "batch_product",
                product::BATCH_INPUTS,
                &["y"],
                include_str!("batch_product.cu"),
            )?,
            dense_product: kernel(
                of_matrices,
                "dense_product",
                dense_product::INPUTS,
                &["y"],
                include_str!("dense_product.cu"),
            )?,
            dense_batch_product: kernel(
                of_matrices,
                "dense_batch_product",
                dense_product::BATCH_INPUTS,
                &["y"],
                include_str!("dense_batch_product.cu"),
            )?,
            tall_product: kernel(
                of_strips,
                "tall_product",
                product::TALL_INPUTS,
                &["y"],
                include_str!("tall_product.cu"),
            )?,
            embedding: kernel(
                HEAD,
                "embedding",
                embedding::INPUTS,
                &["y"],
                include_str!("embedding.cu"),
            )?,
            argmax: kernel(HEAD, "argmax", argmax::INPUTS, &["y"], include_str!("argmax.cu"))?,
            attention: kernel(
                HEAD,
                "attention",
                attention_constants::INPUTS,
                attention_constants::OUTPUTS,
                include_str!("attention.cu"),
            )?,
            row_attention: compiled_by_mlx(
                "row_attention",
                attention_constants::INPUTS,
                attention_constants::OUTPUTS,
                KernelSource {
                    head: HEAD,
                    body: include_str!("row_attention.cu"),
                    // A multiprocessor runs two of its blocks at once.
                    most_threads: Some(2 * attention_constants::THREADS),
                },
            )?,
            norm_residual: kernel(
                HEAD,
                "norm_residual",
                &["x", "weight", "residual"],
                &["y"],
                include_str!("norm_residual.cu"),
            )?,
            route: kernel(
                HEAD,
                "route",
                &["logits"],
                &["experts", "shares"],
                include_str!("route.cu"),
            )?,
            layers: layer::LayerKernels::new(of_strips, device.num_multiprocessors)?,
        })
    }
}

/// What all kernels have before them.
const HEAD: &str = include_str!("attention_math.cuh");

fn compiled_by_mlx(
    name: &str,
    inputs: &[&str],
    outputs: &[&str],
    source: KernelSource<'_>,
) -> Result<Rc<CudaKernel>, Exception> {
    // MLX keeps what it has compiled on disk, by name and constants alone: after an update it would run
    // the code of the version before.
    let KernelSource { head, body, .. } = source;
    let version = blake3::hash(format!("{head}{body}").as_bytes()).to_hex();
    let name = format!("{name}_{}", &version[..16]);
    CudaKernel::new(&name, inputs, outputs, source).map(Rc::new)
}

impl DeviceKernels for CudaKernels {
    fn product(&self, rows: MatrixRows<'_>, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        match rows {
            MatrixRows::Dense(rows) => boxed(dense_product::DenseProduct::new(self, rows, fusion)),
            MatrixRows::Quantized(rows) => boxed(product::Product::new(self, rows, fusion)),
        }
    }

    /// MLX's quantized products unpack the matrix again for every tile of vectors. Measured on an
    /// H200 with 8,192 inputs and 2,048 outputs, in ms: 0.26 against 0.12 for 128 vectors, 0.39
    /// against 0.14 for 768, 0.86 against 0.26 for 2,048; for 64 they are equal.
    fn dequantizes_from(&self) -> Option<usize> {
        Some(128)
    }

    fn norm_residual(&self, weight: &Array, eps: f32) -> Option<Box<dyn Kernel>> {
        boxed(norm_residual::NormResidual::new(self, weight, eps))
    }

    fn attention(&self, heads: &HeadShape, rotation: Rotation<'_>) -> Option<Box<dyn Kernel>> {
        boxed(attention::Attention::new(self, *heads, rotation))
    }

    fn experts(&self, experts: Experts<'_>) -> Option<Box<dyn Kernel>> {
        boxed(experts::ExpertKernels::new(self, experts))
    }

    fn embedding(&self, rows: QuantizedRows<'_>) -> Option<Box<dyn Kernel>> {
        boxed(embedding::Embedding::new(self, rows))
    }

    fn argmax(&self) -> Option<Box<dyn Kernel>> {
        boxed(argmax::Argmax::new(self))
    }

    fn layers(&self, layers: &[LayerParts<'_>]) -> Option<Box<dyn Kernel>> {
        boxed(layer::LayerRun::new(&self.layers, layers))
    }
}

fn boxed(kernel: Option<impl Kernel + 'static>) -> Option<Box<dyn Kernel>> {
    kernel.map(|kernel| Box::new(kernel) as Box<dyn Kernel>)
}

/// A function of launches that MLX traces with its first inputs of each shape and then replays,
/// because naming and describing a launch costs the host more than replaying it.
fn traced<const N: usize>(
    launch: impl Fn(&[Array; N]) -> Result<Vec<Array>, Exception> + 'static,
) -> Option<Compiled> {
    Compiled::new(Box::new(move |inputs| launch(&inputs.try_into().map_err(|_| takes(N))?))).ok()
}

/// As [`traced`], for a number of inputs that the kernel's model decides.
fn traced_all(
    num_inputs: usize,
    launch: impl Fn(&[Array]) -> Result<Vec<Array>, Exception> + 'static,
) -> Option<Compiled> {
    let checked = move |inputs: Vec<Array>| match inputs.len() == num_inputs {
        true => launch(&inputs),
        false => Err(takes(num_inputs)),
    };
    Compiled::new(Box::new(checked)).ok()
}

/// The error of a kernel that was given another number of inputs.
fn takes(num_inputs: usize) -> Exception {
    Exception::custom(format!("a kernel takes {num_inputs} arrays"))
}

fn is_bfloat16(array: &Array) -> bool {
    array.dtype() == Dtype::Bfloat16
}

/// The longest vector that fits a block's shared memory.
const MAX_INPUTS: i32 = 20_480;

/// A quantized matrix in the format of the kernels: affine with 4 bits, bfloat16 scales, a number of rows that
/// every launch divides among its warps.
fn is_readable(rows: &QuantizedRows<'_>) -> bool {
    rows.settings.mode == QuantizationMode::Affine
        && rows.settings.bits == 4
        && rows.num_inputs() <= MAX_INPUTS
        && rows.num_rows() % 8 == 0
        && is_bfloat16(rows.scales)
        && rows.biases.is_some_and(is_bfloat16)
}
