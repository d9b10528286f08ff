//! MLX off Linux: mlx-sys's build script makes it by itself.

use anyhow::Result;

/// Nothing to make.
pub fn make() -> Result<()> {
    eprintln!("on this system mlx-sys builds MLX by itself: nothing to set up");
    Ok(())
}
