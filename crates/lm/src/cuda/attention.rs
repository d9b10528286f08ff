//! Attention of one token or a few: head norms, RoPE, the append to the newest tokens, and the scores.
//!
//! Every layer of every token waits for this launch, and the keys of one head are few for a device
//! of some hundred processors. So the keys of each head are split over several blocks, of which the
//! last to finish adds up the parts: one launch, however long the context is.
//!
//! Behind a short context, and for several tokens of a row, each block computes one head. For a token of
//! each of several rows, and behind a long context, reading the keys is what takes time: then a block
//! computes several heads that share them.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::attention_constants::{Constants, THREADS};
use super::{CudaKernels, is_bfloat16, row_attention, traced};
use crate::cache::DecodeSlot;
use crate::device_kernels::{HeadShape, Kernel, MOST_TOKENS, Rotation};
use crate::ffi::{Compiled, CudaKernel, Launch};

/// Every step copies the newest tokens, which pays only if they are few bytes.
pub(super) const MAX_NEWEST_BYTES: usize = 1 << 20;

/// See [`DeviceKernels::attention`](crate::device_kernels::DeviceKernels::attention).
#[derive(Debug)]
pub(super) struct Attention {
    of_tokens: Compiled,
    of_rows: Compiled,
    heads: HeadShape,
}

impl Attention {
    pub(super) fn new(
        kernels: &CudaKernels,
        heads: HeadShape,
        rotation: Rotation<'_>,
    ) -> Option<Self> {
        if !is_supported(&heads, &rotation) {
            return None;
        }
        let constants = Constants::new(heads, &rotation);
        let (tokens, rows) = (kernels.attention.clone(), kernels.row_attention.clone());
        let of_tokens =
            Self::compiled(rotation, move |inputs| launch(&constants, &tokens, inputs))?;
        let of_rows = Self::compiled(rotation, move |inputs| {
            row_attention::launch(&constants, &rows, inputs)
        })?;
        Some(Attention { of_tokens, of_rows, heads })
    }

    /// A function of the projections and a slot that launches with the layer's own arrays too.
    fn compiled(
        rotation: Rotation<'_>,
        launch: impl Fn([&Array; 10]) -> Result<Vec<Array>, Exception> + 'static,
    ) -> Option<Compiled> {
        let angles = rotation.angles.clone();
        let weights = rotation.norms.map(|(weights, _)| weights.map(Array::clone));
        traced(move |inputs: &[_; 7]| {
            let [qkv, keys, values, newest_keys, newest_values, slot_mapping, counters] = inputs;
            let [query_norm, key_norm] = match &weights {
                Some(weights) => weights.each_ref(),
                None => [qkv, qkv], // not read
            };
            launch([
                qkv,
                keys,
                values,
                newest_keys,
                newest_values,
                slot_mapping,
                counters,
                &angles,
                query_norm,
                key_norm,
            ])
        })
    }
}

/// Whether the kernels attend with these heads.
pub(super) fn is_supported(heads: &HeadShape, rotation: &Rotation<'_>) -> bool {
    let are_bfloat16 =
        |([query, key], _): ([&Array; 2], f32)| is_bfloat16(query) && is_bfloat16(key);
    matches!(heads.head_dim, 64 | 80 | 96 | 128 | 256)
        && heads.softcap.is_none()
        && rotation.norms.is_none_or(are_bfloat16)
}

impl Kernel for Attention {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.heads;
        let (arrays, newest) = (&inputs[..5], inputs[3]);
        let &[batch, length, _] = inputs[0].shape() else { return Ok(None) };
        let is_of_rows = is_of_rows([batch, length], inputs[1].dim(2), newest.dim(2));
        let fits = *inputs[0].shape() == [batch, length, (heads + 2 * kv_heads) * head_dim]
            && (is_of_rows || batch == 1 && (1..=MOST_TOKENS).contains(&length))
            && batch * length * heads <= DecodeSlot::NUM_COUNTERS
            && *inputs[6].shape() == [DecodeSlot::NUM_COUNTERS]
            && inputs[1].shape()[..2] == [batch, kv_heads]
            && newest.nbytes() <= MAX_NEWEST_BYTES * batch as usize
            && arrays.iter().all(|array| is_bfloat16(array));
        if !fits {
            return Ok(None);
        }
        let launches = if is_of_rows { &self.of_rows } else { &self.of_tokens };
        launches.call::<3>(inputs).map(|outputs| Some(outputs.into()))
    }
}

/// Launches `attention.cu`.
fn launch(
    constants: &Constants,
    attention: &CudaKernel,
    inputs: [&Array; 10],
) -> Result<Vec<Array>, Exception> {
    let HeadShape { heads, kv_heads, head_dim, .. } = constants.heads;
    let (length, capacity, newest) = (inputs[0].dim(1), inputs[1].dim(2), inputs[3].dim(2));
    let splits = splits(heads, length, capacity);
    let next: (&[i32], _) = (&[1, kv_heads, newest, head_dim], Dtype::Bfloat16);
    let own = [
        (c"TAIL", newest),
        (c"TOKENS", if length == 1 { 1 } else { MOST_TOKENS }),
        (c"SPLITS", splits),
    ];
    let [attended, keys, values, _parts] = attention.apply(
        &inputs,
        Launch {
            constants: &[constants.shared().as_slice(), &own].concat(),
            blocks: [heads, splits, length],
            threads: THREADS,
            outputs: &[
                (&[1, length, heads * head_dim], Dtype::Bfloat16),
                next,
                next,
                (&[length, heads, splits, head_dim + 2], Dtype::Float32),
            ],
        },
    )?;
    Ok(vec![attended, keys, values])
}

/// Whether tokens `[B, L]` are computed by `row_attention.cu`, given the columns of the older and of the
/// newest tokens. It does not know the ring of one row, whose newest tokens are all.
fn is_of_rows([batch, length]: [i32; 2], capacity: i32, newest: i32) -> bool {
    length == 1 && (batch > 1 || capacity >= row_attention::SHARES_KEYS_FROM && newest < capacity)
}

/// Into how many parts the keys of a head are split, so that few heads occupy the device too, and
/// long contexts all of it. Of several tokens no more blocks are made than run at once, because each
/// block prepares the keys of all tokens before its own again.
fn splits(heads: i32, length: i32, capacity: i32) -> i32 {
    /// From this capacity on each head's keys are split the most, however many heads there are.
    const SPLITS_MOST_FROM: i32 = 4096;
    /// Four on each multiprocessor of an H100.
    const BLOCKS_AT_ONCE: i32 = 528;
    let mut splits = match (heads, capacity) {
        (_, SPLITS_MOST_FROM..) | (..=8, _) => 32,
        (..=16, _) => 16,
        _ => 8,
    };
    // A power of two, because each number is compiled.
    while length > 1 && splits > 1 && splits * heads * length > BLOCKS_AT_ONCE {
        splits /= 2;
    }
    splits
}

#[cfg(test)]
mod tests {
    use super::{is_of_rows, splits};

    #[test]
    fn rows_and_long_contexts_share_keys_and_rings_of_one_row_do_not() {
        assert!(is_of_rows([3, 1], 256, 64), "a token of each of three rows");
        assert!(is_of_rows([3, 1], 512, 64), "their rings");
        assert!(is_of_rows([3, 1], 48, 48), "narrow ones, as many newest tokens as columns");
        assert!(is_of_rows([1, 1], 4096, 64), "a long context");
        assert!(!is_of_rows([1, 1], 3840, 64));
        assert!(!is_of_rows([1, 1], 4096, 4096), "a ring");
        assert!(!is_of_rows([1, 2], 8192, 64), "two tokens");
    }

    #[test]
    fn keys_are_split_until_the_device_is_occupied() {
        assert_eq!(splits(4, 1, 512), 32, "few heads");
        assert_eq!(splits(16, 1, 512), 16);
        assert_eq!(splits(32, 1, 512), 8);
        assert_eq!(splits(32, 1, 4096), 32, "a long ring");
        assert_eq!(splits(4, 4, 512), 32, "a few tokens of few heads");
        assert_eq!(splits(32, 4, 512), 4);
        assert_eq!(splits(32, 6, 8192), 2);
        assert_eq!(splits(64, 16, 8192), 1, "more tokens than blocks run at once");
    }
}
