//! The model of a chat: choosing it, and what it is by the rule of `models/of_chats.rs`.

use std::sync::Arc;

use cairn_engine::LoadedModelStatus;

use crate::app::App;
use crate::chat::listed;
use crate::models::loaded::{loaded_name, loaded_status};
use crate::models::of_chats::of;
use crate::models::{loading, locating};
use crate::wire::{Failure, Reply};

/// The name of the model that the next answer of a chat will be of; none where there is none.
pub(crate) async fn expected(
    app: &Arc<App>,
    conversation_id: &str,
) -> Result<Option<String>, Failure> {
    match of(app, conversation_id).await?.name {
        Some(name) => Ok(Some(name)),
        None => Ok(loading::expected_name(app).await),
    }
}

/// What the engine says of a chat's model, if that is in memory.
pub(crate) async fn in_memory(app: &App, conversation_id: &str) -> Option<LoadedModelStatus> {
    let name = name_or_loaded(app, conversation_id).await.ok()??;
    loaded_status(app, &name)
}

/// A chat's model, or the loaded one where it has none.
pub(crate) async fn name_or_loaded(
    app: &App,
    conversation_id: &str,
) -> Result<Option<String>, Failure> {
    let of_chat = of(app, conversation_id).await?.name;
    Ok(of_chat.or_else(|| loaded_name(app)))
}

/// Remembers which model answers a chat from now on; without one the rule holds again.
pub(crate) async fn choose(
    app: &Arc<App>,
    conversation_id: &str,
    model: Option<&str>,
) -> Result<Reply, Failure> {
    let model = match model {
        Some(name) => Some(locating::name_for_chat(app, name).await?),
        None => None,
    };
    let store = app.store_of(conversation_id).await;
    store.set_conversation_model(conversation_id, model.as_deref()).await?;
    listed::emit(app, conversation_id).await;
    Ok(Reply::Done)
}
