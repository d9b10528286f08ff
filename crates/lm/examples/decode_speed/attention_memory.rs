//! What MLX's own attention over a prompt stores on this device.
//!
//! `has_attention_kernel` says for which head lengths no scores are stored if it is causal, and estimates
//! of memory rely on it. It was read from MLX's source; here it is seen.

use cairn_lm::device::ComputeDevice;
use cairn_lm::{has_attention_kernel, memory};
use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
use mlx_rs::{Array, Dtype, ops, random};

use crate::Failure;

/// The name of this check among those of shapes.
pub const NAME: &str = "attention";

const HEADS: i32 = 8;
const KV_HEADS: i32 = 2;
const TOKENS: i32 = 4096;
const HEAD_DIMS: [i32; 9] = [32, 64, 72, 80, 96, 112, 128, 192, 256];

/// Prints for each head length what causal attention and attention with a mask of a prompt take.
/// Fails where causal attention stores scores although it should not. Says nothing of a CPU, which
/// stores all.
pub fn check() -> Result<(), Failure> {
    if ComputeDevice::current() == ComputeDevice::Cpu {
        return Ok(());
    }
    let mut wrong = Vec::new();
    for head_dim in HEAD_DIMS {
        let [causal, masked] = [false, true].map(|has_mask| stores_scores(head_dim, has_mask));
        let (causal, masked) = (causal?, masked?);
        let is_listed = has_attention_kernel([head_dim; 2], None);
        let what = |stores| if stores { "stored" } else { "not stored" };
        eprintln!(
            "{NAME}: head length {head_dim}: scores {} if causal, {} with a mask; expected {}",
            what(causal),
            what(masked),
            if is_listed { "not stored" } else { "either" }
        );
        if is_listed && causal {
            wrong.push(head_dim);
        }
    }
    match wrong[..] {
        [] => Ok(()),
        _ => Err(format!("{NAME}: scores are stored for head lengths {wrong:?}").into()),
    }
}

/// Whether attention takes a good part of the bytes of all scores besides its inputs and output.
fn stores_scores(head_dim: i32, has_mask: bool) -> Result<bool, Failure> {
    const SCORES_BYTES: u64 = HEADS as u64 * (TOKENS as u64).pow(2) * 2;
    let tokens = |heads| {
        let shape = [1, heads, TOKENS, head_dim];
        let array = random::normal::<f32>(&shape, None, None, None)?;
        let array = array.as_dtype(Dtype::Bfloat16)?;
        array.eval()?;
        Ok::<_, Failure>(array)
    };
    let (queries, keys, values) = (tokens(HEADS)?, tokens(KV_HEADS)?, tokens(KV_HEADS)?);
    let columns = ops::arange::<_, i32>(0, TOKENS, 1)?;
    let array: Array = columns.reshape(&[TOKENS, 1])?.ge(&columns)?;
    array.eval()?;
    let mask = match has_mask {
        true => ScaledDotProductAttentionMask::Array(&array),
        false => ScaledDotProductAttentionMask::Causal,
    };
    memory::clear_cache();
    memory::reset_peak();
    let before = memory::active_bytes();
    scaled_dot_product_attention(&queries, &keys, &values, 0.1, Some(mask), None)?.eval()?;
    Ok(memory::peak_bytes().saturating_sub(before) > SCORES_BYTES / 2)
}
