//! `cairn cache-prompt`: computes a prompt's KV cache and saves it to a file, from which `cairn
//! generate` and `mlx_lm.generate` continue.

use std::path::Path;

use anyhow::{Result, ensure};
use cairn_chat::{Message, Role};
use cairn_engine::{CachePromptRequest, PromptInput};
use cairn_formats::cache_file::CacheFile;

use crate::arguments::CachePrompt;
use crate::download::Questions;
use crate::output::{self, note};
use crate::session::Session;

pub async fn run(arguments: CachePrompt) -> Result<()> {
    let kv_cache = arguments.kv.options();
    output::check_writable(&arguments.prompt_cache_file)?;
    let replaces_file = arguments.prompt_cache_file.exists();
    if replaces_file {
        check_replaceable(&arguments.prompt_cache_file)?;
    }
    let text = output::text_or_stdin(arguments.prompt)?;
    let session = Session::open(&arguments.model, Questions::Allowed).await?;
    let prompt = if arguments.ignore_chat_template || !session.model.has_chat_template {
        PromptInput::Text(text)
    } else {
        PromptInput::OpenTurn(vec![Message { role: Role::User, content: text, token_ids: None }])
    };
    let bar = output::bar(0, "prefill {wide_bar} {pos}/{len} tokens");
    let request = CachePromptRequest {
        prompt,
        kv_cache,
        prefill_step_size: arguments.prefill.step_size as usize,
        file: arguments.prompt_cache_file.clone(),
        layout: arguments.layout,
        model_name: arguments.model.model.clone(),
    };
    let saved = session.engine.cache_prompt(request, |processed, total| {
        bar.set_length(total as u64);
        bar.set_position(processed as u64);
    });
    let saved = saved.await?;
    bar.finish_and_clear();
    session.engine.shutdown().await;
    let file = arguments.prompt_cache_file.display();
    if replaces_file {
        note!("replaced {file}");
    }
    note!("saved {} tokens to {file} ({})", saved.num_tokens, output::size(saved.num_bytes));
    note!(
        "`cairn generate --prompt-cache-file {file}` continues from it; \
         after `cairn cache import {file}` chats can start from it."
    );
    Ok(())
}

/// Fails unless a file that exists is a prompt cache, or has nothing in it.
fn check_replaceable(file: &Path) -> Result<()> {
    let is_plain = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let is_empty = || file.metadata().is_ok_and(|metadata| metadata.len() == 0);
    ensure!(
        is_plain && (is_empty() || CacheFile::open(file).is_ok()),
        "cannot replace {}: it is no prompt-cache file; choose another name, or delete it first",
        file.display()
    );
    Ok(())
}
