//! Folders that are locked from the first moment at which anybody could take them for left behind.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Each further one is only needed while another process removes what crashes have left.
const MAX_TRIES: usize = 16;

/// Makes a folder with `make` and locks it, again until nobody has removed it in between: a folder
/// that is not locked yet looks like one that a crash has left. Whoever removes those holds the lock
/// meanwhile. The lock is none where folders cannot be locked; nobody removes any there.
pub fn make_locked_folder<T: AsRef<Path>>(
    mut make: impl FnMut() -> io::Result<T>,
) -> io::Result<(T, Option<File>)> {
    for _ in 0..MAX_TRIES {
        let folder = make()?;
        let lock = match File::open(folder.as_ref()) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            lock => lock?,
        };
        match lock.try_lock() {
            Ok(()) if !folder.as_ref().is_dir() => {}
            Ok(()) => return Ok((folder, Some(lock))),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(_)) => return Ok((folder, None)),
        }
    }
    Err(io::Error::new(ErrorKind::ResourceBusy, "another program removes each new folder"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_that_another_process_removes_or_locks_first_is_made_again() {
        let parent = tempfile::tempdir().unwrap();
        let mut removers_lock = None;
        let mut names = ["removed", "locked", "kept"].into_iter();
        let (folder, lock) = make_locked_folder(|| {
            let name = names.next().unwrap();
            let folder = parent.path().join(name);
            fs::create_dir(&folder)?;
            match name {
                "removed" => fs::remove_dir(&folder)?,
                "locked" => {
                    let remover = File::open(&folder)?;
                    remover.try_lock().unwrap();
                    removers_lock = Some(remover);
                }
                _ => {}
            }
            Ok(folder)
        })
        .unwrap();
        assert_eq!(folder, parent.path().join("kept"));
        assert!(lock.is_some() && File::open(&folder).unwrap().try_lock().is_err());
        drop(removers_lock);
    }

    #[test]
    fn a_folder_that_never_stays_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        let made = make_locked_folder(|| Ok(parent.path().join("nowhere")));
        assert_eq!(made.unwrap_err().kind(), ErrorKind::ResourceBusy);
    }
}
