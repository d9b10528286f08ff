//! Prompt-cache files: a prompt's keys and values, read once and kept for answers that continue it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cairn_lm::cache::{LayerCache, load_prompt_cache, make_prompt_cache, save_prompt_cache};
use cairn_lm::{GenerateOptions, LmError, LoadedModel, Sampler, check_length, generate_step};

use crate::EngineError;
use crate::answer::prompt_tokens;
use crate::request::{KvCacheOptions, PromptInput};
use crate::worker::Worker;

/// A prompt to read and keep.
#[derive(Debug, Clone, PartialEq)]
pub struct CachePromptRequest {
    /// What to read.
    pub prompt: PromptInput,
    /// How its keys and values are kept.
    pub kv_cache: KvCacheOptions,
    /// Prompt tokens read at once.
    pub prefill_step_size: usize,
    /// Where they are written.
    pub file: PathBuf,
    /// What the file says that the model was named; mlx-lm compares it with what its user names.
    pub model_name: String,
}

/// A prompt that has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPrompt {
    /// Tokens in the file.
    pub num_tokens: usize,
    /// Length of the file.
    pub num_bytes: u64,
}

/// What a file holds.
pub(crate) struct PromptFile {
    pub(crate) num_tokens: usize,
    /// Empty where the file does not name them.
    pub(crate) token_ids: Vec<u32>,
    pub(crate) caches: Vec<LayerCache>,
}

// Flat names: mlx-lm takes a dot for a level of its own.
const FORMAT: &str = "cairn_format";
const KIND: &str = "cairn_kind";
const FINGERPRINT: &str = "cairn_model_fingerprint";
const TOKEN_IDS: &str = "cairn_token_ids";
const TOKEN_COUNT: &str = "cairn_token_count";

/// Reads a prompt and writes the file; `on_progress(processed, total)` may break it off.
pub(crate) fn write(
    worker: &Worker,
    request: &CachePromptRequest,
    on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<CachedPrompt, EngineError> {
    let loaded = worker.loaded.as_ref().ok_or(EngineError::NoModel)?;
    let model = &loaded.model.model;
    let tokens = prompt_tokens(&loaded.model, &request.prompt)?.tokens;
    check_length(tokens.len(), model)?;
    let mut caches = make_prompt_cache(model, request.kv_cache.effective_max_size())?;
    let options = GenerateOptions {
        max_tokens: 0,
        prefill_step_size: request.prefill_step_size,
        kv_quantization: request.kv_cache.quantization,
        ..GenerateOptions::default()
    };
    let caches = generate_step(model, &tokens, &mut caches, Sampler::Greedy, options, on_progress)?.into_caches()?;
    let ids: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    let metadata = BTreeMap::from([
        ("model".to_owned(), request.model_name.clone()),
        ("tokenizer_config".to_owned(), "{}".to_owned()),
        (FORMAT.to_owned(), "1".to_owned()),
        (KIND.to_owned(), "prompt".to_owned()),
        (FINGERPRINT.to_owned(), loaded.model.fingerprint.clone()),
        (TOKEN_COUNT.to_owned(), tokens.len().to_string()),
        (TOKEN_IDS.to_owned(), ids.join(",")),
    ]);
    save_prompt_cache(&request.file, &caches, &metadata)?;
    let num_bytes = std::fs::metadata(&request.file).map_or(0, |metadata| metadata.len());
    Ok(CachedPrompt { num_tokens: tokens.len(), num_bytes })
}

/// Reads a file for `model`.
pub(crate) fn load(path: &Path, model: &LoadedModel) -> Result<PromptFile, EngineError> {
    let loaded = load_prompt_cache(path).map_err(|source| EngineError::PromptFile { path: path.to_owned(), source });
    let (caches, metadata) = loaded?;
    if metadata.get(FINGERPRINT).is_some_and(|fingerprint| *fingerprint != model.fingerprint) {
        let name = metadata.get("model").cloned().unwrap_or_default();
        return Err(EngineError::OtherModel { path: path.to_owned(), model: name });
    }
    let expected = model.model.make_cache().len();
    if caches.len() != expected {
        return Err(LmError::CacheLayers { found: caches.len(), expected }.into());
    }
    let num_tokens = caches.iter().map(LayerCache::offset).max().unwrap_or(0);
    let token_ids: Option<Vec<u32>> = metadata.get(TOKEN_IDS).and_then(|ids| ids.split(',').map(|id| id.parse().ok()).collect());
    let vocab_size = model.model.vocab_size();
    let is_plausible = |ids: &Vec<u32>| ids.len() == num_tokens && ids.iter().all(|&id| (id as usize) < vocab_size);
    Ok(PromptFile { num_tokens, token_ids: token_ids.filter(is_plausible).unwrap_or_default(), caches })
}
