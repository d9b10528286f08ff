//! Prompt-cache files: a prompt's keys and values, read once and kept for answers that continue it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cairn_lm::cache::{LayerCache, check_fit, check_writable, load_prompt_cache, make_prompt_cache, save_prompt_cache};
use cairn_lm::{GenerateOptions, LoadedModel, Sampler, check_length, generate_step};

use crate::EngineError;
use crate::prompt::known_tokens;
use crate::prompt_cache::{Exported, cache_variant};
use crate::records::Space;
use crate::request::{KvCacheOptions, PromptInput};
use crate::sample;
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
    /// What was stored beside them.
    metadata: BTreeMap<String, String>,
}

/// Where the tokens of a prompt-cache file end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptKind {
    /// In an open user turn.
    Prompt,
    /// After an assistant's turn.
    Conversation,
}

impl PromptKind {
    /// Its name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            PromptKind::Prompt => "prompt",
            PromptKind::Conversation => "conversation",
        }
    }
}

/// What a prompt-cache file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFileInfo {
    /// What it calls its model.
    pub model: String,
    /// Where its tokens belong in the prompt cache.
    pub space: Space,
    /// Where its tokens end; a file that does not say is taken as a prompt.
    pub kind: PromptKind,
    /// How many there are.
    pub num_tokens: usize,
    /// The tokens; none where it does not say them.
    pub token_ids: Option<Vec<u32>>,
    /// Its length.
    pub num_bytes: u64,
    /// What it was called where it was made.
    pub title: Option<String>,
    /// What wrote it.
    pub made_by: Option<String>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: Option<i64>,
    /// Whether it says by which weights it was made, and these are the loaded ones.
    pub is_model_proven: bool,
    /// Whether sample positions can be computed again.
    pub can_check: bool,
}

/// How a prompt-cache file is put into the prompt cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Whose it will be: the name of its anchor.
    pub owner: String,
    /// Computes sample positions again first, and compares.
    pub check: bool,
}

/// What is written to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportRequest {
    /// Whose part of the prompt cache.
    pub owner: String,
    /// Where it is written.
    pub file: PathBuf,
    /// Where its tokens end.
    pub kind: PromptKind,
    /// What it is called.
    pub title: String,
    /// What writes it.
    pub made_by: String,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

// Flat names: mlx-lm takes a dot for a level of its own.
const FORMAT: &str = "cairn_format";
const KIND: &str = "cairn_kind";
const FINGERPRINT: &str = "cairn_model_fingerprint";
const TOKEN_IDS: &str = "cairn_token_ids";
const TOKEN_COUNT: &str = "cairn_token_count";
const TITLE: &str = "cairn_title";
const MADE_BY: &str = "cairn_made_by";
const CREATED_AT_MS: &str = "cairn_created_at_ms";

/// Reads a prompt and writes the file; `on_progress(processed, total)` may break it off.
pub(crate) fn write(
    worker: &Worker,
    request: &CachePromptRequest,
    on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<CachedPrompt, EngineError> {
    check_writable(&request.file)?;
    let loaded = worker.loaded.as_ref().ok_or(EngineError::NoModel)?;
    let model = &loaded.model.model;
    let tokens = known_tokens(&loaded.model, &request.prompt)?;
    check_length(tokens.len(), model)?;
    let mut caches = make_prompt_cache(model, request.kv_cache.effective_max_size())?;
    let options = GenerateOptions {
        max_tokens: 0,
        prefill_step_size: request.prefill_step_size,
        kv_quantization: request.kv_cache.quantization,
        ..GenerateOptions::default()
    };
    let caches = generate_step(model, &tokens, &mut caches, Sampler::Greedy, options, on_progress)?.into_caches()?;
    let metadata = BTreeMap::from([
        ("model".to_owned(), request.model_name.clone()),
        ("tokenizer_config".to_owned(), "{}".to_owned()),
        (FORMAT.to_owned(), "1".to_owned()),
        (KIND.to_owned(), "prompt".to_owned()),
        (FINGERPRINT.to_owned(), loaded.model.fingerprint.clone()),
        (TOKEN_COUNT.to_owned(), tokens.len().to_string()),
        (TOKEN_IDS.to_owned(), joined(&tokens)),
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
    check_fit(&model.model, &caches).map_err(|source| EngineError::PromptFile { path: path.to_owned(), source })?;
    let num_tokens = caches.iter().map(LayerCache::offset).max().unwrap_or(0);
    let token_ids: Option<Vec<u32>> = metadata.get(TOKEN_IDS).and_then(|ids| ids.split(',').map(|id| id.parse().ok()).collect());
    let vocab_size = model.model.vocab_size();
    let is_plausible = |ids: &Vec<u32>| ids.len() == num_tokens && ids.iter().all(|&id| (id as usize) < vocab_size);
    Ok(PromptFile { num_tokens, token_ids: token_ids.filter(is_plausible).unwrap_or_default(), caches, metadata })
}

/// Reads a file for the loaded model, and puts it into the prompt cache where that is asked for.
pub(crate) fn read(worker: &mut Worker, path: &Path, import: Option<&Import>) -> Result<PromptFileInfo, EngineError> {
    let loaded = worker.loaded.clone().ok_or(EngineError::NoModel)?;
    let PromptFile { num_tokens, token_ids, caches, metadata } = load(path, &loaded.model)?;
    let refuse = |what: String| EngineError::NotImportable { path: path.to_owned(), what };
    if num_tokens == 0 {
        return Err(refuse("it holds no tokens".to_owned()));
    }
    if num_tokens >= loaded.model.model.context_length() {
        return Err(refuse(format!("its {num_tokens} tokens leave no room in the model's {}", loaded.model.model.context_length())));
    }
    let token_ids = match (metadata.contains_key(TOKEN_IDS), token_ids.is_empty()) {
        (false, _) => None,
        (true, false) => Some(token_ids),
        (true, true) => return Err(refuse(format!("the token ids that it names are not {num_tokens} of the model's"))),
    };
    if metadata.get(TOKEN_COUNT).is_some_and(|count| count.parse() != Ok(num_tokens)) {
        return Err(refuse(format!("it says that it has {} tokens, but it holds {num_tokens}", metadata[TOKEN_COUNT])));
    }
    let kind = match metadata.get(KIND).map(String::as_str) {
        None | Some("prompt") => PromptKind::Prompt,
        Some("conversation") => PromptKind::Conversation,
        Some(_) => return Err(refuse("it is neither a prompt nor a conversation".to_owned())),
    };
    let fingerprint = &loaded.model.fingerprint;
    let space = match &token_ids {
        Some(_) => Space { variant: cache_variant(&caches), fingerprint: fingerprint.clone() },
        None => Space::after_file(fingerprint, &hash(path)?),
    };
    let info = PromptFileInfo {
        model: metadata.get("model").cloned().unwrap_or_default(),
        space,
        kind,
        num_tokens,
        num_bytes: std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
        title: metadata.get(TITLE).filter(|title| !title.is_empty()).cloned(),
        made_by: metadata.get(MADE_BY).cloned(),
        created_at_ms: metadata.get(CREATED_AT_MS).and_then(|at_ms| at_ms.parse().ok()),
        is_model_proven: metadata.contains_key(FINGERPRINT),
        can_check: token_ids.is_some(),
        token_ids,
    };
    if let Some(import) = import {
        if import.check {
            check_sample(&loaded.model, &info, &caches).map_err(refuse)?;
        }
        let tokens = info.token_ids.clone().unwrap_or_else(|| vec![0; num_tokens]);
        let is_kept = worker.cache.import(&info.space, &loaded.name, tokens, &caches, &import.owner);
        is_kept.map_err(refuse)?;
    }
    Ok(info)
}

/// Writes what an owner holds.
pub(crate) fn export(worker: &mut Worker, request: &ExportRequest) -> Result<CachedPrompt, EngineError> {
    check_writable(&request.file)?;
    let loaded = worker.loaded.clone();
    let exported = worker.cache.export(&request.owner, loaded.as_ref().map(|loaded| &*loaded.model));
    let Exported { anchor, tokens, caches } = exported.map_err(|why| EngineError::NothingToExport { why })?;
    let mut metadata = BTreeMap::from([
        ("model".to_owned(), anchor.model),
        ("tokenizer_config".to_owned(), "{}".to_owned()),
        (FORMAT.to_owned(), "1".to_owned()),
        (KIND.to_owned(), request.kind.as_str().to_owned()),
        (FINGERPRINT.to_owned(), anchor.space.fingerprint.clone()),
        (TOKEN_COUNT.to_owned(), tokens.len().to_string()),
        (TITLE.to_owned(), request.title.clone()),
        (MADE_BY.to_owned(), request.made_by.clone()),
        (CREATED_AT_MS.to_owned(), request.created_at_ms.to_string()),
    ]);
    if !anchor.space.is_opaque() {
        metadata.insert(TOKEN_IDS.to_owned(), joined(&tokens));
    }
    save_prompt_cache(&request.file, &caches, &metadata)?;
    let num_bytes = std::fs::metadata(&request.file).map_or(0, |metadata| metadata.len());
    Ok(CachedPrompt { num_tokens: tokens.len(), num_bytes })
}

fn joined(token_ids: &[u32]) -> String {
    token_ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// BLAKE3 of a file, in hex.
fn hash(path: &Path) -> Result<String, EngineError> {
    let mut hasher = blake3::Hasher::new();
    let hashed = std::fs::File::open(path).and_then(|file| hasher.update_reader(file).map(drop));
    hashed.map_err(|error| EngineError::NotImportable { path: path.to_owned(), what: error.to_string() })?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Computes some positions again from the tokens and what the file holds before them, and compares. Fails in words.
fn check_sample(model: &LoadedModel, info: &PromptFileInfo, caches: &[LayerCache]) -> Result<(), String> {
    let Some(tokens) = &info.token_ids else { return Err("without its tokens nothing can be computed again".to_owned()) };
    sample::check(&model.model, tokens, caches)
}
