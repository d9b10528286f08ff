//! `cairn generate`: continue a prompt, as text that streams or as one JSON object.

use std::io::IsTerminal;

use anyhow::Result;
use cairn_chat::{FinishReason, Message, Role};
use cairn_engine::{FinishedGeneration, GenerateEvent, GenerateRequest, PromptInput, TokenLogprob};
use serde_json::json;

use crate::arguments::Generate;
use crate::output;
use crate::session::Session;

pub async fn run(arguments: Generate) -> Result<()> {
    arguments.sampling.params().validate()?;
    let prompt = match (arguments.prompt, arguments.prompt_tokens) {
        (_, Some(tokens)) => PromptInput::Tokens(tokens),
        (text, None) => prompt(output::text_or_stdin(text.unwrap_or_default())?, arguments.system_prompt, arguments.ignore_chat_template),
    };
    let session = Session::open(&arguments.model).await?;
    let mut request = GenerateRequest::new(prompt);
    request.sampling = arguments.sampling.params();
    request.max_tokens = arguments.max_tokens;
    request.prefill_step_size = arguments.prefill_step_size as usize;
    request.use_prompt_cache = false;
    request.num_top_logprobs = arguments.logprobs;

    let mut answer = Answer::default();
    let mut generation = session.engine.generate(request);
    let bar = output::bar(0, "reading the prompt {wide_bar} {pos}/{len} tokens");
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::Prefill { processed, total, .. } => {
                bar.set_length(total as u64);
                bar.set_position(processed as u64);
            }
            GenerateEvent::Delta { text, token, logprob } => {
                bar.finish_and_clear();
                if !arguments.json {
                    output::text(&text)?;
                }
                answer.text += &text;
                answer.tokens.push(token);
                answer.logprobs.extend(logprob);
            }
            GenerateEvent::Finished(finished) => {
                answer.text += &finished.text;
                if arguments.json {
                    output::line(answer.json(&finished, arguments.logprobs.is_some()))?;
                } else {
                    output::text(&finished.text)?;
                    output::line("")?;
                    summarise(&finished);
                }
            }
            GenerateEvent::Failed(error) => return Err(error.into()),
        }
    }
    session.engine.shutdown().await;
    Ok(())
}

fn prompt(text: String, system_prompt: Option<String>, plain: bool) -> PromptInput {
    if plain {
        return PromptInput::Text(text);
    }
    let message = |role, content| Message { role, content, token_ids: None };
    let system = system_prompt.map(|content| message(Role::System, content));
    PromptInput::Messages(system.into_iter().chain([message(Role::User, text)]).collect())
}

#[derive(Default)]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
}

impl Answer {
    fn json(&self, finished: &FinishedGeneration, with_logprobs: bool) -> serde_json::Value {
        let stats = &finished.stats;
        let mut object = json!({
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": if stats.finish_reason == FinishReason::Stop { "stop" } else { "length" },
            "stop_string": null,
            "prompt_tokens": stats.num_prompt_tokens,
            "cached_tokens": stats.num_cached_tokens,
            "generation_tokens": stats.num_generation_tokens,
            "prompt_tps": stats.prompt_tps,
            "generation_tps": stats.generation_tps,
            "peak_memory_gb": stats.mlx_peak_bytes as f64 / 1e9,
        });
        if with_logprobs {
            let entries = self.logprobs.iter().map(|entry| json!({"token": entry.token, "logprob": entry.logprob, "top": entry.top}));
            object["logprobs"] = entries.collect();
        }
        object
    }
}

fn summarise(finished: &FinishedGeneration) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let stats = &finished.stats;
    eprintln!(
        "\nprompt {} tokens, {:.1} tokens/s; answer {} tokens, {:.1} tokens/s; peak memory {:.2} GB",
        stats.num_prompt_tokens,
        stats.prompt_tps,
        stats.num_generation_tokens,
        stats.generation_tps,
        stats.mlx_peak_bytes as f64 / 1e9
    );
}
