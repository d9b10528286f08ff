//! Imports models from files and folders: a GGUF file is converted, a folder in MLX or Hugging Face
//! layout is copied, both into Cairn's own folder.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_engine::{default_memory_limit_bytes, has_chat_template};
use cairn_formats::gguf::RoundTo;
use cairn_hub::{HubError, ImportedModel};
use tokio_util::sync::CancellationToken;

use super::measuring::{self, Measured};
use super::{list, rounding};
use crate::app::App;
use crate::cache::{OwnFile, Upload};
use crate::convert;
use crate::crashes::record::{Step, StepKind};
use crate::wire::{self, Event, Failure, FailureKind};

/// Progress is sent this often.
const EVENT_INTERVAL: Duration = Duration::from_millis(250);

/// What is imported, under the name that interfaces show.
struct Source {
    path: PathBuf,
    file_name: String,
    /// Removes a file that was received when the import has ended.
    _own_file: Option<OwnFile>,
}

impl App {
    /// Imports a `.gguf` file or a model folder of this machine, lists the model, and returns
    /// it. Progress comes as [`Event::ModelImport`], the last of it whole once the model is in its
    /// place; `CancelModelImport` ends the import, and so does a caller who stops waiting. Then nothing
    /// of it is left, and none is returned. A file with weights that have no exact form waits for
    /// `ChooseRounding`, which its progress says.
    pub async fn import_model(
        self: &Arc<Self>,
        path: PathBuf,
    ) -> Result<Option<wire::ImportedModel>, Failure> {
        let name = path.file_name().unwrap_or(path.as_os_str());
        let file_name = name.to_string_lossy().into_owned();
        self.import_model_as(path, file_name).await
    }

    /// As [`App::import_model`], for a file or folder that was given by another name: links to it
    /// were followed.
    pub async fn import_model_as(
        self: &Arc<Self>,
        path: PathBuf,
        file_name: String,
    ) -> Result<Option<wire::ImportedModel>, Failure> {
        self.import_from(Source { path, file_name, _own_file: None }).await
    }

    /// As [`App::import_model`], for a `.gguf` file that was received.
    pub async fn import_uploaded_model(
        self: &Arc<Self>,
        upload: Upload,
        file_name: &str,
    ) -> Result<Option<wire::ImportedModel>, Failure> {
        let own_file = upload.finish().await?;
        let (path, file_name) = (own_file.path().to_owned(), file_name.to_owned());
        self.import_from(Source { path, file_name, _own_file: Some(own_file) }).await
    }

    /// In a task that continues if the caller goes away: another import can begin only when this one
    /// has ended.
    async fn import_from(
        self: &Arc<Self>,
        source: Source,
    ) -> Result<Option<wire::ImportedModel>, Failure> {
        let Some(cancelled) = self.importing.begin(&source.file_name) else {
            return Err(Failure::invalid(
                "Another model is being imported: wait, or cancel that import.",
            )
            .of_kind(FailureKind::AnotherImport));
        };
        let _cancel_if_left = cancelled.clone().drop_guard();
        let message = format!("A fault in Cairn stopped the import of {}.", source.file_name);
        let app = self.clone();
        let source = Arc::new(source);
        let step = self.crashes.begin(Step::new(StepKind::ImportingModel, None));
        let import = self.spawn(async move {
            let _step = step;
            let imported = app.import_until(source.clone(), &cancelled).await;
            if let Some(Ok(imported)) = &imported {
                app.measure_rounding(source, imported);
            }
            app.importing.end();
            app.emit(Event::ModelImport { import: None });
            list::emit(&app).await;
            imported
        });
        match import.await {
            // Whoever cancels it knows.
            Ok(Some(Err(HubError::Cancelled))) => Ok(None),
            Ok(Some(imported)) => {
                let imported = imported?;
                let folder = imported.folder.clone();
                // A template that cannot be read is reported when the model is checked.
                let has_template = self
                    .blocking(move || has_chat_template(&folder).unwrap_or(true))
                    .await
                    .unwrap_or(true);
                Ok(Some(convert::imported_model(imported, has_template)))
            }
            Ok(None) | Err(_) => Err(Failure::fault(message)),
        }
    }

    /// Imports, sends how far it is, and returns the model; none if that panicked.
    async fn import_until(
        self: &Arc<Self>,
        source: Arc<Source>,
        cancelled: &CancellationToken,
    ) -> Option<Result<ImportedModel, HubError>> {
        let round_to = match self.chosen_rounding(source.clone(), cancelled).await? {
            Ok(round_to) => round_to,
            Err(error) => return Some(Err(error)),
        };
        let (app, cancelled) = (self.clone(), cancelled.clone());
        let import = move || {
            let (mut sent_at, mut whole) = (None::<Instant>, 0);
            let send = |bytes, total_bytes| {
                let import = app.importing.is_at(bytes, total_bytes);
                app.emit(Event::ModelImport { import });
            };
            let mut on_progress = |bytes, total_bytes| {
                whole = total_bytes;
                // All bytes are copied before the model is in its place, which is what being whole
                // says.
                let is_due = sent_at.is_none_or(|sent_at| sent_at.elapsed() >= EVENT_INTERVAL);
                if is_due && bytes < total_bytes {
                    sent_at = Some(Instant::now());
                    send(bytes, total_bytes);
                }
                match cancelled.is_cancelled() || app.closing.is_cancelled() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let Source { path, file_name, .. } = &*source;
            let imported = app.model_folders.import(path, file_name, round_to, &mut on_progress)?;
            send(whole, whole);
            Ok(imported)
        };
        self.blocking(import).await
    }

    /// What weights are rounded to: what a person chooses, where some have no exact form. None if
    /// looking into the file panicked.
    async fn chosen_rounding(
        self: &Arc<Self>,
        source: Arc<Source>,
        cancelled: &CancellationToken,
    ) -> Option<Result<RoundTo, HubError>> {
        let folders = self.model_folders.clone();
        let look = move || {
            let found = folders.rounding_choices(&source.path, &source.file_name)?;
            Ok(rounding::choices(found, default_memory_limit_bytes()))
        };
        let choices = match self.blocking(look).await? {
            Ok(choices) if choices.is_empty() => return Some(Ok(RoundTo::default())),
            Ok(choices) => choices,
            Err(error) => return Some(Err(error)),
        };
        let (chosen, import) = self.importing.waits(choices)?;
        self.emit(Event::ModelImport { import: Some(import) });
        let form = tokio::select! {
            () = cancelled.cancelled() => None,
            () = self.closing.cancelled() => None,
            form = chosen => form.ok(),
        };
        if form.is_some() {
            // Every window closes its question.
            self.emit(Event::ModelImport { import: self.importing.progress() });
        }
        Some(form.map(rounding::round_to).ok_or(HubError::Cancelled))
    }

    /// Begins to measure what rounding costs a model that was made of a file now.
    fn measure_rounding(self: &Arc<Self>, source: Arc<Source>, imported: &ImportedModel) {
        if imported.rounded_weights.is_none() || source.path.is_dir() {
            return;
        }
        let model = convert::imported_name(imported);
        let (folder, file) = (imported.folder.clone(), source.path.clone());
        let measured = Measured { model, folder, file, source };
        self.spawn(measuring::measure(self.clone(), measured));
    }
}
