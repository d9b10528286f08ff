//! The measurements that are not done, as the database has them: the next start of the app goes on with
//! those that quitting has ended.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cairn_hub::FilesIdentity;
use cairn_store::{Store, StoreError};
use serde::{Deserialize, Serialize};

/// The key of the settings table.
const KEY: &str = "due_measurements";

/// A model whose rounding is to be measured, and how often that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DueMeasurement {
    pub(super) model: String,
    pub(super) folder: PathBuf,
    /// The GGUF file that the model was made of.
    pub(super) file: PathBuf,
    /// How many processes were started for it.
    pub(super) tries: usize,
    /// What the model's folder was when it was imported. Another one was not made of the file.
    folder_identity: String,
    /// The file's size and time of change at the import, for the same reason.
    file_state: (u64, SystemTime),
}

impl DueMeasurement {
    /// Of a model that was imported now. Fails where the file or the folder cannot be looked at.
    pub(super) fn new(
        model: String,
        folder: PathBuf,
        file: PathBuf,
    ) -> std::io::Result<DueMeasurement> {
        let folder_identity = FilesIdentity::of(&folder)?.to_string();
        let file_state = state_of(&file)?;
        Ok(DueMeasurement { model, folder, file, tries: 0, folder_identity, file_state })
    }

    /// Whether the model and its file are what they were. A file that was received for the import alone is
    /// gone at the next start, and a model that was measured elsewhere has another identity.
    pub(super) fn is_possible(&self) -> bool {
        let folder = FilesIdentity::of(&self.folder);
        folder.is_ok_and(|identity| identity.as_str() == self.folder_identity)
            && state_of(&self.file).is_ok_and(|state| state == self.file_state)
    }
}

fn state_of(file: &Path) -> std::io::Result<(u64, SystemTime)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.modified()?))
}

/// Reads and changes the list; one task at a time.
#[derive(Debug, Default)]
pub(super) struct DueMeasurements(tokio::sync::Mutex<()>);

impl DueMeasurements {
    /// Those that an earlier run has left. What another version of Cairn wrote and this one cannot read
    /// is none.
    pub(super) async fn all(&self, store: &Store) -> Result<Vec<DueMeasurement>, StoreError> {
        let saved = store.setting(KEY).await?;
        Ok(saved.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default())
    }

    /// Puts one into the list, in place of the one before of the same model.
    pub(super) async fn put(&self, store: &Store, due: &DueMeasurement) {
        self.replace(store, &due.model, Some(due)).await;
    }

    /// Takes the one of this model from the list.
    pub(super) async fn remove(&self, store: &Store, model: &str) {
        self.replace(store, model, None).await;
    }

    /// A list that cannot be written costs no more than a measurement.
    async fn replace(&self, store: &Store, model: &str, due: Option<&DueMeasurement>) {
        let _changing = self.0.lock().await;
        let replaced = async {
            let mut list = self.all(store).await?;
            list.retain(|other| other.model != model);
            list.extend(due.cloned());
            match serde_json::to_string(&list) {
                Ok(json) => store.set_setting(KEY, &json).await,
                // A path that is no UTF-8: those in the list stay.
                Err(error) => {
                    tracing::warn!("{model} is not noted as to be measured: {error}");
                    Ok(())
                }
            }
        };
        match replaced.await {
            Ok(()) | Err(StoreError::Closed { .. }) => {}
            Err(error) => tracing::warn!("what is to be measured is not noted: {error}"),
        }
    }
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[tokio::test]
    async fn one_that_cannot_be_noted_leaves_the_others_as_they_are() {
        let store = Store::in_memory().await.unwrap();
        let list = DueMeasurements::default();
        let noted = DueMeasurement {
            model: "noted".to_owned(),
            folder: PathBuf::from("/models/noted"),
            file: PathBuf::from("/noted.gguf"),
            tries: 1,
            folder_identity: "files".to_owned(),
            file_state: (1, SystemTime::UNIX_EPOCH),
        };
        list.put(&store, &noted).await;
        let file = PathBuf::from(OsStr::from_bytes(b"/no-utf-8-\xff.gguf"));
        let other = DueMeasurement { model: "other".to_owned(), file, ..noted.clone() };
        list.put(&store, &other).await;
        assert_eq!(list.all(&store).await.unwrap(), [noted]);
    }
}
