//! MLX's memory counters, in bytes. A counter that cannot be read is 0, so use them for display and
//! not for decisions.

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

/// Returns freed bytes to the system.
pub fn clear_cache() {
    let _ = mlx_rs::memory::clear_cache();
}
