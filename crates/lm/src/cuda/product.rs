//! Products with a 4-bit matrix, for one token or for a few: of each row of a batch, or of one sequence.

use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, fast};

use super::{CudaKernels, is_bfloat16, is_readable, traced};
use crate::config::Quantization;
use crate::device_kernels::{Activation, Fusion, Kernel, QuantizedRows};
use crate::ffi::{Compiled, CudaKernel, Launch};

/// The inputs of `product.cu`.
pub(super) const INPUTS: &[&str] = &["x", "norm_weight", "residual", "w", "scales", "biases"];

/// The inputs of `batch_product.cu`.
pub(super) const BATCH_INPUTS: &[&str] = &["x", "residual", "w", "scales", "biases"];

/// `product.cu` without experts.
pub(super) fn source() -> String {
    let experts = "const uint32_t* experts = nullptr;\n  const float* shares = nullptr;\n";
    format!("{experts}{}", include_str!("product.cu"))
}

/// The number that stands for the activation in a kernel's constants.
pub(super) fn activation_constant(activation: Option<Activation>) -> i32 {
    match activation {
        None => 0,
        Some(Activation::Silu) => 1,
        Some(Activation::GeluApprox) => 2,
        Some(Activation::Gelu) => UNKNOWN_ACTIVATION,
    }
}

/// No kernel is made with it.
pub(super) const UNKNOWN_ACTIVATION: i32 = -1;

/// See [`DeviceKernels::product`](crate::device_kernels::DeviceKernels::product).
#[derive(Debug)]
pub(super) struct Product {
    single: Compiled,
    batch: Option<Compiled>,
    num_inputs: i32,
    num_outputs: i32,
    adds_residual: bool,
}

/// The matrix and what surrounds its product, owned by a traced function.
#[derive(Debug, Clone)]
struct Matrix {
    packed: Array,
    scales: Array,
    biases: Array,
    settings: Quantization,
    norm: Option<(Array, f32)>,
    activation: Option<Activation>,
    adds_residual: bool,
    num_inputs: i32,
    num_outputs: i32,
}

impl Product {
    pub(super) fn new(
        kernels: &CudaKernels,
        rows: QuantizedRows<'_>,
        fusion: Fusion<'_>,
    ) -> Option<Self> {
        if !is_readable(&rows)
            || fusion.norm.is_some_and(|(weight, _)| !is_bfloat16(weight))
            || activation_constant(fusion.activation) == UNKNOWN_ACTIVATION
        {
            return None;
        }
        let halves = if fusion.activation.is_some() { 2 } else { 1 };
        let matrix = Matrix {
            packed: rows.packed.clone(),
            scales: rows.scales.clone(),
            biases: rows.biases?.clone(),
            settings: rows.settings,
            norm: fusion.norm.map(|(weight, eps)| (weight.clone(), eps)),
            activation: fusion.activation,
            adds_residual: fusion.adds_residual,
            num_inputs: rows.num_inputs(),
            num_outputs: rows.num_rows() / halves,
        };
        let (num_inputs, num_outputs) = (matrix.num_inputs, matrix.num_outputs);
        Some(Product {
            single: matrix.clone().traced(kernels.product.clone(), Matrix::single)?,
            batch: match num_inputs % SPAN {
                0 => Some(matrix.traced(kernels.batch_product.clone(), Matrix::batch)?),
                _ => None,
            },
            num_inputs,
            num_outputs,
            adds_residual: fusion.adds_residual,
        })
    }
}

impl Kernel for Product {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let [batch, length, width] = *inputs[0].shape() else { return Ok(None) };
        let compiled = match batch * length {
            1 => Some(&self.single),
            _ if length == 1 || batch * length <= MOST_SHORT_ROWS => self.batch.as_ref(),
            _ => None,
        };
        let (Some(compiled), true) = (compiled, width == self.num_inputs) else { return Ok(None) };
        if self.adds_residual && *inputs[1].shape() != [batch, length, self.num_outputs]
            || !inputs.iter().all(|array| is_bfloat16(array))
        {
            return Ok(None);
        }
        compiled.call::<1>(inputs).map(|outputs| Some(outputs.into()))
    }
}

/// The most tokens of rows with several that this product reads: those of a sequence that
/// speculates, or of the end of a prompt. For more, MLX's product was not slower.
const MOST_SHORT_ROWS: i32 = 64;

/// Numbers that a warp of `batch_product.cu` reads at a time.
const SPAN: i32 = 64;

impl Matrix {
    fn traced(
        self,
        kernel: Rc<CudaKernel>,
        launch: fn(&Matrix, &CudaKernel, &Array, Option<&Array>) -> Result<Array, Exception>,
    ) -> Option<Compiled> {
        match self.adds_residual {
            true => traced(move |[x, residual]: &[Array; 2]| {
                Ok(vec![launch(&self, &kernel, x, Some(residual))?])
            }),
            false => traced(move |[x]: &[Array; 1]| Ok(vec![launch(&self, &kernel, x, None)?])),
        }
    }

    /// `x` `[1, 1, K]` to `[1, 1, N]`.
    fn single(
        &self,
        kernel: &CudaKernel,
        x: &Array,
        residual: Option<&Array>,
    ) -> Result<Array, Exception> {
        let outputs = self.num_outputs;
        // A small matrix is spread over as many warps as possible; in a large one a warp computes
        // several outputs with the input that it has read.
        let (rows_per_warp, warps) = match (outputs < 4096, self.activation.is_some()) {
            (true, _) => (1, 4),
            (false, true) => (2, 8),
            (false, false) => (4, 8),
        };
        let (norm_weight, eps) = match &self.norm {
            Some((weight, eps)) => (weight, eps.to_bits() as i32),
            None => (x, 0),
        };
        let [product] = kernel.apply(
            &[x, norm_weight, residual.unwrap_or(x), &self.packed, &self.scales, &self.biases],
            Launch {
                constants: &[
                    (c"K", self.num_inputs),
                    (c"N", outputs),
                    (c"GROUP", self.settings.group_size),
                    (c"ROWS", rows_per_warp),
                    (c"WARPS", warps),
                    (c"UNROLL", 2),
                    (c"NORM", i32::from(self.norm.is_some())),
                    (c"ACTIVATION", activation_constant(self.activation)),
                    (c"RESIDUAL", i32::from(self.adds_residual)),
                    (c"EXPERTS", 0),
                    (c"BLENDED", 0),
                    (c"EPS_BITS", eps),
                ],
                blocks: [(outputs + warps * rows_per_warp - 1) / (warps * rows_per_warp), 1, 1],
                threads: warps * 32,
                outputs: [(&[1, 1, outputs], Dtype::Bfloat16)],
            },
        )?;
        Ok(product)
    }

    /// `x` `[B, L, K]` to `[B, L, N]`.
    ///
    /// MLX multiplies the rows of a batch one by one. If they are passed as one matrix it uses its
    /// prefill kernel, which also reads the weights once, but takes 14 to 39 seconds to compile for
    /// each new size. As in that kernel, weights are rounded to bfloat16 before the multiplication.
    fn batch(
        &self,
        kernel: &CudaKernel,
        x: &Array,
        residual: Option<&Array>,
    ) -> Result<Array, Exception> {
        let normed = match &self.norm {
            Some((weight, eps)) => Some(fast::rms_norm(x, Some(weight), *eps)?),
            None => None,
        };
        let x = normed.as_ref().unwrap_or(x);
        let (batch, length) = (x.dim(0), x.dim(1));
        let (num_rows, inputs, outputs) = (batch * length, self.num_inputs, self.num_outputs);
        let is_gated = self.activation.is_some();
        // As in the product of a single row, small matrices use more warps per output. There are
        // few variants, because each has to be compiled.
        let (strips, warps) = if outputs < 8192 && !is_gated {
            (1, 16.min(inputs / SPAN))
        } else {
            (2, 4.min(inputs / SPAN))
        };
        let outputs_per_block = if is_gated { 16 } else { 16 * strips };
        let tiles = if num_rows <= 8 { 1 } else { 4 };
        let [product] = kernel.apply(
            &[x, residual.unwrap_or(x), &self.packed, &self.scales, &self.biases],
            Launch {
                constants: &[
                    (c"K", inputs),
                    (c"N", outputs),
                    (c"GROUP", self.settings.group_size),
                    (c"STRIPS", strips),
                    (c"TILES", tiles),
                    (c"WARPS", warps),
                    (c"ACTIVATION", activation_constant(self.activation)),
                    (c"RESIDUAL", i32::from(self.adds_residual)),
                ],
                blocks: [
                    (outputs + outputs_per_block - 1) / outputs_per_block,
                    (num_rows + 8 * tiles - 1) / (8 * tiles),
                    1,
                ],
                threads: warps * 32,
                outputs: [(&[batch, length, outputs], Dtype::Bfloat16)],
            },
        )?;
        Ok(product)
    }
}
