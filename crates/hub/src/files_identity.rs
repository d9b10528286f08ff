//! Tells whether a model's files are still those that were checked, without reading them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A hash of the names, lengths, times and inodes of the files in a model's folder. It changes when
/// a file is added, removed, replaced or written to; what was learned about the files by opening
/// them is remembered under it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FilesIdentity(String);

impl FilesIdentity {
    /// Of the files at the top of a folder; links are followed.
    pub fn of(folder: &Path) -> io::Result<FilesIdentity> {
        Ok(Listing::of(folder)?.identity())
    }

    /// 64 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FilesIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What is at the top of a folder, as one look at it finds it; links are followed.
pub(crate) struct Listing {
    /// Everything but folders, by name. A link without a target is a state of its own.
    files: Vec<(OsString, Option<Numbers>)>,
    /// The folders in it.
    pub folders: Vec<PathBuf>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Numbers {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    is_file: bool,
}

impl Listing {
    pub fn of(folder: &Path) -> io::Result<Listing> {
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            let found = fs::metadata(&path).ok();
            if found.as_ref().is_some_and(fs::Metadata::is_dir) {
                folders.push(path);
                continue;
            }
            let numbers = found.map(|found| Numbers {
                device: found.dev(),
                inode: found.ino(),
                bytes: found.len(),
                modified: (found.mtime(), found.mtime_nsec()),
                is_file: found.is_file(),
            });
            files.push((entry.file_name(), numbers));
        }
        files.sort();
        Ok(Listing { files, folders })
    }

    pub fn identity(&self) -> FilesIdentity {
        let mut hash = Sha256::new();
        for (name, numbers) in &self.files {
            let name = name.as_encoded_bytes();
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
            let Some(numbers) = numbers else {
                hash.update([0]);
                continue;
            };
            hash.update([1 + u8::from(numbers.is_file)]);
            let (seconds, nanoseconds) = numbers.modified;
            for number in [numbers.device, numbers.inode, numbers.bytes] {
                hash.update(number.to_le_bytes());
            }
            for number in [seconds, nanoseconds] {
                hash.update(number.to_le_bytes());
            }
        }
        FilesIdentity(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether there is a regular file of this name.
    pub fn has_file(&self, name: &str) -> bool {
        let at = self.files.binary_search_by(|(known, _)| known.as_os_str().cmp(OsStr::new(name)));
        let numbers = at.ok().and_then(|at| self.files[at].1.as_ref());
        numbers.is_some_and(|numbers| numbers.is_file)
    }

    /// The names of everything but folders, in order; links without a target too.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter_map(|(name, _)| name.to_str())
    }

    /// The length of the regular files.
    pub fn bytes(&self) -> u64 {
        let numbers = self.files.iter().filter_map(|(_, numbers)| numbers.as_ref());
        numbers.filter(|numbers| numbers.is_file).map(|numbers| numbers.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_identity_changes_with_every_file_and_with_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("config.json"), "{}").unwrap();
        symlink("nowhere", path("tokenizer.json")).unwrap();
        let mut seen = vec![FilesIdentity::of(folder.path()).unwrap()];
        assert_eq!(FilesIdentity::of(folder.path()).unwrap(), seen[0]);
        let mut check_new = || {
            let identity = FilesIdentity::of(folder.path()).unwrap();
            assert!(!seen.contains(&identity));
            seen.push(identity);
        };
        fs::write(path("model.safetensors"), "12").unwrap();
        check_new();
        fs::write(path("model.safetensors"), "123").unwrap();
        check_new();
        fs::rename(path("model.safetensors"), path("model2.safetensors")).unwrap();
        check_new();
        // A file of the same name and length, put in the other's place.
        fs::write(path("new"), "{}").unwrap();
        check_new();
        fs::rename(path("new"), path("config.json")).unwrap();
        check_new();
        fs::write(path("nowhere"), "x").unwrap();
        check_new();
        let before = FilesIdentity::of(folder.path()).unwrap();
        fs::create_dir(path("onnx")).unwrap();
        fs::read(path("config.json")).unwrap();
        assert_eq!(FilesIdentity::of(folder.path()).unwrap(), before);
    }
}
