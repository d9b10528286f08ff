//! `cairn generate`: generates text from a prompt, and prints it as it comes or as one JSON object.

use std::io::IsTerminal;

use anyhow::{Result, bail};
use cairn_chat::{Message, Role};
use cairn_engine::{
    Acceptance, FinishedGeneration, GenerateEvent, GenerateRequest, KvCacheOptions, PromptInput,
};
use cairn_lm::cache::{KvQuantization, PromptFile};

use crate::arguments::{CacheFlags, Generate};
use crate::completion::Completion;
use crate::download::Questions;
use crate::model_folders::model_type;
use crate::output::{self, note};
use crate::session::Session;

pub async fn run(arguments: Generate) -> Result<()> {
    let text = prompt_text(&arguments)?;
    let kv_cache = kv_cache_options(&arguments)?;
    refuse_images(&arguments)?;
    let speculation = arguments.speculation.speculation()?;
    let questions = Questions::unless(arguments.json);
    let session = Session::open(&arguments.model, questions).await?;
    session.load_draft(&arguments.speculation, &arguments.model, questions).await?;
    if let Some(level) = arguments.thinking {
        session.require_thinking(level).await?;
    }
    if !session.model.has_chat_template {
        note_ignored_flags(&arguments, &session.model.name);
    }
    let prompt = prompt(&arguments, text, session.model.has_chat_template);
    let request = GenerateRequest { kv_cache, speculation, ..request(&arguments, prompt) };
    let generated = print_generated(&session, request, &arguments).await;
    session.engine.shutdown().await;
    generated
}

/// Fails if an image is given: no architecture has an image input yet.
fn refuse_images(arguments: &Generate) -> Result<()> {
    let Some(image) = arguments.image.first() else { return Ok(()) };
    let image = image.display();
    let model_type = model_type(&arguments.model.model)?;
    bail!("cannot use {image}: Cairn has no image input for {model_type} models")
}

/// The prompt's text, from the command line or from stdin; empty where token ids are given.
fn prompt_text(arguments: &Generate) -> Result<String> {
    match (&arguments.prompt, &arguments.prompt_tokens) {
        (Some(text), None) => output::text_or_stdin(unescape(text)),
        _ => Ok(String::new()),
    }
}

/// Replaces `\n` and `\t` in a prompt given on the command line, as mlx-lm does.
fn unescape(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\t", "\t")
}

/// How the KV cache is stored: as the prompt-cache file has it where that is quantized, else as the
/// flags say. Flags that contradict the file are refused, as in mlx-lm, and so is --snapkv where
/// nothing of the file could be dropped.
fn kv_cache_options(arguments: &Generate) -> Result<KvCacheOptions> {
    let CacheFlags { kv, snapkv } = &arguments.cache;
    let options = arguments.cache.options();
    let Some(path) = &arguments.prompt_cache_file else { return Ok(options) };
    let file = PromptFile::open(path)?;
    let (quantized, path) = (file.spec().quantization(), path.display());
    if let Some(keep_tokens) = snapkv.snapkv {
        if let Some(KvQuantization { bits, .. }) = quantized {
            let problem = format!("its KV cache has {bits} bits");
            bail!("cannot continue {path} with --snapkv {keep_tokens}: {problem}");
        }
        if file.spec().compressed().is_none() {
            let problem = "no layer of its KV cache holds all tokens";
            bail!("cannot continue {path} with --snapkv {keep_tokens}: {problem}");
        }
    }
    let Some(KvQuantization { group_size, bits, .. }) = quantized else { return Ok(options) };
    if let Some(given) = kv.kv_bits.filter(|&given| given != bits) {
        bail!("cannot continue {path} with --kv-bits {given}: its KV cache has {bits} bits");
    }
    if let Some(given) = kv.kv_group_size.filter(|&given| given != group_size) {
        let problem = format!("its KV cache has groups of {group_size}");
        bail!("cannot continue {path} with --kv-group-size {given}: {problem}");
    }
    Ok(KvCacheOptions { quantization: None, ..options })
}

/// Names the given flags that have no effect on a model without a chat template.
fn note_ignored_flags(arguments: &Generate, model: &str) {
    let flags = [
        ("--system-prompt", arguments.system_prompt.is_some()),
        ("--prefill-response", arguments.prefill_response.is_some()),
    ];
    for (flag, _) in flags.into_iter().filter(|&(_, is_given)| is_given) {
        note!("note: {model} has no chat template, so {flag} has no effect");
    }
}

fn prompt(arguments: &Generate, text: String, has_chat_template: bool) -> PromptInput {
    let continues_file = arguments.prompt_cache_file.is_some();
    if let Some(tokens) = &arguments.prompt_tokens {
        return PromptInput::Tokens(tokens.clone());
    }
    if arguments.ignore_chat_template || !has_chat_template {
        return if continues_file { PromptInput::MoreText(text) } else { PromptInput::Text(text) };
    }
    let message = |role, content| Message { role, content, token_ids: None };
    let system = arguments.system_prompt.clone().map(|content| message(Role::System, content));
    let mut messages: Vec<_> = system.into_iter().chain([message(Role::User, text)]).collect();
    if let Some(beginning) = &arguments.prefill_response {
        messages.push(message(Role::Assistant, beginning.clone()));
        return PromptInput::OpenTurn(messages);
    }
    // The file ends within the user's turn, so only the text after that is to be read.
    if continues_file {
        PromptInput::Continuation(messages)
    } else {
        PromptInput::Messages(messages)
    }
}

fn request(arguments: &Generate, prompt: PromptInput) -> GenerateRequest {
    GenerateRequest {
        template_variables: arguments.chat_template_config.clone().unwrap_or_default(),
        thinking: arguments.thinking,
        sampling: arguments.sampling.params(),
        max_tokens: arguments.max_tokens,
        prefill_step_size: arguments.prefill.step_size as usize,
        use_prompt_cache: false,
        stop: arguments.stops.stop.clone(),
        skip_special_tokens: false, // as mlx-lm prints them
        extra_eos_tokens: arguments.stops.extra_eos_token.clone(),
        prompt_cache_file: arguments.prompt_cache_file.clone(),
        num_top_logprobs: arguments.logprobs,
        ..GenerateRequest::new(prompt)
    }
}

async fn print_generated(
    session: &Session,
    request: GenerateRequest,
    arguments: &Generate,
) -> Result<()> {
    let mut completion = Completion::default();
    let mut generation = session.engine.generate(request);
    let bar = output::bar(0, "prefill {wide_bar} {pos}/{len} tokens");
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::SoFar(_) => {}
            GenerateEvent::Prefill { processed, total, .. } => {
                bar.set_length(total as u64);
                bar.set_position(processed as u64);
            }
            GenerateEvent::Delta { text, token, logprob, .. } => {
                bar.finish_and_clear();
                if !arguments.json {
                    output::text(&text)?;
                }
                completion.push(&text, token, logprob);
            }
            GenerateEvent::Finished(finished) => {
                completion.text += &finished.text;
                if arguments.json {
                    output::line(completion.json(&finished, arguments.logprobs.is_some()))?;
                } else {
                    output::text(&finished.text)?;
                    output::line("")?;
                }
                let is_shown = !arguments.json && std::io::stderr().is_terminal();
                if arguments.verbose.unwrap_or(is_shown) {
                    print_stats(&finished);
                }
            }
            GenerateEvent::Failed(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn print_stats(finished: &FinishedGeneration) {
    let stats = &finished.stats;
    note!(
        "\nprompt {} tokens, {:.1} tokens/s; generation {} tokens, {:.1} tokens/s; \
         peak memory {:.2} GB",
        stats.num_prompt_tokens,
        stats.prompt_tps,
        stats.num_generation_tokens,
        stats.generation_tps,
        stats.mlx_peak_bytes as f64 / 1e9
    );
    if let Some(num_kept) = stats.num_kept_tokens {
        note!("read {} tokens, kept {num_kept}", stats.num_prompt_tokens);
    }
    let Acceptance { num_drafted, num_accepted, num_checked } = finished.acceptance;
    if num_drafted > 0 {
        note!(
            "{num_accepted} of {num_drafted} proposed tokens accepted; \
             {num_checked} tokens verified by the model in passes over several"
        );
    }
}
