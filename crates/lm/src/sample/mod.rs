//! Choosing the next token from its logits, as mlx-lm's sample_utils does.
//!
//! ```text
//! logits ── LogitsProcessors (bias, allowed tokens, penalties over a TokenBuffer) ── Sampler (filters, temperature, RandomKeys) ── token
//! ```

mod filters;
mod processors;
mod random_keys;
mod sampler;
mod token_buffer;

use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype, ops};

use crate::nn::exponential::logsumexp;

pub(crate) use processors::check_token_ids;
pub use processors::{LogitsProcessor, LogitsProcessors};
pub(crate) use sampler::DrawPosition;
pub use sampler::{RandomSampler, Sampler, SamplerFn};
pub use token_buffer::TokenBuffer;

/// Logits `[..., V]` to natural log-probabilities in f32.
pub fn logprobs(logits: &Array) -> Result<Array> {
    let logits = logits.as_dtype(Dtype::Float32)?;
    let total = logsumexp(&logits)?;
    ops::subtract(logits, total)
}
