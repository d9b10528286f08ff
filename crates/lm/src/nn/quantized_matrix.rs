//! A matrix in one of MLX's quantized formats.

use std::cell::OnceCell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::config::Quantization;
use crate::device_kernels::{Fusion, Kernel, Kernels, MatrixRows, QuantizedRows, run};
use crate::dtype::item_size;
use crate::ffi;
use crate::nn::fused;
use crate::nn::packed_product::packed_product;
use crate::weights::Layer;

/// A larger matrix stays packed, as a head over a large vocabulary does: dequantized it would take
/// more memory than the layers.
const MOST_DEQUANTIZED_BYTES: usize = 256 << 20;

/// A quantized matrix `[N, K]` that multiplies vectors of K numbers.
#[derive(Debug)]
pub struct QuantizedMatrix {
    packed: Array,         // u32 [N, K * bits / 32]
    scales: Array,         // [N, K / group_size]
    biases: Option<Array>, // [N, K / group_size], in affine mode
    settings: Quantization,
    kernels: Kernels,
    product: OnceCell<Option<Box<dyn Kernel>>>, // for `product`, asked for on its first call
}

impl QuantizedMatrix {
    /// Takes the packed `weight`, `scales` and, in affine mode, `biases` of the layer.
    pub fn load(
        layer: &mut Layer,
        inputs: i32,
        outputs: i32,
        settings: Quantization,
    ) -> Result<Self, LmError> {
        let (packed, scales, biases) = layer.take_quantized(inputs, outputs, settings)?;
        Ok(QuantizedMatrix {
            packed,
            scales,
            biases,
            settings,
            kernels: layer.kernels(),
            product: OnceCell::new(),
        })
    }

    /// Packed numbers, scales and biases without kernels.
    #[cfg(test)]
    pub(super) fn from_arrays(
        (packed, scales, biases): (Array, Array, Option<Array>),
        settings: Quantization,
    ) -> Self {
        let product = OnceCell::new();
        QuantizedMatrix { packed, scales, biases, settings, kernels: None, product }
    }

    /// The device's kernel for products with this matrix.
    pub fn kernel(&self, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        self.kernels.as_ref()?.product(MatrixRows::Quantized(self.rows()), fusion)
    }

    /// The device's kernel for [`QuantizedMatrix::dequantized_rows`] of token ids.
    pub fn lookup_kernel(&self) -> Option<Box<dyn Kernel>> {
        self.kernels.as_ref()?.embedding(self.rows())
    }

    /// `x` `[..., K]` to `[..., N]`.
    pub fn product(&self, x: &Array) -> Result<Array, Exception> {
        let kernel = self.product.get_or_init(|| self.kernel(Fusion::default()));
        if let Some([product]) = run(kernel.as_deref(), &[x]) {
            return Ok(product);
        }
        if self.is_dequantized_for(x) {
            return self.product_with_dense(x);
        }
        packed_product(x, self.rows())
    }

    fn is_dequantized_for(&self, x: &Array) -> bool {
        let Some(least) = self.kernels.as_ref().and_then(|kernels| kernels.dequantizes_from())
        else {
            return false;
        };
        let (num_inputs, num_outputs) = (self.rows().num_inputs(), self.rows().num_rows());
        let dtype = self.rows().dtype();
        let num_bytes = num_inputs as usize * num_outputs as usize * item_size(dtype);
        x.size() / num_inputs as usize >= least
            && num_bytes <= MOST_DEQUANTIZED_BYTES
            && x.dtype() == dtype
    }

    /// `x` `[..., K]` to `[..., N]`, with the whole matrix dequantized first.
    fn product_with_dense(&self, x: &Array) -> Result<Array, Exception> {
        let dense = ffi::dequantize(self.rows())?;
        let vectors = ops::reshape(x, &[-1, self.rows().num_inputs()])?;
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.rows().num_rows();
        }
        ops::reshape(&ops::matmul(&vectors, dense.transpose()?)?, &shape)
    }

    /// The rows `indices` as dense vectors.
    pub fn dequantized_rows(&self, indices: &Array) -> Result<Array, Exception> {
        fused::dequantize(self.select(indices)?.rows())
    }

    /// The arrays, borrowed.
    pub fn rows(&self) -> QuantizedRows<'_> {
        QuantizedRows {
            packed: &self.packed,
            scales: &self.scales,
            biases: self.biases.as_ref(),
            settings: self.settings,
        }
    }

    /// The rows of all `matrices`, one after another; `None` if their settings differ.
    pub fn stack(matrices: &[&QuantizedMatrix]) -> Result<Option<Self>, Exception> {
        let Some(first) = matrices.first() else { return Ok(None) };
        if matrices.iter().any(|matrix| matrix.settings != first.settings) {
            return Ok(None);
        }
        let all = |part: fn(&QuantizedMatrix) -> Option<&Array>| {
            let parts: Vec<&Array> = matrices.iter().filter_map(|matrix| part(matrix)).collect();
            ops::concatenate(&parts, 0)
        };
        let biases = first.biases.as_ref().map(|_| all(|matrix| matrix.biases.as_ref()));
        Ok(Some(first.with_arrays(
            all(|matrix| Some(&matrix.packed))?,
            all(|matrix| Some(&matrix.scales))?,
            biases.transpose()?,
        )))
    }

    /// The rows of these indices, in that order.
    pub fn select(&self, indices: &Array) -> Result<Self, Exception> {
        self.map(|array| array.take_axis(indices, 0))
    }

    /// The rows `from..to`, as views.
    pub fn range(&self, from: i32, to: i32) -> Result<Self, Exception> {
        self.map(|array| ffi::slice(array, &[from, 0], &[to, array.dim(1)]))
    }

    fn map(&self, part: impl Fn(&Array) -> Result<Array, Exception>) -> Result<Self, Exception> {
        let biases = self.biases.as_ref().map(&part).transpose()?;
        Ok(self.with_arrays(part(&self.packed)?, part(&self.scales)?, biases))
    }

    fn with_arrays(&self, packed: Array, scales: Array, biases: Option<Array>) -> Self {
        let (settings, kernels) = (self.settings, self.kernels.clone());
        QuantizedMatrix { packed, scales, biases, settings, kernels, product: OnceCell::new() }
    }

    /// The arrays that the matrix consists of.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.packed, &self.scales].into_iter().chain(&self.biases)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use mlx_rs::Dtype;

    use super::*;
    use crate::config::QuantizationMode;
    use crate::device_kernels::{DeviceKernels, Experts, HeadShape, Rotation};

    /// A device without kernels, on which dequantizing pays from three vectors on.
    #[derive(Debug)]
    struct DequantizesFromThree;

    impl DeviceKernels for DequantizesFromThree {
        fn product(&self, _: MatrixRows<'_>, _: Fusion<'_>) -> Option<Box<dyn Kernel>> {
            None
        }

        fn dequantizes_from(&self) -> Option<usize> {
            Some(3)
        }

        fn norm_residual(&self, _: &Array, _: f32) -> Option<Box<dyn Kernel>> {
            None
        }

        fn attention(&self, _: &HeadShape, _: Rotation<'_>) -> Option<Box<dyn Kernel>> {
            None
        }

        fn experts(&self, _: Experts<'_>) -> Option<Box<dyn Kernel>> {
            None
        }
    }

    #[test]
    fn many_vectors_get_the_same_product_from_the_dequantized_matrix() {
        let weight = (0..48 * 64).map(|index| (index * 7 % 31) as f32 / 31.0 - 0.5);
        let weight = Array::from_slice(&weight.collect::<Vec<_>>(), &[48, 64]);
        use QuantizationMode::{Mxfp4, Mxfp8, Nvfp4};
        let others = [(Mxfp4, 32, 4), (Mxfp8, 32, 8), (Nvfp4, 16, 4)]
            .map(|(mode, group_size, bits)| Quantization { mode, group_size, bits });
        let settings = [&[Quantization::affine(32, 4)], &others[..]].concat();
        let shapes =
            [([1, 2, 64], false), ([1, 3, 64], true), ([5, 1, 64], true), ([2, 2, 64], true)];
        for (settings, (shape, is_dequantized)) in
            settings.iter().flat_map(|settings| shapes.map(|shape| (*settings, shape)))
        {
            let (packed, scales, biases) = ffi::quantize(&weight, settings).expect("quantize");
            let matrix = QuantizedMatrix {
                packed,
                scales,
                biases,
                settings,
                kernels: Some(Rc::new(DequantizesFromThree)),
                product: OnceCell::new(),
            };
            let count: i32 = shape.iter().product();
            let x = (0..count).map(|index| (index * 11 % 23) as f32 / 23.0 - 0.5);
            let x = Array::from_slice(&x.collect::<Vec<_>>(), &shape);
            assert_eq!(matrix.is_dequantized_for(&x), is_dequantized, "{settings:?}, {shape:?}");
            let found = matrix.product(&x).expect("a product");
            let plain = ffi::quantized_matmul(&x, matrix.rows()).expect("a product");
            assert_eq!(found.shape(), [shape[0], shape[1], 48]);
            let far = ops::abs(ops::subtract(&found, &plain).expect("as large")).expect("numbers");
            let far = far.max(None).expect("a maximum").try_item_exact::<f32>().expect("a number");
            assert!(far < 1e-5, "{settings:?}, {shape:?}: {far}");
        }
    }

    #[test]
    fn a_large_matrix_and_another_type_of_vectors_stay_with_the_packed_product() {
        let matrix = |num_outputs: i32| {
            let zeros = |shape: &[i32], dtype| ops::zeros_dtype(shape, dtype).expect("zeros");
            QuantizedMatrix {
                packed: zeros(&[num_outputs, 64], Dtype::Uint32),
                scales: zeros(&[num_outputs, 8], Dtype::Float32),
                biases: Some(zeros(&[num_outputs, 8], Dtype::Float32)),
                settings: Quantization::affine(64, 4),
                kernels: Some(Rc::new(DequantizesFromThree)),
                product: OnceCell::new(),
            }
        };
        let x = ops::ones::<f32>(&[1, 8, 512]).expect("ones");
        let most = (MOST_DEQUANTIZED_BYTES / 512 / 4) as i32;
        assert!(matrix(most).is_dequantized_for(&x));
        assert!(!matrix(most + 1).is_dequantized_for(&x));
        let half = x.as_dtype(Dtype::Bfloat16).expect("half precision");
        assert!(!matrix(8).is_dequantized_for(&half));
    }
}
