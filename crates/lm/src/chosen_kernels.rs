//! Which kernels a model is loaded with: the device's, or fewer where both forms of an operation are
//! compared.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_rs::Array;

use crate::cuda::CudaKernels;
use crate::device_kernels::{
    DeviceKernels, Experts, Fusion, HeadShape, Kernel, Kernels, MatrixRows, QuantizedRows, Rotation,
};

thread_local! {
    static FIXED: RefCell<Option<Kernels>> = const { RefCell::new(None) };
}

/// The kernels that [`with_kernels`] asks for; outside it, those of the device.
pub(crate) fn chosen_kernels() -> Kernels {
    FIXED.with(|fixed| fixed.borrow().clone()).unwrap_or_else(CudaKernels::load)
}

/// Runs `load`, in which every model is loaded with `kernels`.
pub fn with_kernels<T>(kernels: Kernels, load: impl FnOnce() -> T) -> T {
    struct Reset(Option<Kernels>);
    impl Drop for Reset {
        fn drop(&mut self) {
            FIXED.with(|fixed| *fixed.borrow_mut() = self.0.take());
        }
    }
    let _reset = Reset(FIXED.with(|fixed| fixed.borrow_mut().replace(kernels)));
    load()
}

/// Runs `load`, in which every model is loaded with the plain form of each operation, on any
/// device.
pub fn without_kernels<T>(load: impl FnOnce() -> T) -> T {
    with_kernels(None, load)
}

/// Runs `load`, in which every model is loaded with the device's kernels except those of whole layers:
/// each layer takes several launches.
pub fn with_layers_by_parts<T>(load: impl FnOnce() -> T) -> T {
    let kernels = chosen_kernels();
    with_kernels(kernels.map(|kernels| Rc::new(LayersByParts(kernels)) as _), load)
}

/// Kernels without those of whole layers.
#[derive(Debug)]
struct LayersByParts(Rc<dyn DeviceKernels>);

impl DeviceKernels for LayersByParts {
    fn product(&self, rows: MatrixRows<'_>, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        self.0.product(rows, fusion)
    }

    fn dequantizes_from(&self) -> Option<usize> {
        self.0.dequantizes_from()
    }

    fn norm_residual(&self, weight: &Array, eps: f32) -> Option<Box<dyn Kernel>> {
        self.0.norm_residual(weight, eps)
    }

    fn attention(&self, heads: &HeadShape, rotation: Rotation<'_>) -> Option<Box<dyn Kernel>> {
        self.0.attention(heads, rotation)
    }

    fn experts(&self, experts: Experts<'_>) -> Option<Box<dyn Kernel>> {
        self.0.experts(experts)
    }

    fn embedding(&self, rows: QuantizedRows<'_>) -> Option<Box<dyn Kernel>> {
        self.0.embedding(rows)
    }
}
