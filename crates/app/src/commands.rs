//! Runs commands: each arm of [`run`] that needs more than a few lines calls a function of the module
//! that the command belongs to.

use std::sync::{Arc, PoisonError};

use cairn_store::Store;

use crate::app::App;
use crate::cache::{commands as cache_commands, imports};
use crate::chat::creation::{create_conversation, new_conversation};
use crate::chat::list::refuse_private;
use crate::chat::listed;
use crate::chat::turns::{self, Place};
use crate::chat::{branches, compare, context, list, model, outlook, probabilities};
use crate::documents::{commands as documents, reading};
use crate::names::checked_title;
use crate::settings::commands as settings_commands;
use crate::wire::{Command, DocumentsOf, Failure, FailureKind, Reply};
use crate::{api, crashes, diagnostics, finding, folders, jobs, models, monitor, personas};
use crate::{presets, status};

/// Runs one command to its end.
pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::Bootstrap => bootstrap(app).await,
        Command::Subscribe => Ok(Reply::Done),
        Command::GetConversation { id } => {
            let (conversation, messages) = branches::conversation(app, &id).await?;
            Ok(Reply::Conversation { conversation, messages })
        }
        Command::NewConversation => {
            let row = create_conversation(app, &app.store).await?;
            Ok(new_conversation(app, row).await)
        }
        Command::NewPrivateConversation => {
            let in_memory = async || Store::in_memory().await.map(Arc::new);
            let private = app.private.get_or_try_init(in_memory).await?;
            let row = create_conversation(app, private).await?;
            Ok(new_conversation(app, row).await)
        }
        Command::GetContext { of } => context::get(app, of).await,
        Command::ReadAgain { conversation_id, message_id } => {
            context::read_again(app, &conversation_id, &message_id).await
        }
        Command::RefreshConversation { id } => {
            listed::refresh(app, &id).await?;
            Ok(Reply::Done)
        }
        Command::GetOutlook { id } => outlook::get(app, &id).await,
        Command::RenameConversation { id, title } => rename(app, &id, &title).await,
        Command::SetSystemPrompt { id, system_prompt } => {
            set_system_prompt(app, &id, &system_prompt).await
        }
        Command::ChooseModel { id, model } => choose_model(app, &id, model.as_deref()).await,
        Command::DeleteConversations { .. }
        | Command::RestoreConversations { .. }
        | Command::ArchiveConversations { .. }
        | Command::MoveConversations { .. } => list::run(app, command).await,
        Command::SendMessage { conversation_id, text } => {
            let place = Place::Behind { documents: None };
            turns::send(app, &conversation_id, place, &text).await
        }
        Command::SendMessageWith { conversation_id, text, document_ids } => {
            let place = Place::Behind { documents: Some(&document_ids) };
            turns::send(app, &conversation_id, place, &text).await
        }
        Command::EditMessage { conversation_id, message_id, text, document_ids } => {
            let place = Place::Beside { id: &message_id, documents: document_ids.as_deref() };
            turns::send(app, &conversation_id, place, &text).await
        }
        Command::Regenerate { conversation_id, message_id, model } => {
            turns::answer_again(app, &conversation_id, message_id.as_deref(), model).await
        }
        Command::ContinueAnswer { conversation_id, message_id } => {
            turns::go_on(app, &conversation_id, &message_id).await
        }
        Command::GetProbabilities { conversation_id, message_id, read_id, loads_model } => {
            probabilities::get(app, &conversation_id, &message_id, &read_id, loads_model).await
        }
        Command::StopProbabilities { read_id } => {
            app.reads.stop(&read_id);
            Ok(Reply::Done)
        }
        Command::WriteFromToken { conversation_id, message_id, position, token } => {
            turns::write_from(app, &conversation_id, &message_id, position, token).await
        }
        Command::ShowVersion { conversation_id, message_id } => {
            branches::show(app, &conversation_id, &message_id).await
        }
        Command::BranchConversation { conversation_id, message_id, title } => {
            branches::branch_off(app, &conversation_id, &message_id, &title).await
        }
        Command::DeleteMessage { conversation_id, message_id, with_following } => {
            branches::delete(app, &conversation_id, &message_id, with_following).await
        }
        Command::RestoreMessages { conversation_id, deletion_id } => {
            branches::restore(app, &conversation_id, &deletion_id).await
        }
        Command::GetDocuments { .. }
        | Command::AttachDocuments { .. }
        | Command::RemoveDocument { .. }
        | Command::RestoreDocument { .. }
        | Command::GetDocument { .. }
        | Command::ReadDocuments { .. }
        | Command::StopReadingDocuments { .. } => documents::run(app, command).await,
        Command::Stop { conversation_id } => {
            for running in app.answers.of(&conversation_id) {
                running.stop.cancel();
            }
            Ok(Reply::Done)
        }
        Command::GoOn { conversation_id } => {
            for running in app.answers.of(&conversation_id) {
                running.go_on();
            }
            Ok(Reply::Done)
        }
        Command::AnswerNow { conversation_id, message_id } => {
            let running = app.answers.get(&message_id);
            let is_of = |id: &str| id == conversation_id;
            if let Some(running) = running.filter(|one| is_of(&one.message().conversation_id)) {
                running.answer_now();
            }
            Ok(Reply::Done)
        }
        Command::Compare { .. }
        | Command::AskBoth { .. }
        | Command::StopAnswer { .. }
        | Command::GetVersions { .. }
        | Command::ChooseAnswer { .. } => compare::run(app, command).await,
        Command::ListModels => {
            Ok(Reply::Models { models: models::list::emit_if_changed(app).await })
        }
        Command::LoadModel { name } => {
            models::loading::load_named(app, &name).await?;
            Ok(Reply::Done)
        }
        Command::StopLoading => {
            app.engine.cancel_load();
            Ok(Reply::Done)
        }
        Command::UnloadModel => {
            models::loading::unload(app).await?;
            Ok(Reply::Done)
        }
        Command::GetModelMemory { .. }
        | Command::GetModelDeletion { .. }
        | Command::DeleteModel { .. }
        | Command::RestoreModel { .. }
        | Command::CheckModel { .. }
        | Command::AddModelFolder { .. }
        | Command::GetModelFolders
        | Command::RemoveModelFolder { .. }
        | Command::ChooseRounding { .. }
        | Command::CancelModelImport
        | Command::CancelModelMeasurement { .. }
        | Command::GetRecommendedModels
        | Command::SearchModels { .. }
        | Command::GetHubModel { .. }
        | Command::GetModelFacts { .. }
        | Command::DownloadModel { .. }
        | Command::PauseDownload { .. }
        | Command::CancelDownload { .. }
        | Command::RetryDownloads
        | Command::GetModelUpdates
        | Command::GetOldRevisions { .. }
        | Command::RemoveOldRevisions { .. }
        | Command::RestoreOldRevisions { .. }
        | Command::GetHubAccess
        | Command::SetHubToken { .. } => models::commands::run(app, command).await,
        Command::UseModelAnyway { .. } | Command::EndQuietStart => {
            crashes::commands::run(app, command).await
        }
        Command::GetApi | Command::MakeApiKey { .. } | Command::RevokeApiKey { .. } => {
            api::commands::run(app, command).await
        }
        Command::GetSettings { scope } => settings_commands::get(app, &scope).await,
        Command::SetSetting { scope, key, value } => {
            let reply = settings_commands::set(app, scope, &key, value).await?;
            if ["context_length", "at_overflow"].contains(&key.as_str()) {
                reading::again_where_too_long(app);
            }
            Ok(reply)
        }
        Command::SetParameters { conversation_id, values } => {
            settings_commands::set_parameters(app, &conversation_id, values).await
        }
        Command::CreatePreset { .. }
        | Command::RenamePreset { .. }
        | Command::DeletePreset { .. }
        | Command::RestorePreset { .. } => presets::run(app, command).await,
        Command::NewConversationAs { .. }
        | Command::CreatePersona { .. }
        | Command::ChangePersona { .. }
        | Command::DeletePersona { .. }
        | Command::RestorePersona { .. } => personas::run(app, command).await,
        Command::GetStatus => Ok(Reply::Status { status: status::now(app) }),
        Command::GetMonitorNow { after } => Ok(monitor::sampling::now(app, after)),
        Command::GetMonitorDay => monitor::day::day(app).await,
        Command::GetDiagnostics => Ok(Reply::Diagnostics { text: diagnostics::text(app).await }),
        Command::GetCache => Ok(Reply::Cache { cache: cache_commands::overview(app).await? }),
        Command::ClearCache => cache_commands::clear(app).await,
        Command::PinConversation { id, is_pinned } => {
            refuse_private(app, &id).await?;
            app.store.set_conversation_pinned(&id, is_pinned).await?;
            cache_commands::pin(app, &id, is_pinned).await
        }
        Command::PurgeConversation { id } => cache_commands::purge(app, &id).await,
        Command::SaveNamedCache { conversation_id, name } => {
            refuse_private(app, &conversation_id).await?;
            cache_commands::save(app, &conversation_id, &name).await
        }
        Command::RenameNamedCache { id, name } => cache_commands::rename(app, &id, &name).await,
        Command::DeleteNamedCache { id } => cache_commands::delete(app, &id).await,
        Command::RestoreNamedCache { id } => cache_commands::restore(app, &id).await,
        Command::NewConversationFrom { named_id } => {
            cache_commands::begin_from(app, &named_id).await
        }
        Command::ConfirmImport { token, name, check } => {
            imports::confirm(app, &token, &name, check).await
        }
        Command::CancelImport { token } => imports::cancel(app, &token),
        Command::SearchConversations { text } => Ok(Reply::FoundConversations {
            ids: app.store.search_conversations(text.trim()).await?,
        }),
        Command::SearchMessages { .. } | Command::ShowMessage { .. } => {
            finding::run(app, command).await
        }
        Command::NewConversationIn { .. }
        | Command::CreateFolder { .. }
        | Command::ChangeFolder { .. }
        | Command::DeleteFolder { .. }
        | Command::RestoreFolder { .. } => folders::run(app, command).await,
        Command::ListJobs
        | Command::PreviewJob { .. }
        | Command::CreateJob { .. }
        | Command::GetJobRows { .. }
        | Command::GetJobCharts { .. }
        | Command::CorrectJobRow { .. }
        | Command::CalibrateJob { .. }
        | Command::UncalibrateJob { .. }
        | Command::PauseJob { .. }
        | Command::ContinueJob { .. }
        | Command::RenameJob { .. }
        | Command::DeleteJob { .. }
        | Command::RestoreJob { .. }
        | Command::ExportJob { .. } => jobs::commands::run(app, command).await,
    }
}

async fn bootstrap(app: &Arc<App>) -> Result<Reply, Failure> {
    let (conversations, models, named) =
        (list::all(app).await?, models::list::all(app).await, cache_commands::named(app).await?);
    let [recovered, file] = [&app.recovery_notice, &app.file_notice]
        .map(|notice| notice.lock().unwrap_or_else(PoisonError::into_inner).take());
    for notice in [recovered, file, app.crashes.take_notice()].into_iter().flatten() {
        app.emit(notice);
    }
    let (settings, status) = (Box::new(app.settings()), status::now(app));
    let (downloads, model_import) = (app.downloads.list(), app.importing.progress());
    let folders = folders::list(app).await?;
    let (presets, personas) = (presets::list(app).await?, personas::list(app).await?);
    Ok(Reply::Bootstrap {
        conversations,
        folders,
        presets,
        personas,
        models,
        settings,
        status,
        named,
        downloads,
        model_import,
        interrupted: app.store.take_interrupted(),
    })
}

async fn rename(app: &App, id: &str, title: &str) -> Result<Reply, Failure> {
    let title = checked_title(title)?;
    app.store_of(id).await.rename_conversation(id, title).await?;
    listed::emit(app, id).await;
    Ok(Reply::Done)
}

async fn choose_model(app: &Arc<App>, id: &str, model: Option<&str>) -> Result<Reply, Failure> {
    let reply = model::choose(app, id, model).await?;
    // What another model reads of its documents is of no use to this one.
    reading::again(app, &DocumentsOf::conversation(id)).await;
    Ok(reply)
}

async fn set_system_prompt(
    app: &Arc<App>,
    id: &str,
    system_prompt: &str,
) -> Result<Reply, Failure> {
    // White space alone says nothing to a model, so it is no system prompt.
    let system_prompt = if system_prompt.trim().is_empty() { "" } else { system_prompt };
    let store = app.store_of(id).await;
    if store.conversation(id).await?.is_some_and(|row| row.prefix.is_some()) {
        return Err(Failure::invalid(
            "This conversation begins with a starting point, so it has no system prompt of its own.",
        )
        .of_kind(FailureKind::HasStartingPoint));
    }
    store.set_system_prompt(id, system_prompt).await?;
    reading::again(app, &DocumentsOf::conversation(id)).await;
    listed::emit(app, id).await;
    Ok(Reply::Done)
}
