//! Prompt-cache files on their way in and out through shells that carry bytes, not paths. Each lies
//! in the data folder for as long as it travels.

use std::path::Path;
use std::sync::Arc;

use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::app::App;
use crate::cache::commands;
use crate::cache::owners::owner;
use crate::cache::previews::{OwnFile, Previewed};
use crate::wire::{CacheSource, Failure, FailureCode, ImportPreview};
use crate::{DataFolder, platform};

/// More than any model's keys and values.
const MAX_UPLOAD_BYTES: u64 = 64 << 30;
/// What must stay free on the disk, for the database and everybody else.
const RESERVE_BYTES: u64 = 1 << 30;
/// The disk is looked at again after so many bytes.
const LOOK_INTERVAL_BYTES: u64 = 64 << 20;

/// Removes the files that an earlier process left on their way. Called while this one owns the data
/// folder. What has another name than [`OwnFile`] gives stays, and so do links and folders.
pub(crate) fn remove_leftovers(data_folder: &DataFolder) {
    let Ok(files) = std::fs::read_dir(data_folder.transfers()) else { return };
    for file in files.flatten() {
        let is_ours = file.file_name().to_str().is_some_and(OwnFile::is_name_of_one)
            && file.file_type().is_ok_and(|kind| kind.is_file());
        if is_ours {
            // One that stays costs room; the next start tries again.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// A file that is being received; dropped, nothing of it stays.
#[derive(Debug)]
pub struct Upload {
    own_file: OwnFile,
    file: File,
    received_bytes: u64,
    looked_at_bytes: u64,
}

impl Upload {
    /// Takes the next bytes. Fails where the file is too large or the disk too full.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let coming_bytes = bytes.len() as u64;
        let is_look_due =
            self.received_bytes + coming_bytes >= self.looked_at_bytes + LOOK_INTERVAL_BYTES;
        let free_bytes =
            if is_look_due { platform::free_disk_bytes(folder(&self.own_file)) } else { None };
        check_room(self.received_bytes, coming_bytes, free_bytes)?;
        self.received_bytes += coming_bytes;
        if is_look_due {
            self.looked_at_bytes = self.received_bytes;
        }
        self.file.write_all(bytes).await.map_err(not_kept)
    }
}

/// A file that is being sent.
#[derive(Debug)]
pub struct Download {
    /// Open at its beginning.
    pub file: File,
    /// Its length.
    pub num_bytes: u64,
    /// Where it lies, for as long as this lives.
    pub own_file: OwnFile,
}

impl App {
    /// Begins to receive a prompt-cache file, of `num_bytes` where the sender says so.
    pub async fn start_upload(&self, num_bytes: Option<u64>) -> Result<Upload, Failure> {
        let own_file = OwnFile::on_its_way(&self.data_folder);
        check_room(0, num_bytes.unwrap_or(0), platform::free_disk_bytes(folder(&own_file)))?;
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(own_file.path())
            .await
            .map_err(not_kept)?;
        Ok(Upload { own_file, file, received_bytes: 0, looked_at_bytes: 0 })
    }

    /// What a received file holds, as [`App::preview_import`] reports it. The file goes with the
    /// preview.
    pub async fn finish_upload(
        &self,
        upload: Upload,
        file_name: &str,
    ) -> Result<ImportPreview, Failure> {
        let Upload { own_file, mut file, .. } = upload;
        file.flush().await.map_err(not_kept)?;
        drop(file);
        Ok(self.preview(Previewed::own(own_file, file_name)).await)
    }

    /// Writes what is kept of a conversation, or a named prompt cache, to a file that is read once.
    pub async fn download(self: &Arc<Self>, source: CacheSource) -> Result<Download, Failure> {
        let app = self.clone();
        let own_file = OwnFile::on_its_way(&self.data_folder);
        let held_bytes = commands::window(self)?
            .ref_usage(&owner(&source))
            .map_or(0, |ref_usage| ref_usage.bytes);
        check_free(held_bytes, platform::free_disk_bytes(folder(&own_file)))?;
        // Goes on where the caller leaves: only then the file is there to be removed.
        let export = self.spawn(async move {
            app.export_cache(&source, own_file.path()).await.map(|()| own_file)
        });
        let exported = export.await;
        let fault = |fault| {
            Failure::new(
                FailureCode::Engine,
                format!("A fault in Cairn stopped this export: {fault}"),
            )
        };
        let own_file = exported.map_err(fault)??;
        let unreadable = |error| {
            Failure::new(
                FailureCode::Storage,
                format!("The exported file cannot be read: {error}."),
            )
        };
        let file = File::open(own_file.path()).await.map_err(unreadable)?;
        let num_bytes = file.metadata().await.map_err(unreadable)?.len();
        Ok(Download { file, num_bytes, own_file })
    }
}

/// Whether `coming_bytes` more may be received. What is free is looked at where it is known.
fn check_room(
    received_bytes: u64,
    coming_bytes: u64,
    free_bytes: Option<u64>,
) -> Result<(), Failure> {
    if received_bytes.saturating_add(coming_bytes) > MAX_UPLOAD_BYTES {
        return Err(Failure::invalid("A prompt cache of more than 64 GiB cannot be imported."));
    }
    check_free(coming_bytes, free_bytes)
}

/// Whether the disk has room for `coming_bytes` more, as far as that is known.
fn check_free(coming_bytes: u64, free_bytes: Option<u64>) -> Result<(), Failure> {
    if free_bytes.is_some_and(|free| free < coming_bytes.saturating_add(RESERVE_BYTES)) {
        return Err(Failure::new(
            FailureCode::Storage,
            "The disk has no room for this file: 1 GiB must stay free.",
        ));
    }
    Ok(())
}

fn folder(own_file: &OwnFile) -> &Path {
    // The paths made above have a folder.
    own_file.path().parent().unwrap_or(own_file.path())
}

fn not_kept(error: std::io::Error) -> Failure {
    Failure::new(
        FailureCode::Storage,
        format!("The file cannot be kept while it is looked at: {error}."),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn only_what_an_earlier_process_left_on_its_way_is_swept() {
        let home = tempfile::tempdir().unwrap();
        let data_folder = DataFolder::new(home.path());
        data_folder.create().unwrap();
        let transfers = data_folder.transfers();
        let left = OwnFile::on_its_way(&data_folder);
        std::fs::write(left.path(), "left").unwrap();
        for name in ["half", "my export.safetensors", "notes.txt"] {
            std::fs::write(transfers.join(name), "mine").unwrap();
        }
        let folder = OwnFile::on_its_way(&data_folder);
        std::fs::create_dir(folder.path()).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(
            transfers.join("notes.txt"),
            OwnFile::on_its_way(&data_folder).path(),
        )
        .unwrap();
        let num_before = std::fs::read_dir(&transfers).unwrap().count();
        remove_leftovers(&data_folder);
        assert!(!left.path().exists());
        assert_eq!(std::fs::read_dir(&transfers).unwrap().count(), num_before - 1);
    }

    #[test]
    fn files_come_in_as_long_as_they_are_not_huge_and_the_disk_has_room() {
        const GIB: u64 = 1 << 30;
        fn check(received: u64, coming: u64, free: Option<u64>, expected: Option<FailureCode>) {
            let found = check_room(received, coming, free).err().map(|failure| failure.code);
            assert_eq!(found, expected, "{received} + {coming} with {free:?} free");
        }
        check(0, 0, None, None);
        check(0, 64 * GIB, None, None);
        check(0, 64 * GIB + 1, None, Some(FailureCode::Invalid));
        check(64 * GIB, 1, None, Some(FailureCode::Invalid));
        check(1, u64::MAX, None, Some(FailureCode::Invalid));
        check(0, 0, Some(GIB), None);
        check(0, 0, Some(GIB - 1), Some(FailureCode::Storage));
        check(0, 3 * GIB, Some(4 * GIB), None);
        check(0, 3 * GIB + 1, Some(4 * GIB), Some(FailureCode::Storage));
        check(63 * GIB, GIB, Some(0), Some(FailureCode::Storage));
    }
}
