//! The place of the largest number of each row.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::{CudaKernels, is_bfloat16, traced};
use crate::device_kernels::Kernel;
use crate::ffi::{Compiled, Launch};

/// The inputs of `argmax.cu`.
pub(super) const INPUTS: &[&str] = &["logits"];

/// The threads of a row's block. Each has eight reads on their way, where MLX's has one: for 128,256
/// numbers an H200 took 16 µs with that.
const THREADS: i32 = 1024;

/// See [`DeviceKernels::argmax`](crate::device_kernels::DeviceKernels::argmax).
#[derive(Debug)]
pub(super) struct Argmax(Compiled);

impl Argmax {
    pub(super) fn new(kernels: &CudaKernels) -> Option<Self> {
        let kernel = kernels.argmax.clone();
        let compiled = traced(move |[logits]: &[Array; 1]| {
            let (rows, width) = (logits.dim(0), logits.dim(1));
            let [places] = kernel.apply(
                &[logits],
                Launch {
                    constants: &[(c"V", width), (c"THREADS", THREADS)],
                    blocks: [rows, 1, 1],
                    threads: THREADS,
                    outputs: &[(&[rows], Dtype::Uint32)],
                },
            )?;
            Ok(vec![places])
        })?;
        Some(Argmax(compiled))
    }
}

impl Kernel for Argmax {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let &[logits] = inputs else { return Ok(None) };
        // Threads read eight numbers at a time.
        let fits = matches!(*logits.shape(), [_, width] if width % 8 == 0 && width >= 8 * THREADS);
        if !fits || !is_bfloat16(logits) {
            return Ok(None);
        }
        self.0.call::<1>(inputs).map(|outputs| Some(outputs.into()))
    }
}
