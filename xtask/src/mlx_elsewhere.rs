//! MLX on other systems than Linux: mlx-sys's build script builds it.

use anyhow::Result;

/// Does nothing.
pub fn make() -> Result<()> {
    eprintln!("on this system mlx-sys builds MLX by itself: nothing to set up");
    Ok(())
}

/// Benchmarks against mlx-lm are set up on Linux, where both sides can be given the same BLAS.
pub fn use_openblas(_site: &std::path::Path) -> Result<()> {
    anyhow::bail!(
        "`make bench` compares on Linux only; on a Mac run `cairn bench` beside `mlx_lm.benchmark`"
    )
}
