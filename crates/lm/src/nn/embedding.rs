//! Token embeddings, dense or quantized; also the output layer of models that tie the two.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::LmError;
use crate::device_kernels::{Kernel, run};
use crate::nn::dense_matrix::DenseMatrix;
use crate::nn::quantized_matrix::QuantizedMatrix;
use crate::weights::Layer;

/// A table of one vector per token.
#[derive(Debug)]
pub enum Embedding {
    /// Floating-point vectors, one per row.
    Dense(Box<DenseMatrix>),
    /// Packed vectors, one per row.
    Quantized {
        matrix: Box<QuantizedMatrix>,
        /// The device's kernel that looks tokens up.
        lookup: Option<Box<dyn Kernel>>,
    },
}

impl Embedding {
    /// Takes `weight` `[vocab_size, dimensions]`, or what [`Layer::take_quantized`] takes if the
    /// layer is quantized.
    pub fn load(layer: &mut Layer, vocab_size: i32, dimensions: i32) -> Result<Self, LmError> {
        let weight = match layer.quantization()? {
            Some(settings) if layer.keeps_quantized() => {
                let matrix = QuantizedMatrix::load(layer, dimensions, vocab_size, settings)?;
                mlx_rs::transforms::eval(matrix.arrays())?;
                let lookup = matrix.lookup_kernel();
                return Ok(Embedding::Quantized { matrix: Box::new(matrix), lookup });
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
            Embedding::Quantized { matrix, lookup } => match run(lookup.as_deref(), &[tokens]) {
                Some([vectors]) => Ok(vectors),
                None => matrix.dequantized_rows(tokens),
            },
        }
    }

    /// Hidden states `[..., D]` to logits `[..., V]`.
    pub fn as_linear(&self, x: &Array) -> Result<Array, Exception> {
        match self {
            Embedding::Dense(matrix) => matrix.product(x),
            Embedding::Quantized { matrix, .. } => matrix.product(x),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use mlx_rs::ops;

    use super::*;
    use crate::config::Quantization;
    use crate::ffi;

    /// Looks single tokens up, and adds a number that tells its vectors from others.
    #[derive(Debug)]
    struct SingleLookup(Array);

    const MARK: f32 = 1000.0;

    impl Kernel for SingleLookup {
        fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
            let [tokens] = inputs else { panic!("one input, got {}", inputs.len()) };
            if tokens.shape() != [1, 1] {
                return Ok(None);
            }
            let vectors = self.0.take_axis(tokens, 0)?;
            Ok(Some(vec![ops::add(vectors, Array::from_f32(MARK))?]))
        }
    }

    #[test]
    fn tokens_are_looked_up_by_the_kernel_where_it_supports_them() {
        let numbers: Vec<f32> = (0..4 * 64).map(|index| (index % 16) as f32).collect();
        let rows = Array::from_slice(&numbers, &[4, 64]);
        let settings = Quantization::affine(64, 4);
        let matrix =
            QuantizedMatrix::from_arrays(ffi::quantize(&rows, settings).unwrap(), settings);
        let embedding = Embedding::Quantized {
            matrix: Box::new(matrix),
            lookup: Some(Box::new(SingleLookup(rows))),
        };
        let largest = |tokens: &[u32]| {
            let tokens = Array::from_slice(tokens, &[1, tokens.len() as i32]);
            let vectors = embedding.forward(&tokens).unwrap();
            assert_eq!(vectors.shape(), [1, tokens.dim(1), 64]);
            ops::abs(&vectors).unwrap().max(None).unwrap().try_item_exact::<f32>().unwrap()
        };
        assert_eq!(largest(&[2]), 15.0 + MARK);
        assert_eq!(largest(&[2, 3]), 15.0);
    }
}
