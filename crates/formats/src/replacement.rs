//! Files that are replaced whole or not at all.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::sync_folder;

/// A temporary file beside the one that it will replace. Dropped, it leaves the old one as it was.
#[derive(Debug)]
pub struct Replacement {
    file: tempfile::NamedTempFile,
    folder: PathBuf,
    target: PathBuf,
}

impl Replacement {
    /// Follows links. Fails where a file cannot be made, and refuses to replace a device, a pipe or a
    /// folder, and to write through a link to a missing file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let refused = |kind, why: &str| Err(io::Error::new(kind, why));
        let target = match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => std::fs::canonicalize(path)?,
            Ok(_) => return refused(ErrorKind::InvalidInput, "not a regular file"),
            Err(error) if error.kind() == ErrorKind::NotFound => match path.is_symlink() {
                true => return refused(ErrorKind::NotFound, "a link to a missing file"),
                false => path.to_owned(),
            },
            Err(error) => return Err(error),
        };
        let folder = target
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
            .to_owned();
        let file =
            tempfile::Builder::new().prefix(".saving-").suffix(".tmp").tempfile_in(&folder)?;
        Ok(Replacement { file, folder, target })
    }

    /// Replaces a file by one with these contents.
    pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
        let mut replacement = Replacement::create(path)?;
        replacement.file().write_all(contents)?;
        replacement.finish()
    }

    /// The new file, to be written.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Puts the new file, once it is on the disk, into the place of the old one.
    pub fn finish(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(self.target)?;
        // If that fails, the file is in its place all the same.
        let _ = sync_folder(&self.folder);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_replaced_when_it_is_finished_also_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [old, link] = ["old", "link"].map(|name| folder.path().join(name));
        fs::write(&old, "old").unwrap();
        symlink(&old, &link).unwrap();
        drop(Replacement::create(&old).unwrap());
        let mut replacement = Replacement::create(&link).unwrap();
        replacement.file().write_all(b"new").unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"old");
        replacement.finish().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&old).unwrap(), b"new");
        Replacement::write(&link, b"newest").unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"newest");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let dangling = folder.path().join("dangling");
        symlink("missing", &dangling).unwrap();
        for (path, expected) in [
            (Path::new("/dev/null"), "not a regular file"),
            (folder.path(), "not a regular file"),
            (&dangling, "a link to a missing file"),
        ] {
            assert_eq!(Replacement::create(path).unwrap_err().to_string(), expected);
        }
    }
}
