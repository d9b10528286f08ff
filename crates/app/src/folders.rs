//! Folders of chats.

use std::sync::Arc;

use crate::app::App;
use crate::chat::creation::{expected_system_prompt, new_conversation};
use crate::clock::now_ms;
use crate::convert;
use crate::documents::commands::beginning_changed;
use crate::documents::reading;
use crate::models::of_chats;
use crate::names::checked_name_of;
use crate::wire::{Command, DocumentsOf, Event, Failure, Folder, Gone, Reply};

pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::NewConversationIn { folder_id } => begin_in(app, &folder_id).await,
        Command::CreateFolder { name } => {
            let folder =
                app.store.create_folder(checked_name_of("folder", &name)?, now_ms()).await?;
            emit(app).await;
            Ok(Reply::Folder { folder: convert::folder(folder) })
        }
        Command::ChangeFolder { id, name, system_prompt, model } => {
            // White space alone says nothing to a model.
            let prompt = if system_prompt.trim().is_empty() { "" } else { &system_prompt };
            let model = model.as_deref().filter(|name| !name.is_empty());
            let name = checked_name_of("folder", &name)?;
            let before = app.store.folders().await?.into_iter().find(|folder| folder.id == id);
            app.store.change_folder(&id, name, prompt, model).await?;
            let is_as_before = |before: &cairn_store::Folder| {
                before.system_prompt == prompt && before.model.as_deref() == model
            };
            if !before.as_ref().is_some_and(is_as_before) {
                reading::again(app, &DocumentsOf::folder(&id)).await;
            }
            emit(app).await;
            if before.is_some_and(|before| before.model.as_deref() != model) {
                of_chats::emit_all(app).await;
            }
            Ok(Reply::Done)
        }
        Command::DeleteFolder { id } => {
            app.store.delete_folder(&id, now_ms()).await?;
            app.readings.forget(Some(&DocumentsOf::folder(&id)));
            beginning_changed(app, &id).await?;
            came_or_went(app).await
        }
        Command::RestoreFolder { id } => {
            app.store.restore_folder(&id).await?;
            beginning_changed(app, &id).await?;
            came_or_went(app).await
        }
        _ => Err(Failure::invalid("This command is run elsewhere.")),
    }
}

/// All folders.
pub(crate) async fn list(app: &App) -> Result<Vec<Folder>, Failure> {
    Ok(app.store.folders().await?.into_iter().map(convert::folder).collect())
}

async fn begin_in(app: &Arc<App>, folder_id: &str) -> Result<Reply, Failure> {
    let folders = list(app).await?;
    let folder = folders
        .into_iter()
        .find(|folder| folder.id == folder_id)
        .ok_or_else(|| Failure::gone(Gone::Folder, "This folder no longer exists."))?;
    let system_prompt = match folder.system_prompt {
        prompt if prompt.is_empty() => expected_system_prompt(app, folder.model.as_deref()).await,
        prompt => prompt,
    };
    let row = app.store.create_conversation_in(now_ms(), folder_id, &system_prompt).await?;
    Ok(new_conversation(app, row).await)
}

/// Says that a folder is there or gone, with the model that it gives its chats.
async fn came_or_went(app: &App) -> Result<Reply, Failure> {
    emit(app).await;
    of_chats::emit_all(app).await;
    Ok(Reply::Done)
}

/// Sends all folders after a change; the change itself has succeeded.
async fn emit(app: &App) {
    match list(app).await {
        Ok(folders) => app.emit(Event::Folders { folders }),
        Err(failure) => tracing::debug!("changed folders are not sent: {}", failure.message),
    }
}
