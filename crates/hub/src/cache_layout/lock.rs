//! The lock on one blob, which huggingface_hub takes too.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Lock files are writable for the group, as huggingface_hub makes them: several people may share a
/// cache.
const MODE: u32 = 0o664;
/// How often a lock file may vanish under our hands before that is an error.
const MAX_TRIES: usize = 16;

/// Held while a blob or its partial file is written; released when dropped.
#[derive(Debug)]
pub(crate) struct BlobLock {
    _file: File,
}

impl BlobLock {
    /// None if another program or another download holds it.
    pub fn try_take(path: &Path) -> io::Result<Option<BlobLock>> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        for _ in 0..MAX_TRIES {
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(MODE)
                .open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Some versions of Python's filelock remove the file when they release it; a lock on
            // a removed file keeps nobody out.
            if is_at(&file, path)? {
                return Ok(Some(BlobLock { _file: file }));
            }
        }
        Err(io::Error::other("its lock file keeps vanishing"))
    }
}

/// Whether an open file is the one that a path names now.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_a_removed_file_holds_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/x.lock");
        let first = BlobLock::try_take(&path).unwrap();
        assert!(first.is_some() && BlobLock::try_take(&path).unwrap().is_none());
        drop(first);
        let second = BlobLock::try_take(&path).unwrap();
        assert!(second.is_some());
        fs::remove_file(&path).unwrap();
        assert!(BlobLock::try_take(&path).unwrap().is_some());
    }
}
