//! An answer as it is collected from the engine's events, and the JSON object that tells it.

use anyhow::{Result, bail};
use cairn_chat::FinishReason;
use cairn_engine::{FinishedGeneration, GenerateEvent, Generation, TokenLogprob};
use serde_json::{Value, json};

/// Text and tokens so far.
#[derive(Default)]
pub struct Answer {
    pub text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
}

impl Answer {
    /// Takes a token with the text that it completed.
    pub fn push(&mut self, text: &str, token: u32, logprob: Option<TokenLogprob>) {
        self.text += text;
        self.tokens.push(token);
        self.logprobs.extend(logprob);
    }

    /// Follows an answer to its end.
    pub async fn collect(generation: &mut Generation) -> Result<(Answer, FinishedGeneration)> {
        let mut answer = Answer::default();
        while let Some(event) = generation.recv().await {
            match event {
                GenerateEvent::Prefill { .. } => {}
                GenerateEvent::Delta { text, token, logprob } => answer.push(&text, token, logprob),
                GenerateEvent::Finished(finished) => {
                    answer.text += &finished.text;
                    return Ok((answer, *finished));
                }
                GenerateEvent::Failed(error) => return Err(error.into()),
            }
        }
        bail!("the engine ended without an answer")
    }

    /// The object that `--json` prints.
    pub fn json(&self, finished: &FinishedGeneration, with_logprobs: bool) -> Value {
        let stats = &finished.stats;
        let mut object = json!({
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": if stats.finish_reason == FinishReason::Stop { "stop" } else { "length" },
            "stop_string": finished.stop_string,
            "prompt_tokens": stats.num_prompt_tokens,
            "cached_tokens": stats.num_cached_tokens,
            "generation_tokens": stats.num_generation_tokens,
            "prompt_tps": stats.prompt_tps,
            "generation_tps": stats.generation_tps,
            "peak_memory_gb": stats.mlx_peak_bytes as f64 / 1e9,
        });
        if with_logprobs {
            let entries = self.logprobs.iter().map(
                |entry| json!({"token": entry.token, "logprob": entry.logprob, "top": entry.top}),
            );
            object["logprobs"] = entries.collect();
        }
        object
    }
}
