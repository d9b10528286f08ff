//! Where models are: by their name, their alias or their path.

use std::path::PathBuf;

use cairn_hub::{HubError, ModelFolder, ModelFolders};

use super::checking;
use super::loaded::{loaded_folder, loaded_name};
use crate::app::App;
use crate::wire::Failure;

/// What a model may be named by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedBy {
    /// The name or alias of a listed model: a page or a program may name a model only like this.
    Name,
    /// Also the path of any model, which only the person who started this process may give.
    NameOrPath,
}

/// The name and folder of a listed model that can be loaded, by its name or alias.
pub(super) async fn locate(app: &App, wanted: &str) -> Result<(String, PathBuf), Failure> {
    locate_as(app, wanted, NamedBy::Name).await
}

pub(super) async fn locate_as(
    app: &App,
    wanted: &str,
    by: NamedBy,
) -> Result<(String, PathBuf), Failure> {
    let folders = app.model_folders.clone();
    let named = app.settings.model_with_alias(wanted);
    let name = wanted.to_owned();
    let find = move || find(&folders, &name, named.as_deref(), by);
    let Some(found) = app.blocking(find).await else {
        return Err(Failure::fault(format!(
            "A fault in Cairn prevented it from finding the model {wanted}."
        )));
    };
    let (name, folder) = found?;
    checking::require_usable(app, &name, &folder).await?;
    Ok((name, folder))
}

/// The name and folder of a model; `named` is the model that has the wanted name as its alias.
/// Listed names come before aliases and paths: an interface must not get a folder that happens to be
/// in the working folder.
fn find(
    folders: &ModelFolders,
    wanted: &str,
    named: Option<&str>,
    by: NamedBy,
) -> Result<(String, PathBuf), HubError> {
    let mut listed = folders.list();
    let index = |name: &str| listed.iter().position(|model| model.name == name);
    let index = index(wanted).or_else(|| index(named?));
    match index.map(|index| listed.swap_remove(index)) {
        Some(ModelFolder { path, problem: Some(problem), .. }) => {
            Err(HubError::Unusable { path, problem })
        }
        Some(ModelFolder { name, path, .. }) => Ok((name, path)),
        None if by == NamedBy::Name => {
            Err(HubError::NotFound { wanted: wanted.to_owned(), searched: Vec::new() })
        }
        None => {
            let path = folders.resolve(wanted)?;
            let name = path
                .file_name()
                .map_or_else(|| wanted.to_owned(), |name| name.to_string_lossy().into_owned());
            Ok((name, path))
        }
    }
}

/// The folder of a model, which is listed or was loaded from a path.
pub(crate) async fn folder_of(app: &App, name: &str) -> Result<PathBuf, Failure> {
    if loaded_name(app).as_deref() == Some(name)
        && let Some(folder) = app.store.model_folder(name).await?
    {
        return Ok(folder.into());
    }
    let (folders, wanted) = (app.model_folders.clone(), name.to_owned());
    let found = app.blocking(move || find(&folders, &wanted, None, NamedBy::Name)).await;
    match found {
        Some(Ok((_, folder))) => Ok(folder),
        Some(Err(error)) => match app.store.model_folder(name).await? {
            Some(folder) => Ok(folder.into()),
            None => Err(error.into()),
        },
        None => {
            let why = format!("A fault in Cairn prevented it from finding the model {name}.");
            Err(Failure::fault(why))
        }
    }
}

/// The folder of a model that can be loaded.
pub(super) async fn usable_folder(app: &App, name: &str) -> Result<PathBuf, Failure> {
    let folder = folder_of(app, name).await?;
    checking::require_usable(app, name, &folder).await?;
    Ok(folder)
}

/// Refuses a model that is not on this machine, cannot be used or is set aside.
pub(crate) async fn require(app: &App, name: &str) -> Result<(), Failure> {
    let (name, _) = locate(app, name).await?;
    app.crashes.require(&name)
}

/// The name of a model that a chat can have: one that is in memory or can be loaded, by its name or alias.
pub(crate) async fn name_for_chat(app: &App, wanted: &str) -> Result<String, Failure> {
    // One that was loaded from a path is not found by its name.
    match loaded_folder(app, wanted) {
        Some(_) => Ok(wanted.to_owned()),
        None => Ok(locate(app, wanted).await?.0),
    }
}
