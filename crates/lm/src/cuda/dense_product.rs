//! Products with a matrix in bfloat16, for one token or for a few: of each row of a batch, or of one
//! sequence.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::product::{Fused, activation_constant};
use super::{CudaKernels, MAX_INPUTS, is_bfloat16};
use crate::device_kernels::{Fusion, Kernel};
use crate::ffi::{Compiled, CudaKernel, Launch};

/// The inputs of `dense_product.cu`.
pub(super) const INPUTS: &[&str] = &["x", "norm_weight", "residual", "w"];

/// The inputs of `dense_batch_product.cu`.
pub(super) const BATCH_INPUTS: &[&str] = &["x", "residual", "w"];

/// The most vectors that share a read of the matrix. For more, MLX's product reads it once too.
const MOST_ROWS: i32 = 8;

/// Numbers that a warp of `dense_batch_product.cu` reads at a time.
const SPAN: i32 = 64;

/// See [`DeviceKernels::product`](crate::device_kernels::DeviceKernels::product).
#[derive(Debug)]
pub(super) struct DenseProduct {
    single: Compiled,
    batch: Option<Compiled>,
    fused: Fused,
}

/// The matrix and what surrounds its product, owned by a traced function.
#[derive(Debug, Clone)]
struct Matrix {
    rows: Array, // [N, K]
    fused: Fused,
}

impl DenseProduct {
    pub(super) fn new(kernels: &CudaKernels, rows: &Array, fusion: Fusion<'_>) -> Option<Self> {
        let matrix = Matrix::new(rows, fusion)?;
        let fused = matrix.fused.clone();
        Some(DenseProduct {
            single: fused.traced(matrix.clone(), kernels.dense_product.clone(), Matrix::single)?,
            batch: match fused.num_inputs % SPAN {
                0 => Some(fused.traced(
                    matrix,
                    kernels.dense_batch_product.clone(),
                    Matrix::batch,
                )?),
                _ => None,
            },
            fused,
        })
    }
}

impl Kernel for DenseProduct {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let Some([batch, length]) = self.fused.vectors(inputs) else { return Ok(None) };
        let compiled = match batch * length {
            1 => Some(&self.single),
            2..=MOST_ROWS => self.batch.as_ref(),
            _ => None,
        };
        let Some(compiled) = compiled else { return Ok(None) };
        compiled.call::<1>(inputs).map(|outputs| Some(outputs.into()))
    }
}

impl Matrix {
    /// `None` for sizes and types that the kernels do not support. They read sixteen bytes of a row
    /// at a time; rows that are not one behind the other MLX would copy for every launch.
    fn new(rows: &Array, fusion: Fusion<'_>) -> Option<Self> {
        let &[num_rows, num_inputs] = rows.shape() else { return None };
        let is_readable = is_bfloat16(rows)
            && *rows.strides() == [num_inputs as usize, 1]
            && num_inputs % 8 == 0
            && num_inputs <= MAX_INPUTS;
        let fused = is_readable.then(|| Fused::new(fusion, num_inputs, num_rows))??;
        Some(Matrix { rows: rows.clone(), fused })
    }

    /// `x` `[1, 1, K]` to `[1, 1, N]`.
    fn single(
        &self,
        kernel: &CudaKernel,
        x: &Array,
        residual: Option<&Array>,
    ) -> Result<Array, Exception> {
        let Fused { activation, adds_residual, num_inputs, num_outputs, .. } = self.fused;
        let [rows_per_warp, warps] = rows_and_warps(num_inputs, num_outputs, activation.is_some());
        let (norm_weight, eps) = self.fused.norm_or(x);
        let [product] = kernel.apply(
            &[x, norm_weight, residual.unwrap_or(x), &self.rows],
            Launch {
                constants: &[
                    (c"K", num_inputs),
                    (c"N", num_outputs),
                    (c"ROWS", rows_per_warp),
                    (c"WARPS", warps),
                    (c"NORM", i32::from(self.fused.norm.is_some())),
                    (c"ACTIVATION", activation_constant(activation)),
                    (c"RESIDUAL", i32::from(adds_residual)),
                    (c"EPS_BITS", eps),
                ],
                blocks: [(num_outputs + warps * rows_per_warp - 1) / (warps * rows_per_warp), 1, 1],
                threads: warps * 32,
                outputs: &[(&[1, 1, num_outputs], Dtype::Bfloat16)],
            },
        )?;
        Ok(product)
    }

    /// `x` `[B, L, K]` to `[B, L, N]`.
    fn batch(
        &self,
        kernel: &CudaKernel,
        x: &Array,
        residual: Option<&Array>,
    ) -> Result<Array, Exception> {
        /// Rows of the matrix that a block computes, of each half.
        const OUTPUTS: i32 = 16;
        let Fused { activation, adds_residual, num_inputs, num_outputs, .. } = self.fused;
        let x = &self.fused.normed(x)?;
        let (batch, length) = (x.dim(0), x.dim(1));
        // Few blocks have more warps, so that as many reads are on their way.
        let warps = (num_inputs / SPAN).min(if num_outputs < 8192 { 16 } else { 8 });
        let [product] = kernel.apply(
            &[x, residual.unwrap_or(x), &self.rows],
            Launch {
                constants: &[
                    (c"K", num_inputs),
                    (c"N", num_outputs),
                    (c"WARPS", warps),
                    (c"ACTIVATION", activation_constant(activation)),
                    (c"RESIDUAL", i32::from(adds_residual)),
                ],
                blocks: [(num_outputs + OUTPUTS - 1) / OUTPUTS, 1, 1],
                threads: warps * 32,
                outputs: &[(&[batch, length, num_outputs], Dtype::Bfloat16)],
            },
        )?;
        Ok(product)
    }
}

/// How many outputs a warp of `dense_product.cu` computes at a time, and how many warps a block has.
/// With several outputs less of the input is read from shared memory, and fewer blocks prepare it; but
/// every multiprocessor needs reads on their way.
fn rows_and_warps(num_inputs: i32, num_outputs: i32, is_gated: bool) -> [i32; 2] {
    /// Four on each multiprocessor of an H100.
    const LEAST_BLOCKS: i32 = 512;
    /// Up to here a block prepares its input in no time.
    const SHORT: i32 = 4096;
    let most_rows = if is_gated { 2 } else { 4 };
    let rows = [4, 2]
        .into_iter()
        .find(|&rows| rows <= most_rows && num_outputs / (8 * rows) >= LEAST_BLOCKS);
    let is_small = num_outputs / 8 < LEAST_BLOCKS && num_inputs <= SHORT;
    [rows.unwrap_or(1), if is_small { 4 } else { 8 }]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use mlx_rs::ops;

    use super::*;
    use crate::device_kernels::Activation;

    fn zeros(shape: &[i32], dtype: Dtype) -> Array {
        let zeros = ops::zeros_dtype(shape, dtype).unwrap();
        zeros.eval().unwrap();
        zeros
    }

    #[test]
    fn matrices_in_bfloat16_are_supported_row_after_row() {
        let is_supported = |rows: &Array, fusion| Matrix::new(rows, fusion).is_some();
        let plain = Fusion::default();
        let check = |shape: &[i32], dtype, expected, what| {
            assert_eq!(is_supported(&zeros(shape, dtype), plain), expected, "{what}");
        };
        check(&[100, 2048], Dtype::Bfloat16, true, "usual");
        check(&[7, 8], Dtype::Bfloat16, true, "any number of rows");
        check(&[2, MAX_INPUTS], Dtype::Bfloat16, true, "the longest row");
        check(&[2, MAX_INPUTS + 8], Dtype::Bfloat16, false, "a longer row");
        check(&[100, 36], Dtype::Bfloat16, false, "a part of sixteen bytes");
        check(&[100, 2048], Dtype::Float16, false, "half precision");
        check(&[100, 2048], Dtype::Float32, false, "single precision");
        check(&[2, 100, 2048], Dtype::Bfloat16, false, "several matrices");

        let rows = zeros(&[64, 64], Dtype::Bfloat16);
        let columns = rows.transpose().unwrap();
        columns.eval().unwrap();
        assert!(!is_supported(&columns, plain), "column after column");
        let both = columns.transpose().unwrap();
        both.eval().unwrap();
        assert!(is_supported(&both, plain), "a view of rows");
    }

    #[test]
    fn what_surrounds_a_product_is_supported_in_the_types_of_the_kernels() {
        let rows = zeros(&[64, 32], Dtype::Bfloat16);
        let [norm, single] = [Dtype::Bfloat16, Dtype::Float32].map(|dtype| zeros(&[32], dtype));
        let gated = |activation| Fusion {
            norm: Some((&norm, 1e-5)),
            activation: Some(activation),
            adds_residual: false,
        };
        let fused = Matrix::new(&rows, gated(Activation::Silu)).unwrap().fused;
        assert_eq!([fused.num_inputs, fused.num_outputs], [32, 32], "two halves");
        assert!(Matrix::new(&rows, gated(Activation::GeluApprox)).is_some());
        assert!(Matrix::new(&rows, gated(Activation::Gelu)).is_none(), "an unknown gate");
        let in_single = Fusion { norm: Some((&single, 1e-5)), ..Fusion::default() };
        assert!(Matrix::new(&rows, in_single).is_none(), "a norm in single precision");
    }

    #[test]
    fn vectors_of_other_sizes_and_types_are_refused() {
        let rows = zeros(&[64, 32], Dtype::Bfloat16);
        let fusion = Fusion { adds_residual: true, ..Fusion::default() };
        let fused = Matrix::new(&rows, fusion).unwrap().fused;
        let vectors = |x: &[i32], residual: &[i32], dtype| {
            fused.vectors(&[&zeros(x, dtype), &zeros(residual, dtype)])
        };
        assert_eq!(vectors(&[2, 3, 32], &[2, 3, 64], Dtype::Bfloat16), Some([2, 3]));
        assert_eq!(vectors(&[1, 1, 32], &[1, 1, 32], Dtype::Bfloat16), None, "the residual");
        assert_eq!(vectors(&[1, 1, 64], &[1, 1, 64], Dtype::Bfloat16), None, "longer");
        assert_eq!(vectors(&[1, 32], &[1, 64], Dtype::Bfloat16), None, "two axes");
        assert_eq!(vectors(&[1, 1, 32], &[1, 1, 64], Dtype::Float32), None, "single precision");
    }

    #[test]
    fn a_warp_computes_several_outputs_where_blocks_are_left_for_the_device() {
        assert_eq!(rows_and_warps(2048, 3072, false), [1, 4], "projections of a 1B");
        assert_eq!(rows_and_warps(2048, 8192, true), [2, 8], "its gate and up");
        assert_eq!(rows_and_warps(8192, 2048, false), [1, 8], "its down");
        assert_eq!(rows_and_warps(2048, 128_256, false), [4, 8], "its head");
        assert_eq!(rows_and_warps(2048, 128_256, true), [2, 8], "no more of two halves");
        assert_eq!(rows_and_warps(4096, 8192, false), [2, 8]);
        assert_eq!(rows_and_warps(8, 1, false), [1, 4]);
    }
}
