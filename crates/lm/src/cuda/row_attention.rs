//! Attention of one token of each row of a batch, and of one behind a long context.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::attention_constants::{Constants, THREADS};
use crate::device_kernels::HeadShape;
use crate::ffi::{CudaKernel, Launch};

/// From this capacity on the keys of a single row are worth being read once for several heads. In a whole
/// layer's launch that pays later, see `layer.rs`.
pub(super) const SHARES_KEYS_FROM: i32 = 4096;

/// The most heads that a block computes.
const MOST_SHARED: i32 = 4;

/// Launches `row_attention.cu`.
pub(super) fn launch(
    constants: &Constants,
    row_attention: &CudaKernel,
    inputs: [&Array; 10],
) -> Result<Vec<Array>, Exception> {
    let HeadShape { heads, kv_heads, head_dim, .. } = constants.heads;
    let (batch, capacity, newest) = (inputs[0].dim(0), inputs[1].dim(2), inputs[3].dim(2));
    let shared = shared_heads(heads / kv_heads, MOST_SHARED);
    let splits = splits(batch * heads / shared, capacity);
    let next: (&[i32], _) = (&[batch, kv_heads, newest, head_dim], Dtype::Bfloat16);
    let own = [(c"TAIL", newest), (c"SPLITS", splits), (c"SHARED", shared)];
    let [attended, keys, values, _parts] = row_attention.apply(
        &inputs,
        Launch {
            constants: &[constants.shared().as_slice(), &own].concat(),
            blocks: [heads / shared, splits, batch],
            threads: THREADS,
            outputs: &[
                (&[batch, 1, heads * head_dim], Dtype::Bfloat16),
                next,
                next,
                (&[batch, heads, splits, head_dim + 2], Dtype::Float32),
            ],
        },
    )?;
    Ok(vec![attended, keys, values])
}

/// How many of the heads that share a key head a block computes: at most so many as leave its threads
/// registers for the keys that they read ahead.
pub(super) fn shared_heads(sharing: i32, most: i32) -> i32 {
    (1..=most).rev().find(|shared| sharing % shared == 0).unwrap_or(1)
}

/// Into how many parts the keys of a row are split, a power of two because each number is compiled.
fn splits(num_blocks: i32, capacity: i32) -> i32 {
    /// Eight on each multiprocessor of an H100, which runs two at once: rows of different lengths leave
    /// none of them without work for long.
    const MOST_BLOCKS: i32 = 1056;
    /// A block reads some hundred keys at a time.
    const LEAST_KEYS: i32 = 128;
    let mut splits = 32;
    while splits > 1 && (splits * num_blocks > MOST_BLOCKS || splits * LEAST_KEYS > capacity) {
        splits /= 2;
    }
    splits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_rows_are_split_until_the_device_is_occupied() {
        assert_eq!(splits(8, 40_000), 32, "one row of a long context");
        assert_eq!(splits(8, 512), 4, "a short one");
        assert_eq!(splits(24, 40_000), 32, "three rows");
        assert_eq!(splits(256, 40_000), 4, "many rows");
        assert_eq!(splits(8, 64), 1);
    }

    #[test]
    fn a_block_computes_heads_that_share_their_keys() {
        let shared = [1, 2, 3, 4, 5, 6, 7, 8, 16].map(|sharing| shared_heads(sharing, 4));
        assert_eq!(shared, [1, 2, 3, 4, 1, 3, 1, 4, 4]);
    }
}
