//! What a caller hears of each token of an answer, with mlx-lm's figures.

use std::time::Instant;

use cairn_chat::FinishReason;

use super::Logprobs;
use crate::memory;

/// One token of an answer and what is known when it has come.
#[derive(Debug, Clone)]
pub struct GenerationResponse {
    /// Text that has become certain; often empty, and sometimes that of several tokens.
    pub text: String,
    /// The token.
    pub token: u32,
    /// The distribution behind it; where asked for.
    pub logprobs: Option<Logprobs>,
    /// Whether the draft model proposed it.
    pub from_draft: bool,
    /// Tokens of the prompt, those that the caches held included.
    pub prompt_tokens: usize,
    /// Newly read prompt tokens a second, the first sampled token included in the time.
    pub prompt_tps: f64,
    /// Tokens sampled, a token that ends the answer included.
    pub generation_tokens: usize,
    /// Tokens sampled a second, counted from the first: 0 with that one, because its time belongs
    /// to the prompt.
    pub generation_tps: f64,
    /// The most MLX memory in use since [`memory::reset_peak`], in 10^9 bytes.
    pub peak_memory_gb: f64,
    /// Why the answer ends with this token; none before the last.
    pub finish_reason: Option<FinishReason>,
    /// The stop string that ended it. `text` ends before it.
    pub stop_string: Option<String>,
    /// The tokens that ended it: an end-of-sequence token, a stop sequence, or those that a stop
    /// string was cut from. Empty otherwise.
    pub stop_tokens: Vec<u32>,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Generated {
    /// Its text.
    pub text: String,
    /// Its tokens, one that ended it included.
    pub tokens: Vec<u32>,
    /// The last token's response, with the figures of the whole.
    pub last: GenerationResponse,
}

/// When things happened, and how much was read.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) prompt_tokens: usize,
    pub(super) num_read: usize,
    pub(super) began: Instant,
    pub(super) first_token: Option<Instant>,
    pub(super) generation_tokens: usize,
}

impl Clock {
    pub(super) fn tick(&mut self) {
        self.first_token.get_or_insert_with(Instant::now);
        self.generation_tokens += 1;
    }

    /// A response with the figures of now.
    pub(super) fn response(
        &self,
        token: u32,
        from_draft: bool,
        logprobs: Option<Logprobs>,
    ) -> GenerationResponse {
        let first_token = self.first_token.unwrap_or(self.began);
        GenerationResponse {
            text: String::new(),
            token,
            logprobs,
            from_draft,
            prompt_tokens: self.prompt_tokens,
            prompt_tps: rate(self.num_read, (first_token - self.began).as_secs_f64()),
            generation_tokens: self.generation_tokens,
            generation_tps: rate(
                self.generation_tokens.saturating_sub(1),
                first_token.elapsed().as_secs_f64(),
            ),
            peak_memory_gb: memory::peak_bytes() as f64 / 1e9,
            finish_reason: None,
            stop_string: None,
            stop_tokens: Vec::new(),
        }
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
