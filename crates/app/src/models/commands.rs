//! The commands of the pages about models.

use std::path::Path;
use std::sync::Arc;

use cairn_engine::default_memory_limit_bytes;

use super::{deletion, downloads, hub, list, own_settings, recommended, revisions};
use crate::app::App;
use crate::platform;
use crate::wire::{Command, Failure, FailureKind, Reply};

/// Runs one command about models; every other command is a fault of the caller.
pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::GetModelMemory { name } => {
            let (memory, takes_bf16_state) = own_settings::memory(app, &name).await?;
            return Ok(Reply::ModelMemory { memory, takes_bf16_state });
        }
        Command::GetModelDeletion { name } => {
            return Ok(Reply::ModelDeletion { deletion: deletion::preview(app, &name).await? });
        }
        Command::DeleteModel { name } => {
            deletion::delete(app, &name).await?;
            // What it would write is not of the next model of this name.
            app.measurements.cancel(&name);
        }
        Command::RestoreModel { name } => deletion::restore(app, &name).await?,
        Command::CheckModel { name } => list::check_again(app, &name).await?,
        Command::AddModelFolder { path } => return add_folder(app, &path).await,
        Command::GetModelFolders => return folders(app).await,
        Command::RemoveModelFolder { path } => return remove_folder(app, &path).await,
        Command::ChooseRounding { form } => app.importing.choose(form),
        Command::CancelModelImport => app.importing.cancel(),
        Command::CancelModelMeasurement { name } => app.measurements.cancel(&name),
        Command::GetRecommendedModels => {
            let budget_bytes = default_memory_limit_bytes();
            let memory_bytes = platform::memory_bytes();
            let models = recommended::recommended(memory_bytes, budget_bytes);
            return Ok(Reply::RecommendedModels { models, memory_bytes });
        }
        Command::DownloadModel { name } => downloads::start(app, &name).await?,
        Command::PauseDownload { name } => downloads::pause(app, &name).await?,
        Command::CancelDownload { name } => downloads::cancel(app, &name).await?,
        Command::RetryDownloads => downloads::retry(app)?,
        Command::GetOldRevisions { name } => {
            return Ok(Reply::OldRevisions { revisions: revisions::old(app, &name).await? });
        }
        Command::RemoveOldRevisions { name } => revisions::remove(app, &name).await?,
        Command::RestoreOldRevisions { name } => revisions::restore(app, &name)?,
        command => return ask_hub(app, command).await,
    }
    Ok(Reply::Done)
}

/// Runs one command that asks the hub, or says how it is asked.
async fn ask_hub(app: &App, command: Command) -> Result<Reply, Failure> {
    Ok(match command {
        Command::SearchModels { text } => {
            Reply::FoundModels { models: hub::search(app, &text).await? }
        }
        Command::GetHubModel { name } => Reply::HubModel { model: hub::card(app, &name).await? },
        Command::GetModelFacts { name } => {
            Reply::ModelFacts { facts: hub::facts(app, &name).await? }
        }
        Command::GetModelUpdates => {
            let (updates, failure) = revisions::updates(app).await;
            Reply::ModelUpdates { updates, failure }
        }
        Command::GetHubAccess => Reply::HubAccess { access: hub::access(app)? },
        Command::SetHubToken { token } => {
            Reply::HubAccess { access: hub::set_token(app, &token).await? }
        }
        _ => return Err(Failure::invalid("This is not a command about models.")),
    })
}

async fn add_folder(app: &Arc<App>, path: &str) -> Result<Reply, Failure> {
    let folder = Path::new(path);
    // A relative path would mean another folder at every start.
    if !folder.is_absolute() || !folder.is_dir() {
        return Err(Failure::invalid(format!("{path} is not a folder of this computer."))
            .of_kind(FailureKind::NotAFolder { path: path.to_owned() }));
    }
    app.store.add_model_folder(path).await?;
    list_folders(app).await
}

async fn remove_folder(app: &Arc<App>, path: &str) -> Result<Reply, Failure> {
    if app.store.model_folders().await?.iter().any(|added| added == path) {
        app.store.remove_model_folder(path).await?;
        app.removed_folders.add(path);
    }
    list_folders(app).await
}

/// Lists the models of the folders as they are now.
async fn list_folders(app: &Arc<App>) -> Result<Reply, Failure> {
    let paths = app.store.model_folders().await?;
    app.model_folders.set_added(paths.iter().map(Into::into).collect());
    list::emit(app).await;
    Ok(Reply::ModelFolders { paths })
}

async fn folders(app: &App) -> Result<Reply, Failure> {
    Ok(Reply::ModelFolders { paths: app.store.model_folders().await? })
}
