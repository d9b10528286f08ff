//! Token embeddings, dense or affine-quantized; also the output layer of models that tie the two.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::config::Quantization;
use crate::nn::cuda::QuantizedRows;
use crate::nn::linear::{product_order, quantized_product};
use crate::weights::Layer;

/// A table of one vector per token.
#[derive(Debug)]
pub enum Embedding {
    /// Floating-point vectors.
    Dense {
        /// `[V, D]`, a view of `transposed`.
        weight: Array,
        /// `[D, V]`, stored in the order that products read it.
        transposed: Array,
    },
    /// Packed vectors with a scale and bias per group.
    Quantized {
        /// u32 `[V, D * bits / 32]`
        weight: Array,
        /// `[V, D / group_size]`
        scales: Array,
        /// `[V, D / group_size]`
        biases: Array,
        /// Group size and bits.
        settings: Quantization,
    },
}

impl Embedding {
    /// Takes `weight` `[vocab_size, dimensions]`, or the packed weight with `scales` and `biases`
    /// if the layer is quantized.
    pub fn load(layer: &mut Layer, vocab_size: i32, dimensions: i32) -> Result<Self, LmError> {
        let weight = match layer.quantization()? {
            Some(settings) => {
                let (weight, scales, biases) =
                    layer.take_quantized(dimensions, vocab_size, settings)?;
                if layer.keeps_quantized() {
                    mlx_rs::transforms::eval([&weight, &scales, &biases])?;
                    return Ok(Embedding::Quantized { weight, scales, biases, settings });
                }
                layer.dequantize(&weight, &scales, &biases, settings)?
            }
            None => layer.take("weight", &[vocab_size, dimensions])?,
        };
        // One table serves both uses. It is stored for products, which read all of it, while a
        // lookup reads one row per token.
        let transposed = product_order(&weight)?;
        transposed.eval()?;
        Ok(Embedding::Dense { weight: transposed.transpose()?, transposed })
    }

    /// Token ids `[B, L]` to vectors `[B, L, D]`.
    pub fn forward(&self, tokens: &Array) -> Result<Array, Exception> {
        match self {
            Embedding::Dense { weight, .. } => weight.take_axis(tokens, 0),
            Embedding::Quantized { weight, scales, biases, settings } => ops::dequantize(
                weight.take_axis(tokens, 0)?,
                scales.take_axis(tokens, 0)?,
                &biases.take_axis(tokens, 0)?,
                settings.group_size,
                settings.bits,
            ),
        }
    }

    /// The table, if it is quantized.
    pub fn quantized(&self) -> Option<QuantizedRows<'_>> {
        match self {
            Embedding::Dense { .. } => None,
            Embedding::Quantized { weight, scales, biases, settings } => {
                Some(QuantizedRows { packed: weight, scales, biases, settings: *settings })
            }
        }
    }

    /// Hidden states `[..., D]` to logits `[..., V]`.
    pub fn as_linear(&self, x: &Array) -> Result<Array, Exception> {
        match self {
            Embedding::Dense { transposed, .. } => ops::matmul(x, transposed),
            Embedding::Quantized { weight, scales, biases, settings } => quantized_product(
                x,
                QuantizedRows { packed: weight, scales, biases, settings: *settings },
            ),
        }
    }
}
