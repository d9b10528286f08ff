//! Imports models from files and folders: a GGUF file is converted, a folder in MLX or Hugging Face
//! layout is copied, both into Cairn's own folder.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cairn_hub::HubError;
use tokio_util::sync::CancellationToken;

use super::catalog;
use crate::app::App;
use crate::cache::Upload;
use crate::wire::{Event, Failure, FailureCode, ModelImport};

/// Progress is sent this often.
const EVENT_INTERVAL: Duration = Duration::from_millis(250);

/// The import that runs; one at a time. Owned by [`App`].
#[derive(Debug, Default)]
pub(crate) struct RunningImport(Mutex<Option<CancellationToken>>);

impl RunningImport {
    /// None while another import runs.
    fn begin(&self) -> Option<CancellationToken> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.is_none().then(|| running.insert(CancellationToken::new()).clone())
    }

    fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Ends the import under way, if there is one.
    pub(crate) fn cancel(&self) {
        if let Some(token) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            token.cancel();
        }
    }
}

impl App {
    /// Imports a `.gguf` file or a model folder of this machine, and lists the model. Progress comes
    /// as [`Event::ModelImport`]; `CancelModelImport` ends it, and then nothing of it is left.
    pub async fn import_model(self: &Arc<Self>, path: PathBuf) -> Result<(), Failure> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        self.import_named(path, &name).await
    }

    /// As [`App::import_model`], for a `.gguf` file that was received.
    pub async fn import_uploaded_model(
        self: &Arc<Self>,
        upload: Upload,
        file_name: &str,
    ) -> Result<(), Failure> {
        // Removed when the import has ended.
        let own_file = upload.finish().await?;
        self.import_named(own_file.path().to_owned(), file_name).await
    }

    async fn import_named(self: &Arc<Self>, path: PathBuf, file_name: &str) -> Result<(), Failure> {
        let Some(cancelled) = self.importing.begin() else {
            return Err(Failure::invalid("Another model is being imported: wait or cancel it."));
        };
        let (app, shown) = (self.clone(), file_name.to_owned());
        let imported = self.blocking(move || {
            let mut sent_at = None::<Instant>;
            let mut on_progress = |bytes, total_bytes| {
                if sent_at.is_none_or(|sent_at| sent_at.elapsed() >= EVENT_INTERVAL) {
                    sent_at = Some(Instant::now());
                    let file_name = shown.clone();
                    let import = Some(ModelImport { file_name, bytes, total_bytes });
                    app.emit(Event::ModelImport { import });
                }
                match cancelled.is_cancelled() || app.closing.is_cancelled() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            app.model_folders.import(&path, &shown, &mut on_progress).map(drop)
        });
        let imported = imported.await;
        self.importing.end();
        self.emit(Event::ModelImport { import: None });
        catalog::emit(self).await;
        match imported {
            // Whoever cancels it knows.
            Some(Err(HubError::Cancelled)) => Ok(()),
            Some(imported) => Ok(imported?),
            None => {
                let message = format!("A fault in Cairn stopped the import of {file_name}.");
                Err(Failure::new(FailureCode::Engine, message))
            }
        }
    }
}
