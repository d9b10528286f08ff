//! Rows of a 4-bit matrix, for the tokens of a short pass.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::{CudaKernels, is_readable, traced};
use crate::device_kernels::{Kernel, QuantizedRows};
use crate::ffi::{Compiled, Launch};

/// The inputs of `embedding.cu`.
pub(super) const INPUTS: &[&str] = &["tokens", "w", "scales", "biases"];

/// The most tokens that are looked up so, each by a block. MLX's four launches take as long for one
/// token as for many.
const MOST_TOKENS: i32 = 64;

const THREADS: i32 = 256;

/// See [`DeviceKernels::embedding`](crate::device_kernels::DeviceKernels::embedding).
#[derive(Debug)]
pub(super) struct Embedding(Compiled);

impl Embedding {
    pub(super) fn new(kernels: &CudaKernels, rows: QuantizedRows<'_>) -> Option<Self> {
        if !is_readable(&rows) || rows.num_inputs() % rows.settings.group_size != 0 {
            return None;
        }
        let kernel = kernels.embedding.clone();
        let matrix = [rows.packed.clone(), rows.scales.clone(), rows.biases?.clone()];
        let (length, group_size) = (rows.num_inputs(), rows.settings.group_size);
        let compiled = traced(move |[tokens]: &[Array; 1]| {
            let [packed, scales, biases] = &matrix;
            let [batch, num_tokens] = [tokens.dim(0), tokens.dim(1)];
            let [embedded] = kernel.apply(
                &[tokens, packed, scales, biases],
                Launch {
                    constants: &[(c"D", length), (c"GROUP", group_size), (c"THREADS", THREADS)],
                    blocks: [batch * num_tokens, 1, 1],
                    threads: THREADS,
                    outputs: &[(&[batch, num_tokens, length], Dtype::Bfloat16)],
                },
            )?;
            Ok(vec![embedded])
        })?;
        Some(Embedding(compiled))
    }
}

impl Kernel for Embedding {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let [tokens] = inputs else { return Ok(None) };
        let is_short = matches!(
            *tokens.shape(),
            [batch, length] if (1..=MOST_TOKENS).contains(&(batch * length))
        );
        if !is_short || tokens.dtype() != Dtype::Uint32 {
            return Ok(None);
        }
        self.0.call::<1>(inputs).map(|outputs| Some(outputs.into()))
    }
}
