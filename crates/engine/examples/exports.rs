//! Files for mlx-lm to go on from, and what Cairn says after them: tests/goldens/check_exports.py
//! compares.
//!
//! ```text
//! cargo run -p cairn-engine --example exports -- MODEL_FOLDER OUT_FOLDER
//! ```
//! writes `prompt.safetensors` (a prompt left open, as `cairn cache-prompt` writes it),
//! `conversation.safetensors` (two turns, exported), and `exports.json` with what follows on each.

use std::path::PathBuf;

use anyhow::Context;
use cairn_chat::{Message, Role};
use cairn_engine::{
    CacheOptions, CachePromptRequest, Engine, EngineOptions, ExportRequest, FinishedGeneration,
    GenerateEvent, GenerateRequest, KvCacheOptions, PromptFileLayout, PromptInput, PromptKind,
};
use cairn_prompt_cache::Owner;
use serde_json::json;

const DOCUMENT: &str = "A cairn is a pile of stones that marks a path where there are no trees. Walkers add a stone when they pass.\n";
const QUESTION: &str = "What do walkers do?";
const MAX_TOKENS: usize = 32;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let (model, out) = arguments
        .next()
        .zip(arguments.next())
        .context("give a model folder and a folder for the files")?;
    std::fs::create_dir_all(&out)?;
    let store = tempfile::tempdir()?;
    let cache = CacheOptions {
        folder: store.path().to_owned(),
        disk_budget_bytes: 4 << 30,
        memory_budget_bytes: 0,
        chunks: Vec::new(),
        refs: Vec::new(),
        old_folders: Vec::new(),
        cleanup_lock: None,
    };
    let (engine, _) =
        Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() });
    let model_name = model.display().to_string();
    engine.load(&model_name, &model).await?;

    let file = out.join("prompt.safetensors");
    let request = CachePromptRequest {
        prompt: PromptInput::OpenTurn(vec![message(Role::User, DOCUMENT, None)]),
        kv_cache: KvCacheOptions::default(),
        prefill_step_size: 2048,
        file: file.clone(),
        layout: PromptFileLayout::default(),
        model_name: model_name.clone(),
    };
    engine.cache_prompt(request, |_, _| {}).await?;
    let question = PromptInput::Continuation(vec![message(Role::User, QUESTION, None)]);
    let (said, _) = answer(
        &engine,
        GenerateRequest {
            prompt_cache_file: Some(file),
            use_prompt_cache: false,
            ..asked(question)
        },
    )
    .await?;
    let prompt = json!({ "question": QUESTION, "text": said, "max_tokens": MAX_TOKENS });

    let owner = Owner::Conversation("example".to_owned());
    let mut messages = Vec::new();
    let mut last = (String::new(), Vec::new(), Vec::new());
    for question in [DOCUMENT, QUESTION, "And who builds the first one?"] {
        if question.starts_with("And") {
            let request = ExportRequest {
                owner: owner.clone(),
                file: out.join("conversation.safetensors"),
                layout: PromptFileLayout::default(),
                kind: PromptKind::Conversation,
                title: "About cairns".to_owned(),
                made_by: "an example".to_owned(),
                created_at_ms: 0,
            };
            let num_tokens = engine.export_prompt(request).await?.num_tokens;
            last.1 = messages
                .iter()
                .filter_map(|message: &Message| message.token_ids.clone())
                .flatten()
                .skip(num_tokens)
                .collect();
        }
        messages.push(message(Role::User, question, None));
        let input = PromptInput::Messages(messages.clone());
        let (said, finished) =
            answer(&engine, GenerateRequest { owner: Some(owner.clone()), ..asked(input) }).await?;
        last.1.extend(&finished.new_prompt_ids);
        last.2 = finished.token_ids.clone();
        let asked = messages.len() - 1;
        messages[asked].token_ids = Some(finished.new_prompt_ids);
        messages.push(message(Role::Assistant, &said, Some(finished.token_ids)));
    }
    // What the file does not hold of the turns before goes in front of the new one.
    let conversation = json!({ "more": last.1, "tokens": last.2 });
    std::fs::write(
        out.join("exports.json"),
        json!({ "model": model_name, "prompt": prompt, "conversation": conversation }).to_string(),
    )?;
    engine.shutdown().await;
    Ok(())
}

fn message(role: Role, content: &str, token_ids: Option<Vec<u32>>) -> Message {
    Message { role, content: content.to_owned(), token_ids }
}

fn asked(prompt: PromptInput) -> GenerateRequest {
    GenerateRequest { max_tokens: MAX_TOKENS, ..GenerateRequest::new(prompt) }
}

async fn answer(
    engine: &Engine,
    request: GenerateRequest,
) -> anyhow::Result<(String, FinishedGeneration)> {
    let mut generation = engine.generate(request);
    let mut said = String::new();
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::Delta { text, .. } => said.push_str(&text),
            GenerateEvent::Finished(finished) => {
                said.push_str(&finished.text);
                return Ok((said, *finished));
            }
            GenerateEvent::Failed(error) => return Err(error.into()),
            GenerateEvent::SoFar(_) | GenerateEvent::Prefill { .. } => {}
        }
    }
    anyhow::bail!("the answer ended without a word")
}
