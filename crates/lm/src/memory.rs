//! MLX's memory counters. A counter that MLX will not tell reads as 0: figures are shown, never
//! decided on.

/// Bytes of arrays that are alive.
pub fn active_bytes() -> u64 {
    mlx_rs::memory::active_memory().map_or(0, |bytes| bytes as u64)
}

/// The most bytes alive at once since [`reset_peak`]. MLX counts from the next allocation on; what
/// was there already counts here.
pub fn peak_bytes() -> u64 {
    mlx_rs::memory::peak_memory().map_or(0, |bytes| bytes as u64).max(active_bytes())
}

/// Freed bytes that MLX keeps for reuse.
pub fn cache_bytes() -> u64 {
    mlx_rs::memory::cache_memory().map_or(0, |bytes| bytes as u64)
}

/// Begins a new peak at what is alive now.
pub fn reset_peak() {
    let _ = mlx_rs::memory::reset_peak_memory();
}

/// Gives the freed bytes back to the system.
pub fn clear_cache() {
    let _ = mlx_rs::memory::clear_cache();
}
