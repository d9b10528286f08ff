//! Prompt-cache files that are previewed and neither imported nor discarded yet, and the temporary
//! files that Cairn made of uploads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairn_store::new_id;
use uuid::Uuid;

use crate::data_folder::DataFolder;

/// The most previews at a time; each may be a copy on the disk.
const MAX_PREVIEWS: usize = 16;
/// About what file systems allow.
const MAX_FILE_NAME_CHARS: usize = 255;

/// The previewed files that are neither imported nor discarded yet, the oldest first. Owned by
/// [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<BTreeMap<String, Previewed>>);

/// A file that is being previewed, or was.
#[derive(Debug, Clone)]
pub(crate) struct Previewed {
    pub(crate) file: PathBuf,
    pub(crate) file_name: String,
    /// Removes a copy that Cairn made.
    _own: Option<Arc<OwnFile>>,
}

impl Previewed {
    /// The user's own file.
    pub(crate) fn of(file: PathBuf) -> Self {
        Previewed { file_name: file_name(&file), file, _own: None }
    }

    /// A copy that Cairn made, and removes when the last user drops it.
    pub(crate) fn own(own: OwnFile, file_name: &str) -> Self {
        Previewed {
            file: own.path().to_owned(),
            file_name: shown_name(file_name),
            _own: Some(Arc::new(own)),
        }
    }
}

impl Imports {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Previewed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a preview under its token. Tokens are UUIDs v7, so the first is the oldest.
    pub(crate) fn begin(&self, token: String, previewed: Previewed) {
        let mut previews = self.lock();
        previews.insert(token, previewed);
        if previews.len() > MAX_PREVIEWS {
            previews.pop_first();
        }
    }

    /// The preview with this token.
    pub(crate) fn find(&self, token: &str) -> Option<Previewed> {
        self.lock().get(token).cloned()
    }

    /// Discards a preview.
    pub(crate) fn end(&self, token: &str) {
        self.lock().remove(token);
    }
}

/// The path of a file of Cairn's own, which is removed when this is dropped.
#[derive(Debug)]
pub struct OwnFile(PathBuf);

impl OwnFile {
    /// A new name in the folder for uploads and downloads.
    pub(crate) fn temporary(data_folder: &DataFolder) -> Self {
        OwnFile(data_folder.transfers().join(format!("{}.safetensors", new_id())))
    }

    /// Whether a file's name is one that [`OwnFile::temporary`] gives.
    pub(crate) fn is_temporary_name(name: &str) -> bool {
        name.strip_suffix(".safetensors").is_some_and(|id| Uuid::parse_str(id).is_ok())
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // A file that cannot be removed now is removed at the next start.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file's name as one line, because terminals show it too.
fn shown_name(file_name: &str) -> String {
    file_name
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .take(MAX_FILE_NAME_CHARS)
        .collect()
}

/// The file's name as it is shown.
pub(crate) fn file_name(file: &Path) -> String {
    shown_name(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy())
}
