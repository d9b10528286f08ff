//! The models on this machine.

mod check;
pub(crate) mod sources;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

pub use check::{ModelProblem, ModelProblemKind};
pub use sources::ModelSource;

use crate::cache_layout::CacheVariables;
use crate::{FilesIdentity, HubError};
use check::Checked;
use sources::Found;

/// One model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// `owner/name`, or the folder's name; no other model in a list has it. See
    /// [`ModelFolders::list`].
    pub name: String,
    /// The folder with its files.
    pub path: PathBuf,
    /// Where it was found.
    pub source: ModelSource,
    /// `model_type` of its `config.json`, where that can be read.
    pub model_type: Option<String>,
    /// Length of all its files.
    pub bytes: u64,
    /// Of its files; none where the folder cannot be read, or there is no snapshot to read.
    pub identity: Option<FilesIdentity>,
    /// Why it cannot be loaded; none if it is complete.
    pub problem: Option<ModelProblem>,
}

/// The folders that models are in. A clone has the same added folders, and remembers with the others
/// what was read.
#[derive(Debug, Clone)]
pub struct ModelFolders {
    imported: PathBuf,
    /// The environment's.
    hub_cache: Option<PathBuf>,
    lm_studio: Vec<PathBuf>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// In the order in which they were added.
    added: Mutex<Vec<PathBuf>>,
    /// Models that the person who started this process named by their folders.
    given: Mutex<Vec<PathBuf>>,
    /// The shared cache that a person has chosen besides.
    chosen_cache: Mutex<Option<PathBuf>>,
    /// What the small files of each model have shown, so that they are parsed once.
    checked: Mutex<HashMap<FilesIdentity, Checked>>,
}

impl ModelFolders {
    /// `models` in the data folder, the shared cache that the variables name, and LM Studio's folders
    /// in the home folder.
    pub fn new(cairn_home: &Path, variables: &CacheVariables) -> ModelFolders {
        ModelFolders {
            imported: cairn_home.join("models"),
            hub_cache: variables.hub_cache(),
            lm_studio: variables.lm_studio(),
            shared: Arc::default(),
        }
    }

    /// The folder of imported models.
    pub fn imported(&self) -> &Path {
        &self.imported
    }

    /// The shared cache that the variables name, where one is known.
    pub fn hub_cache(&self) -> Option<&Path> {
        self.hub_cache.as_deref()
    }

    /// Looks into this shared cache, too, and before that of the variables.
    pub fn set_chosen_cache(&self, cache: Option<PathBuf>) {
        *locked(&self.shared.chosen_cache) = cache;
    }

    /// The shared caches, the chosen one first, each once.
    fn hub_caches(&self) -> Vec<PathBuf> {
        let mut caches: Vec<PathBuf> = locked(&self.shared.chosen_cache).iter().cloned().collect();
        let is_same = |a: &Path, b: &Path| {
            let known = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
            known(a) == known(b)
        };
        if let Some(cache) = &self.hub_cache
            && !caches.iter().any(|chosen| is_same(chosen, cache))
        {
            caches.push(cache.clone());
        }
        caches
    }

    /// The folders that were added, in that order.
    pub fn added(&self) -> Vec<PathBuf> {
        locked(&self.shared.added).clone()
    }

    /// Looks into these folders besides, and no longer into those that were added before. Each can
    /// be a model, contain models, or contain models two levels deep (`publisher/model`). One that
    /// is not there now, such as a disk that is away, is looked for at each list.
    pub fn set_added(&self, folders: Vec<PathBuf>) {
        *locked(&self.shared.added) = folders;
    }

    /// Lists the model in this folder too, for as long as this process runs, unless it is listed
    /// already. Returns its name and folder in the list; `None` if there is no model in the folder.
    pub fn give(&self, folder: &Path) -> Option<(String, PathBuf)> {
        let folder = match std::path::absolute(folder) {
            Ok(folder) if folder.file_name().is_some() => folder,
            _ => folder.canonicalize().ok()?,
        };
        self.listed(&folder).or_else(|| {
            locked(&self.shared.given).push(folder.clone());
            self.listed(&folder)
        })
    }

    pub(crate) fn given(&self) -> Vec<PathBuf> {
        locked(&self.shared.given).clone()
    }

    /// Every model, sorted by name, with those that cannot be loaded. A folder that cannot be read
    /// hides no model outside of it.
    ///
    /// Each name is there once. Imported models come before the shared caches, LM Studio's and those
    /// in added folders, in their order; a later model of a name that is taken is listed as
    /// `name (path)`, with the path of its folder. What LM Studio or an added folder has is left out
    /// if the same folder is listed already.
    pub fn list(&self) -> Vec<ModelFolder> {
        let models: Vec<_> = self.found().into_values().map(|found| self.describe(found)).collect();
        let is_here: HashSet<_> =
            models.iter().filter_map(|model| model.identity.as_ref()).collect();
        locked(&self.shared.checked).retain(|identity, _| is_here.contains(identity));
        models
    }

    /// The model's folder for a path or a name: an existing folder, else a model that is listed under
    /// that name. Fails if no complete model is there.
    pub fn resolve(&self, name_or_path: &str) -> Result<PathBuf, HubError> {
        let given = Path::new(name_or_path);
        let (path, problem) = if given.is_dir() {
            (given.to_owned(), check::check(given).problem)
        } else {
            let model = self.describe(self.find(name_or_path)?);
            (model.path, model.problem)
        };
        match problem {
            Some(problem) => Err(HubError::Unusable { path, problem }),
            None => Ok(path),
        }
    }

    /// The model with this name.
    fn find(&self, name: &str) -> Result<Found, HubError> {
        self.found().remove(name).ok_or_else(|| self.not_found(name))
    }

    /// The folder of the model with this name, whole, and where it was found.
    pub(crate) fn folder_of(&self, name: &str) -> Result<(PathBuf, ModelSource), HubError> {
        self.find(name).map(|found| (found.folder, found.source))
    }

    /// The shared cache that the model with this name is in; none for a model of another folder.
    pub fn cache_of(&self, name: &str) -> Option<PathBuf> {
        let (folder, source) = self.folder_of(name).ok()?;
        let is_shared = source == ModelSource::HubCache;
        folder.parent().filter(|_| is_shared).map(Path::to_owned)
    }

    fn not_found(&self, wanted: &str) -> HubError {
        let own = [self.imported.clone()].into_iter().chain(self.hub_caches());
        let others = self.lm_studio.iter().cloned().chain(self.added());
        let searched = own.chain(others.filter(|folder| folder.is_dir())).collect();
        HubError::NotFound { wanted: wanted.to_owned(), searched }
    }

    fn describe(&self, found: Found) -> ModelFolder {
        let (name, source) = (found.name, found.source);
        let Some(path) = found.files else {
            return ModelFolder {
                name,
                path: found.folder,
                source,
                model_type: None,
                bytes: 0,
                identity: None,
                problem: Some(ModelProblem::NoSnapshot),
            };
        };
        let look =
            check::look(&path, |identity| locked(&self.shared.checked).get(identity).cloned());
        if let (Some(identity), true) = (&look.identity, look.checked.is_lasting()) {
            locked(&self.shared.checked).insert(identity.clone(), look.checked.clone());
        }
        let Checked { model_type, problem } = look.checked;
        let (bytes, identity) = (look.bytes, look.identity);
        ModelFolder { name, path, source, model_type, bytes, identity, problem }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
