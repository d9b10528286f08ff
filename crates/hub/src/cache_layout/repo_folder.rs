//! One repository's part of the shared cache.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cairn_formats::sync_folder;

use super::BlobLock;
use crate::hub_api::{ContentHash, RepoFile, RepoId};

/// Marks the cache for programs that make backups, as huggingface_hub does.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
     # This is a cache of files that can be downloaded again. See https://bford.info/cachedir/\n";
const PARTIAL_SUFFIX: &str = ".cairn.incomplete";

/// The paths of one repository in the cache. Making it touches nothing.
#[derive(Debug, Clone)]
pub(crate) struct RepoFolder {
    cache: PathBuf,
    /// `models--owner--name`.
    name: String,
}

impl RepoFolder {
    pub fn new(cache: &Path, repo: &RepoId) -> RepoFolder {
        let name = ["models"].into_iter().chain(repo.parts()).collect::<Vec<_>>().join("--");
        RepoFolder { cache: cache.to_owned(), name }
    }

    pub fn path(&self) -> PathBuf {
        self.cache.join(&self.name)
    }

    pub fn blob(&self, hash: &ContentHash) -> PathBuf {
        self.path().join("blobs").join(hash.as_str())
    }

    pub fn partial(&self, hash: &ContentHash) -> PathBuf {
        self.path().join("blobs").join(format!("{}{PARTIAL_SUFFIX}", hash.as_str()))
    }

    fn lock_path(&self, hash: &str) -> PathBuf {
        self.cache.join(".locks").join(&self.name).join(format!("{hash}.lock"))
    }

    /// The lock on a blob; none while another download has it.
    pub fn try_lock(&self, hash: &ContentHash) -> io::Result<Option<BlobLock>> {
        BlobLock::try_take(&self.lock_path(hash.as_str()))
    }

    /// Makes the folders that a download writes to.
    pub fn create(&self) -> io::Result<()> {
        fs::create_dir_all(self.path().join("blobs"))?;
        let tag = self.cache.join("CACHEDIR.TAG");
        if let Ok(mut file) = fs::File::create_new(tag) {
            file.write_all(CACHE_TAG.as_bytes())?;
        }
        sync_folder(&self.cache)
    }

    /// How many bytes of a file are here already, as far as lengths tell.
    pub fn bytes_here(&self, file: &RepoFile) -> u64 {
        let length = |path: PathBuf| fs::metadata(path).map_or(0, |found| found.len());
        if length(self.blob(&file.hash)) == file.bytes {
            return file.bytes;
        }
        let partial = length(self.partial(&file.hash));
        if partial <= file.bytes { partial } else { 0 }
    }

    /// Removes our partial files, except those that a running download holds; returns how many
    /// those are. Nothing else has such names.
    pub fn remove_partials(&self) -> usize {
        let Ok(entries) = fs::read_dir(self.path().join("blobs")) else { return 0 };
        let mut num_held = 0;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let hash = name.to_str().and_then(|name| name.strip_suffix(PARTIAL_SUFFIX));
            let is_hash = |hash: &&str| {
                ContentHash::sha256(hash).or_else(|| ContentHash::git_sha1(hash)).is_some()
            };
            let Some(hash) = hash.filter(is_hash) else { continue };
            match BlobLock::try_take(&self.lock_path(hash)) {
                // If this fails, the next download of the model tries again.
                Ok(Some(_lock)) => drop(fs::remove_file(entry.path())),
                Ok(None) => num_held += 1,
                Err(_) => {}
            }
        }
        num_held
    }
}
