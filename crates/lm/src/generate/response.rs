//! The response for each generated token, with mlx-lm's statistics.

use std::time::Instant;

use cairn_chat::FinishReason;

use super::Logprobs;
use crate::memory;

/// One generated token, with text and statistics. As mlx-lm's GenerationResponse.
#[derive(Debug, Clone)]
pub struct GenerationResponse {
    /// The text that this token completes: empty while a character or a possible stop string is
    /// incomplete, and then that of several tokens.
    pub text: String,
    /// The token.
    pub token: u32,
    /// The distribution from which it was sampled; if asked for.
    pub logprobs: Option<Logprobs>,
    /// Whether the draft model proposed it.
    pub from_draft: bool,
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: usize,
    /// Prompt tokens read per second, without cached ones; the time ends with the first sampled
    /// token.
    pub prompt_tps: f64,
    /// Tokens of the answer so far: all sampled ones, without an end-of-sequence token or one that
    /// completed a stop sequence.
    pub generation_tokens: usize,
    /// Tokens sampled per second after the first; 0 with the first, whose time belongs to the
    /// prompt.
    pub generation_tps: f64,
    /// The most MLX memory in use since [`memory::reset_peak`], in 10^9 bytes.
    pub peak_memory_gb: f64,
    /// Why the answer ends with this token; `None` before the last.
    pub finish_reason: Option<FinishReason>,
    /// The stop string that ended the answer; the text ends before it.
    pub stop_string: Option<String>,
    /// The tokens that ended the answer: an end-of-sequence token, a stop sequence, or the tokens
    /// that a stop string was cut from. Empty otherwise.
    pub stop_tokens: Vec<u32>,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Generated {
    /// Its text.
    pub text: String,
    /// Its tokens, as many as [`GenerationResponse::generation_tokens`].
    pub tokens: Vec<u32>,
    /// The last token's response, with the statistics of the whole answer.
    pub last: GenerationResponse,
}

/// Timestamps and counts, from which the statistics of a response are computed.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) prompt_tokens: usize,
    pub(super) num_read: usize,
    pub(super) began: Instant,
    pub(super) first_token: Option<Instant>,
    pub(super) num_sampled: usize,
}

impl Clock {
    pub(super) fn tick(&mut self) {
        self.first_token.get_or_insert_with(Instant::now);
        self.num_sampled += 1;
    }

    /// A response with the present statistics and without text.
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
            generation_tokens: self.num_sampled,
            generation_tps: rate(
                self.num_sampled.saturating_sub(1),
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
