//! Uploads and downloads of files (prompt caches, and models to import), for interfaces that transfer bytes instead of paths.
//! Meanwhile each is a temporary file in the data folder.

use std::path::Path;
use std::sync::Arc;

use cairn_formats::check_disk_space;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::app::App;
use crate::cache::previews::{OwnFile, Previewed};
use crate::data_folder::DataFolder;
use crate::wire::{CacheFileLayout, CacheSource, Failure, FailureCode, FailureKind, ImportPreview};

/// More than any model's keys and values.
const MAX_UPLOAD_BYTES: u64 = 64 << 30;
/// The free disk space is checked again after this many bytes.
const CHECK_INTERVAL_BYTES: u64 = 64 << 20;

/// Removes the temporary files of an earlier process. Called while this one owns the data folder.
/// Files with other names than [`OwnFile`] gives, links and folders stay.
pub(crate) fn remove_leftovers(data_folder: &DataFolder) {
    let Ok(files) = std::fs::read_dir(data_folder.transfers()) else { return };
    for file in files.flatten() {
        let is_ours = file.file_name().to_str().is_some_and(OwnFile::is_temporary_name)
            && file.file_type().is_ok_and(|kind| kind.is_file());
        if is_ours {
            // If that fails, the next start tries again.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// A file that is being received. Dropping it removes the file.
#[derive(Debug)]
pub struct Upload {
    own_file: OwnFile,
    file: File,
    received_bytes: u64,
    checked_at_bytes: u64,
}

impl Upload {
    /// Appends bytes. Fails if the file becomes too large or the disk too full.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let coming_bytes = bytes.len() as u64;
        let is_check_due =
            self.received_bytes + coming_bytes >= self.checked_at_bytes + CHECK_INTERVAL_BYTES;
        check_length(self.received_bytes, coming_bytes)?;
        if is_check_due {
            check_disk_space(folder(&self.own_file), coming_bytes)?;
            self.checked_at_bytes = self.received_bytes + coming_bytes;
        }
        self.received_bytes += coming_bytes;
        self.file.write_all(bytes).await.map_err(not_written)
    }

    /// The complete file.
    pub(crate) async fn finish(mut self) -> Result<OwnFile, Failure> {
        self.file.flush().await.map_err(not_written)?;
        Ok(self.own_file)
    }
}

/// A file that is being sent.
#[derive(Debug)]
pub struct Download {
    /// Open at its beginning.
    pub file: File,
    /// Its length.
    pub num_bytes: u64,
    /// Removes the temporary file when it is dropped.
    pub own_file: OwnFile,
}

impl Download {
    /// Opens a file that was written to be sent.
    pub(crate) async fn open(own_file: OwnFile) -> Result<Download, Failure> {
        let unreadable = |error| {
            let message = format!("The exported file cannot be read: {error}.");
            Failure::new(FailureCode::Storage, message)
        };
        let file = File::open(own_file.path()).await.map_err(unreadable)?;
        let num_bytes = file.metadata().await.map_err(unreadable)?.len();
        Ok(Download { file, num_bytes, own_file })
    }
}

impl App {
    /// Begins to receive a file. `num_bytes` is its length, if the sender names it.
    pub async fn start_upload(&self, num_bytes: Option<u64>) -> Result<Upload, Failure> {
        let own_file = OwnFile::temporary(&self.data_folder);
        let num_bytes = num_bytes.unwrap_or(0);
        check_length(0, num_bytes)?;
        check_disk_space(folder(&own_file), num_bytes)?;
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(own_file.path())
            .await
            .map_err(not_written)?;
        Ok(Upload { own_file, file, received_bytes: 0, checked_at_bytes: 0 })
    }

    /// Previews a received file, as [`App::preview_import`] does. The file is removed with the
    /// preview.
    pub async fn finish_upload(
        &self,
        upload: Upload,
        file_name: &str,
    ) -> Result<ImportPreview, Failure> {
        let own_file = upload.finish().await?;
        Ok(self.preview(Previewed::own(own_file, file_name)).await)
    }

    /// Writes the saved context of a conversation, or a starting point, to a temporary file that is
    /// read once.
    pub async fn download(
        self: &Arc<Self>,
        source: CacheSource,
        layout: CacheFileLayout,
    ) -> Result<Download, Failure> {
        let app = self.clone();
        let own_file = OwnFile::temporary(&self.data_folder);
        // In a task that continues if the caller goes away, so that the file is removed only after it
        // was written.
        let export = self.spawn(async move {
            app.export_cache(&source, layout, own_file.path()).await.map(|()| own_file)
        });
        let exported = export.await;
        let fault =
            |fault| Failure::fault(format!("A fault in Cairn stopped this export: {fault}"));
        let own_file = exported.map_err(fault)??;
        Download::open(own_file).await
    }
}

/// Refuses an upload that becomes too long.
fn check_length(received_bytes: u64, coming_bytes: u64) -> Result<(), Failure> {
    if received_bytes.saturating_add(coming_bytes) > MAX_UPLOAD_BYTES {
        return Err(Failure::invalid("A prompt cache of more than 64 GiB cannot be imported.")
            .of_kind(FailureKind::UploadTooLarge { most_bytes: MAX_UPLOAD_BYTES }));
    }
    Ok(())
}

fn folder(own_file: &OwnFile) -> &Path {
    // A temporary file has a folder.
    own_file.path().parent().unwrap_or(own_file.path())
}

fn not_written(error: std::io::Error) -> Failure {
    Failure::new(
        FailureCode::Storage,
        format!("The uploaded file cannot be written to the disk: {error}."),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn only_temporary_files_of_an_earlier_process_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let data_folder = DataFolder::new(home.path());
        data_folder.create().unwrap();
        let transfers = data_folder.transfers();
        let leftover = OwnFile::temporary(&data_folder);
        std::fs::write(leftover.path(), "half a file").unwrap();
        for name in ["half", "my export.safetensors", "notes.txt"] {
            std::fs::write(transfers.join(name), "mine").unwrap();
        }
        let folder = OwnFile::temporary(&data_folder);
        std::fs::create_dir(folder.path()).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(
            transfers.join("notes.txt"),
            OwnFile::temporary(&data_folder).path(),
        )
        .unwrap();
        let num_before = std::fs::read_dir(&transfers).unwrap().count();
        remove_leftovers(&data_folder);
        assert!(!leftover.path().exists());
        assert_eq!(std::fs::read_dir(&transfers).unwrap().count(), num_before - 1);
    }

    #[test]
    fn refuses_uploads_of_more_than_64_gib() {
        const GIB: u64 = 1 << 30;
        fn check(received: u64, coming: u64, is_refused: bool) {
            assert_eq!(
                check_length(received, coming).is_err(),
                is_refused,
                "{received} + {coming}"
            );
        }
        check(0, 0, false);
        check(0, 64 * GIB, false);
        check(0, 64 * GIB + 1, true);
        check(64 * GIB, 1, true);
        check(1, u64::MAX, true);
    }

    #[test]
    fn refuses_an_upload_that_leaves_no_room() {
        let home = tempfile::tempdir().unwrap();
        let data_folder = DataFolder::new(home.path());
        data_folder.create().unwrap();
        let own_file = OwnFile::temporary(&data_folder);
        let free_bytes = cairn_formats::free_disk_bytes(home.path()).unwrap();
        let failure = Failure::from(check_disk_space(folder(&own_file), free_bytes).unwrap_err());
        assert_eq!(failure.code, FailureCode::NoSpace);
        assert!(matches!(failure.kind.as_deref(), Some(FailureKind::NoRoom { .. })), "{failure:?}");
        assert!(failure.message.contains(" GB must be free on the disk of "), "{failure:?}");
    }
}
