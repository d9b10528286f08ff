//! Opening and reading files that others wrote: regular files only, and no more than a limit.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The most bytes of a model's config.json that are read; real ones have a few thousand.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Why a file could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder, a pipe or a device stands where a file should.
    #[error("{path} is not a regular file: choose another", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is longer than any file of its kind has reason to be.
    #[error("{path} has more than {limit_bytes} bytes, the most that is read of such a file: choose another", path = path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit_bytes: u64,
    },
}

/// Opens a regular file; also returns its length in bytes.
///
/// The kind of file is checked before it is opened too, because opening a device may do something.
/// Opening never waits, as it would for the writer of a pipe that takes the file's place meanwhile.
pub fn open_regular(path: &Path) -> Result<(File, u64), FileError> {
    let failed = |source| FileError::Io { path: path.into(), source };
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(FileError::NotAFile { path: path.into() });
    }
    open_at_once(path)
}

/// As [`open_regular`], for what was a regular file a moment ago.
fn open_at_once(path: &Path) -> Result<(File, u64), FileError> {
    let failed = |source| FileError::Io { path: path.into(), source };
    // It does not change how a regular file is read.
    let at_once = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(at_once).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(FileError::NotAFile { path: path.into() });
    }
    Ok((file, metadata.len()))
}

/// Reads a whole file of at most `limit_bytes` bytes.
///
/// This is the way to read any small file that somebody else wrote. The limit holds for what is
/// read and not only for the length that the file reports: files of `/proc` report 0, and a file
/// may grow meanwhile.
pub fn read_file(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let mut contents = Vec::new();
    read_file_into(path, limit_bytes, &mut contents)?;
    Ok(contents)
}

/// As [`read_file`], in place of what `contents` held: its memory is used again.
pub fn read_file_into(
    path: &Path,
    limit_bytes: u64,
    contents: &mut Vec<u8>,
) -> Result<(), FileError> {
    contents.clear();
    let (file, length_bytes) = open_regular(path)?;
    let too_long = || FileError::TooLong { path: path.into(), limit_bytes };
    if length_bytes > limit_bytes {
        return Err(too_long());
    }
    contents.reserve_exact(length_bytes as usize);
    file.take(limit_bytes.saturating_add(1))
        .read_to_end(contents)
        .map_err(|source| FileError::Io { path: path.into(), source })?;
    if contents.len() as u64 > limit_bytes {
        return Err(too_long());
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// The contents of `path`, or the sentence of the refusal.
    fn check(path: &Path, limit_bytes: u64, expected: Result<&[u8], &str>) {
        match (read_file(path, limit_bytes), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(part)) => {
                let error = error.to_string();
                assert!(error.contains(part), "expected {part:?}, found {error:?}");
                assert!(error.contains(path.to_str().unwrap()), "{error:?} names no file");
            }
            (found, expected) => panic!("{path:?}: expected {expected:?}, found {found:?}"),
        }
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        check(&path, 4, Err("cannot read"));
        std::fs::write(&path, "1234").unwrap();
        check(&path, 4, Ok(b"1234"));
        check(&path, 3, Err("has more than 3 bytes"));
        std::fs::write(&path, "").unwrap();
        check(&path, 0, Ok(b""));
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path(), 4, Err("is not a regular file"));
        // Stands for /dev/zero, which would fill the memory of a reader that took it for a file,
        // and for a pipe, which would never end.
        check(Path::new("/dev/null"), 4, Err("is not a regular file"));
        let link = folder.path().join("config.json");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        check(&link, 4, Err("is not a regular file"));
    }

    #[test]
    fn opens_a_pipe_without_waiting_for_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        check(&pipe, 4, Err("is not a regular file"));
        let opened = open_at_once(&pipe);
        assert!(matches!(opened, Err(FileError::NotAFile { .. })), "{opened:?}");
    }

    #[test]
    fn the_limit_holds_where_a_file_reports_no_length() {
        let path = Path::new("/proc/self/status");
        if path.exists() {
            check(path, 10, Err("has more than 10 bytes"));
        }
    }
}
