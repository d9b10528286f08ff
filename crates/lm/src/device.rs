//! The device that MLX computes on, and the number type that suits it.

use mlx_rs::{Device, DeviceType, Dtype};
use nix::sys::resource::{UsageWho, getrusage};

use crate::metal_library::MetalLibraryError;

/// Where MLX computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeDevice {
    /// MLX's CPU backend.
    Cpu,
    /// Metal on a Mac, CUDA where MLX was built for it.
    Gpu,
}

impl ComputeDevice {
    /// MLX's default device: the GPU if its build supports one.
    pub fn current() -> Self {
        #[cfg(test)]
        if AS_ON_GPU.with(std::cell::Cell::get) {
            return ComputeDevice::Gpu;
        }
        match Device::try_default().and_then(|device| device.get_type()) {
            Ok(DeviceType::Gpu) => ComputeDevice::Gpu,
            _ => ComputeDevice::Cpu,
        }
    }

    /// "cpu" or "gpu".
    pub fn as_str(self) -> &'static str {
        match self {
            ComputeDevice::Cpu => "cpu",
            ComputeDevice::Gpu => "gpu",
        }
    }

    /// Whether the system can keep memory for the device that is never moved away: a Mac's GPU.
    pub fn wires_memory() -> bool {
        cfg!(target_os = "macos") && ComputeDevice::current() == ComputeDevice::Gpu
    }

    /// The type that floating-point weights are converted to; `None` keeps the checkpoint's type.
    ///
    /// MLX's CPU backend computes half-precision and quantized products in scalar code, many times
    /// slower than f32 products through BLAS.
    pub fn compute_dtype(self) -> Option<Dtype> {
        match self {
            ComputeDevice::Cpu => Some(Dtype::Float32),
            ComputeDevice::Gpu => None,
        }
    }
}

/// Tells MLX where the Metal library of this program is. A program calls it before it uses MLX for the
/// first time, and computes nothing if it fails. Does nothing where MLX was built without Metal.
#[cfg(target_os = "macos")]
pub fn use_metal_library() -> Result<(), MetalLibraryError> {
    use std::path::Path;

    use mlx_rs::error::Exception;

    use crate::metal_library::find_metal_library;

    let program = std::env::current_exe().map_err(MetalLibraryError::NoProgram)?;
    // Where the build was told to put it, see xtask/src/metal.rs.
    let path = find_metal_library(&program, option_env!("MLX_RS_METAL_PATH").map(Path::new))?;
    let set = match path.to_str() {
        Some(path) => mlx_rs::metal::set_metallib_path(path),
        None => Err(Exception::custom("its path is not UTF-8")),
    };
    set.map_err(|source| MetalLibraryError::Refused { path, source })
}

/// Tells MLX where the Metal library of this program is. A program calls it before it uses MLX for the
/// first time, and computes nothing if it fails. Does nothing where MLX was built without Metal.
#[cfg(not(target_os = "macos"))]
pub fn use_metal_library() -> Result<(), MetalLibraryError> {
    Ok(())
}

#[cfg(test)]
thread_local! {
    static AS_ON_GPU: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `build`, in which models and graphs are made as on a GPU: to be counted, not evaluated.
#[cfg(test)]
pub(crate) fn as_on_gpu<T>(build: impl FnOnce() -> T) -> T {
    AS_ON_GPU.with(|is_set| is_set.set(true));
    let built = build();
    AS_ON_GPU.with(|is_set| is_set.set(false));
    built
}

/// The most memory that this process has had so far, in bytes; 0 where the system does not say.
pub fn process_peak_bytes() -> u64 {
    // Linux counts in KiB, macOS in bytes.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss().unsigned_abs() * unit)
}
