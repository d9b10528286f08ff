//! The locks on the data folder and on its prompt cache.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use crate::data_folder::DataFolder;
use crate::error::OpenError;
use crate::platform::open_lock_file;

/// The lock that makes this process the only one that has the data folder open. The system unlocks
/// it however the process ends.
#[derive(Debug)]
pub struct FolderLock(File);

impl FolderLock {
    /// Locks the data folder for this process, and creates its missing parts. Fails with
    /// [`OpenError::AlreadyRunning`] if another process has locked it.
    pub fn take(data_folder: &DataFolder) -> Result<FolderLock, OpenError> {
        data_folder.create()?;
        let path = data_folder.lock();
        let file = open_lock_file(&path).map_err(|error| not_writable(&path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(FolderLock(file)),
            Err(TryLockError::WouldBlock) => {
                Err(OpenError::AlreadyRunning { folder: data_folder.home().to_owned() })
            }
            Err(TryLockError::Error(error)) => Err(not_writable(&path, error)),
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that is just being started has a copy of
        // it until it runs its program.
        let _ = self.0.unlock();
    }
}

/// The exclusive lock on the prompt cache's folder; none while another program adds files to it.
pub(crate) fn cleanup_lock(data_folder: &DataFolder) -> Option<File> {
    let lock = open_lock_file(&data_folder.prompt_cache_lock()).ok()?;
    lock.try_lock().is_ok().then_some(lock)
}

fn not_writable(path: &Path, source: io::Error) -> OpenError {
    OpenError::NotWritable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_open_a_lock() {
        use std::os::unix::fs::PermissionsExt;

        let home = tempfile::tempdir().expect("a folder");
        let data_folder = DataFolder::new(home.path());
        // Earlier versions made it like this.
        std::fs::write(data_folder.lock(), "").expect("is written");
        let _locked = FolderLock::take(&data_folder).expect("is free");
        std::fs::create_dir_all(data_folder.prompt_cache()).expect("a folder");
        let _cleanup = cleanup_lock(&data_folder).expect("is free");
        for lock in [data_folder.lock(), data_folder.prompt_cache_lock()] {
            let mode = lock.metadata().expect("is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", lock.display());
        }
    }

    #[test]
    fn a_dropped_lock_is_free_while_a_child_still_has_a_copy_of_the_file() {
        let home = tempfile::tempdir().expect("a folder");
        let data_folder = DataFolder::new(home.path());
        let locked = FolderLock::take(&data_folder).expect("is free");
        let copy = locked.0.try_clone().expect("a copy");
        assert!(matches!(FolderLock::take(&data_folder), Err(OpenError::AlreadyRunning { .. })));
        drop(locked);
        assert!(FolderLock::take(&data_folder).is_ok());
        drop(copy);
    }
}
