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

/// The inputs of `tall_product.cu`.
pub(super) const TALL_INPUTS: &[&str] = &["x", "w", "scales", "biases"];

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
    fused: Fused,
}

/// The matrix and what surrounds its product, owned by a traced function.
#[derive(Debug, Clone)]
struct Matrix {
    packed: Array,
    scales: Array,
    biases: Array,
    settings: Quantization,
    fused: Fused,
}

/// What surrounds a product, and its sizes.
#[derive(Debug, Clone)]
pub(super) struct Fused {
    pub(super) norm: Option<(Array, f32)>,
    pub(super) activation: Option<Activation>,
    pub(super) adds_residual: bool,
    pub(super) num_inputs: i32,
    /// Half as many as the matrix has rows where an activation joins its halves.
    pub(super) num_outputs: i32,
}

impl Fused {
    /// `None` for what no kernel computes.
    pub(super) fn new(fusion: Fusion<'_>, num_inputs: i32, num_rows: i32) -> Option<Self> {
        if fusion.norm.is_some_and(|(weight, _)| !is_bfloat16(weight))
            || activation_constant(fusion.activation) == UNKNOWN_ACTIVATION
        {
            return None;
        }
        let halves = if fusion.activation.is_some() { 2 } else { 1 };
        Some(Fused {
            norm: fusion.norm.map(|(weight, eps)| (weight.clone(), eps)),
            activation: fusion.activation,
            adds_residual: fusion.adds_residual,
            num_inputs,
            num_outputs: num_rows / halves,
        })
    }

    /// B and L of the vectors `[B, L, K]` among the inputs; `None` if they or the residual have
    /// other sizes or types.
    pub(super) fn vectors(&self, inputs: &[&Array]) -> Option<[i32; 2]> {
        let [batch, length, width] = *inputs[0].shape() else { return None };
        let fits = width == self.num_inputs
            && (!self.adds_residual || *inputs[1].shape() == [batch, length, self.num_outputs])
            && inputs.iter().all(|array| is_bfloat16(array));
        fits.then_some([batch, length])
    }

    /// The launch of a matrix as a function of x and, if the product adds it, the residual.
    pub(super) fn traced<M: 'static>(
        &self,
        matrix: M,
        kernel: Rc<CudaKernel>,
        launch: fn(&M, &CudaKernel, &Array, Option<&Array>) -> Result<Array, Exception>,
    ) -> Option<Compiled> {
        match self.adds_residual {
            true => traced(move |[x, residual]: &[Array; 2]| {
                Ok(vec![launch(&matrix, &kernel, x, Some(residual))?])
            }),
            false => traced(move |[x]: &[Array; 1]| Ok(vec![launch(&matrix, &kernel, x, None)?])),
        }
    }

    /// The norm's weight and the bits of its epsilon; `x`, which is not read, where there is none.
    pub(super) fn norm_or<'a>(&'a self, x: &'a Array) -> (&'a Array, i32) {
        match &self.norm {
            Some((weight, eps)) => (weight, eps.to_bits() as i32),
            None => (x, 0),
        }
    }

    /// `x` as a kernel without a norm reads it.
    pub(super) fn normed(&self, x: &Array) -> Result<Array, Exception> {
        match &self.norm {
            Some((weight, eps)) => fast::rms_norm(x, Some(weight), *eps),
            None => Ok(x.clone()),
        }
    }
}

impl Product {
    pub(super) fn new(
        kernels: &CudaKernels,
        rows: QuantizedRows<'_>,
        fusion: Fusion<'_>,
    ) -> Option<Self> {
        if !is_readable(&rows) {
            return None;
        }
        let fused = Fused::new(fusion, rows.num_inputs(), rows.num_rows())?;
        let matrix = Matrix {
            packed: rows.packed.clone(),
            scales: rows.scales.clone(),
            biases: rows.biases?.clone(),
            settings: rows.settings,
            fused: fused.clone(),
        };
        let single = match matrix.is_tall() {
            true => fused.traced(matrix.clone(), kernels.tall_product.clone(), Matrix::tall)?,
            false => fused.traced(matrix.clone(), kernels.product.clone(), Matrix::single)?,
        };
        Some(Product {
            single,
            batch: match fused.num_inputs % SPAN {
                0 => Some(fused.traced(matrix, kernels.batch_product.clone(), Matrix::batch)?),
                _ => None,
            },
            fused,
        })
    }
}

impl Kernel for Product {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let Some([batch, length]) = self.fused.vectors(inputs) else { return Ok(None) };
        let compiled = match batch * length {
            1 => Some(&self.single),
            _ if length == 1 || batch * length <= MOST_SHORT_ROWS => self.batch.as_ref(),
            _ => None,
        };
        let Some(compiled) = compiled else { return Ok(None) };
        compiled.call::<1>(inputs).map(|outputs| Some(outputs.into()))
    }
}

/// The most tokens of rows with several that this product reads: those of a sequence that
/// speculates, or of the end of a prompt. For more, MLX's product was not slower.
const MOST_SHORT_ROWS: i32 = 64;

/// Numbers that a warp of `batch_product.cu` reads at a time.
const SPAN: i32 = 64;

/// Rows that a warp of `tall_product.cu` computes at a time.
const STRIP: i32 = 16;

impl Matrix {
    /// `x` `[1, 1, K]` to `[1, 1, N]`.
    fn single(
        &self,
        kernel: &CudaKernel,
        x: &Array,
        residual: Option<&Array>,
    ) -> Result<Array, Exception> {
        let Fused { activation, adds_residual, num_inputs, num_outputs: outputs, .. } = self.fused;
        // A small matrix is spread over as many warps as possible; in a large one a warp computes
        // several outputs with the input that it has read.
        let (rows_per_warp, warps) = match (outputs < 4096, activation.is_some()) {
            (true, _) => (1, 4),
            (false, true) => (2, 8),
            (false, false) => (4, 8),
        };
        let (norm_weight, eps) = self.fused.norm_or(x);
        let [product] = kernel.apply(
            &[x, norm_weight, residual.unwrap_or(x), &self.packed, &self.scales, &self.biases],
            Launch {
                constants: &[
                    (c"K", num_inputs),
                    (c"N", outputs),
                    (c"GROUP", self.settings.group_size),
                    (c"ROWS", rows_per_warp),
                    (c"WARPS", warps),
                    (c"UNROLL", 2),
                    (c"NORM", i32::from(self.fused.norm.is_some())),
                    (c"ACTIVATION", activation_constant(activation)),
                    (c"RESIDUAL", i32::from(adds_residual)),
                    (c"EXPERTS", 0),
                    (c"BLENDED", 0),
                    (c"EPS_BITS", eps),
                ],
                blocks: [(outputs + warps * rows_per_warp - 1) / (warps * rows_per_warp), 1, 1],
                threads: warps * 32,
                outputs: &[(&[1, 1, outputs], Dtype::Bfloat16)],
            },
        )?;
        Ok(product)
    }

    /// Whether the plain product with one vector takes tensor cores: unpacking numbers costs more than
    /// reading them once there are so many rows. On an H200 a vocabulary of 128,256 tokens takes 38
    /// instead of 58 µs.
    fn is_tall(&self) -> bool {
        const LEAST_ROWS: i32 = 16_384;
        let Fused { norm, activation, adds_residual, num_inputs, num_outputs } = &self.fused;
        norm.is_none()
            && activation.is_none()
            && !adds_residual
            && *num_outputs >= LEAST_ROWS
            && num_outputs % STRIP == 0
            && num_inputs % SPAN == 0
            && matches!(self.settings.group_size, 32 | 64 | 128)
            // The kernel's indices are 32 bits wide.
            && i64::from(*num_outputs) * i64::from(*num_inputs) < i64::from(i32::MAX) * 32
    }

    /// As [`Matrix::single`], for a tall matrix.
    fn tall(
        &self,
        kernel: &CudaKernel,
        x: &Array,
        _residual: Option<&Array>,
    ) -> Result<Array, Exception> {
        const WARPS: i32 = 8;
        let Fused { num_inputs, num_outputs, .. } = self.fused;
        let [product] = kernel.apply(
            &[x, &self.packed, &self.scales, &self.biases],
            Launch {
                constants: &[
                    (c"K", num_inputs),
                    (c"N", num_outputs),
                    (c"GROUP", self.settings.group_size),
                    (c"WARPS", WARPS),
                ],
                blocks: [(num_outputs / STRIP + WARPS - 1) / WARPS, 1, 1],
                threads: WARPS * 32,
                outputs: &[(&[1, 1, num_outputs], Dtype::Bfloat16)],
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
        let Fused { activation, adds_residual, num_inputs: inputs, num_outputs: outputs, .. } =
            self.fused;
        let x = &self.fused.normed(x)?;
        let (batch, length) = (x.dim(0), x.dim(1));
        let num_rows = batch * length;
        let is_gated = activation.is_some();
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
                    (c"ACTIVATION", activation_constant(activation)),
                    (c"RESIDUAL", i32::from(adds_residual)),
                ],
                blocks: [
                    (outputs + outputs_per_block - 1) / outputs_per_block,
                    (num_rows + 8 * tiles - 1) / (8 * tiles),
                    1,
                ],
                threads: warps * 32,
                outputs: &[(&[batch, length, outputs], Dtype::Bfloat16)],
            },
        )?;
        Ok(product)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use mlx_rs::ops;

    use super::*;

    #[test]
    fn a_plain_product_with_many_rows_is_tall() {
        let norm = ops::ones::<f32>(&[576]).unwrap().as_dtype(Dtype::Bfloat16).unwrap();
        let plain = Fusion::default();
        let normed = Fusion { norm: Some((&norm, 1e-5)), ..plain };
        let gated = Fusion { activation: Some(Activation::Silu), ..plain };
        let added = Fusion { adds_residual: true, ..plain };
        for (num_rows, num_inputs, fusion, expected) in [
            (49_152, 576, plain, true),
            (16_384, 576, plain, true),
            (16_368, 576, plain, false), // few rows
            (49_160, 576, plain, false), // a part of a strip
            (49_152, 608, plain, false), // a part of a span
            (49_152, 576, normed, false),
            (98_304, 576, gated, false),
            (49_152, 576, added, false),
        ] {
            let zeros = || ops::zeros::<f32>(&[1]).unwrap();
            let matrix = Matrix {
                packed: zeros(),
                scales: zeros(),
                biases: zeros(),
                settings: Quantization::affine(64, 4),
                fused: Fused::new(fusion, num_inputs, num_rows).unwrap(),
            };
            assert_eq!(matrix.is_tall(), expected, "{num_rows} rows of {num_inputs}, {fusion:?}");
        }
    }
}
