//! Token embeddings, dense or quantized; also the output layer of models that tie the two.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::LmError;
use crate::nn::dense_matrix::DenseMatrix;
use crate::nn::quantized_matrix::QuantizedMatrix;
use crate::weights::Layer;

/// A table of one vector per token.
#[derive(Debug)]
pub enum Embedding {
    /// Floating-point vectors, one per row.
    Dense(Box<DenseMatrix>),
    /// Packed vectors, one per row.
    Quantized(Box<QuantizedMatrix>),
}

impl Embedding {
    /// Takes `weight` `[vocab_size, dimensions]`, or what [`Layer::take_quantized`] takes if the
    /// layer is quantized.
    pub fn load(layer: &mut Layer, vocab_size: i32, dimensions: i32) -> Result<Self, LmError> {
        let weight = match layer.quantization()? {
            Some(settings) if layer.keeps_quantized() => {
                let matrix = QuantizedMatrix::load(layer, dimensions, vocab_size, settings)?;
                mlx_rs::transforms::eval(matrix.arrays())?;
                return Ok(Embedding::Quantized(Box::new(matrix)));
            }
            Some(settings) => {
                let (weight, scales, biases) =
                    layer.take_quantized(dimensions, vocab_size, settings)?;
                layer.dequantize(&weight, &scales, biases.as_ref(), settings)?
            }
            None => layer.take("weight", &[vocab_size, dimensions])?,
        };
        // One table serves both uses. It is stored for products, which read all of it, while a
        // lookup reads one row per token.
        let matrix = DenseMatrix::new(&weight, layer.kernels())?;
        mlx_rs::transforms::eval(matrix.arrays())?;
        Ok(Embedding::Dense(Box::new(matrix)))
    }

    /// Token ids `[B, L]` to vectors `[B, L, D]`.
    pub fn forward(&self, tokens: &Array) -> Result<Array, Exception> {
        match self {
            Embedding::Dense(matrix) => matrix.rows().take_axis(tokens, 0),
            Embedding::Quantized(matrix) => matrix.dequantized_rows(tokens),
        }
    }

    /// Hidden states `[..., D]` to logits `[..., V]`.
    pub fn as_linear(&self, x: &Array) -> Result<Array, Exception> {
        match self {
            Embedding::Dense(matrix) => matrix.product(x),
            Embedding::Quantized(matrix) => matrix.product(x),
        }
    }
}
