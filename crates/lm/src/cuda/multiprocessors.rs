//! What the device has, as its kernels see it.

use std::collections::BTreeSet;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::layer;
use crate::ffi::{self, CudaKernel, KernelSource, Launch};

/// A CUDA device that runs the kernels.
#[derive(Debug, Clone, Copy)]
pub(super) struct CudaDevice {
    /// On how many multiprocessors the blocks of one launch run at once, a block on each; 0 where some
    /// waited for others.
    pub(super) num_multiprocessors: i32,
}

impl CudaDevice {
    /// The device on which MLX computes; `None` unless it has a compute capability of 8.0 or more, the
    /// first with bfloat16 matrix products. MLX itself supports 7.5 too, and reports a kernel that does
    /// not compile only when its result is waited for.
    pub(super) fn find() -> Option<Self> {
        /// The first compute capability, as the compiler writes it.
        const LEAST: i32 = 800;
        if !ffi::computes_on_cuda() {
            return None;
        }
        let [capability, most_multiprocessors] = properties().ok()?;
        (capability >= LEAST).then(|| CudaDevice {
            num_multiprocessors: num_at_once(most_multiprocessors).unwrap_or(0),
        })
    }
}

/// The compute capability, and the most multiprocessors that the device's numbers allow for.
fn properties() -> Result<[i32; 2], Exception> {
    const BODY: &str = "
        unsigned most;
        asm(\"mov.u32 %0, %%nsmid;\" : \"=r\"(most));
        y[0] = __CUDA_ARCH__;
        y[1] = most;";
    let source = KernelSource { body: BODY, ..KernelSource::default() };
    let kernel = CudaKernel::new("device_properties", &["x"], &["y"], source)?;
    let launch =
        Launch { constants: &[], blocks: [1, 1, 1], threads: 1, outputs: &[(&[2], Dtype::Int32)] };
    let [found] = kernel.apply(&[&Array::from_slice(&[0], &[1])], launch)?;
    numbers(&found)?.try_into().map_err(|_| Exception::custom("two numbers".to_owned()))
}

/// On how many multiprocessors this many blocks run; 0 unless all were there at once.
fn num_at_once(num_blocks: i32) -> Result<i32, Exception> {
    /// Each block counts itself, waits until all have or for some milliseconds, and says where it ran.
    const BODY: &str = "
        constexpr int MOST_POLLS = 1 << 14;
        if (threadIdx.x > 0) return;
        unsigned processor;
        asm volatile(\"mov.u32 %0, %%smid;\" : \"=r\"(processor));
        int* count = const_cast<int*>(arrived);
        atomicAdd(count, 1);
        int polls = 0;
        while (*reinterpret_cast<volatile int*>(count) < int(gridDim.x) && polls < MOST_POLLS) {
          __nanosleep(100);
          ++polls;
        }
        ran_on[blockIdx.x] = polls < MOST_POLLS ? int(processor) : -1;";
    if num_blocks < 1 {
        return Ok(0);
    }
    let source = KernelSource { body: BODY, ..KernelSource::default() };
    let kernel = CudaKernel::new("blocks_at_once", &["arrived"], &["ran_on"], source)?;
    let arrived = ops::zeros::<i32>(&[layer::NUM_COUNTERS])?;
    let launch = Launch {
        constants: &[],
        blocks: [num_blocks, 1, 1],
        threads: layer::THREADS,
        outputs: &[(&[num_blocks], Dtype::Int32)],
    };
    let [ran_on] = kernel.apply(&[&arrived], launch)?;
    Ok(num_processors(&numbers(&ran_on)?))
}

/// How many multiprocessors these are; 0 if a block waited in vain for the others.
fn num_processors(ran_on: &[i32]) -> i32 {
    match ran_on.iter().all(|&processor| processor >= 0) {
        true => ran_on.iter().collect::<BTreeSet<_>>().len() as i32,
        false => 0,
    }
}

fn numbers(array: &Array) -> Result<Vec<i32>, Exception> {
    array.eval()?;
    let numbers = array.try_as_slice::<i32>();
    numbers.map(<[i32]>::to_vec).map_err(|error| Exception::custom(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::num_processors;

    #[test]
    fn multiprocessors_are_counted_where_all_blocks_ran_at_once() {
        assert_eq!(num_processors(&[2, 0, 4]), 3);
        assert_eq!(num_processors(&[2, 0, 2, 0]), 2, "several blocks on one");
        assert_eq!(num_processors(&[2, -1, 4]), 0, "one waited in vain");
    }
}
