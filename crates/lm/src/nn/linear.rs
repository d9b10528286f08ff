//! A linear layer, dense or quantized.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::device::ComputeDevice;
use crate::device_kernels::{Fusion, Kernel, QuantizedRows};
use crate::ffi;
use crate::nn::dense_matrix::DenseMatrix;
use crate::nn::quantized_matrix::QuantizedMatrix;
use crate::weights::Layer;

/// `y = x Wᵀ (+ b)`.
#[derive(Debug)]
pub struct Linear {
    matrix: Matrix,
    bias: Option<Array>, // [out]
}

#[derive(Debug)]
enum Matrix {
    Dense(DenseMatrix),
    Quantized(QuantizedMatrix),
}

impl Linear {
    /// Takes `weight` `[outputs, inputs]`, or what [`Layer::take_quantized`] takes if the layer is
    /// quantized, and `bias` `[outputs]` if `has_bias`.
    pub fn load(
        layer: &mut Layer,
        inputs: i32,
        outputs: i32,
        has_bias: bool,
    ) -> Result<Self, LmError> {
        let bias = if has_bias { Some(layer.take("bias", &[outputs])?) } else { None };
        let matrix = match layer.quantization()? {
            Some(settings) if layer.keeps_quantized() => {
                Matrix::Quantized(QuantizedMatrix::load(layer, inputs, outputs, settings)?)
            }
            Some(settings) => {
                let (packed, scales, biases) = layer.take_quantized(inputs, outputs, settings)?;
                let dense = layer.dequantize(&packed, &scales, biases.as_ref(), settings)?;
                Matrix::Dense(DenseMatrix::new(&dense, layer.kernels())?)
            }
            None => {
                let weight = layer.take("weight", &[outputs, inputs])?;
                Matrix::Dense(DenseMatrix::new(&weight, layer.kernels())?)
            }
        };
        Ok(Linear { matrix, bias })
    }

    /// `[..., in]` to `[..., out]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        match (&self.matrix, &self.bias) {
            (Matrix::Dense(matrix), None) => matrix.product(x),
            (Matrix::Dense(matrix), Some(bias)) => matrix.product_and_bias(x, bias),
            (Matrix::Quantized(matrix), None) => matrix.product(x),
            (Matrix::Quantized(matrix), Some(bias)) => ops::add(matrix.product(x)?, bias),
        }
    }

    /// The device's kernel for products with this matrix, to which it adds no bias.
    pub fn kernel(&self, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        match &self.matrix {
            Matrix::Dense(matrix) => matrix.kernel(fusion),
            Matrix::Quantized(matrix) => matrix.kernel(fusion),
        }
    }

    /// The quantized matrix `[out, in]`; `None` for dense weights.
    pub fn rows(&self) -> Option<QuantizedRows<'_>> {
        match &self.matrix {
            Matrix::Dense(_) => None,
            Matrix::Quantized(matrix) => Some(matrix.rows()),
        }
    }

    /// The bias `[out]`.
    pub fn bias(&self) -> Option<&Array> {
        self.bias.as_ref()
    }

    /// The number of outputs.
    pub fn num_outputs(&self) -> i32 {
        match &self.matrix {
            Matrix::Dense(matrix) => matrix.num_rows(),
            Matrix::Quantized(matrix) => matrix.rows().num_rows(),
        }
    }

    /// The type of what it returns for numbers of that type.
    pub fn dtype(&self) -> Dtype {
        match &self.matrix {
            Matrix::Dense(matrix) => matrix.dtype(),
            Matrix::Quantized(matrix) => matrix.rows().dtype(),
        }
    }

    /// Layers of so many outputs each, in the order of this one's: checkpoints store several
    /// projections as one matrix.
    pub fn into_parts<const N: usize>(self, sizes: [i32; N]) -> Result<[Linear; N], Exception> {
        let mut from = 0;
        let mut parts = Vec::with_capacity(N);
        for size in sizes {
            let mut part = self.outputs(from, from + size)?;
            // Copied: a CPU copies views of dense weights for every product.
            if let Matrix::Dense(matrix) = &mut part.matrix
                && ComputeDevice::current() == ComputeDevice::Cpu
            {
                *matrix = matrix.copied()?;
            }
            part.eval()?;
            parts.push(part);
            from += size;
        }
        parts.try_into().map_err(|_| Exception::custom("a part is missing".to_owned()))
    }

    /// Whether the weights are dense.
    pub fn is_dense(&self) -> bool {
        matches!(self.matrix, Matrix::Dense(_))
    }

    /// Stacks the outputs of layers with the same input; `None` if their kinds or settings differ.
    pub fn stack(layers: &[Linear]) -> Result<Option<Linear>, Exception> {
        let bias = match layers.iter().map(Linear::bias).collect::<Option<Vec<_>>>() {
            Some(biases) => Some(ops::concatenate(&biases, 0)?),
            None if layers.iter().all(|layer| layer.bias.is_none()) => None,
            None => return Ok(None),
        };
        let (mut dense, mut quantized) = (Vec::new(), Vec::new());
        for layer in layers {
            match &layer.matrix {
                Matrix::Dense(matrix) => dense.push(matrix),
                Matrix::Quantized(matrix) => quantized.push(matrix),
            }
        }
        let matrix = if quantized.is_empty() {
            Matrix::Dense(DenseMatrix::stack(&dense)?)
        } else if dense.is_empty()
            && let Some(matrix) = QuantizedMatrix::stack(&quantized)?
        {
            Matrix::Quantized(matrix)
        } else {
            return Ok(None);
        };
        Ok(Some(Linear { matrix, bias }))
    }

    /// A layer that computes only the outputs `outputs`, in that order. Its numbers are exactly the
    /// same, because outputs do not depend on each other.
    pub fn select_outputs(&self, outputs: &[i32]) -> Result<Linear, Exception> {
        let outputs = Array::from_slice(outputs, &[outputs.len() as i32]);
        let matrix = match &self.matrix {
            Matrix::Dense(matrix) => Matrix::Dense(matrix.select(&outputs)?),
            Matrix::Quantized(matrix) => Matrix::Quantized(matrix.select(&outputs)?),
        };
        let bias = self.bias.as_ref().map(|bias| bias.take_axis(&outputs, 0)).transpose()?;
        Ok(Linear { matrix, bias })
    }

    /// A layer that computes the outputs `from..to`, with views of the same arrays.
    pub fn outputs(&self, from: i32, to: i32) -> Result<Linear, Exception> {
        let matrix = match &self.matrix {
            Matrix::Dense(matrix) => Matrix::Dense(matrix.range(from, to)?),
            Matrix::Quantized(matrix) => Matrix::Quantized(matrix.range(from, to)?),
        };
        let bias = self.bias.as_ref().map(|bias| ffi::slice(bias, &[from], &[to])).transpose()?;
        Ok(Linear { matrix, bias })
    }

    /// Evaluates the layer's arrays, so that intermediate arrays of the load are freed.
    pub fn eval(&self) -> Result<(), Exception> {
        let mut arrays: Vec<&Array> = self.bias.iter().collect();
        match &self.matrix {
            Matrix::Dense(matrix) => arrays.extend(matrix.arrays()),
            Matrix::Quantized(matrix) => arrays.extend(matrix.arrays()),
        }
        mlx_rs::transforms::eval(arrays)
    }
}
