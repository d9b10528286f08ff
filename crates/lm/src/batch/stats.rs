//! Throughput and memory statistics of a batch.

/// Work since the generator was made.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BatchStats {
    /// Prompt tokens read, without cached ones.
    pub prompt_tokens: usize,
    /// Seconds spent in prefill.
    pub prompt_time_s: f64,
    /// Tokens sampled.
    pub generation_tokens: usize,
    /// Seconds spent in decode.
    pub generation_time_s: f64,
    /// The most bytes of MLX memory in use at once since [`crate::memory::reset_peak`].
    pub peak_memory_bytes: u64,
}

impl BatchStats {
    /// Prompt tokens per second; 0 before the first.
    pub fn prompt_tps(&self) -> f64 {
        per_second(self.prompt_tokens, self.prompt_time_s)
    }

    /// Sampled tokens per second, all requests together; 0 before the first.
    pub fn generation_tps(&self) -> f64 {
        per_second(self.generation_tokens, self.generation_time_s)
    }
}

fn per_second(count: usize, time_s: f64) -> f64 {
    if time_s > 0.0 { count as f64 / time_s } else { 0.0 }
}
