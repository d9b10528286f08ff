//! Launches a long pass layer by layer.

use std::collections::VecDeque;

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::transforms::async_eval;

use crate::weights::Weights;

/// How many layers of a pass are launched behind the one that is computed. One keeps a device busy: with
/// two a prompt of 512 tokens was read no sooner (Qwen3.5-35B-A3B on an H200), with half a gigabyte more.
const LAYERS_AHEAD: usize = 1;

/// When a pass is launched layer by layer.
///
/// A device that dequantizes matrices for long passes gets their memory when such a product is launched,
/// which is long before it is computed: launched at once, all layers' dequantized matrices are in memory
/// together. In 4 bits they are four times as large as the model.
#[derive(Debug, Clone, Copy)]
pub struct LayerLaunches {
    /// From how many vectors on matrices are dequantized.
    least_vectors: Option<usize>,
}

impl LayerLaunches {
    /// Of a model with these weights.
    pub fn new(weights: &Weights) -> Self {
        let kernels = weights.kernels.as_ref();
        LayerLaunches { least_vectors: kernels.and_then(|kernels| kernels.dequantizes_from()) }
    }

    /// For a pass over `x` `[B, L, D]`.
    pub fn begin(self, x: &Array) -> LayersAhead {
        let num_vectors = x.dim(0) as usize * x.dim(1) as usize;
        let is_long = self.least_vectors.is_some_and(|least| num_vectors >= least);
        LayersAhead { outputs: is_long.then(VecDeque::new) }
    }
}

/// The layers of one pass that are launched and may not be computed yet.
#[derive(Debug)]
pub struct LayersAhead {
    /// What they compute; `None` where the pass is launched as a whole.
    outputs: Option<VecDeque<Array>>,
}

impl LayersAhead {
    /// Launches the layer that computes `x`, and waits for the one before it.
    pub fn launch(&mut self, x: &Array) -> Result<(), Exception> {
        let Some(outputs) = &mut self.outputs else { return Ok(()) };
        async_eval([x])?;
        outputs.push_back(x.clone());
        match outputs.len() > LAYERS_AHEAD {
            true => outputs.pop_front().map_or(Ok(()), |computed| computed.eval()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use mlx_rs::ops;

    #[test]
    fn a_long_pass_keeps_one_layer_ahead_and_a_short_one_is_launched_as_a_whole() {
        for (length, is_launched) in [(127, false), (128, true)] {
            let mut x = Array::ones::<f32>(&[1, length, 4]).unwrap();
            let mut ahead = LayerLaunches { least_vectors: Some(128) }.begin(&x);
            for _ in 0..5 {
                x = ops::add(&x, &x).unwrap();
                ahead.launch(&x).unwrap();
            }
            let left = ahead.outputs.map(|outputs| outputs.len());
            assert_eq!(left, is_launched.then_some(LAYERS_AHEAD), "{length} tokens");
            assert_eq!(x.as_slice::<f32>()[0], 32.0);
        }
    }
}
