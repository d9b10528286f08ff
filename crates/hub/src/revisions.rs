//! The revisions of a model in the shared cache: which commit is used, and which older ones can go.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cairn_formats::sync_folder;
use uuid::Uuid;

use crate::cache_layout::{MAX_REF_BYTES, UNFINISHED_PREFIX, main_snapshot};
use crate::delete_model::{DELETED_PREFIX, download_locks, failed};
use crate::unique_name::unique_name;
use crate::{Commit, HubError, ModelFolders, ModelSource, RepoId};

/// A model that was downloaded, and the commit that is used of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadedCommit {
    /// The model.
    pub repo: RepoId,
    /// The commit that its name stands for on this machine.
    pub commit: Commit,
    /// The shared cache that it is in.
    pub cache: PathBuf,
}

/// The older revisions of a model: snapshots that no branch or tag of the cache names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldRevisions {
    /// The model.
    pub name: String,
    /// Their commits.
    pub commits: BTreeSet<String>,
    /// Others whose removal was begun and not ended.
    pub num_begun: usize,
    /// What removing them frees: files that no other revision has.
    pub bytes: u64,
    /// The repository's folder.
    folder: PathBuf,
}

impl ModelFolders {
    /// The models that were downloaded from a hub. One whose name is taken by another is left out.
    pub fn downloaded(&self) -> Vec<DownloadedCommit> {
        let shared = self.found().into_values();
        let shared = shared.filter(|found| found.source == ModelSource::HubCache);
        let commits = shared.filter_map(|found| {
            let commit = found.files.as_deref()?.file_name()?.to_str().and_then(Commit::parse)?;
            let cache = found.folder.parent()?.to_owned();
            Some(DownloadedCommit { repo: found.name.parse().ok()?, commit, cache })
        });
        commits.collect()
    }

    /// The older revisions of the model with this name, without those whose snapshot is among `kept`.
    /// A model outside of the shared cache has none.
    pub fn old_revisions(&self, name: &str, kept: &[PathBuf]) -> Result<OldRevisions, HubError> {
        let (folder, source) = self.folder_of(name)?;
        let old = match source {
            ModelSource::HubCache => {
                look(&folder, kept).map_err(|error| failed(&folder, &error))?
            }
            _ => Snapshots::default(),
        };
        let commits = old.old.iter().filter_map(|snapshot| plain_name(snapshot)).collect();
        let (num_begun, bytes) = (old.begun.len(), old.freed_bytes(&folder));
        Ok(OldRevisions { name: name.to_owned(), commits, num_begun, bytes, folder })
    }

    /// Removes them: those of their snapshots that are still old and not among `kept`, and the blobs
    /// that no other snapshot uses. If the process is killed meanwhile, the next removal ends the
    /// work.
    pub fn remove_old_revisions(
        &self,
        revisions: &OldRevisions,
        kept: &[PathBuf],
    ) -> Result<(), HubError> {
        let folder = &revisions.folder;
        let failed = |error: io::Error| failed(folder, &error);
        let locks = download_locks(folder).map_err(failed)?;
        let _locks = locks.ok_or_else(|| HubError::Downloading { name: revisions.name.clone() })?;
        let mut found = look(folder, kept).map_err(failed)?;
        let (old, newer): (Vec<_>, Vec<_>) =
            std::mem::take(&mut found.old).into_iter().partition(|snapshot| {
                plain_name(snapshot).is_some_and(|commit| revisions.commits.contains(&commit))
            });
        found.old = old;
        // What has become old since was not asked about.
        found.used.extend(newer);
        remove(folder, found).map_err(failed)
    }
}

/// The snapshots of a repository.
#[derive(Debug, Default)]
struct Snapshots {
    /// Those that no ref names.
    old: Vec<PathBuf>,
    /// All others.
    used: Vec<PathBuf>,
    /// What an earlier removal has begun with.
    begun: Vec<PathBuf>,
}

impl Snapshots {
    /// The names of the blobs that go with the old ones.
    fn freed_blobs(&self) -> io::Result<BTreeSet<String>> {
        let mut freed = BTreeSet::new();
        for snapshot in self.old.iter().chain(&self.begun) {
            add_blobs(snapshot, &mut freed)?;
        }
        let mut used = BTreeSet::new();
        for snapshot in &self.used {
            add_blobs(snapshot, &mut used)?;
        }
        Ok(&freed - &used)
    }

    fn freed_bytes(&self, folder: &Path) -> u64 {
        // A snapshot that cannot be read frees nothing that could be promised.
        let blobs = self.freed_blobs().unwrap_or_default();
        let length = |path: PathBuf| match path.symlink_metadata() {
            Ok(found) if found.is_file() => found.len(),
            _ => 0,
        };
        blobs.iter().map(|blob| length(folder.join("blobs").join(blob))).sum()
    }
}

/// Sorts the snapshots of a repository. Where it is not clear which one is used, none is old.
fn look(folder: &Path, kept: &[PathBuf]) -> io::Result<Snapshots> {
    let Some(main) = main_snapshot(folder) else { return Ok(Snapshots::default()) };
    let mut named = BTreeSet::new();
    add_refs(&folder.join("refs"), &mut named)?;
    let mut snapshots = Snapshots::default();
    for entry in fs::read_dir(folder.join("snapshots"))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let commit = name.to_str().and_then(Commit::parse);
        // What is no snapshot of a commit is not ours to judge.
        let is_named = commit.is_none_or(|commit| named.contains(commit.as_str()));
        let is_old = !is_named && path != main && !is_among(&path, kept);
        match is_old && entry.file_type()?.is_dir() {
            true => snapshots.old.push(path),
            false => snapshots.used.push(path),
        }
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let has_prefix = |prefix: &str| {
            let id = name.to_str().and_then(|name| name.strip_prefix(prefix));
            id.is_some_and(|id| Uuid::parse_str(id).is_ok())
        };
        if has_prefix(DELETED_PREFIX) && entry.file_type()?.is_dir() {
            snapshots.begun.push(entry.path());
        } else if has_prefix(UNFINISHED_PREFIX) {
            snapshots.used.push(entry.path());
        }
    }
    Ok(snapshots)
}

/// Whether this folder is one of those, which may have been reached by another path.
fn is_among(folder: &Path, others: &[PathBuf]) -> bool {
    let canonical = folder.canonicalize().ok();
    others.iter().any(|other| other == folder || other.canonicalize().ok() == canonical)
}

/// Adds the commits that branches, tags and pull requests name.
fn add_refs(folder: &Path, commits: &mut BTreeSet<String>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let found = entry.metadata()?;
        if found.is_dir() {
            add_refs(&entry.path(), commits)?;
        } else if found.is_file() && found.len() <= MAX_REF_BYTES {
            commits.insert(fs::read_to_string(entry.path())?.trim().to_owned());
        }
    }
    Ok(())
}

/// Adds the names of the blobs that the links of a snapshot lead to.
fn add_blobs(snapshot: &Path, blobs: &mut BTreeSet<String>) -> io::Result<()> {
    if snapshot.symlink_metadata()?.is_symlink() {
        return Ok(());
    }
    for entry in fs::read_dir(snapshot)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            add_blobs(&entry.path(), blobs)?;
        } else if kind.is_symlink() {
            blobs.extend(plain_name(&fs::read_link(entry.path())?));
        }
    }
    Ok(())
}

fn plain_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// Hides the old snapshots, then removes the blobs, then what was hidden: as long as a blob is left,
/// so is the link that says that it can go.
fn remove(folder: &Path, mut found: Snapshots) -> io::Result<()> {
    for snapshot in std::mem::take(&mut found.old) {
        let hidden = folder.join(format!("{DELETED_PREFIX}{}", unique_name()));
        fs::rename(&snapshot, &hidden)?;
        found.begun.push(hidden);
    }
    sync_folder(&folder.join("snapshots"))?;
    sync_folder(folder)?;
    let blobs = folder.join("blobs");
    for blob in found.freed_blobs()? {
        match fs::remove_file(blobs.join(blob)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    if blobs.is_dir() {
        sync_folder(&blobs)?;
    }
    for hidden in found.begun {
        fs::remove_dir_all(hidden)?;
    }
    Ok(())
}
