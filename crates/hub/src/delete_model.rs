//! Deletes a model from this machine.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use cairn_formats::sync_folder;

use crate::cache_layout::BlobLock;
use crate::import_folder::PARTIAL_PREFIX;
use crate::unique_name::unique_name;
use crate::{HubError, ModelFolders, ModelSource};

/// Precedes the UUID in the name of a folder with snapshots that are being deleted.
pub(crate) const DELETED_PREFIX: &str = ".cairn-deleted-";

/// A model that can be deleted, and what goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDeletion {
    /// Its name.
    pub name: String,
    /// The folder that goes, with everything in it.
    pub folder: PathBuf,
    /// What that frees.
    pub bytes: u64,
    /// Whether other programs use the folder too: it is in the shared cache.
    pub is_shared: bool,
    /// How many commits of the model are in it.
    pub num_revisions: usize,
}

impl ModelFolders {
    /// What deleting the model that is listed under this name would delete. Refuses those of folders
    /// that Cairn only reads. A path is not a name.
    pub fn deletion(&self, name: &str) -> Result<ModelDeletion, HubError> {
        let (folder, source) = self.folder_of(name)?;
        if !source.is_deletable() {
            return Err(HubError::ReadOnly { name: name.to_owned(), path: folder });
        }
        let is_shared = source == ModelSource::HubCache;
        let num_revisions = match is_shared {
            true => fs::read_dir(folder.join("snapshots")).map_or(0, |found| found.count()),
            false => 1,
        };
        let bytes = bytes_in(&folder);
        Ok(ModelDeletion { name: name.to_owned(), folder, bytes, is_shared, num_revisions })
    }

    /// Deletes it. Nothing sees it any more once the first step is done, even if the process is
    /// killed then; what is left is removed at a next try or start.
    pub fn delete(&self, deletion: &ModelDeletion) -> Result<(), HubError> {
        let folder = &deletion.folder;
        let result = if deletion.is_shared {
            let _locks = download_locks(folder)
                .map_err(|error| failed(folder, &error))?
                .ok_or_else(|| HubError::Downloading { name: deletion.name.clone() })?;
            delete_shared(folder)
        } else {
            delete_imported(self.imported(), folder)
        };
        result.map_err(|error| failed(folder, &error))
    }
}

pub(crate) fn failed(folder: &Path, error: &io::Error) -> HubError {
    HubError::Delete { path: folder.to_owned(), reason: error.to_string() }
}

/// The locks of every blob of a repository that ever had one; none if a download holds one.
pub(crate) fn download_locks(folder: &Path) -> io::Result<Option<Vec<BlobLock>>> {
    let (Some(cache), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Ok(Some(Vec::new()));
    };
    let entries = match fs::read_dir(cache.join(".locks").join(name)) {
        Ok(entries) => entries,
        // It was never downloaded by a program that locks.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Vec::new())),
        Err(error) => return Err(error),
    };
    let mut locks = Vec::new();
    for entry in entries {
        match BlobLock::try_take(&entry?.path())? {
            Some(lock) => locks.push(lock),
            None => return Ok(None),
        }
    }
    Ok(Some(locks))
}

fn delete_shared(folder: &Path) -> io::Result<()> {
    let snapshots = folder.join("snapshots");
    if snapshots.exists() {
        fs::rename(&snapshots, folder.join(format!("{DELETED_PREFIX}{}", unique_name())))?;
        sync_folder(folder)?;
    }
    fs::remove_dir_all(folder)
}

fn delete_imported(imported: &Path, folder: &Path) -> io::Result<()> {
    // A hidden folder of this name is what `remove_leftovers` removes.
    let hidden = imported.join(format!("{PARTIAL_PREFIX}{}", unique_name()));
    fs::rename(folder, &hidden)?;
    let _lock = File::open(&hidden).inspect(|folder| {
        let _ = folder.try_lock();
    });
    sync_folder(imported)?;
    fs::remove_dir_all(hidden)
}

/// Bytes of the regular files below a folder; links lead to such files or out of it.
fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    });
    sizes.sum()
}
