//! The files and folders that a person has given the page: by a dialog, by a drop on the window, or on the
//! program's command line. The page reads and imports nothing else.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_app::wire::{Failure, FailureCode, FailureKind};
use tauri::{DragDropEvent, Manager, Window, WindowEvent};

/// Files and folders that were given. Paths are without links.
#[derive(Debug, Default)]
pub struct Offered {
    /// Paths that the page may open; a folder with all that is in it.
    contents: Mutex<HashSet<PathBuf>>,
    /// Folders that were chosen for models. The page does not read what is in them.
    model_folders: Mutex<HashSet<PathBuf>>,
}

impl Offered {
    /// Begins with the paths that the program's arguments name. The tests of the real window need
    /// this, because no driver can choose or drop a file.
    pub fn from_arguments(arguments: impl IntoIterator<Item = PathBuf>) -> Self {
        let offered = Offered::default();
        for path in arguments {
            offered.add(&path);
            offered.add_model_folder(&path);
        }
        offered
    }

    /// Lets the page open a file, or what is in a folder.
    pub fn add(&self, path: &Path) {
        locked(&self.contents).extend(path.canonicalize().ok());
    }

    /// Lets the page use a folder for models.
    pub fn add_model_folder(&self, path: &Path) {
        locked(&self.model_folders).extend(path.canonicalize().ok());
    }

    /// The path without links, if it was given itself or is in a folder that was.
    ///
    /// # Errors
    /// The failure to show.
    pub fn check(&self, path: &Path) -> Result<PathBuf, Failure> {
        let whole = path.canonicalize().map_err(|error| not_readable(path, &error))?;
        let contents = locked(&self.contents);
        if whole.ancestors().any(|ancestor| contents.contains(ancestor)) {
            Ok(whole)
        } else {
            Err(refused(path, "it was neither chosen nor dropped here"))
        }
    }

    /// Whether a folder was chosen for models.
    pub fn has_model_folder(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|whole| locked(&self.model_folders).contains(&whole))
    }
}

/// Remembers what is dropped on the window.
pub fn note_drop(window: &Window, event: &WindowEvent) {
    if let WindowEvent::DragDrop(DragDropEvent::Drop { paths, .. }) = event {
        let offered = window.state::<Offered>();
        paths.iter().for_each(|path| offered.add(path));
    }
}

fn locked(paths: &Mutex<HashSet<PathBuf>>) -> MutexGuard<'_, HashSet<PathBuf>> {
    paths.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the failure to open a path. Only its sentence has the reason.
pub fn refused(path: &Path, why: &str) -> Failure {
    let message = format!("{} cannot be opened: {why}.", path.display());
    Failure::new(FailureCode::Storage, message)
}

/// Returns the failure for a path that the system does not let us read.
pub fn not_readable(path: &Path, error: &std::io::Error) -> Failure {
    refused(path, &error.to_string())
        .of_kind(FailureKind::NotReadable { name: path.display().to_string() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn opens_only_what_was_offered_and_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("given/deep")).unwrap();
        fs::write(root.join("given/deep/a.txt"), "a").unwrap();
        fs::write(root.join("secret.txt"), "s").unwrap();
        symlink(root.join("secret.txt"), root.join("given/link.txt")).unwrap();
        let offered = Offered::default();
        offered.add(&root.join("given"));
        assert!(offered.check(&root.join("given/deep/a.txt")).is_ok());
        for path in ["secret.txt", "given/../secret.txt", "given/link.txt", "given/missing.txt"] {
            let refused = offered.check(&root.join(path)).unwrap_err();
            assert!(refused.message.contains("cannot be opened"), "{refused:?}");
            assert_eq!(refused.kind.is_some(), path.contains("missing"), "{refused:?}");
        }
    }

    #[test]
    fn reads_nothing_in_folder_for_models() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "a").unwrap();
        let offered = Offered::default();
        offered.add_model_folder(folder.path());
        assert!(offered.has_model_folder(&folder.path().join(".")));
        assert!(!offered.has_model_folder(Path::new("/etc")));
        assert!(!offered.has_model_folder(Path::new("/proc/self/root")));
        assert!(offered.check(&folder.path().join("a.txt")).is_err());
        assert!(offered.check(folder.path()).is_err());

        let named = Offered::from_arguments([folder.path().to_owned(), "/no/such/file".into()]);
        assert!(named.check(&folder.path().join("a.txt")).is_ok());
        assert!(named.has_model_folder(folder.path()));
    }
}
