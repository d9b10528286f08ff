//! Generated text and tokens, collected from the engine's events, and their JSON form.

use anyhow::{Result, bail};
use cairn_chat::FinishReason;
use cairn_engine::{FinishedGeneration, GenerateEvent, Generation, TokenLogprob};
use serde_json::{Value, json};

/// What has been generated so far.
#[derive(Default)]
pub struct Completion {
    pub text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
}

impl Completion {
    /// Appends a token and the text that it completed.
    pub fn push(&mut self, text: &str, token: u32, logprob: Option<TokenLogprob>) {
        self.text += text;
        self.tokens.push(token);
        self.logprobs.extend(logprob);
    }

    /// Receives events until generation has finished.
    pub async fn collect(generation: &mut Generation) -> Result<(Completion, FinishedGeneration)> {
        let mut completion = Completion::default();
        while let Some(event) = generation.recv().await {
            match event {
                GenerateEvent::SoFar(_) | GenerateEvent::Prefill { .. } => {}
                GenerateEvent::Delta { text, token, logprob, .. } => {
                    completion.push(&text, token, logprob)
                }
                GenerateEvent::Finished(finished) => {
                    completion.text += &finished.text;
                    return Ok((completion, *finished));
                }
                GenerateEvent::Failed(error) => return Err(error.into()),
            }
        }
        bail!("the engine stopped before generation finished")
    }

    /// The object that `--json` prints.
    pub fn json(&self, finished: &FinishedGeneration, with_logprobs: bool) -> Value {
        let stats = &finished.stats;
        let is_stopped = stats.finish_reason == FinishReason::Stop;
        let mut object = json!({
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": if is_stopped { "stop" } else { "length" },
            "stop_string": finished.stop_string,
            "prompt_tokens": stats.num_prompt_tokens,
            "cached_tokens": stats.num_cached_tokens,
            "generation_tokens": self.tokens.len(),
            "prompt_tps": stats.prompt_tps,
            "generation_tps": stats.generation_tps,
            "peak_memory_gb": stats.mlx_peak_bytes as f64 / 1e9,
        });
        if let Some(num_kept) = stats.num_kept_tokens {
            object["kept_tokens"] = json!(num_kept);
        }
        if with_logprobs {
            let entries = self.logprobs.iter().map(|entry| {
                let top = entry.top.iter().map(|top| json!([top.token, top.logprob]));
                let top: Value = top.collect();
                json!({"token": entry.token, "logprob": entry.logprob, "top": top})
            });
            object["logprobs"] = entries.collect();
        }
        object
    }
}
