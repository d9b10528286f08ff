//! What stands around documents that are read before a question is there: the messages of their
//! conversation, or the beginning of any in their folder, and the model that reads them.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_store::{ContextCut, Folder, Message, NewDocument};

use crate::app::App;
use crate::chat::beginning::Beginning;
use crate::chat::creation::expected_system_prompt;
use crate::chat::model as chat_model;
use crate::models::loaded::{loaded_name, loaded_status};
use crate::models::{loading, locating};
use crate::settings::{Settings, commands as settings};
use crate::wire::Failure;

/// What is known before anything is read.
pub(super) struct Draft {
    pub(super) beginning: Beginning,
    pub(super) branch: Vec<Message>,
    pub(super) cuts: HashMap<String, ContextCut>,
    pub(super) sent: HashMap<String, Vec<NewDocument>>,
    pub(super) documents: Vec<(cairn_store::Document, String)>,
    pub(super) model: String,
    pub(super) settings: Settings,
    /// Whether what is read now could be continued.
    pub(super) is_ahead: bool,
}

/// The draft of a conversation.
pub(super) async fn of_conversation(
    app: &Arc<App>,
    id: &str,
    model: String,
) -> Result<Draft, Failure> {
    let store = app.store_of(id).await.clone();
    let row = store.listed_conversation(id).await?;
    let branch = store.branch(id).await?;
    Ok(Draft {
        beginning: Beginning::Own {
            system_prompt: row.system_prompt,
            documents: store.beginning_texts(id).await?,
        },
        cuts: store.context_cuts(id).await?,
        sent: store.document_texts_of(id).await?,
        documents: store.draft_texts(id).await?,
        settings: settings::for_answer(app, &store, id, Some(&model)).await?,
        is_ahead: row.prefix.is_none() && !app.is_private(id).await,
        branch,
        model,
    })
}

/// The draft of a conversation whose model is in memory, if its documents are read ahead; otherwise
/// none, so that nothing is counted for it.
pub(super) async fn of_model_in_memory(app: &Arc<App>, id: &str) -> Result<Option<Draft>, Failure> {
    let Some(model) = chat_model::in_memory(app, id).await else { return Ok(None) };
    Ok(Some(of_conversation(app, id, model.name).await?).filter(|draft| draft.is_ahead))
}

/// The documents of a folder as the first message of a conversation in it; none where the folder is gone.
/// `only_looks`: loads no model, and is none for one that is not in memory.
pub(super) async fn of_folder(
    app: &Arc<App>,
    id: &str,
    only_looks: bool,
) -> Result<Option<Draft>, Failure> {
    let folders = app.store.folders().await?;
    let Some(folder) = folders.into_iter().find(|folder| folder.id == id) else { return Ok(None) };
    let model = match only_looks {
        true => folder_model_in_memory(app, &folder).await,
        false => Some(load_folder_model(app, &folder).await?),
    };
    let Some(model) = model else { return Ok(None) };
    let system_prompt = match folder.system_prompt {
        prompt if prompt.is_empty() => expected_system_prompt(app, Some(&model)).await,
        prompt => prompt,
    };
    Ok(Some(Draft {
        beginning: Beginning::Own { system_prompt, documents: Vec::new() },
        branch: Vec::new(),
        cuts: HashMap::new(),
        sent: HashMap::new(),
        documents: app.store.folder_texts(id).await?,
        settings: settings::of_loaded(app, &model).await?,
        is_ahead: true,
        model,
    }))
}

/// The folder's own model, where it is on this machine.
async fn own_model(app: &App, folder: &Folder) -> Option<String> {
    let own = folder.model.clone()?;
    locating::require(app, &own).await.is_ok().then_some(own)
}

/// The folder's own model or else the one that answers, if it is in memory.
async fn folder_model_in_memory(app: &App, folder: &Folder) -> Option<String> {
    let model = own_model(app, folder).await.or_else(|| loaded_name(app));
    model.filter(|name| loaded_status(app, name).is_some())
}

/// Loads the folder's own model beside the one that answers, or that one.
async fn load_folder_model(app: &Arc<App>, folder: &Folder) -> Result<String, Failure> {
    match own_model(app, folder).await {
        Some(name) => loading::ensure_loaded_beside(app, &name).await,
        None => load_any(app).await,
    }
}

/// Loads the model that answers where none is named, and returns its name. In a task: loading continues
/// when reading is stopped, because the question needs the model too.
pub(super) async fn load_any(app: &Arc<App>) -> Result<String, Failure> {
    loading::require_any(app).await?;
    let loading = app.spawn(loading::ensure_loaded(app.clone(), None));
    loading.await.map_err(|fault| {
        Failure::fault(format!("A fault in Cairn stopped the model from being loaded: {fault}."))
    })??;
    loaded_name(app).ok_or_else(loading::no_model)
}
