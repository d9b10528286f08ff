//! New conversations, and the system prompt with which they begin.

use std::sync::Arc;

use cairn_store::Store;

use crate::app::App;
use crate::chat::listed;
use crate::clock::now_ms;
use crate::models::{loading, names};
use crate::settings::Settings;
use crate::wire::{Event, Failure, Reply};

/// An empty conversation, with the system prompt that is set for the model that will answer it.
pub(crate) async fn create_conversation(
    app: &Arc<App>,
    store: &Store,
) -> Result<cairn_store::Conversation, Failure> {
    let system_prompt = expected_system_prompt(app, None).await;
    Ok(store.create_conversation_with(now_ms(), &system_prompt).await?)
}

/// The system prompt that is set for the model that will answer a new conversation: the one of its folder,
/// if that is here.
pub(crate) async fn expected_system_prompt(app: &Arc<App>, of_folder: Option<&str>) -> String {
    let model = match of_folder {
        Some(name) if names::has(app, name).await => Some(name.to_owned()),
        _ => loading::expected_name(app).await,
    };
    let Settings { system_prompt, .. } = match model {
        Some(name) => app.settings.of_model(&name),
        None => app.settings(),
    };
    if system_prompt.trim().is_empty() { String::new() } else { system_prompt }
}

/// Emits a conversation that was just created, and returns it as the reply.
pub(crate) async fn new_conversation(app: &App, row: cairn_store::Conversation) -> Reply {
    let conversation = listed::described(app, row).await;
    app.emit(Event::Conversation { conversation: conversation.clone() });
    Reply::Conversation { conversation, messages: Vec::new() }
}
