//! MLX's memory counters, in bytes. A counter that cannot be read is 0, so use them for display and
//! not for decisions.

use std::sync::OnceLock;

use mlx_rs::error::Exception;

use crate::device::ComputeDevice;
use crate::ffi;

/// Bytes of all living arrays.
pub fn active_bytes() -> u64 {
    mlx_rs::memory::active_memory().map_or(0, |bytes| bytes as u64)
}

/// The most bytes in use at once since [`reset_peak`]. MLX's own counter starts with the next
/// allocation; arrays that existed at the reset are counted here too.
pub fn peak_bytes() -> u64 {
    mlx_rs::memory::peak_memory().map_or(0, |bytes| bytes as u64).max(active_bytes())
}

/// Freed bytes that MLX keeps for reuse.
pub fn cache_bytes() -> u64 {
    mlx_rs::memory::cache_memory().map_or(0, |bytes| bytes as u64)
}

/// Resets the peak to the bytes in use now.
pub fn reset_peak() {
    let _ = mlx_rs::memory::reset_peak_memory();
}

/// Returns freed bytes to the allocator below MLX: on a GPU that is the device's driver, on a CPU the C
/// library, which may keep them; see [`trim`].
pub fn clear_cache() {
    let _ = mlx_rs::memory::clear_cache();
}

/// Returns freed bytes to the system. The next work has to get them again, so this is for a program that
/// has nothing to do: 64 short answers at once had left 400 MB with the C library.
pub fn trim() {
    clear_cache();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    ffi::trim_heap();
}

/// The bytes that models, caches and computation may take together unless the caller decides
/// otherwise: three quarters of what MLX itself would use at most on this device.
pub fn default_limit_bytes() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    // Read once: MLX's limit is what `set_limits` set last.
    *LIMIT.get_or_init(|| {
        mlx_rs::memory::memory_limit().map_or(u64::MAX, |bytes| bytes as u64 / 4 * 3)
    })
}

/// The most bytes that the system recommends to keep wired for the GPU; `None` everywhere but on a Mac,
/// where MLX wires nothing.
pub fn recommended_wired_bytes() -> Option<u64> {
    // MLX's own limit is one and a half times of it, and the default above three quarters of that.
    ComputeDevice::wires_memory().then(|| default_limit_bytes() / 9 * 8)
}

/// Keeps up to `limit_bytes` of MLX's memory wired, after whatever was launched has ended; 0 wires
/// nothing. Only on a Mac with macOS 15 or later; elsewhere MLX does nothing. Fails, with the limit as it
/// was, where the device cannot be waited for.
pub fn set_wired_limit(limit_bytes: u64) -> Result<(), Exception> {
    ffi::synchronize()?;
    let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
    mlx_rs::memory::set_wired_limit(limit_bytes).map(|_before| ())
}

/// Lets MLX free what it keeps for reuse, and wait for running work, before it takes more than
/// `limit_bytes`. An eighth of them may be kept for reuse.
pub fn set_limits(limit_bytes: u64) {
    default_limit_bytes();
    let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
    let _ = mlx_rs::memory::set_memory_limit(limit_bytes);
    let _ = mlx_rs::memory::set_cache_limit(limit_bytes / 8);
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// Bytes of this process that are in memory.
    fn resident_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    #[test]
    fn freed_memory_between_pages_in_use_goes_back_when_trimmed() {
        // More than what other tests take and free meanwhile.
        const BYTES: u64 = 512 << 20;
        let mut blocks: Vec<Vec<u8>> = (0..BYTES / 1024).map(|_| vec![1; 1024]).collect();
        let _last = blocks.pop();
        drop(blocks);
        let before = resident_bytes();
        trim();
        let after = resident_bytes();
        assert!(after + BYTES / 2 < before, "{before} bytes before, {after} after");
    }
}
