//! The beginning of a blob, which grows until it is the blob.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use cairn_formats::sync_folder;

use super::lock::is_at;
use super::{BlobLock, Digest, RepoFolder};
use crate::hub_api::RepoFile;

const READ_BYTES: usize = 1 << 20;

/// A partial file, open under its blob's lock.
///
/// `digest` has hashed exactly the `length` bytes that the file has.
pub(crate) struct Partial {
    file: File,
    path: PathBuf,
    blob: PathBuf,
    wanted: RepoFile,
    length: u64,
    digest: Digest,
    _lock: BlobLock,
}

impl Partial {
    /// Opens what is there and hashes it, or begins an empty one. `on_bytes` is told how much was
    /// hashed and may fail to stop that.
    pub fn open(
        repo: &RepoFolder,
        wanted: &RepoFile,
        lock: BlobLock,
        on_bytes: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> io::Result<Partial> {
        let path = repo.partial(&wanted.hash);
        match fs::symlink_metadata(&path) {
            Ok(found) if !found.is_file() => {
                return Err(io::Error::other("it is not a regular file, so it was left alone"));
            }
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
        let mut partial = Partial {
            blob: repo.blob(&wanted.hash),
            digest: Digest::new(&wanted.hash, wanted.bytes),
            wanted: wanted.clone(),
            length: 0,
            _lock: lock,
            file,
            path,
        };
        if partial.file.metadata()?.len() > wanted.bytes {
            partial.clear()?;
        }
        partial.length = hash_all(&mut partial.file, &mut partial.digest, on_bytes)?;
        Ok(partial)
    }

    /// How much of the file is there.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Adds bytes. What the disk did not take is not counted.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            // Part of them may have been written.
            self.file.set_len(self.length)?;
            self.file.seek(SeekFrom::Start(self.length))?;
            return Err(error);
        }
        self.digest.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Begins anew.
    pub fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.length = 0;
        self.digest = Digest::new(&self.wanted.hash, self.wanted.bytes);
        Ok(())
    }

    /// Whether the file is whole and has the right hash.
    pub fn is_right(&self) -> bool {
        self.length == self.wanted.bytes
            && self.digest.clone().finish() == self.wanted.hash.as_str()
    }

    /// Makes a right file the blob. `NotFound` means that another program has taken the partial
    /// file away.
    pub fn commit(self) -> io::Result<()> {
        self.file.sync_all()?;
        if !is_at(&self.file, &self.path)? || self.file.metadata()?.len() != self.wanted.bytes {
            return Err(ErrorKind::NotFound.into());
        }
        fs::rename(&self.path, &self.blob)?;
        sync_folder(self.blob.parent().unwrap_or(&self.blob))
    }
}

/// Whether the blob exists with the right content. One that another program left is believed only
/// when it was hashed.
pub(crate) fn blob_is_right(
    blob: &Path,
    wanted: &RepoFile,
    on_bytes: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<bool> {
    let mut file = match File::open(blob) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    if !found.is_file() || found.len() != wanted.bytes {
        return Ok(false);
    }
    let mut digest = Digest::new(&wanted.hash, wanted.bytes);
    hash_all(&mut file, &mut digest, on_bytes)?;
    Ok(digest.finish() == wanted.hash.as_str())
}

fn hash_all(
    file: &mut File,
    digest: &mut Digest,
    on_bytes: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut length = 0;
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok(length),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        digest.update(&buffer[..count]);
        length += count as u64;
        on_bytes(length)?;
    }
}
