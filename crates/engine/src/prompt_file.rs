//! Prompt-cache files: the keys and values of a prompt, saved for requests that continue it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cairn_formats::cache_file::{CacheFileMetadata, ModelOrigin, ModelParts, PromptKind};
use cairn_lm::cache::chunk_state::{CacheLayout, LayerLayout};
use cairn_lm::cache::{
    KvQuantization, LayerCache, PromptFile, PromptFileLayout, check_writable, make_prompt_cache,
    save_prompt_cache,
};
use cairn_lm::{GenerateOptions, LmError, LoadedModel, Sampler, check_length, generate_step};

use crate::prompt::known_tokens;
use crate::prompt_cache::{Exported, kv_format_of, quantized_like};
use crate::records::{KvFormat, Namespace, Provenance};
use crate::request::{KvCacheOptions, PromptInput};
use crate::verify_import::{Verified, verify};
use crate::worker::{Loaded, Worker};
use crate::{EngineError, EngineState};

/// A prompt to prefill and save in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct CachePromptRequest {
    /// The prompt.
    pub prompt: PromptInput,
    /// How its keys and values are stored.
    pub kv_cache: KvCacheOptions,
    /// Prompt tokens read at once.
    pub prefill_step_size: usize,
    /// The file to write.
    pub file: PathBuf,
    /// The layout of the file: each version of mlx-lm reads only its own.
    pub layout: PromptFileLayout,
    /// The model name to write into the file; mlx-lm compares it with the name that its user gives.
    pub model_name: String,
}

/// The size of a written prompt-cache file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPrompt {
    /// Tokens in the file.
    pub num_tokens: usize,
    /// Length of the file.
    pub num_bytes: u64,
}

/// The contents of a file, for a request that continues it.
pub(crate) struct Beginning {
    pub(crate) num_tokens: usize,
    /// Empty if the file does not name them.
    pub(crate) token_ids: Vec<u32>,
    pub(crate) caches: Vec<LayerCache>,
}

/// A description of a prompt-cache file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFileInfo {
    /// The model's name in the file.
    pub model: String,
    /// The namespace of its chunks in the prompt cache: a separate one if it was imported without
    /// the check.
    pub namespace: Namespace,
    /// Where its tokens end; a file that does not name its kind is taken as a prompt.
    pub kind: PromptKind,
    /// How many there are.
    pub num_tokens: usize,
    /// The tokens; none if the file does not name them.
    pub token_ids: Option<Vec<u32>>,
    /// The length of the file.
    pub num_bytes: u64,
    /// The title given when it was made.
    pub title: Option<String>,
    /// The program that wrote it.
    pub made_by: Option<String>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: Option<i64>,
    /// Whether it names the weights it was made with, and samples of the loaded weights match them.
    pub is_model_proven: bool,
    /// Whether its tokens are known, so that it can be verified.
    pub can_check: bool,
}

/// How to import a prompt-cache file into the prompt cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// The owner of its reference.
    pub owner: String,
    /// Whether to verify it first, by computing its keys and values again.
    pub check: bool,
}

/// What to write to a prompt-cache file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportRequest {
    /// The owner whose chunks are written.
    pub owner: String,
    /// The file to write.
    pub file: PathBuf,
    /// The layout of the file: each version of mlx-lm reads only its own.
    pub layout: PromptFileLayout,
    /// Where its tokens end.
    pub kind: PromptKind,
    /// Its title.
    pub title: String,
    /// The program that writes it.
    pub made_by: String,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// Prefills a prompt and writes the file; `on_progress(processed, total)` may break.
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
    let caches = generate_step(model, &tokens, &mut caches, Sampler::Greedy, options, on_progress)?
        .into_caches()?;
    let metadata = CacheFileMetadata {
        model: request.model_name.clone(),
        kind: PromptKind::Prompt,
        token_ids: Some(tokens.clone()),
        title: None,
        made_by: None,
        created_at_ms: None,
        origin: Some(origin(&loaded.model)),
    };
    save(&request.file, &caches, &metadata, tokens.len(), request.layout)
}

fn save(
    file: &Path,
    caches: &[LayerCache],
    metadata: &CacheFileMetadata,
    num_tokens: usize,
    layout: PromptFileLayout,
) -> Result<CachedPrompt, EngineError> {
    save_prompt_cache(file, caches, &metadata.to_entries(num_tokens), layout)?;
    let num_bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    Ok(CachedPrompt { num_tokens, num_bytes })
}

/// Reads a file for a request that continues it.
pub(crate) fn load(path: &Path, loaded: &Loaded) -> Result<Beginning, EngineError> {
    let unusable = |source| EngineError::PromptFile { path: path.to_owned(), source };
    let file = PromptFile::open(path).map_err(unusable)?;
    let metadata = check(path, &file, loaded, &unusable)?;
    let caches = file.read_for(&loaded.model.model).map_err(unusable)?;
    Ok(Beginning {
        num_tokens: file.num_tokens(),
        token_ids: metadata.token_ids.unwrap_or_default(),
        caches,
    })
}

/// Checks everything about a file that can be checked before its arrays are read, so that reading
/// takes no more memory than the model needs for as many tokens. `unusable` turns an error into the
/// caller's.
fn check(
    path: &Path,
    file: &PromptFile,
    loaded: &Loaded,
    unusable: &dyn Fn(LmError) -> EngineError,
) -> Result<CacheFileMetadata, EngineError> {
    let Loaded { name, model } = loaded;
    let refuse = |what: String| EngineError::NotImportable { path: path.to_owned(), what };
    // First, because of another model much else is wrong too.
    let (origin_of_file, name_in_file) = CacheFileMetadata::origin_and_model(file.metadata());
    if let Some(mismatch) =
        origin_of_file.as_ref().and_then(|file| file.mismatch(&name_in_file, &origin(model), name))
    {
        return Err(EngineError::OtherModel { path: path.to_owned(), what: mismatch.to_string() });
    }
    file.check_fit(&model.model, origin_of_file.is_some()).map_err(unusable)?;
    let vocab_size = model.model.vocab_size();
    let metadata = CacheFileMetadata::parse(file.metadata(), file.num_tokens(), vocab_size)
        .map_err(|error| refuse(error.to_string()))?;
    let (num_tokens, context_length) = (file.num_tokens(), model.model.context_length());
    if num_tokens == 0 {
        return Err(refuse("it has no tokens: make the file anew".to_owned()));
    }
    if num_tokens >= context_length {
        return Err(refuse(format!(
            "its {num_tokens} tokens leave no room in the {context_length} that the model can read: make a shorter one"
        )));
    }
    Ok(metadata)
}

fn origin(model: &LoadedModel) -> ModelOrigin {
    let identity = &model.identity;
    let parts = ModelParts {
        config: identity.config.clone(),
        weights: identity.weights.clone(),
        tokenizer: identity.tokenizer.clone(),
        template: identity.template.clone(),
        precision: identity.precision.clone(),
    };
    ModelOrigin { fingerprint: model.fingerprint.clone(), parts: Some(parts) }
}

/// Inspects a file for the loaded model, and imports it into the prompt cache if `import` is given.
/// Without it no array is read. `is_cancelled` ends the verification.
pub(crate) fn read(
    worker: &mut Worker,
    path: &Path,
    import: Option<&Import>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<PromptFileInfo, EngineError> {
    let loaded = worker.loaded.clone().ok_or(EngineError::NoModel)?;
    let refuse = |what: String| EngineError::NotImportable { path: path.to_owned(), what };
    let unusable = |source: LmError| match source {
        // These errors name the file themselves.
        LmError::PromptFile { .. } | LmError::Weights(_) => EngineError::Refused(source),
        source => refuse(source.to_string()),
    };
    let file = PromptFile::open(path).map_err(unusable)?;
    let metadata = check(path, &file, &loaded, &unusable)?;
    let kv_format = file
        .layout()
        .and_then(|layout| kv_format_in_file(&layout, loaded.model.model.make_cache()));
    let kv_format = kv_format.ok_or_else(|| {
        let what = "its layers are not stored as this model's are (a bounded or partly quantized cache): it can only be continued from the \
                    file, as `cairn generate --prompt-cache-file` does";
        refuse(what.to_owned())
    })?;
    let mut info = PromptFileInfo {
        model: metadata.model,
        namespace: Namespace::computed(&loaded.model.fingerprint, kv_format),
        kind: metadata.kind,
        num_tokens: file.num_tokens(),
        num_bytes: file.num_bytes().map_err(unusable)?,
        title: metadata.title,
        made_by: metadata.made_by,
        created_at_ms: metadata.created_at_ms,
        is_model_proven: metadata.origin.is_some(),
        can_check: metadata.token_ids.is_some(),
        token_ids: metadata.token_ids,
    };
    if let Some(import) = import {
        put(worker, &loaded, &file, import, &mut info, is_cancelled).map_err(|failure| {
            match failure {
                ImportFailure::Unusable(source) => unusable(source),
                ImportFailure::Refused(what) => refuse(what),
                ImportFailure::Cancelled => LmError::Cancelled.into(),
            }
        })?;
    }
    Ok(info)
}

/// The reason why a file was not imported.
enum ImportFailure {
    Unusable(LmError),
    Refused(String),
    Cancelled,
}

/// Imports what `file` contains into the prompt cache, and writes its namespace to `info`.
fn put(
    worker: &mut Worker,
    loaded: &Loaded,
    file: &PromptFile,
    import: &Import,
    info: &mut PromptFileInfo,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), ImportFailure> {
    let caches = match (&info.token_ids, import.check) {
        (Some(tokens), true) => {
            verified(worker, loaded, file, tokens, info.namespace.kv_format, is_cancelled)?
        }
        (None, true) => {
            let what = "it does not name its tokens, so it cannot be computed again: import it without verifying";
            return Err(ImportFailure::Refused(what.to_owned()));
        }
        (token_ids, false) => {
            let read = file.read_and_hash_for(&loaded.model.model);
            let (caches, hash) = read.map_err(ImportFailure::Unusable)?;
            let provenance = match token_ids {
                Some(_) => Provenance::Import(hash),
                None => Provenance::OpaqueImport(hash),
            };
            info.namespace = info.namespace.clone().following(&provenance);
            caches
        }
    };
    let tokens = info.token_ids.clone().unwrap_or_else(|| vec![0; info.num_tokens]);
    worker
        .cache
        .import(&info.namespace, &loaded.name, tokens, &caches, &import.owner)
        .map_err(ImportFailure::Refused)
}

/// The caches to import from a file, after computing those of its tokens again and comparing them.
fn verified(
    worker: &mut Worker,
    loaded: &Loaded,
    file: &PromptFile,
    tokens: &[u32],
    kv_format: KvFormat,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Vec<LayerCache>, ImportFailure> {
    let model = &loaded.model.model;
    let found = file.read_for(model).map_err(ImportFailure::Unusable)?;
    let on_progress = |processed_tokens, total_tokens| {
        worker.publish_progress(|| EngineState::Prefilling {
            model: loaded.name.clone(),
            processed_tokens,
            total_tokens,
        });
        if is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    match verify(model, tokens, &found, on_progress) {
        // Store the caches computed here, because other conversations share them.
        Ok(Verified::Equal(computed)) if kv_format == KvFormat::Plain => Ok(computed),
        // Quantized keys and values depend on when quantizing began, which no file says, so they
        // cannot be computed again exactly. The file's were compared at every token.
        Ok(Verified::Equal(_)) => Ok(found),
        Ok(Verified::Differs(difference)) => Err(ImportFailure::Refused(difference)),
        Err(LmError::Cancelled) => Err(ImportFailure::Cancelled),
        Err(error) => Err(ImportFailure::Refused(format!(
            "it could not be computed again ({error}): import it without verifying"
        ))),
    }
}

/// The format in which a file stores keys and values; none unless its layers are those that the
/// model makes itself (`own`), plain or all quantized alike: only these can be split into chunks.
fn kv_format_in_file(layout: &CacheLayout, own: Vec<LayerCache>) -> Option<KvFormat> {
    let quantization = layout.layers().iter().find_map(|layer| match *layer {
        LayerLayout::Quantized { group_size, bits } => {
            Some(KvQuantization { bits, group_size, start: 0 })
        }
        _ => None,
    });
    let own = quantized_like(own, quantization)?;
    (CacheLayout::of(&own)? == *layout).then(|| kv_format_of(&own))
}

/// Writes the chunks behind an owner's reference to a file.
pub(crate) fn export(
    worker: &mut Worker,
    request: &ExportRequest,
) -> Result<CachedPrompt, EngineError> {
    check_writable(&request.file)?;
    let loaded = worker.loaded.clone();
    let exported =
        worker.cache.export(&request.owner, loaded.as_ref().map(|loaded| &*loaded.model));
    let Exported { cache_ref, tokens, caches } =
        exported.map_err(|why| EngineError::NothingToExport { why })?;
    let parts = loaded
        .filter(|loaded| loaded.model.fingerprint == cache_ref.namespace.model)
        .and_then(|loaded| origin(&loaded.model).parts);
    let metadata = CacheFileMetadata {
        token_ids: (!cache_ref.namespace.is_opaque()).then(|| tokens.clone()),
        model: cache_ref.model,
        kind: request.kind,
        title: Some(request.title.clone()),
        made_by: Some(request.made_by.clone()),
        created_at_ms: Some(request.created_at_ms),
        origin: Some(ModelOrigin { fingerprint: cache_ref.namespace.model, parts }),
    };
    save(&request.file, &caches, &metadata, tokens.len(), request.layout)
}
