//! Finds the folders of models, wherever they come from.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::ModelFolders;
use crate::cache_layout::{main_snapshot, model_name};

/// Folders that are looked into in one added folder. Someone may add a whole disk.
const MAX_LOOKED_INTO: usize = 10_000;

/// Where a model was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelSource {
    /// Imported into Cairn's own folder.
    Imported,
    /// In the cache that Hugging Face's tools share.
    HubCache,
    /// In LM Studio's folder, which Cairn only reads.
    LmStudio,
    /// In a folder that a person added, which Cairn only reads.
    Added,
}

impl ModelSource {
    /// Whether Cairn may delete the model.
    pub fn is_deletable(self) -> bool {
        matches!(self, ModelSource::Imported | ModelSource::HubCache)
    }
}

/// A model's folder, before anything in it was looked at.
pub(crate) struct Found {
    pub name: String,
    /// All of the model: in the shared cache, its repository.
    pub folder: PathBuf,
    /// The folder in that with its files; none without a snapshot.
    pub files: Option<PathBuf>,
    pub source: ModelSource,
}

impl ModelFolders {
    /// Every model by its name.
    pub(crate) fn found(&self) -> BTreeMap<String, Found> {
        let mut found = Names::default();
        let whole = |(name, folder): (String, PathBuf), source| {
            let files = Some(folder.clone());
            Found { name, folder, files, source }
        };
        for model in subfolders(&self.imported) {
            found.add(whole(model, ModelSource::Imported));
        }
        for (folder_name, folder) in self.hub_caches().iter().flat_map(|cache| subfolders(cache)) {
            if let Some(name) = model_name(&folder_name) {
                let files = main_snapshot(&folder);
                found.add(Found { name, folder, files, source: ModelSource::HubCache });
            }
        }
        for (publisher, folder) in self.lm_studio.iter().flat_map(|models| subfolders(models)) {
            for model in models_of(&publisher, subfolders(&folder)) {
                found.add(whole(model, ModelSource::LmStudio));
            }
        }
        for model in self.added().iter().flat_map(|added| models_in(added)) {
            found.add(whole(model, ModelSource::Added));
        }
        for folder in self.given().into_iter().filter(|folder| has_model_files(folder)) {
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
            found.add(whole((name.unwrap_or_default(), folder), ModelSource::Added));
        }
        found.models
    }

    /// The name and folder of the listed model whose files are in this folder, by whatever path.
    pub(super) fn listed(&self, folder: &Path) -> Option<(String, PathBuf)> {
        let place =
            |folder: &Path| fs::metadata(folder).map(|found| (found.dev(), found.ino())).ok();
        let wanted = place(folder)?;
        let is_it = |found: &Found| found.files.as_deref().and_then(place) == Some(wanted);
        self.found().into_values().find(is_it).and_then(|found| Some((found.name, found.files?)))
    }
}

/// Gives each folder a name that no other has.
#[derive(Default)]
struct Names {
    models: BTreeMap<String, Found>,
    /// Device and inode of each folder, which are the same by whatever path it is reached.
    folders: HashSet<(u64, u64)>,
}

impl Names {
    fn add(&mut self, mut found: Found) {
        let files = fs::metadata(found.files.as_ref().unwrap_or(&found.folder));
        let is_new = files.map_or(true, |files| self.folders.insert((files.dev(), files.ino())));
        // A link among the imported models must not hide the shared cache's own name.
        if !is_new && !found.source.is_deletable() {
            return;
        }
        if self.models.contains_key(&found.name) {
            found.name = format!("{} ({})", found.name, found.folder.display());
        }
        self.models.entry(found.name.clone()).or_insert(found);
    }
}

/// The subfolders with their names, sorted, without hidden ones, which are unfinished imports or
/// belong to other programs. Of a folder that cannot be read there are none.
fn subfolders(parent: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    // Most entries say what they are; only a link has to be followed.
    let is_folder = |entry: &fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_symlink() => entry.path().is_dir(),
        kind => kind.is_ok_and(|kind| kind.is_dir()),
    };
    let named = entries.flatten().filter(is_folder).filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        (!name.starts_with('.')).then(|| (name, entry.path()))
    });
    let mut folders: Vec<_> = named.collect();
    folders.sort();
    folders
}

/// The models among a publisher's folders, as `publisher/model`.
fn models_of(publisher: &str, folders: Vec<(String, PathBuf)>) -> Vec<(String, PathBuf)> {
    let models = folders.into_iter().filter(|(_, folder)| has_model_files(folder));
    models.map(|(name, folder)| (format!("{publisher}/{name}"), folder)).collect()
}

/// The models in a folder that was added: itself, or its subfolders, or theirs.
fn models_in(added: &Path) -> Vec<(String, PathBuf)> {
    if has_model_files(added) {
        let name = added.file_name().map(|name| name.to_string_lossy().into_owned());
        return name.map(|name| (name, added.to_owned())).into_iter().collect();
    }
    let (mut models, mut num_left) = (Vec::new(), MAX_LOOKED_INTO);
    for (name, folder) in subfolders(added) {
        if num_left == 0 {
            break;
        }
        num_left -= 1;
        if has_model_files(&folder) {
            models.push((name, folder));
            continue;
        }
        let mut below = subfolders(&folder);
        below.truncate(num_left);
        num_left -= below.len();
        models.extend(models_of(&name, below));
    }
    models
}

/// Whether a folder has the files of a model that Cairn could load if they were whole. What has GGUF
/// files only is another program's.
fn has_model_files(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let (mut has_config, mut has_gguf) = (false, false);
    for entry in entries.flatten() {
        let name = entry.file_name();
        // On disks of other systems a Mac keeps attributes in hidden files of a like name.
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        if name.ends_with(".safetensors") {
            return true;
        }
        has_config |= name == "config.json";
        has_gguf |= name.ends_with(".gguf");
    }
    has_config && !has_gguf
}
