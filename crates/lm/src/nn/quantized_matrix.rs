//! A matrix in MLX's affine quantized format.

use std::cell::OnceCell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::config::Quantization;
use crate::device_kernels::{Fusion, Kernel, Kernels, QuantizedRows, run};
use crate::ffi;
use crate::weights::Layer;

/// A quantized matrix `[N, K]` that multiplies vectors of K numbers.
#[derive(Debug)]
pub struct QuantizedMatrix {
    packed: Array, // u32 [N, K * bits / 32]
    scales: Array, // [N, K / group_size]
    biases: Array, // [N, K / group_size]
    settings: Quantization,
    kernels: Kernels,
    product: OnceCell<Option<Box<dyn Kernel>>>, // for `product`, asked for on its first call
}

impl QuantizedMatrix {
    /// Takes the packed `weight`, `scales` and `biases` of the layer.
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

    /// The device's kernel for products with this matrix.
    pub fn kernel(&self, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        self.kernels.as_ref()?.product(self.rows(), fusion)
    }

    /// `x` `[..., K]` to `[..., N]`.
    pub fn product(&self, x: &Array) -> Result<Array, Exception> {
        let kernel = self.product.get_or_init(|| self.kernel(Fusion::default()));
        if let Some([product]) = run(kernel.as_deref(), &[x]) {
            return Ok(product);
        }
        let Quantization { group_size, bits } = self.settings;
        ops::quantized_matmul(x, &self.packed, &self.scales, &self.biases, true, group_size, bits)
    }

    /// The rows `indices` as dense vectors.
    pub fn dequantized_rows(&self, indices: &Array) -> Result<Array, Exception> {
        let rows = |array: &Array| array.take_axis(indices, 0);
        let Quantization { group_size, bits } = self.settings;
        let biases = rows(&self.biases)?;
        ops::dequantize(rows(&self.packed)?, rows(&self.scales)?, &biases, group_size, bits)
    }

    /// The arrays, borrowed.
    pub fn rows(&self) -> QuantizedRows<'_> {
        QuantizedRows {
            packed: &self.packed,
            scales: &self.scales,
            biases: &self.biases,
            settings: self.settings,
        }
    }

    /// The rows of all `matrices`, one after another; `None` if their settings differ.
    pub fn stack(matrices: &[&QuantizedMatrix]) -> Result<Option<Self>, Exception> {
        let Some(first) = matrices.first() else { return Ok(None) };
        if matrices.iter().any(|matrix| matrix.settings != first.settings) {
            return Ok(None);
        }
        let all = |part: fn(&QuantizedMatrix) -> &Array| {
            let parts: Vec<&Array> = matrices.iter().map(|matrix| part(matrix)).collect();
            ops::concatenate(&parts, 0)
        };
        Ok(Some(first.with_arrays([
            all(|matrix| &matrix.packed)?,
            all(|matrix| &matrix.scales)?,
            all(|matrix| &matrix.biases)?,
        ])))
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
        Ok(self.with_arrays([part(&self.packed)?, part(&self.scales)?, part(&self.biases)?]))
    }

    fn with_arrays(&self, [packed, scales, biases]: [Array; 3]) -> Self {
        let (settings, kernels) = (self.settings, self.kernels.clone());
        QuantizedMatrix { packed, scales, biases, settings, kernels, product: OnceCell::new() }
    }

    /// The arrays that the matrix consists of.
    pub fn arrays(&self) -> [&Array; 3] {
        [&self.packed, &self.scales, &self.biases]
    }
}
