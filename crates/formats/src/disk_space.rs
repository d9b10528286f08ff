//! Free space on a disk, asked before gigabytes are written to it.

use std::path::{Path, PathBuf};

/// Bytes that stay free on a disk: for the database, and for other programs.
pub const RESERVE_BYTES: u64 = 1 << 30;

/// A disk has no room for what is to be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{:.2} GB must be free on the disk of {}, and {:.2} GB are: make space, or choose another disk",
    *needed_bytes as f64 / 1e9,
    folder.display(),
    *free_bytes as f64 / 1e9
)]
pub struct NoDiskSpace {
    /// Where it was to be.
    pub folder: PathBuf,
    /// Bytes that must be free, the reserve included.
    pub needed_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
}

impl NoDiskSpace {
    /// Fails if `num_bytes` more would leave less than `reserve_bytes` of `free_bytes`. `None` is
    /// enough: a disk that does not say how much is free says so when it is full.
    pub fn check(
        folder: &Path,
        num_bytes: u64,
        reserve_bytes: u64,
        free_bytes: Option<u64>,
    ) -> Result<(), NoDiskSpace> {
        let needed_bytes = num_bytes.saturating_add(reserve_bytes);
        match free_bytes.filter(|free_bytes| *free_bytes < needed_bytes) {
            Some(free_bytes) => {
                Err(NoDiskSpace { folder: folder.to_owned(), needed_bytes, free_bytes })
            }
            None => Ok(()),
        }
    }
}

/// Fails if `num_bytes` more in `folder`, which need not exist yet, would leave less than
/// [`RESERVE_BYTES`] on its disk.
///
/// Ask with the lengths that files report, not with the blocks that they occupy: a sparse file
/// becomes a full one when it is copied.
pub fn check_disk_space(folder: &Path, num_bytes: u64) -> Result<(), NoDiskSpace> {
    NoDiskSpace::check(folder, num_bytes, RESERVE_BYTES, free_disk_bytes(folder))
}

/// Bytes that this user may still write on the disk of a folder, which need not exist yet. `None` if
/// the system does not say.
pub fn free_disk_bytes(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("."));
    // Some network file systems report no blocks at all.
    let disk = rustix::fs::statvfs(existing).ok().filter(|disk| disk.f_blocks > 0)?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn refuses_what_leaves_less_than_the_reserve() {
        fn check(num_bytes: u64, free_bytes: Option<u64>, is_refused: bool) {
            let checked = NoDiskSpace::check(Path::new("/m"), num_bytes, 10, free_bytes);
            assert_eq!(checked.is_err(), is_refused, "{num_bytes} of {free_bytes:?}");
        }
        check(5, Some(15), false);
        check(6, Some(15), true);
        check(0, Some(9), true);
        check(u64::MAX, Some(u64::MAX - 1), true);
        check(u64::MAX, None, false);
    }

    #[test]
    fn says_what_is_needed_and_free_on_which_disk() {
        let refused =
            NoDiskSpace::check(Path::new("/m"), 1_000_000_000_000, 0, Some(2_500_000_000));
        assert_eq!(
            refused.unwrap_err().to_string(),
            "1000.00 GB must be free on the disk of /m, and 2.50 GB are: make space, or choose another disk"
        );
    }

    #[test]
    fn asks_the_disk_of_a_folder_that_comes_later() {
        let folder = tempfile::tempdir().unwrap();
        let later = folder.path().join("a/b");
        assert!(free_disk_bytes(&later).is_some());
        assert!(free_disk_bytes(Path::new("later")).is_some());
        let refused = check_disk_space(&later, u64::MAX / 2).unwrap_err();
        assert_eq!(refused.folder, later);
    }
}
