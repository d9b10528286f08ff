//! The models that are loaded at the same time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use cairn_formats::gguf::PerplexityChange;
use cairn_lm::{LoadedModel, ModelMemory};

use crate::EngineError;
use crate::next_tokens::{LmId, LmState};
use crate::request::ModelOptions;
use crate::status::LoadedModelStatus;

/// The loaded models. Owned by the engine's thread.
///
/// - Names are unique.
/// - A model in use is never dropped: whoever uses it holds its [`Loaded`].
#[derive(Default)]
pub(crate) struct ModelPool {
    /// The most recently used last.
    models: Vec<PooledModel>,
    /// The model of requests that name none: the one that was loaded last.
    current: Option<String>,
}

/// A model with what belongs to it.
pub(crate) struct PooledModel {
    pub(crate) loaded: Rc<Loaded>,
    /// Its draft model.
    pub(crate) draft: Option<PooledDraft>,
    /// What each [`AsyncLm`](crate::AsyncLm) of it has computed.
    pub(crate) async_lms: HashMap<LmId, Rc<RefCell<LmState>>>,
    /// When it was loaded, asked, or last seen in use.
    pub(crate) last_used: Instant,
    files: ModelFiles,
    /// The size of the groups in which its keys and values can be quantized, if they can be.
    kv_group_size: Option<i32>,
    /// What it takes; none where its folder does not say.
    pub(crate) memory: Option<Rc<ModelMemory>>,
}

/// A draft model, and what it takes; none where its folder does not say.
pub(crate) struct PooledDraft {
    pub(crate) loaded: Rc<Loaded>,
    pub(crate) memory: Option<ModelMemory>,
}

/// A model and the name it was loaded under.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) model: Rc<LoadedModel>,
}

/// The folder of a model, and what its files were when it was loaded: the names, lengths and times
/// of modification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelFiles {
    folder: PathBuf,
    files: Vec<(String, u64, Option<SystemTime>)>,
    /// How they are loaded.
    options: ModelOptions,
}

impl ModelFiles {
    /// Lists the files in `folder` that its model is loaded from; none where it cannot be read.
    pub(crate) fn list(folder: &Path, options: ModelOptions) -> Self {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries
            // Written beside the model while it is loaded, and nothing that loading reads.
            .filter(|entry| entry.file_name() != PerplexityChange::FILE_NAME)
            .filter_map(|entry| {
                // Follows links: a downloaded model's files are links.
                let metadata = std::fs::metadata(entry.path()).ok()?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Some((name, metadata.len(), metadata.modified().ok()))
            })
            .collect();
        files.sort();
        ModelFiles { folder: folder.to_owned(), files, options }
    }
}

impl PooledModel {
    /// What the engine's status says of it.
    pub(crate) fn status(&self) -> LoadedModelStatus {
        LoadedModelStatus {
            name: self.loaded.name.clone(),
            folder: self.files.folder.clone(),
            fingerprint: self.loaded.model.fingerprint.clone(),
            weight_bytes: self.weight_bytes(),
            draft: self.draft.as_ref().map(|draft| draft.loaded.name.clone()),
            context_length: self.loaded.model.model.context_length(),
            kv_group_size: self.kv_group_size,
            takes_tools: self.loaded.model.takes_tools(),
            has_mtp_head: self.loaded.model.model.check_mtp_head().is_ok(),
            bf16_state: self.files.options.bf16_state,
            is_in_use: self.is_in_use(),
            last_used: self.last_used,
        }
    }
}

impl ModelPool {
    /// The model of this name, or the one of requests that name none.
    pub(crate) fn get(&self, name: Option<&str>) -> Result<Rc<Loaded>, EngineError> {
        match name.or(self.current.as_deref()) {
            None => Err(EngineError::NoModel),
            Some(name) => self
                .find(name)
                .map(|pooled| Rc::clone(&pooled.loaded))
                .ok_or_else(|| EngineError::NotLoaded { model: name.to_owned() }),
        }
    }

    /// The name of the model of requests that name none.
    pub(crate) fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    /// Lets requests that name no model find none, while another is being loaded.
    pub(crate) fn clear_current(&mut self) {
        self.current = None;
    }

    /// Whether a model of this name is loaded from the same, unchanged files.
    pub(crate) fn holds(&self, name: &str, files: &ModelFiles) -> bool {
        self.find(name).is_some_and(|pooled| pooled.files == *files)
    }

    /// Adds a model in place of one of the same name, whose users keep what they have.
    pub(crate) fn insert(
        &mut self,
        name: String,
        model: LoadedModel,
        files: ModelFiles,
        memory: Option<ModelMemory>,
    ) {
        self.models.retain(|pooled| pooled.loaded.name != name);
        let kv_group_size = model.model.cache_spec().kv_group_size();
        let loaded = Rc::new(Loaded { name, model: Rc::new(model) });
        self.models.push(PooledModel {
            loaded,
            draft: None,
            async_lms: HashMap::new(),
            last_used: Instant::now(),
            files,
            kv_group_size,
            memory: memory.map(Rc::new),
        });
    }

    /// Makes a model the one of requests that name none, and the most recently used.
    pub(crate) fn select(&mut self, name: &str) {
        self.touch(name);
        self.current = Some(name.to_owned());
    }

    /// Makes a model the most recently used.
    pub(crate) fn touch(&mut self, name: &str) {
        if let Some(index) = self.models.iter().position(|pooled| pooled.loaded.name == name) {
            let mut pooled = self.models.remove(index);
            pooled.last_used = Instant::now();
            self.models.push(pooled);
        }
    }

    /// Remembers which models are in use now.
    pub(crate) fn note_use(&mut self, now: Instant) {
        for pooled in self.models.iter_mut().filter(|pooled| pooled.is_in_use()) {
            pooled.last_used = now;
        }
    }

    /// The pooled model behind a handle; none where it has been replaced or dropped.
    pub(crate) fn pooled(&mut self, loaded: &Rc<Loaded>) -> Option<&mut PooledModel> {
        self.models.iter_mut().find(|pooled| Rc::ptr_eq(&pooled.loaded, loaded))
    }

    /// Drops the idle models for which `goes` holds, and returns them.
    pub(crate) fn take_idle(&mut self, goes: impl Fn(&Loaded) -> bool) -> Vec<Rc<Loaded>> {
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.models)
            .into_iter()
            .partition(|pooled| !pooled.is_in_use() && goes(&pooled.loaded));
        self.models = stay;
        if self.current.as_deref().is_some_and(|current| self.find(current).is_none()) {
            self.current = None;
        }
        gone.into_iter().map(|pooled| pooled.loaded).collect()
    }

    /// The names of all models, the least recently used first.
    pub(crate) fn names(&self) -> Vec<String> {
        self.models.iter().map(|pooled| pooled.loaded.name.clone()).collect()
    }

    /// All models, the least recently used first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PooledModel> {
        self.models.iter()
    }

    /// All models, the least recently used first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PooledModel> {
        self.models.iter_mut()
    }

    fn find(&self, name: &str) -> Option<&PooledModel> {
        self.models.iter().find(|pooled| pooled.loaded.name == name)
    }
}

impl PooledModel {
    /// Bytes of its weights, with those of its draft model.
    pub(crate) fn weight_bytes(&self) -> u64 {
        let of_model = match &self.memory {
            Some(memory) => memory.weight_bytes,
            None => self.loaded.model.weight_bytes,
        };
        of_model + self.draft.as_ref().map_or(0, |draft| draft.loaded.model.weight_bytes)
    }

    /// Whether a sequence or a task uses the model.
    pub(crate) fn is_in_use(&self) -> bool {
        Rc::strong_count(&self.loaded) > 1
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_of_a_model_is_none_of_the_files_it_is_loaded_from() {
        let folder = tempfile::tempdir().unwrap();
        let files = || ModelFiles::list(folder.path(), ModelOptions::default());
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        let before = files();
        PerplexityChange { before: 12.1, after: 12.4 }.write(folder.path()).unwrap();
        assert_eq!(files(), before);
        std::fs::write(folder.path().join("model.safetensors"), "").unwrap();
        assert_ne!(files(), before);
    }
}
