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
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, Dtype, ops};

use crate::cuda::CudaKernels;
use crate::device_kernels::{Kernel, run};
use crate::nn::exponential::logsumexp;

pub(crate) use processors::check_token_ids;
pub use processors::{LogitsProcessor, LogitsProcessors};
pub(crate) use sampler::DrawPosition;
pub use sampler::{RandomSampler, Sampler, SamplerFn};
pub use token_buffer::TokenBuffer;

/// The likeliest token of each row, the first of several: logits `[B, V]` to u32 `[B]`. The device's kernel
/// finds it for every model, also for those that are loaded without kernels: it is the same token.
pub(crate) fn likeliest_token(logits: &Array) -> Result<Array> {
    thread_local!(
        static KERNEL: Option<Box<dyn Kernel>> =
            CudaKernels::load().and_then(|kernels| kernels.argmax());
    );
    match KERNEL.with(|kernel| run(kernel.as_deref(), &[logits])) {
        Some([tokens]) => Ok(tokens),
        None => argmax_axis(logits, -1, false),
    }
}

/// Logits `[..., V]` to natural log-probabilities in f32.
pub fn logprobs(logits: &Array) -> Result<Array> {
    let logits = logits.as_dtype(Dtype::Float32)?;
    let total = logsumexp(&logits)?;
    ops::subtract(logits, total)
}
