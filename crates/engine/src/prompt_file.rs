//! Prompt-cache files: the keys and values of a prompt, saved for requests that continue it.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use cairn_chat::Cancel;
use cairn_formats::cache_file::{CacheFileMetadata, ModelOrigin, ModelParts, PromptKind};
use cairn_lm::cache::{
    CacheSpec, LayerCache, PromptFile, PromptFileLayout, check_writable, make_prompt_cache,
    save_prompt_cache,
};
use cairn_lm::{GenerateOptions, LmError, LoadedModel, PromptReader, Sampler, check_length};
use cairn_prompt_cache::{KvFormat, Namespace, Owner, PromptTokens, Provenance};

use crate::EngineError;
use crate::kv_format::{KvCacheOptions, kv_format_of, quantized_like};
use crate::model_pool::Loaded;
use crate::prompt::known_tokens;
use crate::prompt_cache::Exported;
use crate::request::PromptInput;
use crate::verify_import::{Verification, Verified};
use crate::worker::Worker;

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
    pub owner: Owner,
    /// Whether to verify it first, by computing its keys and values again.
    pub check: bool,
}

/// What to write to a prompt-cache file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportRequest {
    /// The owner whose chunks are written.
    pub owner: Owner,
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

/// Prefills a prompt in slices, then writes the file.
pub(crate) struct PromptFileWriter {
    loaded: Rc<Loaded>,
    request: CachePromptRequest,
    tokens: Vec<u32>,
    /// None once the whole prompt has been read.
    reader: Option<PromptReader>,
    written: Option<CachedPrompt>,
}

impl PromptFileWriter {
    /// Reads nothing yet.
    pub(crate) fn new(
        loaded: &Rc<Loaded>,
        request: CachePromptRequest,
        cancel: Cancel,
    ) -> Result<Self, EngineError> {
        check_writable(&request.file)?;
        let model = &loaded.model.model;
        let tokens = known_tokens(&loaded.model, &request.prompt, cancel)?;
        check_length(tokens.len(), model)?;
        let caches = make_prompt_cache(model, request.kv_cache.effective_max_size())?;
        let options = GenerateOptions {
            max_tokens: 0,
            prefill_step_size: request.prefill_step_size,
            kv_quantization: request.kv_cache.quantization,
            ..GenerateOptions::default()
        };
        let reader =
            PromptReader::new(model, tokens.clone(), &[], caches, Sampler::Greedy, options)?;
        let loaded = Rc::clone(loaded);
        Ok(PromptFileWriter { loaded, request, tokens, reader: Some(reader), written: None })
    }

    /// Tokens read, and how many there are.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let total = self.tokens.len();
        (self.reader.as_ref().map_or(total, PromptReader::num_read), total)
    }

    /// The most tokens of a slice.
    pub(crate) fn step_size(&self) -> usize {
        self.request.prefill_step_size
    }

    /// The size of the file, once it is written.
    pub(crate) fn written(&self) -> Option<CachedPrompt> {
        self.written
    }

    /// Reads at most `max_tokens`; after the last ones, writes the file.
    pub(crate) fn advance(&mut self, max_tokens: usize) -> Result<(), EngineError> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        reader.read(max_tokens)?;
        if reader.num_left() == 0
            && let Some(reader) = self.reader.take()
        {
            self.written = Some(self.write(&reader.start()?.into_caches()?)?);
        }
        Ok(())
    }

    fn write(&self, caches: &[LayerCache]) -> Result<CachedPrompt, EngineError> {
        let num_tokens = self.tokens.len();
        let metadata = CacheFileMetadata {
            model: self.request.model_name.clone(),
            kind: PromptKind::Prompt,
            token_ids: Some(self.tokens.clone()),
            title: None,
            made_by: None,
            created_at_ms: None,
            origin: Some(origin(&self.loaded.model)),
        };
        save(&self.request.file, caches, &metadata, num_tokens, self.request.layout)
    }
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

/// A file that fits the loaded model, checked by its header.
struct InspectedFile {
    path: PathBuf,
    file: PromptFile,
    info: PromptFileInfo,
}

/// Inspects a file for the loaded model. No array is read.
pub(crate) fn inspect(worker: &Worker, path: &Path) -> Result<PromptFileInfo, EngineError> {
    // What is no prompt cache is called so without a model, too.
    let file = PromptFile::open(path).map_err(|source| unusable(path, source))?;
    let loaded = worker.models.get(None)?;
    Ok(InspectedFile::of(&loaded, path, file)?.info)
}

impl InspectedFile {
    fn open(loaded: &Loaded, path: &Path) -> Result<Self, EngineError> {
        let file = PromptFile::open(path).map_err(|source| unusable(path, source))?;
        InspectedFile::of(loaded, path, file)
    }

    fn of(loaded: &Loaded, path: &Path, file: PromptFile) -> Result<Self, EngineError> {
        let unusable = |source| unusable(path, source);
        let metadata = check(path, &file, loaded, &unusable)?;
        let kv_format = kv_format_in_file(&file.spec(), loaded.model.model.cache_spec());
        let kv_format = kv_format.ok_or_else(|| {
            let what = "its layers are not stored as this model's are (a bounded or partly quantized cache): it can only be continued from the \
                        file, as `cairn generate --prompt-cache-file` does";
            refuse(path, what.to_owned())
        })?;
        let info = PromptFileInfo {
            model: metadata.model,
            namespace: Namespace::computed(loaded.model.fingerprint.as_str(), kv_format),
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
        Ok(InspectedFile { path: path.to_owned(), file, info })
    }

    /// Reads the arrays without verifying them, and writes their namespace to the description.
    fn read_unverified(&mut self, loaded: &Loaded) -> Result<Vec<LayerCache>, EngineError> {
        let (caches, hash) = self
            .file
            .read_and_hash_for(&loaded.model.model)
            .map_err(|source| unusable(&self.path, source))?;
        let provenance = match self.info.token_ids {
            Some(_) => Provenance::Import(hash.into()),
            None => Provenance::OpaqueImport(hash.into()),
        };
        self.info.namespace = self.info.namespace.clone().following(&provenance);
        Ok(caches)
    }
}

fn refuse(path: &Path, what: String) -> EngineError {
    EngineError::NotImportable { path: path.to_owned(), what }
}

fn unusable(path: &Path, source: LmError) -> EngineError {
    match source {
        // These errors name the file themselves.
        LmError::PromptFile { .. } | LmError::Weights(_) => EngineError::Refused(source),
        source => refuse(path, source.to_string()),
    }
}

/// An import of a file into the prompt cache. It is verified in slices if the request asks for it.
pub(crate) struct PendingImport {
    loaded: Rc<Loaded>,
    inspected: InspectedFile,
    import: Import,
    /// The file's caches and their verification; none once they are imported.
    verifying: Option<(Vec<LayerCache>, Verification)>,
    is_done: bool,
}

impl PendingImport {
    /// Checks the file's header, and reads its arrays if they are to be verified.
    pub(crate) fn new(worker: &Worker, path: PathBuf, import: Import) -> Result<Self, EngineError> {
        let loaded = worker.models.get(None)?;
        let inspected = InspectedFile::open(&loaded, &path)?;
        let verifying = match (&inspected.info.token_ids, import.check) {
            (Some(tokens), true) => {
                let model = &loaded.model.model;
                let found =
                    inspected.file.read_for(model).map_err(|source| unusable(&path, source))?;
                Some((found, Verification::new(model, tokens.clone())))
            }
            (None, true) => {
                let what = "it does not name its tokens, so it cannot be computed again: import it without verifying";
                return Err(refuse(&path, what.to_owned()));
            }
            (_, false) => None,
        };
        Ok(PendingImport { loaded, inspected, import, verifying, is_done: false })
    }

    /// Tokens verified, and how many there are.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let total = self.inspected.info.num_tokens;
        let verified = self.verifying.as_ref().map(|(_, verification)| verification.num_read());
        (if self.is_done { total } else { verified.unwrap_or(0) }, total)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// The description of the file, with the namespace that it was imported into.
    pub(crate) fn into_info(self) -> PromptFileInfo {
        self.inspected.info
    }

    /// Verifies at most `max_tokens`; after the last ones, adds everything to the prompt cache.
    pub(crate) fn advance(
        &mut self,
        worker: &mut Worker,
        max_tokens: usize,
    ) -> Result<(), EngineError> {
        let total = self.inspected.info.num_tokens;
        if let Some((_, verification)) = &mut self.verifying
            && verification.num_read() < total
        {
            let computed = verification.advance(max_tokens);
            return computed.map_err(|error| self.not_computed(&error));
        }
        let caches = match self.verifying.take() {
            Some((found, verification)) => self.verified(found, verification)?,
            None => self.inspected.read_unverified(&self.loaded)?,
        };
        self.put(worker, &caches)?;
        self.is_done = true;
        Ok(())
    }

    /// The caches to store of a file whose tokens have all been computed again.
    fn verified(
        &self,
        found: Vec<LayerCache>,
        verification: Verification,
    ) -> Result<Vec<LayerCache>, EngineError> {
        let verified = verification.compare(&found).map_err(|error| self.not_computed(&error))?;
        match verified {
            // Store the caches computed here, because other conversations share them.
            Verified::Equal(computed)
                if self.inspected.info.namespace.kv_format == KvFormat::Plain =>
            {
                Ok(computed)
            }
            // Quantized keys and values depend on when quantizing began, which no file says, so
            // they cannot be computed again exactly. The file's were compared at every token.
            Verified::Equal(_) => Ok(found),
            Verified::Differs(difference) => Err(refuse(&self.inspected.path, difference)),
        }
    }

    fn not_computed(&self, error: &LmError) -> EngineError {
        let what = format!("it could not be computed again ({error}): import it without verifying");
        refuse(&self.inspected.path, what)
    }

    fn put(&self, worker: &mut Worker, caches: &[LayerCache]) -> Result<(), EngineError> {
        let info = &self.inspected.info;
        let tokens = match &info.token_ids {
            Some(token_ids) => PromptTokens::known(token_ids.as_slice()),
            None => PromptTokens::after_opaque(info.num_tokens, []),
        };
        worker
            .cache
            .import(&info.namespace, &self.loaded.name, &tokens, caches, &self.import.owner)
            .map_err(|what| refuse(&self.inspected.path, what))
    }
}

/// The format in which a file stores keys and values; none unless its layers are those that the
/// model makes itself (`own`), plain or all quantized alike: only these can be split into chunks.
fn kv_format_in_file(file: &CacheSpec, own: &CacheSpec) -> Option<KvFormat> {
    let own = quantized_like(own, file.quantization())?;
    (own.layout()? == file.layout()?).then(|| kv_format_of(&own))
}

/// Writes the chunks behind an owner's reference to a file.
pub(crate) fn export(
    worker: &mut Worker,
    request: &ExportRequest,
) -> Result<CachedPrompt, EngineError> {
    check_writable(&request.file)?;
    let loaded = worker.models.get(None).ok();
    let exported =
        worker.cache.export(&request.owner, loaded.as_ref().map(|loaded| &*loaded.model));
    let Exported { cache_ref, tokens, caches } =
        exported.map_err(|why| EngineError::NothingToExport { why })?;
    let parts = loaded
        .filter(|loaded| loaded.model.fingerprint == cache_ref.namespace.model.as_str())
        .and_then(|loaded| origin(&loaded.model).parts);
    let metadata = CacheFileMetadata {
        token_ids: (!cache_ref.namespace.provenance.is_opaque()).then(|| tokens.clone()),
        model: cache_ref.model_name,
        kind: request.kind,
        title: Some(request.title.clone()),
        made_by: Some(request.made_by.clone()),
        created_at_ms: Some(request.created_at_ms),
        origin: Some(ModelOrigin { fingerprint: cache_ref.namespace.model.to_string(), parts }),
    };
    save(&request.file, &caches, &metadata, tokens.len(), request.layout)
}
