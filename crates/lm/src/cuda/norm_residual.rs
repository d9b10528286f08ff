//! The norm of one token's vector, added to a residual.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::{CudaKernels, is_bfloat16, traced};
use crate::device_kernels::Kernel;
use crate::ffi::{Compiled, Launch};

/// See [`DeviceKernels::norm_residual`](crate::device_kernels::DeviceKernels::norm_residual).
#[derive(Debug)]
pub(super) struct NormResidual {
    compiled: Compiled,
    width: i32,
}

impl NormResidual {
    pub(super) fn new(kernels: &CudaKernels, weight: &Array, eps: f32) -> Option<Self> {
        /// Eight numbers are read at a time.
        const STEP: i32 = 8;
        let width = weight.dim(0);
        if !is_bfloat16(weight) || width % STEP != 0 {
            return None;
        }
        let (kernel, weight) = (kernels.norm_residual.clone(), weight.clone());
        let compiled = traced(move |[x, residual]: &[Array; 2]| {
            let [sum] = kernel.apply(
                &[x, &weight, residual],
                Launch {
                    constants: &[(c"D", width), (c"EPS_BITS", eps.to_bits() as i32)],
                    blocks: [1, 1, 1],
                    threads: 256,
                    outputs: &[(&[1, 1, width], Dtype::Bfloat16)],
                },
            )?;
            Ok(vec![sum])
        })?;
        Some(NormResidual { compiled, width })
    }
}

impl Kernel for NormResidual {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let fits = |array: &&Array| is_bfloat16(array) && *array.shape() == [1, 1, self.width];
        if !inputs.iter().all(fits) {
            return Ok(None);
        }
        self.compiled.call::<1>(inputs).map(|outputs| Some(outputs.into()))
    }
}
