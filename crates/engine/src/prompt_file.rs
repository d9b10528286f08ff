//! Prompt-cache files: a prompt's keys and values, read once and kept for answers that continue it.

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
    /// The layout of the file: each version of mlx-lm reads only its own.
    pub layout: PromptFileLayout,
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

/// What a file holds, for an answer that goes on from it.
pub(crate) struct Beginning {
    pub(crate) num_tokens: usize,
    /// Empty where the file does not name them.
    pub(crate) token_ids: Vec<u32>,
    pub(crate) caches: Vec<LayerCache>,
}

/// What a prompt-cache file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFileInfo {
    /// What it calls its model.
    pub model: String,
    /// Where its tokens belong in the prompt cache: apart, once they have been imported without the
    /// check.
    pub namespace: Namespace,
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
    /// Whether it says by which weights it was made, and these are the loaded ones as far as
    /// samples of them tell.
    pub is_model_proven: bool,
    /// Whether sample positions can be computed again.
    pub can_check: bool,
}

/// How a prompt-cache file is put into the prompt cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Whose it will be: the name of its reference.
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
    /// The layout of the file: each version of mlx-lm reads only its own.
    pub layout: PromptFileLayout,
    /// Where its tokens end.
    pub kind: PromptKind,
    /// What it is called.
    pub title: String,
    /// What writes it.
    pub made_by: String,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

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
    let entries = metadata.to_entries(tokens.len());
    save_prompt_cache(&request.file, &caches, &entries, request.layout)?;
    let num_bytes = std::fs::metadata(&request.file).map_or(0, |metadata| metadata.len());
    Ok(CachedPrompt { num_tokens: tokens.len(), num_bytes })
}

/// Reads a file for an answer.
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

/// Checks everything about a file that can be checked before its arrays are read: what it asks for
/// in memory is then no more than what the model would take for as many tokens. `unusable` puts
/// what does not fit into words.
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
        return Err(refuse("it holds no tokens: make the file anew".to_owned()));
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

/// Looks at a file for the loaded model, and reads it and puts it into the prompt cache where that
/// is asked for. Without an import no array is read. `is_cancelled` ends the check.
pub(crate) fn read(
    worker: &mut Worker,
    path: &Path,
    import: Option<&Import>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<PromptFileInfo, EngineError> {
    let loaded = worker.loaded.clone().ok_or(EngineError::NoModel)?;
    let refuse = |what: String| EngineError::NotImportable { path: path.to_owned(), what };
    let unusable = |source: LmError| match source {
        // Which name the file themselves.
        LmError::PromptFile { .. } | LmError::Weights(_) => EngineError::Refused(source),
        source => refuse(source.to_string()),
    };
    let file = PromptFile::open(path).map_err(unusable)?;
    let metadata = check(path, &file, &loaded, &unusable)?;
    let kv_format = file
        .layout()
        .and_then(|layout| kv_format_in_file(&layout, loaded.model.model.make_cache()));
    let kv_format = kv_format.ok_or_else(|| {
        let what = "its layers are not kept as this model's are (a bounded or partly quantized cache): it can only be continued from the \
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
                NotPut::Unusable(source) => unusable(source),
                NotPut::Refused(what) => refuse(what),
                NotPut::Cancelled => LmError::Cancelled.into(),
            }
        })?;
    }
    Ok(info)
}

/// Why a file was not imported.
enum NotPut {
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
) -> Result<(), NotPut> {
    let model = &loaded.model.model;
    let caches = match (&info.token_ids, import.check) {
        (Some(tokens), true) => {
            let (found, hash) = file.read_and_hash_for(model).map_err(NotPut::Unusable)?;
            let on_progress = |processed_tokens, total_tokens| {
                worker.publish_progress(|| EngineState::Prefilling {
                    model: loaded.name.clone(),
                    processed_tokens,
                    total_tokens,
                });
                if is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            match verify(model, tokens, &found, on_progress) {
                // What is shared with other conversations is what this program computed.
                Ok(Verified::Equal(computed)) if info.namespace.kv_format == KvFormat::Plain => {
                    computed
                }
                // Quantized keys and values depend on when quantizing began, which no file says, so
                // they cannot be computed again exactly. The file's stay apart from computed ones.
                Ok(Verified::Equal(_)) => {
                    info.namespace = info.namespace.clone().following(&Provenance::Import(hash));
                    found
                }
                Ok(Verified::Differs(difference)) => return Err(NotPut::Refused(difference)),
                Err(LmError::Cancelled) => return Err(NotPut::Cancelled),
                Err(error) => {
                    return Err(NotPut::Refused(format!(
                        "it could not be computed again ({error}): import it without verifying"
                    )));
                }
            }
        }
        (None, true) => {
            let what = "it does not name its tokens, so nothing of it can be computed again: import it without verifying";
            return Err(NotPut::Refused(what.to_owned()));
        }
        (token_ids, false) => {
            let (caches, hash) = file.read_and_hash_for(model).map_err(NotPut::Unusable)?;
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
        .map_err(NotPut::Refused)
}

/// How a file stores keys and values; none where its layers are not those that the model makes
/// itself (`own`), plain or all quantized alike: only these can be split into chunks.
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

/// Writes what an owner holds.
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
    let entries = metadata.to_entries(tokens.len());
    save_prompt_cache(&request.file, &caches, &entries, request.layout)?;
    let num_bytes = std::fs::metadata(&request.file).map_or(0, |metadata| metadata.len());
    Ok(CachedPrompt { num_tokens: tokens.len(), num_bytes })
}
