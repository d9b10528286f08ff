//! Tells whether a model's files are still those that were checked, without reading them.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};

/// A hash of the names, lengths, times and inodes of the files in a model's folder. It changes when
/// a file is added, removed, replaced or written to; what was learned about the files by opening
/// them is remembered under it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FilesIdentity(String);

impl FilesIdentity {
    /// Of the files at the top of a folder; links are followed.
    pub fn of(folder: &Path) -> io::Result<FilesIdentity> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // A link without a target is a state of its own.
            let found = fs::metadata(entry.path()).ok();
            if found.as_ref().is_some_and(fs::Metadata::is_dir) {
                continue;
            }
            let numbers = found.map(|found| {
                (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec())
            });
            files.push((entry.file_name(), numbers));
        }
        files.sort();
        let hash = Sha256::digest(format!("{files:?}"));
        Ok(FilesIdentity(hash.iter().map(|byte| format!("{byte:02x}")).collect()))
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
