//! Products with packed rows, of matrices and of the two sides of attention.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use super::fused;
use crate::device_kernels::QuantizedRows;
use crate::ffi;

/// `x` `[..., K]` times packed rows `[.., N, K]`: `[..., N]`. Leading axes of the two are broadcast.
///
/// For several vectors and rows of a single group, MLX 0.32.2 has a kernel of its own on CUDA devices of
/// compute capability 9.0 (`qmm_sm90`), which reads past the end of the vectors: on an H200, where
/// NaN was there, 555 of 560 products with rows of 64 numbers had NaN among them. These rows, which are
/// short, are dequantized on every CUDA device.
pub(super) fn packed_product(x: &Array, rows: QuantizedRows<'_>) -> Result<Array, Exception> {
    match is_read_past_its_end(x, rows) && ffi::computes_on_cuda() {
        true => dequantized_product(x, rows),
        false => ffi::quantized_matmul(x, rows),
    }
}

/// Which of the two a product takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Transposed.
    Keys,
    Values,
}

/// The product with packed keys, or with packed values.
pub(super) fn packed_side_product(
    left: &Array,
    rows: QuantizedRows<'_>,
    side: Side,
) -> Result<Array, Exception> {
    match side {
        Side::Keys => packed_product(left, rows),
        Side::Values => ffi::quantized_product(left, rows, false),
    }
}

/// Whether that kernel is chosen where it exists: for rows of one group, unless there is one vector and one
/// matrix that is not large.
fn is_read_past_its_end(x: &Array, rows: QuantizedRows<'_>) -> bool {
    const LARGE: i32 = 16_384;
    let (num_inputs, num_rows) = (rows.num_inputs(), rows.num_rows());
    let is_one_vector = x.size() == num_inputs as usize;
    let is_one_matrix = rows.packed.size() == rows.packed.dim(-1) as usize * num_rows as usize;
    rows.settings.mode.has_biases()
        && num_inputs <= rows.settings.group_size
        && !(is_one_vector && is_one_matrix && num_rows <= LARGE)
}

fn dequantized_product(x: &Array, rows: QuantizedRows<'_>) -> Result<Array, Exception> {
    x.matmul(ops::swap_axes(fused::dequantize(rows)?, -1, -2)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::config::Quantization;

    /// Numbers that differ, in `shape`.
    fn numbers(shape: &[i32]) -> Array {
        let count: i32 = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|i| (i * 7 % 31) as f32 / 31.0 - 0.5).collect();
        Array::from_slice(&numbers, shape)
    }

    #[test]
    fn rows_of_one_group_are_read_past_their_end() {
        for (num_inputs, group_size, rows, x, expected) in [
            (64, 64, vec![8], vec![1, 2, 64], true),
            (64, 64, vec![8], vec![2, 1, 64], true),
            (64, 128, vec![8], vec![5, 64], true),
            (64, 64, vec![1, 4, 8], vec![1, 1, 1, 64], true), // a matrix for each head
            (64, 64, vec![16_392], vec![1, 1, 64], true),
            (64, 64, vec![8], vec![1, 1, 64], false),
            (128, 64, vec![8], vec![1, 2, 128], false),
            (64, 32, vec![8], vec![1, 2, 64], false),
        ] {
            let settings = Quantization::affine(group_size, 4);
            let packed = [&rows[..], &[num_inputs / 8]].concat();
            let packed = ops::zeros_dtype(&packed, mlx_rs::Dtype::Uint32).unwrap();
            let scales = ops::zeros::<f32>(&[1]).unwrap(); // not looked at
            let biases = Some(&scales);
            let quantized = QuantizedRows { packed: &packed, scales: &scales, biases, settings };
            let found = is_read_past_its_end(&ops::zeros::<f32>(&x).unwrap(), quantized);
            assert_eq!(found, expected, "{num_inputs} in groups of {group_size}, {rows:?}, {x:?}");
        }
    }

    #[test]
    fn dequantized_rows_have_the_packed_rows_products() {
        let settings = Quantization::affine(64, 4);
        for (x, rows) in [(vec![1, 3, 64], vec![16, 64]), (vec![2, 2, 3, 64], vec![2, 2, 16, 64])] {
            let (packed, scales, biases) = ffi::quantize(&numbers(&rows), settings).unwrap();
            let (x, biases) = (numbers(&x), biases.as_ref());
            let rows = QuantizedRows { packed: &packed, scales: &scales, biases, settings };
            let expected = ffi::quantized_matmul(&x, rows).unwrap();
            let found = dequantized_product(&x, rows).unwrap();
            assert_eq!(found.shape(), expected.shape());
            let far = ops::abs(ops::subtract(&found, &expected).unwrap()).unwrap();
            let far = far.max(None).unwrap().try_item_exact::<f32>().unwrap();
            assert!(far < 1e-5, "{far}");
        }
    }
}
