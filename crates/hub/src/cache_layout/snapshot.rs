//! Makes verified blobs visible: the links of a commit, then the ref that names it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cairn_formats::sync_folder;
use uuid::Uuid;

use super::RepoFolder;
use crate::hub_api::{Commit, RepoFile, Revision};
use crate::unique_name::unique_name;

/// Precedes the UUID in the name of a folder whose links are being made.
pub(crate) const PREFIX: &str = ".cairn-snapshot-";

impl RepoFolder {
    /// Links every file into the commit's snapshot and returns that folder. All blobs must be there.
    ///
    /// A new snapshot appears with all its links at once. One that another program began gets the
    /// links that it lacks; what it has under a wanted path is replaced unless it is that link.
    pub fn link_snapshot(&self, commit: &Commit, files: &[RepoFile]) -> io::Result<PathBuf> {
        let snapshots = self.path().join("snapshots");
        let snapshot = snapshots.join(commit.as_str());
        fs::create_dir_all(&snapshots)?;
        if !snapshot.exists() {
            self.remove_unfinished();
            let unfinished = Unfinished::make(&self.path())?;
            add_links(&unfinished.path, files)?;
            match fs::rename(&unfinished.path, &snapshot) {
                // Another program has begun this snapshot meanwhile.
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                result => result?,
            }
        }
        add_links(&snapshot, files)?;
        sync_folder(&snapshots)?;
        Ok(snapshot)
    }

    /// Lets a branch or tag name the commit. A revision that is a commit needs no ref.
    pub fn write_ref(&self, revision: &Revision, commit: &Commit) -> io::Result<()> {
        let path = self.path().join("refs").join(revision.as_str());
        if revision.as_str() == commit.as_str()
            || fs::read_to_string(&path).is_ok_and(|text| text == commit.as_str())
        {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder)?;
        let new = folder.join(format!("{}.tmp", unique_name()));
        let written = fs::write(&new, commit.as_str()).and_then(|()| {
            File::open(&new)?.sync_all()?;
            fs::rename(&new, &path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written?;
        sync_folder(folder)
    }

    /// Whether a branch or tag names a commit here.
    pub fn has_ref(&self, revision: &Revision) -> bool {
        self.path().join("refs").join(revision.as_str()).exists()
    }

    /// Removes what killed processes left of snapshots; one that is being made stays.
    fn remove_unfinished(&self) {
        let Ok(entries) = fs::read_dir(self.path()) else { return };
        for entry in entries.flatten() {
            let is_ours = entry.file_name().to_str().is_some_and(|name| {
                name.strip_prefix(PREFIX).is_some_and(|id| Uuid::parse_str(id).is_ok())
            });
            let lock = File::open(entry.path());
            if is_ours && lock.is_ok_and(|folder| folder.try_lock().is_ok()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// A folder whose links are being made: locked for that time, and removed unless it was renamed.
struct Unfinished {
    path: PathBuf,
    _lock: File,
}

impl Unfinished {
    fn make(parent: &Path) -> io::Result<Unfinished> {
        let path = parent.join(format!("{PREFIX}{}", unique_name()));
        fs::create_dir(&path)?;
        let lock = File::open(&path)?;
        lock.lock()?;
        Ok(Unfinished { path, _lock: lock })
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the rename there is no folder of this name.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Adds the links that a snapshot's folder lacks, each in one step, and makes them durable.
fn add_links(snapshot: &Path, files: &[RepoFile]) -> io::Result<()> {
    for file in files {
        let link = snapshot.join(&file.path);
        let up = "../".repeat(file.path.split('/').count() - 1);
        let target = PathBuf::from(format!("{up}../../blobs/{}", file.hash.as_str()));
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            continue;
        }
        let folder = link.parent().unwrap_or(snapshot);
        fs::create_dir_all(folder)?;
        let new = folder.join(format!(".cairn-{}", unique_name()));
        symlink(&target, &new)?;
        let renamed = fs::rename(&new, &link);
        if renamed.is_err() {
            let _ = fs::remove_file(&new);
        }
        renamed?;
        sync_folder(folder)?;
    }
    sync_folder(snapshot)
}
