//! A matrix for each head. Reference: mlx-lm's mla.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::config::Quantization;
use crate::device_kernels::QuantizedRows;
use crate::ffi;
use crate::nn::packed_product::packed_product;
use crate::tensor_list::check_groups;
use crate::weights::Layer;

/// Matrices `[H, out, in]`, dense or quantized.
#[derive(Debug)]
pub enum HeadMatrices {
    /// As they are.
    Dense(Array),
    /// `[1, H, out, in]`, packed along the last axis. The first axis is that of rows: with as many axes
    /// as what they are multiplied with, nothing is broadcast for a single row.
    Quantized {
        packed: Array,
        scales: Array,
        biases: Option<Array>, // in affine mode
        settings: Quantization,
    },
}

impl HeadMatrices {
    /// Takes `weight` `[heads, outputs, inputs]`, or what it is packed in.
    pub fn load(layer: &mut Layer, heads: i32, inputs: i32, outputs: i32) -> Result<Self, LmError> {
        let Some(settings) = layer.quantization()? else {
            return Ok(HeadMatrices::Dense(layer.take("weight", &[heads, outputs, inputs])?));
        };
        let (packed, scales, biases) =
            layer.take_quantized_experts(heads, inputs, outputs, settings)?;
        if layer.keeps_quantized() {
            return HeadMatrices::Quantized { packed, scales, biases, settings }.for_rows();
        }
        Ok(HeadMatrices::Dense(layer.dequantize(&packed, &scales, biases.as_ref(), settings)?))
    }

    /// Takes the matrix `[heads * (keys + values), rank]` of the layer, the rows of each head's keys
    /// before those of its values: for each head `[rank, keys]`, transposed, and `[values, rank]`.
    /// Packed matrices are packed anew, as the reference does, which rounds their numbers.
    pub fn load_joined(
        layer: &mut Layer,
        heads: i32,
        rank: i32,
        [keys, values]: [i32; 2],
    ) -> Result<[Self; 2], LmError> {
        let rows = heads * (keys + values);
        let (joined, settings) = match layer.quantization()? {
            None => (layer.take("weight", &[rows, rank])?, None),
            Some(settings) => {
                let (packed, scales, biases) = layer.take_quantized(rank, rows, settings)?;
                let dense = layer.dequantize(&packed, &scales, biases.as_ref(), settings)?;
                (dense, Some(settings))
            }
        };
        let keeps_quantized = layer.keeps_quantized();
        let by_head = joined.reshape(&[heads, keys + values, rank])?;
        let of_keys = ffi::slice(&by_head, &[0, 0, 0], &[heads, keys, rank])?;
        let of_values = ffi::slice(&by_head, &[0, keys, 0], &[heads, keys + values, rank])?;
        let of_keys = ops::swap_axes(of_keys, 1, 2)?;
        let packed = |dense| HeadMatrices::of(dense, settings)?.for_device(keeps_quantized);
        Ok([packed(&of_keys)?, packed(&of_values)?])
    }

    /// As they are, or dense where packed ones are not kept.
    fn for_device(self, keeps_quantized: bool) -> Result<Self, LmError> {
        match &self {
            HeadMatrices::Quantized { packed, scales, biases, settings } if !keeps_quantized => {
                let (biases, settings) = (biases.as_ref(), *settings);
                let dense = ffi::dequantize(QuantizedRows { packed, scales, biases, settings })?;
                dense.eval()?;
                Ok(HeadMatrices::Dense(dense))
            }
            _ => self.for_rows(),
        }
    }

    /// With the axis of rows, where they are packed.
    fn for_rows(self) -> Result<Self, LmError> {
        let HeadMatrices::Quantized { packed, scales, biases, settings } = self else {
            return Ok(self);
        };
        let [packed, scales] = [packed.expand_dims(0)?, scales.expand_dims(0)?];
        let biases = biases.map(|biases| biases.expand_dims(0)).transpose()?;
        mlx_rs::transforms::eval([&packed, &scales].into_iter().chain(&biases))?;
        Ok(HeadMatrices::Quantized { packed, scales, biases, settings })
    }

    /// A copy of dense matrices, packed if there are settings.
    fn of(dense: &Array, settings: Option<Quantization>) -> Result<Self, LmError> {
        let dense = dense.contiguous()?;
        dense.eval()?;
        let Some(settings) = settings else { return Ok(HeadMatrices::Dense(dense)) };
        check_groups("kv_b_proj", dense.dim(-1), settings.group_size)?;
        let (packed, scales, biases) = ffi::quantize(&dense, settings)?;
        mlx_rs::transforms::eval([&packed, &scales].into_iter().chain(&biases))?;
        Ok(HeadMatrices::Quantized { packed, scales, biases, settings })
    }

    /// `x` `[B, H or 1, L, in]` to `[B, H, L, out]`.
    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        self.product(x, true)
    }

    /// `x` `[B, H or 1, L, out]` times the transposed matrices: `[B, H, L, in]`.
    pub fn transposed(&self, x: &Array) -> Result<Array, Exception> {
        self.product(x, false)
    }

    fn product(&self, x: &Array, transpose: bool) -> Result<Array, Exception> {
        match self {
            HeadMatrices::Dense(matrices) if transpose => {
                ops::matmul(x, ops::swap_axes(matrices, 1, 2)?)
            }
            HeadMatrices::Dense(matrices) => ops::matmul(x, matrices),
            HeadMatrices::Quantized { packed, scales, biases, settings } => {
                let (biases, settings) = (biases.as_ref(), *settings);
                let rows = QuantizedRows { packed, scales, biases, settings };
                match transpose {
                    true => packed_product(x, rows),
                    false => ffi::quantized_product(x, rows, false),
                }
            }
        }
    }
}
