//! The models in memory, by what the engine says of them.

use std::path::PathBuf;

use cairn_engine::LoadedModelStatus;

use crate::app::App;

/// The name of the loaded model.
pub(crate) fn loaded_name(app: &App) -> Option<String> {
    app.engine.status().borrow().state.loaded_model().map(str::to_owned)
}

/// What the engine says of a loaded model.
pub(crate) fn loaded_status(app: &App, name: &str) -> Option<LoadedModelStatus> {
    let status = app.engine.status();
    let models = &status.borrow().models;
    models.iter().find(|model| model.name == name).cloned()
}

/// Where a loaded model was loaded from.
pub(crate) fn loaded_folder(app: &App, name: &str) -> Option<PathBuf> {
    loaded_status(app, name).map(|model| model.folder)
}
