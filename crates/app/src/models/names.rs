//! The names of the models that are on this machine.

use std::collections::HashSet;

use cairn_hub::ModelFolder;

use crate::app::App;

/// The names of the models that are on this machine, with those in memory that were loaded from elsewhere.
pub(crate) async fn names(app: &App) -> HashSet<String> {
    let found = found(app).await.into_iter().map(|folder| folder.name);
    let mut names: HashSet<String> = found.chain(names_in_memory(app)).collect();
    for hidden in app.catalog.hidden().keys() {
        names.remove(hidden);
    }
    names
}

/// Whether a model is one of [`names`]. Looks at folders only for one that is not in memory.
pub(crate) async fn has(app: &App, name: &str) -> bool {
    if app.catalog.hidden().contains_key(name) {
        return false;
    }
    names_in_memory(app).iter().any(|known| known == name)
        || found(app).await.iter().any(|folder| folder.name == name)
}

fn names_in_memory(app: &App) -> Vec<String> {
    let status = app.engine.status();
    let models = &status.borrow().models;
    models.iter().map(|model| model.name.clone()).collect()
}

/// The folders of models, with those of models that are hidden.
pub(super) async fn found(app: &App) -> Vec<ModelFolder> {
    let folders = app.model_folders.clone();
    // Listing folders blocks.
    app.blocking(move || folders.list()).await.unwrap_or_default()
}
