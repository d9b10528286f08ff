//! `cairn batch`: generates text for all requests of a file, in batches.

use anyhow::{Result, bail, ensure};
use cairn_chat::{Message, Role, SamplingParams};
use cairn_engine::{EngineOptions, GenerateRequest, PromptInput, Speculation};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::arguments::{self, Batch, DEFAULT_MAX_TOKENS};
use crate::completion::Completion;
use crate::download::Questions;
use crate::json_lines;
use crate::output::{self, note};
use crate::session::Session;

/// A request: one line of the file. Its fields are named as the flags of `cairn generate` are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt_tokens: Option<Vec<u32>>,
    messages: Option<Vec<LineMessage>>,
    prompt: Option<String>,
    #[serde(default = "default_max_tokens", deserialize_with = "token_limit")]
    max_tokens: usize,
    #[serde(default, deserialize_with = "one_or_several")]
    stop: Vec<String>,
    #[serde(default, alias = "extra_eos_token", deserialize_with = "one_or_several")]
    extra_eos_tokens: Vec<String>,
    logprobs: Option<usize>,
    temp: Option<f32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    min_tokens_to_keep: Option<usize>,
    top_k: Option<usize>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    repetition_penalty: Option<f32>,
    repetition_context_size: Option<usize>,
    presence_penalty: Option<f32>,
    presence_context_size: Option<usize>,
    frequency_penalty: Option<f32>,
    frequency_context_size: Option<usize>,
    logit_bias: Option<std::collections::BTreeMap<u32, f32>>,
    seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineMessage {
    role: Role,
    content: String,
}

fn one_or_several<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
    enum Texts {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Texts::deserialize(from)? {
        Texts::One(text) => vec![text],
        Texts::Several(texts) => texts,
    })
}

fn default_max_tokens() -> usize {
    DEFAULT_MAX_TOKENS
}

fn token_limit<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    arguments::token_limit(&i64::deserialize(from)?.to_string()).map_err(Error::custom)
}

impl Line {
    fn parse(text: &str) -> Result<Self> {
        let line: Line = json_lines::object(text)?;
        let is_given =
            [line.prompt_tokens.is_some(), line.messages.is_some(), line.prompt.is_some()];
        ensure!(
            is_given.into_iter().filter(|&is_given| is_given).count() == 1,
            "give one of prompt_tokens, messages and prompt"
        );
        ensure!(
            line.messages.as_ref().is_none_or(|messages| !messages.is_empty()),
            "messages is empty"
        );
        ensure!(line.prompt.as_deref() != Some(""), "the prompt is empty");
        ensure!(
            line.prompt_tokens.as_ref().is_none_or(|tokens| !tokens.is_empty()),
            "prompt_tokens is empty"
        );
        ensure!(!line.stop.iter().any(String::is_empty), "a stop is empty");
        line.sampling().validate()?;
        Ok(line)
    }

    fn sampling(&self) -> SamplingParams {
        let default = SamplingParams::default();
        SamplingParams {
            temperature: self.temp.unwrap_or(default.temperature),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            min_tokens_to_keep: self.min_tokens_to_keep.unwrap_or(default.min_tokens_to_keep),
            top_k: self.top_k.unwrap_or(default.top_k),
            xtc_probability: self.xtc_probability.unwrap_or(default.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(default.xtc_threshold),
            repetition_penalty: self.repetition_penalty,
            repetition_context_size: self
                .repetition_context_size
                .unwrap_or(default.repetition_context_size),
            presence_penalty: self.presence_penalty,
            presence_context_size: self
                .presence_context_size
                .unwrap_or(default.presence_context_size),
            frequency_penalty: self.frequency_penalty,
            frequency_context_size: self
                .frequency_context_size
                .unwrap_or(default.frequency_context_size),
            logit_bias: self.logit_bias.clone().unwrap_or_default(),
            seed: self.seed,
            ..default
        }
    }

    fn request(
        self,
        flags: &Batch,
        speculation: Speculation,
        has_chat_template: bool,
    ) -> GenerateRequest {
        let sampling = self.sampling();
        let message = |message: LineMessage| Message {
            role: message.role,
            content: message.content,
            token_ids: None,
        };
        let prompt = match (self.prompt_tokens, self.prompt) {
            (Some(tokens), _) => PromptInput::Tokens(tokens),
            (None, Some(text)) if !has_chat_template => PromptInput::Text(text),
            (None, text) => {
                let user = text.map(|content| LineMessage { role: Role::User, content });
                let messages = self.messages.into_iter().flatten().chain(user);
                PromptInput::Messages(messages.map(message).collect())
            }
        };
        GenerateRequest {
            sampling,
            max_tokens: self.max_tokens,
            stop: self.stop,
            skip_special_tokens: false,
            extra_eos_tokens: self.extra_eos_tokens,
            num_top_logprobs: self.logprobs,
            prefill_step_size: flags.prefill.step_size as usize,
            kv_cache: flags.cache.options(),
            speculation,
            use_prompt_cache: false,
            ..GenerateRequest::new(prompt)
        }
    }
}

pub async fn run(arguments: Batch) -> Result<()> {
    // All lines are checked before the model is loaded, so that a typo in the last one shows early.
    let lines = json_lines::read(&arguments.input, Line::parse)?;
    let options = EngineOptions {
        completion_batch_size: arguments.completion_batch_size as usize,
        prefill_batch_size: arguments.prefill_batch_size as usize,
        prefer_prefill_when_pending: arguments.prefer_prefill_when_pending,
        ..EngineOptions::default()
    };
    let speculation = arguments.speculation.speculation()?;
    let questions = Questions::unless(arguments.json);
    let session = Session::open_with(&arguments.model, questions, options).await?;
    session.load_draft(&arguments.speculation, &arguments.model, questions).await?;
    let bar = output::bar(lines.len() as u64, "generating {wide_bar} {pos}/{len} requests");
    let with_logprobs: Vec<bool> = lines.iter().map(|line| line.logprobs.is_some()).collect();
    let has_template = session.model.has_chat_template;
    let mut generations: Vec<_> = lines
        .into_iter()
        .map(|line| line.request(&arguments, speculation, has_template))
        .map(|request| session.engine.generate(request))
        .collect();
    let mut num_failed = 0;
    for (index, generation) in generations.iter_mut().enumerate() {
        match Completion::collect(generation).await {
            Ok((completion, finished)) if arguments.json => {
                let mut object = completion.json(&finished, with_logprobs[index]);
                object["index"] = index.into();
                output::line(object)?;
            }
            Ok((completion, _)) => {
                output::line(format_args!("{index}\t{}", completion.text.replace('\n', "\\n")))?
            }
            Err(error) => {
                num_failed += 1;
                bar.suspend(|| note!("cairn: request {index}: {error}"));
                if arguments.json {
                    output::line(json!({"index": index, "error": error.to_string()}))?;
                }
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    session.engine.shutdown().await;
    if num_failed > 0 {
        bail!("{num_failed} of {} requests failed", generations.len());
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn each_penalty_of_a_line_has_a_context_size_of_its_own() {
        let line = r#"{
            "prompt": "x",
            "repetition_context_size": 5,
            "presence_context_size": 6,
            "frequency_context_size": 7
        }"#;
        let params = Line::parse(line).unwrap().sampling();
        assert_eq!((params.repetition_context_size, params.presence_context_size), (5, 6));
        assert_eq!(params.frequency_context_size, 7);
    }
}
