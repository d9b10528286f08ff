//! How the next token is chosen, with the ranges that are allowed.

use crate::ChatError;

/// Sampling parameters with mlx-lm's names, ranges and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 picks the most likely token.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose probability mass reaches this; outside (0, 1) it is off.
    pub top_p: f32,
    /// Makes sampled answers repeat; none takes a new seed every time.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams { temperature: 0.0, top_p: 1.0, seed: None }
    }
}

impl SamplingParams {
    /// Refuses values outside their range, naming the argument.
    pub fn validate(&self) -> Result<(), ChatError> {
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return Err(ChatError::OutOfRange { name: "temperature", value: self.temperature.to_string(), allowed: "0 or more" });
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return Err(ChatError::OutOfRange { name: "top_p", value: self.top_p.to_string(), allowed: "0 to 1" });
        }
        Ok(())
    }
}
